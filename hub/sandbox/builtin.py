"""The resources that every cluster serves from the start, as one literal table.

Names, short names, categories and subresources are those of Kubernetes 1.35; what no batch cluster of ours uses is left out.
"""

from collections.abc import Mapping

from hub.kueue.api.meta import Resource
from hub.sandbox.events import events_from_core, events_to_core
from hub.sandbox.rules import RULES
from hub.sandbox.served import ALL_VERBS, BASE_FIELDS, REVIEW_VERBS, Column, Rules, Scale, Served
from hub.sandbox.shapes import builtin_shape
from hub.sandbox.tables import COLUMNS, DEFAULT_COLUMNS

STATUS = ("status",)
SCALED = ("scale", "status")

#: (subresource) -> group, version, kind and verbs of what it takes. "" stands for the parent's own.
SUBRESOURCES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "status": ("", "", "", ("get", "patch", "update")),
    "scale": ("autoscaling", "v1", "Scale", ("get", "patch", "update")),
    "log": ("", "", "", ("get",)),
    "binding": ("", "v1", "Binding", ("create",)),
    "eviction": ("policy", "v1", "Eviction", ("create",)),
    "finalize": ("", "", "", ("update",)),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ("create",)),
}

#: Field selectors beyond metadata.name and metadata.namespace, by collection.
FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "jobs.batch": ("status.successful",),
    "replicasets.apps": ("status.replicas",),
}

#: Field selectors whose name is not the path.
FIELD_PATHS: dict[str, tuple[str, ...]] = {
    "status.successful": ("status", "succeeded"),
    "source": ("source", "component"),
}


def field_paths(collection: str) -> Mapping[str, tuple[str, ...]]:
    own = {name: FIELD_PATHS.get(name, tuple(name.split("."))) for name in FIELDS.get(collection, ())}
    return BASE_FIELDS | own


def _served(
    group: str,
    version: str,
    plural: str,
    kind: str,
    short: str = "",
    *,
    cluster: bool = False,
    sub: tuple[str, ...] = (),
    categories: tuple[str, ...] = (),
    verbs: tuple[str, ...] = ALL_VERBS,
    generation: bool = False,
    scale: Scale | None = None,
    unconditional: bool = True,
    returns_deleted: bool = False,
) -> Served:
    collection = f"{plural}.{group}" if group else plural
    columns: tuple[Column, ...] = COLUMNS.get(collection, DEFAULT_COLUMNS)
    return Served(
        resource=Resource(group=group, version=version, plural=plural, kind=kind, namespaced=not cluster),
        api_version=f"{group}/{version}" if group else version,
        singular=kind.lower(),
        short_names=tuple(short.split()),
        categories=categories,
        verbs=verbs,
        subresources=frozenset(sub),
        generation=generation,
        unconditional_update=unconditional,
        collection=collection,
        fields=field_paths(collection),
        columns=columns,
        scale=scale,
        rules=RULES.get(collection, Rules()),
        returns_deleted=returns_deleted,
        storage_api_version=f"{group}/{version}" if group else version,
        shape=builtin_shape(kind),
        list_kind=f"{kind}List",
    )


def _review(group: str, plural: str, kind: str, *, cluster: bool = True) -> Served:
    return _served(group, "v1", plural, kind, cluster=cluster, verbs=REVIEW_VERBS)


def _new_events() -> Served:
    """events.k8s.io/v1 shows the objects of core/v1 events under other field names."""
    core = _served("", "v1", "events", "Event", "ev")
    return Served(
        resource=Resource(group="events.k8s.io", version="v1", plural="events", kind="Event"),
        api_version="events.k8s.io/v1",
        singular="event",
        short_names=("ev",),
        collection="events",
        fields=BASE_FIELDS,
        columns=core.columns,
        rules=core.rules,
        from_storage=events_from_core,
        to_storage=events_to_core,
        shape=core.shape,
        storage_api_version="v1",
        list_kind="EventList",
    )


ALL = ("all",)
API = ("api-extensions",)
WORKLOAD_SCALE = Scale(selector="status.selector")

BUILTIN: tuple[Served, ...] = (
    _served("", "v1", "configmaps", "ConfigMap", "cm"),
    _served("", "v1", "endpoints", "Endpoints", "ep"),
    _served("", "v1", "events", "Event", "ev"),
    _served("", "v1", "limitranges", "LimitRange", "limits"),
    _served("", "v1", "namespaces", "Namespace", "ns", cluster=True, sub=("finalize", "status")),
    _served("", "v1", "nodes", "Node", "no", cluster=True, sub=STATUS),
    _served("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", "pvc", sub=STATUS, returns_deleted=True),
    _served("", "v1", "persistentvolumes", "PersistentVolume", "pv", cluster=True, sub=STATUS, returns_deleted=True),
    _served(
        "",
        "v1",
        "pods",
        "Pod",
        "po",
        sub=("binding", "eviction", "log", "status"),
        categories=ALL,
        generation=True,
        returns_deleted=True,
    ),
    _served("", "v1", "podtemplates", "PodTemplate", generation=True),
    _served(
        "",
        "v1",
        "replicationcontrollers",
        "ReplicationController",
        "rc",
        sub=SCALED,
        categories=ALL,
        generation=True,
        scale=Scale(),
    ),
    _served("", "v1", "resourcequotas", "ResourceQuota", "quota", sub=STATUS, returns_deleted=True),
    _served("", "v1", "secrets", "Secret"),
    _served("", "v1", "serviceaccounts", "ServiceAccount", "sa", sub=("token",), returns_deleted=True),
    _served("", "v1", "services", "Service", "svc", sub=STATUS, categories=ALL, returns_deleted=True),
    _served(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        cluster=True,
        categories=API,
        generation=True,
    ),
    _served(
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        cluster=True,
        categories=API,
        generation=True,
    ),
    _served(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "crd crds",
        cluster=True,
        sub=STATUS,
        categories=API,
        generation=True,
        unconditional=False,
    ),
    _served("apps", "v1", "controllerrevisions", "ControllerRevision"),
    _served("apps", "v1", "daemonsets", "DaemonSet", "ds", sub=STATUS, categories=ALL, generation=True),
    _served(
        "apps", "v1", "deployments", "Deployment", "deploy", sub=SCALED, categories=ALL, generation=True, scale=Scale()
    ),
    _served(
        "apps", "v1", "replicasets", "ReplicaSet", "rs", sub=SCALED, categories=ALL, generation=True, scale=Scale()
    ),
    _served(
        "apps", "v1", "statefulsets", "StatefulSet", "sts", sub=SCALED, categories=ALL, generation=True, scale=Scale()
    ),
    _review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    _review("authentication.k8s.io", "tokenreviews", "TokenReview"),
    _review("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview", cluster=False),
    _review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    _review("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview"),
    _served(
        "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa", sub=STATUS, categories=ALL
    ),
    _served("batch", "v1", "cronjobs", "CronJob", "cj", sub=STATUS, categories=ALL, generation=True),
    _served("batch", "v1", "jobs", "Job", sub=STATUS, categories=ALL, generation=True),
    _served("coordination.k8s.io", "v1", "leases", "Lease", unconditional=False),
    _served("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", generation=True),
    _new_events(),
    _served("networking.k8s.io", "v1", "ingresses", "Ingress", "ing", sub=STATUS, generation=True),
    _served("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", "netpol", generation=True),
    _served("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", cluster=True),
    _served("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", sub=STATUS, generation=True),
    _served("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", cluster=True),
    _served("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", cluster=True),
    _served("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    _served("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    _served("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", "pc", cluster=True, generation=True),
    _served("storage.k8s.io", "v1", "storageclasses", "StorageClass", "sc", cluster=True),
)
