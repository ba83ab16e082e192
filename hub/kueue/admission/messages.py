"""What goes into the admission engine and what comes out: events in, instructions out.

    informers, clock ──Event──▶ AdmissionState.handle(event) ──▶ [Instruction] ──▶ the edge writes them

`AdmissionState.handle` is the only way to change the state. Every event carries `now`, so the engine never reads a clock
and the same events give the same instructions. The interface is final: hub and agent run the same engine behind it.

An instruction is assumed to succeed: after `ReserveQuota` the engine counts the quota as used at once. When the write
fails, the edge says so with `WriteFailed` and the engine takes it back. The write itself comes back as an ordinary
`WorkloadChanged`, which must then change nothing.
"""

from typing import Any, Literal

from msgspec import Struct

from hub.kueue.api.meta import Instant, ObjectKey
from hub.kueue.api.v1beta2 import (
    Admission,
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    PodSetRequest,
    ResourceFlavor,
    Topology,
    Workload,
    WorkloadPriorityClass,
)

ConfigObject = ClusterQueue | LocalQueue | Cohort | ResourceFlavor | Topology | AdmissionCheck | WorkloadPriorityClass
ConfigKind = Literal[
    "ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor", "Topology", "AdmissionCheck", "WorkloadPriorityClass"
]

# --- events ----------------------------------------------------------------------------------------------------------


class Event(Struct, frozen=True, kw_only=True):
    now: Instant


class WorkloadChanged(Event, frozen=True, kw_only=True):
    """A Workload was created or changed, by us or by anybody. The whole object as the API server has it."""

    workload: Workload


class WorkloadDeleted(Event, frozen=True, kw_only=True):
    key: ObjectKey


class ConfigChanged(Event, frozen=True, kw_only=True):
    """A queue, cohort, flavor, topology, check or priority class was created or changed."""

    object: ConfigObject


class ConfigDeleted(Event, frozen=True, kw_only=True):
    kind: ConfigKind
    key: ObjectKey


class NamespaceChanged(Event, frozen=True, kw_only=True):
    name: str
    labels: dict[str, str]


class NamespaceDeleted(Event, frozen=True, kw_only=True):
    name: str


class LimitRangeChanged(Event, frozen=True, kw_only=True):
    """A core/v1 LimitRange as it is served; only its defaults and bounds per container and pod are read."""

    namespace: str
    name: str
    spec: dict[str, Any]


class LimitRangeDeleted(Event, frozen=True, kw_only=True):
    namespace: str
    name: str


class NodeChanged(Event, frozen=True, kw_only=True):
    """A core/v1 Node as it is served; labels, taints, readiness, schedulability and allocatable are read."""

    node: dict[str, Any]


class NodeDeleted(Event, frozen=True, kw_only=True):
    name: str


class ForeignPodUsage(Event, frozen=True, kw_only=True):
    """What pods that Kueue does not manage use on a node now, in engine units (milli-CPU, else the resource's own)."""

    node: str
    requests: dict[str, int]


class WriteFailed(Event, frozen=True, kw_only=True):
    """The edge could not write the instruction for this workload: take the assumption back and queue it again."""

    key: ObjectKey
    message: str


class CycleDue(Event, frozen=True, kw_only=True):
    """Run one scheduling cycle: one head per ClusterQueue."""


# --- instructions ----------------------------------------------------------------------------------------------------


class Instruction(Struct, frozen=True, kw_only=True):
    key: ObjectKey


class ReserveQuota(Instruction, frozen=True, kw_only=True):
    """Write QuotaReserved=True with this admission; and Admitted=True too when `checks` is empty."""

    admission: Admission
    #: Names of the admission checks that apply to the flavors chosen. Empty: the workload is admitted at once.
    checks: tuple[str, ...] = ()
    message: str


class Admit(Instruction, frozen=True, kw_only=True):
    """Write Admitted=True: quota is reserved and every check is Ready."""

    message: str


class Place(Instruction, frozen=True, kw_only=True):
    """Write `status.admission` with places found late or anew, and clear `status.unhealthyNodes`; all else stays."""

    admission: Admission
    message: str


class Evict(Instruction, frozen=True, kw_only=True):
    """Write Evicted=True. Quota stays counted until the job is seen stopped and the reservation is gone."""

    #: Kueue's reason of the Evicted condition: Preempted, ClusterQueueStopped, Deactivated, PodsReadyTimeout, ...
    reason: str
    message: str
    #: For reason Preempted: the Preempted condition's reason (InClusterQueue, InCohortReclamation, ...) and for whom.
    preemption_reason: str = ""
    preemptor: ObjectKey | None = None
    #: `status.requeueState` to write: how often it was put back and the earliest time of return, RFC 3339.
    requeue_count: int | None = None
    requeue_at: str | None = None


class ReportPending(Instruction, frozen=True, kw_only=True):
    """Write QuotaReserved=False with a reason in Kueue's words, and clear `status.admission` if it is set.

    A reservation that was not admitted is taken back this way, for example when its queue is put on hold.
    """

    reason: str
    message: str
    resource_requests: tuple[PodSetRequest, ...] = ()


class Deactivate(Instruction, frozen=True, kw_only=True):
    """Write spec.active=false: re-queuing limit or execution time exceeded, or a check was rejected."""

    reason: str
    message: str


class Requeue(Instruction, frozen=True, kw_only=True):
    """Write Requeued=True and clear `status.requeueState.requeueAt`: what kept an evicted workload out is over."""

    #: BackoffFinished, ClusterQueueRestarted, LocalQueueRestarted or Reactivated.
    reason: str
    message: str


class Finish(Instruction, frozen=True, kw_only=True):
    """Write Finished=True: another slice of the same job took over its quota."""

    reason: str
    message: str


class WakeAt(Struct, frozen=True, kw_only=True):
    """Nothing can happen before `at` unless another event comes: send CycleDue then."""

    at: Instant


AnyInstruction = ReserveQuota | Admit | Place | Evict | ReportPending | Deactivate | Requeue | Finish | WakeAt

# --- what can be asked, without changing anything ----------------------------------------------------------------------


class QueueStatus(Struct, frozen=True, kw_only=True):
    """Figures for the status of a ClusterQueue or LocalQueue. Amounts in engine units; `borrowed` is above nominal."""

    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    #: flavor -> resource -> (total, borrowed), counting every workload with quota reserved.
    reservation: dict[str, dict[str, tuple[int, int]]] = {}
    #: likewise, counting only admitted ones.
    usage: dict[str, dict[str, tuple[int, int]]] = {}
    #: flavor -> resource -> nominal quota.
    nominal: dict[str, dict[str, int]] = {}
    #: flavor -> resource -> (what could be admitted now, the most that ever could), borrowing included.
    room: dict[str, dict[str, tuple[int, int]]] = {}
    active: bool = True
    #: Kueue's reason and message of the Active condition.
    reason: str = "Ready"
    message: str = ""
    weighted_share: float | None = None


class Position(Struct, frozen=True, kw_only=True):
    """Why a pending workload waits, and where it stands."""

    reason: str
    message: str
    cluster_queue: str = ""
    #: 0 is the head. None: parked until something changes, or not queued at all.
    position: int | None = None
