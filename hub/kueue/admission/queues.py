"""The workloads that wait in one ClusterQueue: who is next, who is parked, and what brings the parked ones back.

    lane = workloads of one shape, one priority and one LocalQueue, by time
    heap of lanes ──pop──▶ head ──no room──▶ the head and every lane of its shape are parked
                                  ◀──the tree changed (wake)── all of them return

Kueue parks and returns workloads one by one; lanes do the same to any number of them at once, so that a change costs what
it changes. A lane is parked as long as its `epoch` is the queue's: waking everything is one addition.

Rules, after Kueue's queue manager:
- order: usage of the LocalQueue (only with admission fair sharing), the sticky preemptor, priority, time, uid;
- a head without a fit is parked in a best-effort queue; a strict queue parks only what its namespace selector rejects;
- a workload that issued preemptions is sticky in a best-effort queue: nobody overtakes it while it waits for its victims;
- a workload with flavors left to look at returns to the front at once.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from hub.kueue.admission.records import Spot, Work
from hub.kueue.api.meta import Instant, ObjectKey

if TYPE_CHECKING:
    from hub.kueue.admission.config import LocalQ

#: Shape and priority: what Kueue calls the scheduling equivalence hash.
Likeness = tuple[int, int]


class Requeue(StrEnum):
    """Why a head comes back."""

    GENERIC = ""
    FAILED_AFTER_NOMINATION = "FailedAfterNomination"
    NAMESPACE_MISMATCH = "NamespaceMismatch"
    PREEMPTION_GATED = "PreemptionGated"
    PENDING_PREEMPTION = "PendingPreemption"
    NO_FIT = "NoFit"
    NO_CANDIDATES = "PreemptionNoCandidates"


_AT_ONCE = frozenset({Requeue.FAILED_AFTER_NOMINATION, Requeue.PENDING_PREEMPTION})
_PARKS_ITS_LIKE = frozenset({Requeue.NO_FIT, Requeue.NO_CANDIDATES})


class Lane:
    """Workloads that differ in nothing but their time and name."""

    __slots__ = ("count", "entry", "epoch", "heap", "likeness", "local")

    def __init__(self, likeness: Likeness, local: "LocalQ") -> None:
        self.likeness = likeness
        self.local = local
        self.heap: list[tuple[float, str, int, Work]] = []
        self.count = 0
        self.epoch = -1
        #: Its entry in the heap of lanes; another entry that names it is stale.
        self.entry: tuple[float, int, float, str, int, Lane] | None = None

    def first(self) -> Work | None:
        """The earliest member. Members that left are dropped here, when they come to the top."""
        heap = self.heap
        while heap:
            entry = heap[0]
            if entry[3].entry is entry:
                return entry[3]
            heappop(heap)
        return None

    def members(self) -> list[Work]:
        return [entry[3] for entry in sorted(self.heap, key=lambda e: e[:3]) if entry[3].entry is entry]


class PendingQueue:
    """The waiting side of one ClusterQueue."""

    def __init__(self, *, hashing: bool) -> None:
        self.strict = False
        self._hashing = hashing
        #: Usage of a LocalQueue by which its workloads queue; None: LocalQueues are equal.
        self.usage_of: Callable[[LocalQ], float] | None = None
        self._lanes: dict[Likeness, dict[ObjectKey, Lane]] = {}
        self._heap: list[tuple[float, int, float, str, int, Lane]] = []
        self._serial = 0
        self.aside: dict[ObjectKey, Work] = {}
        #: Likeness -> the reason that parked it. New workloads like it are parked on arrival.
        self.parked_likes: dict[Likeness, str] = {}
        self._parked_lanes: dict[int, Lane] = {}
        self._epoch = 0
        self._parked = 0
        self._queued = 0
        self.preemptor: Work | None = None
        self._preemptor_generation = 0
        self._preemptor_sticky = False

    # --- counting ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._queued + len(self.aside)

    @property
    def ready(self) -> int:
        """Workloads that the next cycles may look at."""
        return self._queued - self._parked

    def is_parked(self, work: Work) -> bool:
        return work.spot is Spot.ASIDE or (work.lane is not None and work.lane.epoch == self._epoch)

    def is_preemptor(self, work: Work) -> bool:
        return self.preemptor is work and self._preemptor_generation == work.generation

    # --- in and out ----------------------------------------------------------------------------------------------------

    def add(self, work: Work, now: Instant) -> None:
        """A workload that is not here arrives or comes back: to its place, or parked when its like is parked."""
        likeness = (work.shape.like, work.priority)
        if not may_return(work, now):
            self.set_aside(work)
        elif likeness in self.parked_likes and not self.strict:
            self._put(work, parked=True)
        else:
            self._put(work, parked=False)

    def push(self, work: Work) -> None:
        """To its place among the ready ones, whatever became of its like."""
        self._put(work, parked=False)

    def set_aside(self, work: Work) -> None:
        work.spot = Spot.ASIDE
        self.aside[work.key] = work

    def remove(self, work: Work) -> None:
        """Forget it. Does nothing to a workload that is not here."""
        self.withdraw(work)
        if self.preemptor is work:
            self.preemptor = None

    def withdraw(self, work: Work) -> None:
        """Take it out to put it back changed; it stays the preemptor if it is."""
        if work.spot is Spot.ASIDE:
            self.aside.pop(work.key, None)
        elif work.lane is not None:
            self._leave_lane(work)
        work.spot = Spot.OUT

    def pop(self) -> Work | None:
        """Take out the workload that is next; it is in flight until `requeue`, `add` or `remove`."""
        work = self.peek()
        if work is not None:
            self._leave_lane(work)
            work.spot = Spot.IN_FLIGHT
        return work

    def peek(self) -> Work | None:
        lane = self._first_lane()
        if lane is None:
            return None
        sticky = self._sticky()
        if sticky is None or sticky.lane is None or sticky.lane.epoch == self._epoch:
            return lane.first()
        if self.usage_of is not None and self.usage_of(lane.local) < self.usage_of(sticky.local):
            return lane.first()
        return sticky

    def requeue(self, work: Work, why: Requeue, reason: str, now: Instant) -> bool:
        """A head comes back from the cycle. False: it is parked now."""
        if why is Requeue.PENDING_PREEMPTION:
            self.preemptor = work
            self._preemptor_generation = work.generation
            self._preemptor_sticky = not self.strict
        at_once = why is not Requeue.NAMESPACE_MISMATCH if self.strict else why in _AT_ONCE
        if may_return(work, now) and (at_once or (work.tried is not None and work.tried.pending)):
            self._put(work, parked=False)
            return True
        if self._hashing and not self.strict and why in _PARKS_ITS_LIKE:
            likeness = (work.shape.like, work.priority)
            self.parked_likes[likeness] = reason
            self._put(work, parked=True)
            for lane in list(self._lanes.get(likeness, {}).values()):
                self._park(lane)
        else:
            self.set_aside(work)
        return False

    def _put(self, work: Work, *, parked: bool) -> None:
        likeness = (work.shape.like, work.priority)
        lanes = self._lanes.setdefault(likeness, {})
        lane = lanes.get(work.local.key)
        if lane is None:
            lane = lanes[work.local.key] = Lane(likeness, work.local)
        if not parked and lane.epoch == self._epoch:
            self._unpark(lane)
        self._serial += 1
        work.entry = (work.timestamp, work.uid, self._serial, work)
        heappush(lane.heap, work.entry)
        work.lane = lane
        work.spot = Spot.QUEUED
        lane.count += 1
        self._queued += 1
        if parked and lane.epoch != self._epoch:
            self._park(lane)
            return
        if lane.epoch == self._epoch:
            self._parked += 1
        elif lane.heap[0] is work.entry:
            self._announce(lane)

    def _leave_lane(self, work: Work) -> None:
        lane = work.lane
        if lane is None:
            return
        was_first = lane.first() is work
        work.entry = work.lane = None
        lane.count -= 1
        self._queued -= 1
        if lane.epoch == self._epoch:
            self._parked -= 1
        elif was_first:
            self._announce(lane)
        if lane.count == 0:
            self._drop(lane)

    # --- lanes ---------------------------------------------------------------------------------------------------------

    def _announce(self, lane: Lane) -> None:
        """Its first member changed: give it its new place in the heap."""
        first = lane.first()
        if first is None:
            lane.entry = None
            return
        self._serial += 1
        usage = self.usage_of(lane.local) if self.usage_of is not None else 0.0
        lane.entry = (usage, -lane.likeness[1], first.timestamp, first.uid, self._serial, lane)
        heappush(self._heap, lane.entry)

    def _first_lane(self) -> Lane | None:
        heap = self._heap
        while heap:
            entry = heap[0]
            lane = entry[5]
            if lane.entry is entry and lane.epoch != self._epoch and lane.count:
                return lane
            heappop(heap)
        return None

    def _park(self, lane: Lane) -> None:
        if lane.epoch == self._epoch:
            return
        lane.epoch = self._epoch
        lane.entry = None
        self._parked += lane.count
        self._parked_lanes[id(lane)] = lane

    def _unpark(self, lane: Lane) -> None:
        self._parked -= lane.count
        lane.epoch = -1
        self._parked_lanes.pop(id(lane), None)
        self._announce(lane)

    def _drop(self, lane: Lane) -> None:
        self._parked_lanes.pop(id(lane), None)
        lane.entry = None
        lanes = self._lanes.get(lane.likeness)
        if lanes is not None and lanes.get(lane.local.key) is lane:
            del lanes[lane.local.key]
            if not lanes:
                del self._lanes[lane.likeness]

    def _sticky(self) -> Work | None:
        return self.preemptor if self._preemptor_sticky else None

    # --- waking --------------------------------------------------------------------------------------------------------

    def wake(self, matches: Callable[["LocalQ"], bool], now: Instant) -> bool:
        """Something changed that could let parked workloads in: they return, except for those in back-off or rejected.

        `matches` says whether the ClusterQueue takes workloads of that LocalQueue's namespace.
        """
        returned = False
        self.parked_likes.clear()
        lanes = list(self._parked_lanes.values())
        self._parked_lanes.clear()
        self._epoch += 1
        self._parked = 0
        for lane in lanes:
            if matches(lane.local):
                self._announce(lane)
                returned = True
            else:
                self._scatter(lane)
        for work in [w for w in self.aside.values() if may_return(w, now) and matches(w.local)]:
            del self.aside[work.key]
            self._put(work, parked=False)
            returned = True
        return returned

    def _scatter(self, lane: Lane) -> None:
        """Its namespace is not selected: its members stay parked one by one, so that a new one does not stir them."""
        for work in lane.members():
            self._leave_lane(work)
            self.set_aside(work)

    def release(self, work: Work) -> None:
        """One workload that was set aside may be looked at again."""
        if self.aside.pop(work.key, None) is not None:
            self._put(work, parked=False)

    def reorder(self) -> None:
        """The usage of LocalQueues changed: place all lanes anew."""
        self._heap = []
        for lanes in self._lanes.values():
            for lane in lanes.values():
                if lane.epoch != self._epoch:
                    self._announce(lane)
        heapify(self._heap)

    # --- reading -------------------------------------------------------------------------------------------------------

    def everyone(self) -> Iterator[Work]:
        """All that wait here, in no order."""
        for lanes in self._lanes.values():
            for lane in lanes.values():
                yield from lane.members()
        yield from self.aside.values()

    def in_order(self) -> list[Work]:
        """Those that are ready, in the order in which they will be looked at."""
        ready = [w for w in self.everyone() if not self.is_parked(w)]
        sticky = self._sticky()
        usage = self.usage_of
        return sorted(
            ready,
            key=lambda w: (usage(w.local) if usage else 0.0, w is not sticky, -w.priority, w.timestamp, w.uid),
        )

    def ahead_of(self, work: Work) -> int | None:
        """How many ready workloads go before this one. None: it is parked or not here."""
        if work.lane is None or self.is_parked(work):
            return None
        mine = self._rank(work)
        return sum(1 for w in self.everyone() if not self.is_parked(w) and self._rank(w) < mine)

    def _rank(self, work: Work) -> tuple[float, bool, int, float, str]:
        usage = self.usage_of(work.local) if self.usage_of is not None else 0.0
        return (usage, work is not self._sticky(), -work.priority, work.timestamp, work.uid)


def may_return(work: Work, now: Instant) -> bool:
    """Is its back-off over? Whole seconds count, as in Kueue."""
    facts = work.facts
    if facts.requeued is False:
        return False
    return facts.requeue_at is None or int(now) >= int(facts.requeue_at)
