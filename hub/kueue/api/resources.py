"""Every resource that a client of ours addresses. Nobody builds a Resource elsewhere for a kind that stands here."""

from hub.kueue.api.meta import Resource

KUEUE_GROUP = "kueue.x-k8s.io"
KUEUE_VERSION = "v1beta2"
KUEUE_API_VERSION = f"{KUEUE_GROUP}/{KUEUE_VERSION}"

# --- core and friends --------------------------------------------------------------------------------------------------

PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CORE_EVENTS = Resource("", "v1", "events", "Event")
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
POD_TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
JOBS = Resource("batch", "v1", "jobs", "Job")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
PROVISIONING_REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest")

# --- Kueue -------------------------------------------------------------------------------------------------------------


def _kueue(plural: str, kind: str, *, namespaced: bool = False) -> Resource:
    return Resource(KUEUE_GROUP, KUEUE_VERSION, plural, kind, namespaced)


WORKLOADS = _kueue("workloads", "Workload", namespaced=True)
LOCAL_QUEUES = _kueue("localqueues", "LocalQueue", namespaced=True)
CLUSTER_QUEUES = _kueue("clusterqueues", "ClusterQueue")
COHORTS = _kueue("cohorts", "Cohort")
RESOURCE_FLAVORS = _kueue("resourceflavors", "ResourceFlavor")
WORKLOAD_PRIORITY_CLASSES = _kueue("workloadpriorityclasses", "WorkloadPriorityClass")
ADMISSION_CHECKS = _kueue("admissionchecks", "AdmissionCheck")
TOPOLOGIES = _kueue("topologies", "Topology")
PROVISIONING_REQUEST_CONFIGS = _kueue("provisioningrequestconfigs", "ProvisioningRequestConfig")
MULTI_KUEUE_CONFIGS = _kueue("multikueueconfigs", "MultiKueueConfig")
MULTI_KUEUE_CLUSTERS = _kueue("multikueueclusters", "MultiKueueCluster")
