"""Where quota comes from: ResourceFlavor, ClusterQueue, LocalQueue, Cohort, Topology.

LocalQueue ──▶ ClusterQueue ──▶ Cohort ──▶ Cohort ...        quota and borrowing
│
└──▶ ResourceFlavor ──▶ Topology         nodes that the quota stands for
"""

from typing import Annotated, Literal

from hub.kueue.api.core import LabelSelector, Taint, Toleration
from hub.kueue.api.decoding import Part, limits
from hub.kueue.api.meta import Condition, ObjectMeta
from hub.kueue.api.quantity import Quantity, Quota
from hub.kueue.api.v1beta2.fields import (
    AdmissionCheckName,
    Count,
    Int32,
    Int64,
    NodeLabel,
    Reference,
    StopPolicy,
    Time,
    atomic,
    atomic_map,
    keyed_by,
    unique,
)

# --- ResourceFlavor, Topology ------------------------------------------------------------------------------------------


class ResourceFlavorSpec(Part, frozen=True, kw_only=True):
    node_labels: Annotated[dict[str, str], atomic_map(maxProperties=8)] = {}
    #: A pod that goes to this flavor must tolerate these.
    node_taints: Annotated[list[Taint], atomic(maxItems=8)] = []
    #: Added to the pods that are admitted to this flavor.
    tolerations: Annotated[list[Toleration], atomic(maxItems=8)] = []
    topology_name: Reference | None = None


class ResourceFlavor(Part, frozen=True, kw_only=True):
    """A kind of machine: nodes with these labels."""

    metadata: ObjectMeta
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class Level(Part, frozen=True, kw_only=True):
    node_label: NodeLabel


class TopologySpec(Part, frozen=True, kw_only=True):
    levels: Annotated[list[Level], atomic(minItems=1, maxItems=16)]


class Topology(Part, frozen=True, kw_only=True):
    """Node labels from the widest domain to the narrowest, e.g. block, rack, host."""

    metadata: ObjectMeta
    spec: TopologySpec


# --- quotas ------------------------------------------------------------------------------------------------------------


class ResourceQuota(Part, frozen=True, kw_only=True):
    name: str
    nominal_quota: Quota
    #: Absent: as much as the cohort has.
    borrowing_limit: Quota | None = None
    #: Absent: lends all of it.
    lending_limit: Quota | None = None


class FlavorQuotas(Part, frozen=True, kw_only=True):
    name: Reference
    #: In the order of the group's coveredResources.
    resources: Annotated[list[ResourceQuota], keyed_by("name", minItems=1, maxItems=64)]


class ResourceGroup(Part, frozen=True, kw_only=True):
    """Resources that a pod set gets from one and the same flavor."""

    covered_resources: Annotated[list[str], atomic(minItems=1, maxItems=64)]
    flavors: Annotated[list[FlavorQuotas], keyed_by("name", minItems=1, maxItems=64)]


class FairSharing(Part, frozen=True, kw_only=True):
    weight: Quota = 1


class AdmissionFairSharingStatus(Part, frozen=True, kw_only=True):
    consumed_resources: dict[str, Quantity]
    last_update: Time


class FairSharingStatus(Part, frozen=True, kw_only=True):
    #: The largest int64 stands for infinity: weight 0, and borrowing.
    weighted_share: Int64


class LocalQueueFairSharingStatus(Part, frozen=True, kw_only=True):
    weighted_share: Int64
    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None


class ResourceUsage(Part, frozen=True, kw_only=True):
    name: str
    total: Quantity | None = None
    #: The part of total above the nominal quota.
    borrowed: Quantity | None = None


class FlavorUsage(Part, frozen=True, kw_only=True):
    name: Reference
    resources: Annotated[list[ResourceUsage], keyed_by("name", maxItems=64)]


# --- ClusterQueue ------------------------------------------------------------------------------------------------------

QueueingStrategy = Literal["StrictFIFO", "BestEffortFIFO"]
FungibilityPolicy = Literal["MayStopSearch", "TryNextFlavor"]
FungibilityPreference = Literal["BorrowingOverPreemption", "PreemptionOverBorrowing"]
WithinClusterQueue = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"]
ReclaimWithinCohort = Literal["Never", "LowerPriority", "Any"]
BorrowWithinCohortPolicy = Literal["Never", "LowerPriority"]
AdmissionMode = Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]
MigrationMode = Literal["TryPreferredFlavors", "RetainFirstAdmission"]


class FlavorFungibility(Part, frozen=True, kw_only=True):
    when_can_borrow: FungibilityPolicy = "MayStopSearch"
    when_can_preempt: FungibilityPolicy = "TryNextFlavor"
    #: Absent means BorrowingOverPreemption.
    preference: FungibilityPreference | None = None


class BorrowWithinCohort(Part, frozen=True, kw_only=True):
    policy: BorrowWithinCohortPolicy = "Never"
    #: Only workloads of at most this priority may be preempted by one that borrows.
    max_priority_threshold: Int32 | None = None


class ClusterQueuePreemption(Part, frozen=True, kw_only=True):
    within_cluster_queue: WithinClusterQueue = "Never"
    reclaim_within_cohort: ReclaimWithinCohort = "Never"
    borrow_within_cohort: Annotated[BorrowWithinCohort, limits(default={})] = BorrowWithinCohort()


class AdmissionCheckStrategyRule(Part, frozen=True, kw_only=True):
    name: AdmissionCheckName
    #: Empty: whatever flavor is chosen.
    on_flavors: Annotated[list[Reference], unique(maxItems=64)] = []


class AdmissionChecksStrategy(Part, frozen=True, kw_only=True):
    admission_checks: Annotated[list[AdmissionCheckStrategyRule], keyed_by("name", minItems=1, maxItems=64)]


class AdmissionScope(Part, frozen=True, kw_only=True):
    admission_mode: AdmissionMode


class MigrationConstraints(Part, frozen=True, kw_only=True):
    last_acceptable_flavor_name: Reference | None = None


class ConcurrentAdmissionMigration(Part, frozen=True, kw_only=True):
    mode: MigrationMode
    constraints: MigrationConstraints | None = None


class ConcurrentAdmissionPolicy(Part, frozen=True, kw_only=True):
    migration: ConcurrentAdmissionMigration


class ClusterQueueSpec(Part, frozen=True, kw_only=True):
    resource_groups: Annotated[list[ResourceGroup], atomic(maxItems=16)] = []
    cohort_name: Reference = ""
    queueing_strategy: QueueingStrategy = "BestEffortFIFO"
    #: Absent selects no namespace, empty selects all of them.
    namespace_selector: Annotated[LabelSelector, atomic_map()] | None = None
    flavor_fungibility: Annotated[FlavorFungibility, limits(default={})] = FlavorFungibility()
    preemption: Annotated[ClusterQueuePreemption, limits(default={})] = ClusterQueuePreemption()
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    stop_policy: StopPolicy = "None"
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: ConcurrentAdmissionPolicy | None = None


class ClusterQueueStatus(Part, frozen=True, kw_only=True):
    conditions: Annotated[list[Condition], keyed_by("type", maxItems=16)] = []
    #: Counts every workload with quota reserved.
    flavors_reservation: Annotated[list[FlavorUsage], keyed_by("name", maxItems=64)] = []
    #: Counts only admitted ones.
    flavors_usage: Annotated[list[FlavorUsage], keyed_by("name", maxItems=64)] = []
    # Counters are None as long as nobody has counted; a 0 is written.
    pending_workloads: Count | None = None
    reserving_workloads: Count | None = None
    admitted_workloads: Count | None = None
    fair_sharing: FairSharingStatus | None = None


class ClusterQueue(Part, frozen=True, kw_only=True):
    """Quota by flavor and resource, and who may use it before whom."""

    metadata: ObjectMeta
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ClusterQueueStatus = ClusterQueueStatus()


# --- LocalQueue, Cohort ------------------------------------------------------------------------------------------------


class LocalQueueSpec(Part, frozen=True, kw_only=True):
    cluster_queue: Reference
    stop_policy: StopPolicy = "None"
    fair_sharing: FairSharing | None = None


class LocalQueueStatus(Part, frozen=True, kw_only=True):
    conditions: Annotated[list[Condition], keyed_by("type", maxItems=16)] = []
    pending_workloads: Count | None = None
    reserving_workloads: Count | None = None
    admitted_workloads: Count | None = None
    flavors_reservation: Annotated[list[FlavorUsage], keyed_by("name", maxItems=64)] = []
    flavors_usage: Annotated[list[FlavorUsage], keyed_by("name", maxItems=64)] = []
    fair_sharing: LocalQueueFairSharingStatus | None = None


class LocalQueue(Part, frozen=True, kw_only=True):
    """A namespace's door to a ClusterQueue."""

    metadata: ObjectMeta
    spec: LocalQueueSpec
    status: LocalQueueStatus = LocalQueueStatus()


class CohortSpec(Part, frozen=True, kw_only=True):
    #: "" makes it a root; the parent need not exist as an object.
    parent_name: Reference = ""
    resource_groups: Annotated[list[ResourceGroup], atomic(maxItems=16)] = []
    fair_sharing: FairSharing | None = None


class CohortStatus(Part, frozen=True, kw_only=True):
    fair_sharing: FairSharingStatus | None = None


class Cohort(Part, frozen=True, kw_only=True):
    """ClusterQueues and cohorts that lend each other what they do not use."""

    metadata: ObjectMeta
    spec: CohortSpec = CohortSpec()
    status: CohortStatus = CohortStatus()
