"""AdmissionCheck, and the parameters of the built-in ones: MultiKueue and ProvisioningRequest."""

from typing import Annotated, Literal

from hub.kueue.api.decoding import Part, limits
from hub.kueue.api.meta import Condition, ObjectMeta
from hub.kueue.api.v1beta2.fields import (
    DNS_LABEL,
    QUALIFIED_NAME_PATTERN,
    SUBDOMAIN_PATTERN,
    Count,
    WorkerName,
    atomic,
    keyed_by,
    unique,
)


class AdmissionCheckParametersReference(Part, frozen=True, kw_only=True):
    api_group: Annotated[str, limits(minLength=1, maxLength=253, pattern=SUBDOMAIN_PATTERN)]
    kind: Annotated[str, limits(minLength=1, maxLength=63, pattern=r"^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$")]
    name: Annotated[str, limits(minLength=1, maxLength=63, pattern=rf"^{DNS_LABEL}$")]


class AdmissionCheckSpec(Part, frozen=True, kw_only=True):
    controller_name: Annotated[str, limits(minLength=1, maxLength=253)]
    parameters: AdmissionCheckParametersReference | None = None


class AdmissionCheckStatus(Part, frozen=True, kw_only=True):
    conditions: Annotated[list[Condition], keyed_by("type", maxItems=16)] = []


class AdmissionCheck(Part, frozen=True, kw_only=True):
    """Somebody else's word that is needed between quota and start."""

    metadata: ObjectMeta
    spec: AdmissionCheckSpec
    status: AdmissionCheckStatus = AdmissionCheckStatus()


# --- MultiKueue --------------------------------------------------------------------------------------------------------


class MultiKueueConfigSpec(Part, frozen=True, kw_only=True):
    #: Names of MultiKueueClusters; the order counts.
    clusters: Annotated[list[WorkerName], atomic(minItems=1, maxItems=20)]
    quota_management: Literal["Manual", "Automated"] | None = None


class MultiKueueConfig(Part, frozen=True, kw_only=True):
    """Worker clusters that a check may send workloads to."""

    metadata: ObjectMeta
    spec: MultiKueueConfigSpec


class KubeConfig(Part, frozen=True, kw_only=True):
    #: Name of a Secret, or a path.
    location: Annotated[str, limits(minLength=1, maxLength=256)]
    location_type: Literal["Secret", "Path"] = "Secret"


class ClusterProfileReference(Part, frozen=True, kw_only=True):
    name: Annotated[str, limits(minLength=1, maxLength=256)]


class ClusterSource(Part, frozen=True, kw_only=True):
    """Exactly one of the two is set."""

    kube_config: KubeConfig | None = None
    cluster_profile_ref: ClusterProfileReference | None = None


class MultiKueueClusterSpec(Part, frozen=True, kw_only=True):
    cluster_source: ClusterSource


class MultiKueueClusterStatus(Part, frozen=True, kw_only=True):
    conditions: Annotated[list[Condition], keyed_by("type", maxItems=16)] = []


class MultiKueueCluster(Part, frozen=True, kw_only=True):
    """How one worker cluster is reached."""

    metadata: ObjectMeta
    spec: MultiKueueClusterSpec
    status: MultiKueueClusterStatus = MultiKueueClusterStatus()


# --- ProvisioningRequest -----------------------------------------------------------------------------------------------


class ProvisioningRequestRetryStrategy(Part, frozen=True, kw_only=True):
    backoff_limit_count: Count = 3
    backoff_base_seconds: Count = 60
    backoff_max_seconds: Count = 1800


class PodSetUpdatesNodeSelector(Part, frozen=True, kw_only=True):
    key: Annotated[str, limits(minLength=1, maxLength=317, pattern=QUALIFIED_NAME_PATTERN)]
    value_from_provisioning_class_detail: Annotated[str, limits(minLength=1, maxLength=32_768)]


class ProvisioningRequestPodSetUpdates(Part, frozen=True, kw_only=True):
    node_selector: Annotated[list[PodSetUpdatesNodeSelector], keyed_by("key", maxItems=8)] = []


class ProvisioningRequestConfigSpec(Part, frozen=True, kw_only=True):
    provisioning_class_name: Annotated[
        str,
        limits(minLength=1, maxLength=253, pattern=SUBDOMAIN_PATTERN),
    ]
    parameters: Annotated[dict[str, Annotated[str, limits(maxLength=255)]], limits(maxProperties=100)] = {}
    #: Only workloads that ask for one of these need the request. Empty: all of them do.
    managed_resources: Annotated[list[str], unique(maxItems=100)] = []
    retry_strategy: Annotated[ProvisioningRequestRetryStrategy, limits(default={})] = ProvisioningRequestRetryStrategy()
    pod_set_updates: ProvisioningRequestPodSetUpdates | None = None
    pod_set_merge_policy: Literal["IdenticalPodTemplates", "IdenticalWorkloadSchedulingRequirements"] | None = None


class ProvisioningRequestConfig(Part, frozen=True, kw_only=True):
    """How an autoscaler is asked for room."""

    metadata: ObjectMeta
    spec: ProvisioningRequestConfigSpec
