"""Every name that stands in an object: labels, annotations, gates, finalizers, conditions and their reasons.

Kueue's own come first, grouped as they are used; ours, with the prefix multikueue-hub.io/, come last.
"""

from hub.kueue.api.resources import KUEUE_GROUP

_KUEUE = f"{KUEUE_GROUP}/"

# --- labels and annotations of jobs, pods and Workloads -----------------------------------------------------------------

QUEUE_NAME = _KUEUE + "queue-name"
DEFAULT_LOCAL_QUEUE = "default"  # applied to jobs without the label, where a LocalQueue of this name exists
PRIORITY_CLASS = _KUEUE + "priority-class"
DEFAULT_PRIORITY_CLASS = "default"  # likewise, a WorkloadPriorityClass
JOB_UID = _KUEUE + "job-uid"
JOB_OWNER_GVK = _KUEUE + "job-owner-gvk"
JOB_OWNER_NAME = _KUEUE + "job-owner-name"
PREBUILT_WORKLOAD_NAME = _KUEUE + "prebuilt-workload-name"
MAX_EXEC_TIME_SECONDS = _KUEUE + "max-exec-time-seconds"
MANAGED = _KUEUE + "managed"  # label and finalizer of pods
MANAGED_BY_MULTIKUEUE = _KUEUE + "multikueue"  # also the check's controller and the preemption gate
POD_SET = _KUEUE + "podset"
WORKLOAD = _KUEUE + "workload"
CLUSTER_QUEUE_NAME = _KUEUE + "cluster-queue-name"
LOCAL_QUEUE_NAME = _KUEUE + "local-queue-name"
PRIORITY_BOOST = _KUEUE + "priority-boost"
ADMISSION_GATED_BY = _KUEUE + "admission-gated-by"
COMPONENT_WORKLOAD_INDEX = _KUEUE + "component-workload-index"
IS_GROUP_WORKLOAD = _KUEUE + "is-group-workload"
SAFE_TO_FORCEFULLY_DELETE = _KUEUE + "safe-to-forcefully-delete"

JOB_MIN_PARALLELISM = _KUEUE + "job-min-parallelism"
JOB_COMPLETIONS_EQUAL_PARALLELISM = _KUEUE + "job-completions-equal-parallelism"
JOB_STOPPING = _KUEUE + "stopping"

ELASTIC_JOB = _KUEUE + "elastic-job"  # annotation and scheduling gate
WORKLOAD_SLICE_NAME = _KUEUE + "workload-slice-name"
WORKLOAD_SLICE_REPLACEMENT_FOR = _KUEUE + "workload-slice-replacement-for"
RAY_CLUSTER_GENERATION = _KUEUE + "raycluster-generation"
RAY_CLUSTER_POD_SET_SIZES = _KUEUE + "raycluster-podset-replica-sizes"

POD_GROUP_NAME = _KUEUE + "pod-group-name"
POD_GROUP_TOTAL_COUNT = _KUEUE + "pod-group-total-count"
POD_GROUP_FAST_ADMISSION = _KUEUE + "pod-group-fast-admission"
POD_GROUP_SERVING = _KUEUE + "pod-group-serving"
POD_GROUP_POD_INDEX = _KUEUE + "pod-group-pod-index"
POD_GROUP_POD_INDEX_LABEL = _KUEUE + "pod-group-pod-index-label"
RETRIABLE_IN_GROUP = _KUEUE + "retriable-in-group"
ROLE_HASH = _KUEUE + "role-hash"
POD_SUSPENDING_PARENT = _KUEUE + "pod-suspending-parent"

# Topology requests, on pod templates.
REQUIRED_TOPOLOGY = _KUEUE + "podset-required-topology"
PREFERRED_TOPOLOGY = _KUEUE + "podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY = _KUEUE + "podset-unconstrained-topology"
SLICE_REQUIRED_TOPOLOGY = _KUEUE + "podset-slice-required-topology"
SLICE_SIZE = _KUEUE + "podset-slice-size"
SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS = _KUEUE + "podset-slice-required-topology-constraints"
POD_SET_GROUP_NAME = _KUEUE + "podset-group-name"
POD_INDEX_OFFSET = _KUEUE + "pod-index-offset"
HOSTNAME_LABEL = "kubernetes.io/hostname"

# Concurrent admission.
CONCURRENT_ADMISSION = _KUEUE + "concurrent-admission"
CONCURRENT_ADMISSION_PARENT = _KUEUE + "concurrent-admission-parent"
ALLOWED_RESOURCE_FLAVORS = _KUEUE + "workload-allowed-resource-flavors"

# MultiKueue, on remote objects.
MULTIKUEUE_ORIGIN = _KUEUE + "multikueue-origin"
MULTIKUEUE_ORIGIN_UID = _KUEUE + "multikueue-origin-uid"
MULTIKUEUE_WORKER_WORKLOAD_POD = _KUEUE + "multikueue-worker-workload-pod"
DEFAULT_ORIGIN = "multikueue"

# ProvisioningRequest.
PROVISIONING_PARAMETER_PREFIX = "provreq.kueue.x-k8s.io/"
CONSUME_PROVISIONING_REQUEST = "autoscaling.x-k8s.io/consume-provisioning-request"
PROVISIONING_CLASS_NAME = "autoscaling.x-k8s.io/provisioning-class-name"

# --- gates, finalizers, controllers ------------------------------------------------------------------------------------

SCHEDULING_GATE_ADMISSION = _KUEUE + "admission"
SCHEDULING_GATE_TOPOLOGY = _KUEUE + "topology"
SCHEDULING_GATE_ELASTIC = ELASTIC_JOB

PREEMPTION_GATE_MULTIKUEUE = MANAGED_BY_MULTIKUEUE
PREEMPTION_GATE_CONCURRENT_ADMISSION = CONCURRENT_ADMISSION

RESOURCE_IN_USE = _KUEUE + "resource-in-use"  # finalizer

CONTROLLER_MULTIKUEUE = MANAGED_BY_MULTIKUEUE
CONTROLLER_PROVISIONING_REQUEST = _KUEUE + "provisioning-request"

WORKLOAD_PRIORITY_CLASS_REF = (KUEUE_GROUP, "WorkloadPriorityClass")
POD_PRIORITY_CLASS_REF = ("scheduling.k8s.io", "PriorityClass")

# --- condition types ---------------------------------------------------------------------------------------------------

ACTIVE = "Active"
QUOTA_RESERVED = "QuotaReserved"
ADMITTED = "Admitted"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
REQUEUED = "Requeued"
PODS_READY = "PodsReady"
DEACTIVATION_TARGET = "DeactivationTarget"
FINISHED = "Finished"
BLOCKED_ON_PREEMPTION_GATES = "BlockedOnPreemptionGates"
WAITING_FOR_REPLACEMENT_PODS = "WaitingForReplacementPods"
MANAGER_QUOTA_AUTOMATION = "MultiKueueManagerQuotaAutomation"


class QuotaReservedReason:
    """Of QuotaReserved. True: QUOTA_RESERVED. False: the others, from the gravest to the mildest."""

    QUOTA_RESERVED = "QuotaReserved"
    DEACTIVATED = "Deactivated"
    ON_HOLD = "OnHold"
    MISCONFIGURED = "Misconfigured"
    NO_MATCHING_FLAVOR = "NoMatchingFlavor"
    SUSPENDED = "Suspended"
    ADMISSION_GATED = "AdmissionGated"
    WAITING_FOR_PODS_READY = "WaitingForPodsReady"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
    WAITING_FOR_PREEMPTED_WORKLOADS = "WaitingForPreemptedWorkloads"
    PENDING_EVALUATION = "PendingEvaluation"
    # Of Kueue before it told them apart.
    PENDING = "Pending"
    INADMISSIBLE = "Inadmissible"
    WAITING = "Waiting"


class AdmittedReason:
    ADMITTED = "Admitted"
    NO_RESERVATION = "NoReservation"
    UNSATISFIED_ADMISSION_CHECKS = "UnsatisfiedAdmissionChecks"
    PENDING_DELAYED_TOPOLOGY_REQUESTS = "PendingDelayedTopologyRequests"
    # Of Kueue before it told them apart.
    UNSATISFIED_CHECKS = "UnsatisfiedChecks"
    NO_RESERVATION_UNSATISFIED_CHECKS = "NoReservationUnsatisfiedChecks"


class EvictedReason:
    """Of Evicted=True; Requeued=False carries the same. Evicted=False has QuotaReservedReason.QUOTA_RESERVED."""

    PREEMPTED = "Preempted"
    PODS_READY_TIMEOUT = "PodsReadyTimeout"
    ADMISSION_CHECK = "AdmissionCheck"
    CLUSTER_QUEUE_STOPPED = "ClusterQueueStopped"
    LOCAL_QUEUE_STOPPED = "LocalQueueStopped"
    NODE_FAILURES = "NodeFailures"
    FLAVOR_MIGRATION = "FlavorMigration"
    EVICTED_ON_MANAGER_CLUSTER = "EvictedOnManagerCluster"
    VARIANT_EVICTED = "VariantEvicted"
    CONCURRENT_ADMISSION = "ConcurrentAdmission"
    DEACTIVATED = "Deactivated"


#: Evicted reasons of a workload that was switched off for a cause: DeactivatedDueTo + one of DeactivationCause.
DEACTIVATED_DUE_TO = "DeactivatedDueTo"


class DeactivationCause:
    """Reasons of DeactivationTarget."""

    REQUEUING_LIMIT_EXCEEDED = "RequeuingLimitExceeded"
    MAXIMUM_EXECUTION_TIME_EXCEEDED = "MaximumExecutionTimeExceeded"
    ADMISSION_CHECK = "AdmissionCheck"
    EVICTED_ON_MANAGER_CLUSTER = "EvictedOnManagerCluster"


class PreemptedReason:
    IN_CLUSTER_QUEUE = "InClusterQueue"
    IN_COHORT_RECLAMATION = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"


class RequeuedReason:
    """Of Requeued=True."""

    PREEMPTED = "Preempted"
    NODE_FAILURES = "NodeFailures"
    REACTIVATED = "Reactivated"
    BACKOFF_FINISHED = "BackoffFinished"
    CLUSTER_QUEUE_RESTARTED = "ClusterQueueRestarted"
    LOCAL_QUEUE_RESTARTED = "LocalQueueRestarted"
    # Of Requeued=False, besides the reasons of an eviction.
    INADMISSIBLE = "Inadmissible"


class PodsReadyReason:
    STARTED = "Started"
    RECOVERED = "Recovered"
    WAIT_FOR_START = "WaitForStart"
    WAIT_FOR_RECOVERY = "WaitForRecovery"


class FinishedReason:
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    OUT_OF_SYNC = "OutOfSync"
    OWNER_NOT_FOUND = "OwnerNotFound"
    FAILED_TO_START = "FailedToStart"
    WORKLOAD_SLICE_REPLACED = "WorkloadSliceReplaced"


PREEMPTION_GATED = "PreemptionGated"  # of BlockedOnPreemptionGates=True


class ClusterQueueActiveReason:
    """Of Active. False: the first one that applies, in this order."""

    READY = "Ready"
    TERMINATING = "Terminating"
    STOPPED = "Stopped"
    FLAVOR_NOT_FOUND = "FlavorNotFound"
    ADMISSION_CHECK_NOT_FOUND = "AdmissionCheckNotFound"
    ADMISSION_CHECK_INACTIVE = "AdmissionCheckInactive"
    MULTIPLE_MULTIKUEUE_ADMISSION_CHECKS = "MultipleMultiKueueAdmissionChecks"
    MULTIKUEUE_ADMISSION_CHECK_APPLIED_PER_FLAVOR = "MultiKueueAdmissionCheckAppliedPerFlavor"
    MULTIKUEUE_WITH_PROVISIONING_REQUEST = "MultiKueueWithProvisioningRequest"
    TOPOLOGY_NOT_FOUND = "TopologyNotFound"
    UNKNOWN = "Unknown"


class LocalQueueActiveReason:
    READY = "Ready"
    STOPPED = "Stopped"
    CLUSTER_QUEUE_DOES_NOT_EXIST = "ClusterQueueDoesNotExist"
    CLUSTER_QUEUE_IS_INACTIVE = "ClusterQueueIsInactive"


class AdmissionCheckActiveReason:
    ACTIVE = "Active"
    SOME_ACTIVE_CLUSTERS = "SomeActiveClusters"
    NO_USABLE_CLUSTERS = "NoUsableClusters"
    BAD_CONFIG = "BadConfig"


class ManagerQuotaReason:
    """Of MultiKueueManagerQuotaAutomation."""

    QUOTA_AUTOMATED = "QuotaAutomated"
    NOT_REQUESTED = "NotRequested"
    UNSUPPORTED_CONFIGURATION = "UnsupportedConfiguration"


# --- ours --------------------------------------------------------------------------------------------------------------

_OURS = "multikueue-hub.io/"
FIELD_MANAGER = "multikueue-hub"

# Annotations of the Workload and the job on a worker.
PLACEMENT = _OURS + "placement"  # label of pods, and the finalizer of the job, so that its end cannot be missed
GENERATION = _OURS + "generation"
ORIGIN_UID = _OURS + "origin-uid"
LOST_POLICY = _OURS + "lost-policy"  # also on ClusterQueues and Workloads of the management cluster
ATTEMPT = _OURS + "attempt"
PREVIOUS_CLUSTER = _OURS + "previous-cluster"
CHECKPOINT = _OURS + "checkpoint"

# Annotation of jobs and Workloads of the management cluster: clusters that it may go to, separated by commas.
CLUSTERS = _OURS + "clusters"
# Annotation of Workloads of the management cluster: what the hub wrote into ALLOWED_RESOURCE_FLAVORS.
POSSIBLE_FLAVORS = _OURS + "possible-flavors"
