"""Workload: what wants to run, and what has been decided about it. And the priority that it may name."""

from typing import Annotated, Literal

from hub.kueue.api.core import RawPodTemplate, Toleration
from hub.kueue.api.decoding import Part, limits
from hub.kueue.api.meta import Condition, ObjectMeta
from hub.kueue.api.quantity import Quantity
from hub.kueue.api.v1beta2.fields import (
    SUBDOMAIN_PATTERN,
    AdmissionCheckName,
    Count,
    Int32,
    PodSetName,
    PositiveCount,
    Reference,
    Time,
    TopologyLevel,
    WorkerName,
    atomic,
    keyed_by,
)

PODSETS_MAX = 18
GATES_MAX = 8

# --- spec --------------------------------------------------------------------------------------------------------------


class PodsetSliceRequiredTopologyConstraint(Part, frozen=True, kw_only=True):
    topology: Annotated[str, limits(minLength=1, maxLength=63)]
    size: PositiveCount


class PodSetTopologyRequest(Part, frozen=True, kw_only=True):
    """Where the pods must be together. At most one of required, preferred and unconstrained is set."""

    required: TopologyLevel | None = None
    preferred: TopologyLevel | None = None
    unconstrained: bool | None = None
    pod_index_label: Annotated[str, limits(maxLength=317)] | None = None
    sub_group_index_label: Annotated[str, limits(maxLength=317)] | None = None
    sub_group_count: Count | None = None
    pod_set_group_name: Annotated[str, limits(maxLength=256)] | None = None
    pod_set_slice_required_topology: TopologyLevel | None = None
    pod_set_slice_size: PositiveCount | None = None
    podset_slice_required_topology_constraints: Annotated[
        list[PodsetSliceRequiredTopologyConstraint], atomic(maxItems=3)
    ] = []


class PodSet(Part, frozen=True, kw_only=True):
    """Pods that are alike."""

    # core.pod_template(pod_set.template) reads the template.

    name: PodSetName = "main"
    template: RawPodTemplate
    count: Count = 1
    #: Fewer than count, but not less than this, may be admitted.
    min_count: PositiveCount | None = None
    topology_request: PodSetTopologyRequest | None = None


class PriorityClassRef(Part, frozen=True, kw_only=True):
    group: Literal["kueue.x-k8s.io", "scheduling.k8s.io"]
    kind: Literal["WorkloadPriorityClass", "PriorityClass"]
    name: Annotated[str, limits(minLength=1, maxLength=253, pattern=SUBDOMAIN_PATTERN)]


class PreemptionGate(Part, frozen=True, kw_only=True):
    name: Annotated[str, limits(minLength=1, maxLength=63)]


class WorkloadSpec(Part, frozen=True, kw_only=True):
    pod_sets: Annotated[list[PodSet], keyed_by("name", minItems=1, maxItems=PODSETS_MAX)] = []
    #: Name of a LocalQueue of the same namespace.
    queue_name: Reference = ""
    priority_class_ref: PriorityClassRef | None = None
    priority: Int32 | None = None
    #: False: evict it and keep it out of the queue.
    active: bool = True
    maximum_execution_time_seconds: PositiveCount | None = None
    preemption_gates: Annotated[list[PreemptionGate], keyed_by("name", maxItems=GATES_MAX)] = []


# --- admission ---------------------------------------------------------------------------------------------------------


class TopologySliceIndividual(Part, frozen=True, kw_only=True):
    """Values that start and end alike: prefix + root + suffix, one root for each domain."""

    prefix: Annotated[str, limits(maxLength=63)] | None = None
    suffix: Annotated[str, limits(maxLength=63)] | None = None
    roots: Annotated[list[Annotated[str, limits(maxLength=63)]], atomic(minItems=1, maxItems=100_000)]


class TopologySliceLevelValues(Part, frozen=True, kw_only=True):
    """Values of one level: the same for every domain of the slice, or one for each."""

    universal: Annotated[str, limits(maxLength=63)] | None = None
    individual: TopologySliceIndividual | None = None


class TopologySlicePodCounts(Part, frozen=True, kw_only=True):
    universal: PositiveCount | None = None
    individual: Annotated[list[PositiveCount], atomic(minItems=1, maxItems=100_000)] | None = None


class TopologyAssignmentSlice(Part, frozen=True, kw_only=True):
    domain_count: PositiveCount
    values_per_level: Annotated[list[TopologySliceLevelValues], atomic(minItems=1, maxItems=16)]
    pod_counts: TopologySlicePodCounts


class TopologyAssignment(Part, frozen=True, kw_only=True):
    """Which topology domains the pods go to; only the host level when that is the lowest one."""

    levels: Annotated[list[Annotated[str, limits(maxLength=317)]], atomic(minItems=1, maxItems=16)]
    slices: Annotated[list[TopologyAssignmentSlice], atomic(maxItems=1000)]


class PodSetAssignment(Part, frozen=True, kw_only=True):
    name: PodSetName = "main"
    #: resource -> flavor.
    flavors: dict[str, Reference] = {}
    #: Of the whole pod set, all pods together.
    resource_usage: dict[str, Quantity] = {}
    count: Count | None = None
    topology_assignment: TopologyAssignment | None = None
    delayed_topology_request: Literal["Pending", "Ready"] | None = None


class Admission(Part, frozen=True, kw_only=True):
    cluster_queue: Reference
    pod_set_assignments: Annotated[list[PodSetAssignment], keyed_by("name", maxItems=PODSETS_MAX)] = []


# --- status ------------------------------------------------------------------------------------------------------------

CheckState = Literal["Pending", "Ready", "Retry", "Rejected"]


class PodSetUpdate(Part, frozen=True, kw_only=True):
    """What a check wants changed in the pods of a pod set before they start."""

    name: PodSetName
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: Annotated[list[Toleration], atomic(maxItems=8)] = []


class AdmissionCheckState(Part, frozen=True, kw_only=True):
    name: AdmissionCheckName
    state: CheckState
    last_transition_time: Time
    message: Annotated[str, limits(maxLength=32_768)]
    #: After Retry: come back no sooner than this.
    requeue_after_seconds: Count | None = None
    retry_count: Count | None = None
    pod_set_updates: Annotated[list[PodSetUpdate], atomic(maxItems=PODSETS_MAX)] = []


class RequeueState(Part, frozen=True, kw_only=True):
    count: Count | None = None
    requeue_at: Time | None = None


class ReclaimablePod(Part, frozen=True, kw_only=True):
    """So many pods of the pod set are done and their share of the quota is free again."""

    name: PodSetName
    count: Count


class PodSetRequest(Part, frozen=True, kw_only=True):
    """What the scheduler thinks a pending pod set needs, all pods together."""

    name: PodSetName
    resources: dict[str, Quantity] = {}


class EvictionCount(Part, frozen=True, kw_only=True):
    reason: Annotated[str, limits(maxLength=316)]
    underlying_cause: Annotated[str, limits(maxLength=316)]
    count: Count


class SchedulingStats(Part, frozen=True, kw_only=True):
    evictions: Annotated[list[EvictionCount], keyed_by("reason", "underlyingCause", maxItems=256)] = []


class UnhealthyNode(Part, frozen=True, kw_only=True):
    name: Annotated[str, limits(maxLength=253)]


class PreemptionGateState(Part, frozen=True, kw_only=True):
    """A gate of the spec without a state here is closed."""

    name: Annotated[str, limits(minLength=1, maxLength=63)]
    position: Literal["Open", "Closed"]
    last_transition_time: Time


class WorkloadStatus(Part, frozen=True, kw_only=True):
    conditions: Annotated[list[Condition], keyed_by("type", maxItems=16)] = []
    admission: Admission | None = None
    requeue_state: RequeueState | None = None
    reclaimable_pods: Annotated[list[ReclaimablePod], keyed_by("name", maxItems=PODSETS_MAX)] = []
    admission_checks: Annotated[list[AdmissionCheckState], keyed_by("name", maxItems=16)] = []
    resource_requests: Annotated[list[PodSetRequest], keyed_by("name", maxItems=PODSETS_MAX)] = []
    accumulated_past_execution_time_seconds: Count | None = None
    scheduling_stats: SchedulingStats | None = None
    #: MultiKueue: clusters that may try it; empty once clusterName says which one does.
    nominated_cluster_names: Annotated[list[WorkerName], atomic(maxItems=20)] = []
    cluster_name: WorkerName | None = None
    unhealthy_nodes: Annotated[list[UnhealthyNode], keyed_by("name", maxItems=8)] = []
    preemption_gates: Annotated[list[PreemptionGateState], keyed_by("name", maxItems=GATES_MAX)] = []


class Workload(Part, frozen=True, kw_only=True):
    """One job, or one unit of one, that is admitted as a whole."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class WorkloadPriorityClass(Part, frozen=True, kw_only=True):
    """A priority for queues only: it does not reach the pods."""

    metadata: ObjectMeta
    value: Int32
    description: Annotated[str, limits(maxLength=2048)] = ""
