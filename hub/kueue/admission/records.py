"""What the engine remembers of one workload: as little as decisions need, in slots, because there may be a million."""

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from hub.kueue.admission.quota import Cell, FlavorResource
from hub.kueue.admission.requests import Shape
from hub.kueue.api.meta import Instant, ObjectKey
from hub.kueue.api.v1beta2 import Admission, AdmissionCheckState, ReclaimablePod

if TYPE_CHECKING:
    from hub.kueue.admission.config import LocalQ, Queue
    from hub.kueue.admission.queues import Lane

#: So much of one resource of one flavor.
Charge = tuple[Cell, int]


class Spot(IntEnum):
    """Where a workload is. Exactly one of these at any time."""

    OUT = 0  # gated, switched off, finished, or its queue is unknown or stopped
    QUEUED = 1  # in a lane of its ClusterQueue; the lane knows whether it is parked
    ASIDE = 2  # parked by itself: back-off, wrong namespace, invalid
    IN_FLIGHT = 3  # a head of the cycle that runs now
    RESERVED = 4  # holds quota


class Facts:
    """What the object says about itself, read once when it changed. Pending workloads without a status share one."""

    __slots__ = (
        "accumulated_s", "active", "admission", "admitted", "admitted_at", "borrowed_away_at", "cause", "checks", "evicted", "evicted_at", "evicted_reason",
        "finished", "gate", "max_execution_s", "pods_ready", "pods_ready_at", "pods_ready_reason", "preemption_gated", "reclaimable",
        "replaces", "requeue_at", "requeue_count", "requeued", "requeued_reason", "reserved", "reserved_at", "unhealthy_nodes",
        "unreserved_at", "waits_because", "waits_message",
    )  # fmt: skip

    def __init__(self) -> None:
        self.active = True
        #: Why it was switched off, when it was not a person (DeactivationTarget's reason).
        self.cause = ""
        self.finished = False
        #: Why it may not be queued although it is active: admission-gated-by, on hold, waiting for replacement pods.
        self.gate = ""
        self.preemption_gated = False
        self.reclaimable: Sequence[ReclaimablePod] = ()
        self.reserved = False
        self.reserved_at: Instant = 0.0
        #: When QuotaReserved turned False, 0 when it never was True.
        self.unreserved_at: Instant = 0.0
        #: Reason and message of QuotaReserved=False.
        self.waits_because = ""
        self.waits_message = ""
        self.admission: Admission | None = None
        self.admitted = False
        self.admitted_at: Instant = 0.0
        self.evicted = False
        self.evicted_reason = ""
        self.evicted_at: Instant = 0.0
        #: When it was preempted by one that borrows, 0 when it was not.
        self.borrowed_away_at: Instant = 0.0
        #: The Requeued condition; None when there is none.
        self.requeued: bool | None = None
        self.requeued_reason = ""
        self.requeue_at: Instant | None = None
        self.requeue_count = 0
        self.checks: tuple[AdmissionCheckState, ...] = ()
        self.pods_ready: bool | None = None
        self.pods_ready_reason = ""
        self.pods_ready_at: Instant = 0.0
        self.max_execution_s: int | None = None
        self.accumulated_s = 0
        self.unhealthy_nodes: tuple[str, ...] = ()
        #: Name of the workload slice that this one replaces.
        self.replaces = ""


class Tried:
    """How far the search for flavors came, so that the next cycle can go on from there."""

    __slots__ = ("cycle", "generation", "indexes", "likeness", "pending")

    def __init__(self, indexes: list[dict[str, int]], generation: int, cycle: int, likeness: tuple[int, int]) -> None:
        #: per pod set, resource -> index of the last flavor looked at; -1: all of them were.
        self.indexes = indexes
        self.generation = generation
        self.cycle = cycle
        #: Shape and priority when it was found.
        self.likeness = likeness
        #: Are there flavors left that were not looked at?
        self.pending = any(index != -1 for by_resource in indexes for index in by_resource.values())

    def of(self, generation: int, cycle: int, likeness: tuple[int, int]) -> "Tried":
        """The same progress, made by another workload."""
        other = object.__new__(Tried)
        other.indexes, other.pending = self.indexes, self.pending
        other.generation, other.cycle, other.likeness = generation, cycle, likeness
        return other

    def next_index(self, pod_set: int, resource: str) -> int:
        if pod_set >= len(self.indexes):
            return 0
        return self.indexes[pod_set].get(resource, -1) + 1


class Occupancy(Protocol):
    """Room taken in a topology."""

    def occupy(self) -> None: ...
    def release(self) -> None: ...


class Reservation:
    """Quota that a workload holds."""

    __slots__ = (
        "admission",
        "admitted",
        "admitted_at",
        "assumed",
        "charges",
        "evicted",
        "look_at",
        "looks",
        "pairs",
        "queue",
        "reserved_at",
        "returning",
        "topology",
    )  # fmt: skip

    def __init__(
        self, queue: "Queue", admission: Admission, charges: list[Charge], pairs: frozenset[FlavorResource]
    ) -> None:
        self.queue = queue
        self.admission = admission
        self.charges = charges
        #: Every flavor and resource assigned, also where the amount is zero.
        self.pairs = pairs
        #: What it occupies in topologies.
        self.topology: Sequence[Occupancy] = ()
        #: When to look for an outstanding place, and how often that was in vain. See `second_look`.
        self.look_at: Instant | None = None
        self.looks = 0
        self.reserved_at: Instant = 0.0
        #: It is our decision, and the object does not show it yet.
        self.assumed = False
        self.admitted = False
        self.admitted_at: Instant = 0.0
        #: Evicted and not stopped yet. Its quota counts until it is.
        self.evicted = False
        #: It was told to give the quota back without having run.
        self.returning = False


class Work:
    """One workload, waiting or running."""

    __slots__ = (
        "entry", "facts", "generation", "key", "lane", "local", "message", "priority", "quarrels", "queue", "reason", "reservation",
        "shape", "spot", "stuck", "timestamp", "tried", "uid",
    )  # fmt: skip

    def __init__(self, key: ObjectKey, uid: str, local: "LocalQ", shape: Shape, facts: Facts) -> None:
        self.key = key
        self.uid = uid
        self.generation = 0
        #: The LocalQueue it was submitted to.
        self.local = local
        self.priority = 0
        #: Its place among equals: time of creation, or of eviction where a rule says so.
        self.timestamp: Instant = 0.0
        self.shape = shape
        self.facts = facts
        self.spot = Spot.OUT
        #: Where it waits or holds quota.
        self.queue: Queue | None = None
        self.lane: Lane | None = None
        #: Its entry in the lane's heap; another entry that names it is stale.
        self.entry: tuple[float, str, int, Work] | None = None
        self.reservation: Reservation | None = None
        self.tried: Tried | None = None
        #: Victim -> how often it was preempted for this one, and when last. See `better`.
        self.quarrels: dict[ObjectKey, tuple[int, Instant]] | None = None
        #: Since when it has come back from every cycle without a decision, and when it did last.
        self.stuck: tuple[Instant, Instant] | None = None
        #: Why it waits, in Kueue's words.
        self.reason = ""
        self.message = ""

    def __repr__(self) -> str:
        return f"Work({self.key}, {self.spot.name}, priority {self.priority})"
