"""Who may be preempted by whom, in which order, and when there is room enough: common to both ways of choosing victims."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from hub.kueue.admission.config import Queue
from hub.kueue.admission.places import Ask
from hub.kueue.admission.quota import Cell, FlavorResource, Node, available
from hub.kueue.admission.records import Work
from hub.kueue.admission.scene import Scene
from hub.kueue.admission.what_if import WhatIf
from hub.kueue.api.meta import ObjectKey

T = TypeVar("T")

IN_CLUSTER_QUEUE = "InClusterQueue"
IN_COHORT_RECLAMATION = "InCohortReclamation"
IN_COHORT_FAIR_SHARING = "InCohortFairSharing"
IN_COHORT_RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"

#: For people, as Kueue words it.
REASON_TEXT = {
    IN_CLUSTER_QUEUE: "prioritization in the ClusterQueue",
    IN_COHORT_RECLAMATION: "reclamation within the cohort",
    IN_COHORT_FAIR_SHARING: "Fair Sharing within the cohort",
    IN_COHORT_RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
}


class Victim(NamedTuple):
    work: Work
    #: Why, in Kueue's words.
    reason: str


class Demand(NamedTuple):
    """What a preemptor wants."""

    work: Work
    queue: Queue
    #: What must be free in the end.
    need: Mapping[Cell, int]
    #: Pairs of which there is too little: a victim must hold some of one.
    contested: frozenset[FlavorResource]
    #: Pod sets to be placed in topologies; none: room there does not matter.
    placing: Sequence[Ask] = ()
    #: Running workloads that it may not preempt whatever the policy says.
    safe: frozenset[ObjectKey] = frozenset()


def may_preempt(work: Work, candidate: Work, policy: str) -> bool:
    """Does the policy of the preemptor's ClusterQueue allow to preempt the candidate?"""
    if policy == "LowerPriority":
        return work.priority > candidate.priority
    if policy == "LowerOrNewerEqualPriority":
        if work.priority == candidate.priority:
            return work.timestamp < candidate.timestamp
        return work.priority > candidate.priority
    return policy == "Any"


class Lazily(Generic[T]):
    """Items that are worked out when they are first looked at, and can be looked at again."""

    __slots__ = ("_seen", "_source")

    def __init__(self, source: Iterable[T]) -> None:
        self._source = iter(source)
        self._seen: list[T] = []

    def __bool__(self) -> bool:
        return bool(self._seen) or self._pull()

    def __iter__(self) -> Iterator[T]:
        at = 0
        while at < len(self._seen) or self._pull():
            yield self._seen[at]
            at += 1

    def _pull(self) -> bool:
        for item in self._source:
            self._seen.append(item)
            return True
        return False


def candidates(scene: Scene, demand: Demand, queue: Queue, policy: str) -> Iterator[Work]:
    """Those of a ClusterQueue that may be preempted and hold something that is contested, first victim first."""
    work, contested, safe, hidden = demand.work, demand.contested, demand.safe, scene.hidden
    priority = work.priority
    for rank in queue.running.first_to_go():
        candidate = rank[5]
        if policy != "Any" and rank[1] >= priority and (rank[1] > priority or not may_preempt(work, candidate, policy)):
            if rank[0] and (rank[1] > priority or policy == "LowerPriority"):
                return  # those behind it have at least its priority
            continue
        reservation = candidate.reservation
        if reservation is None or reservation.pairs.isdisjoint(contested):
            continue
        if candidate is not work and candidate.key not in safe and candidate not in hidden:
            yield candidate


def order_key(own: Queue, work: Work) -> tuple[bool, bool, int, int, str]:
    """First victim first: already evicted, other queues, low priority, lately admitted, small uid."""
    reservation = work.reservation
    since = 0.0 if reservation is None else reservation.reserved_at
    evicted = reservation is not None and reservation.evicted
    return (not evicted, work.queue is own, work.priority, -int(since), work.uid)


def within_nominal(node: Node, contested: Iterable[FlavorResource]) -> bool:
    """Does the node use no more than its own quota of all that is contested?"""
    cells = node.cells
    for key in contested:
        cell = cells.get(key)
        if cell is not None and cell.subtree < cell.usage:
            return False
    return True


def has_room(scene: Scene, demand: Demand, *, borrowing: bool) -> bool:
    """Does the demand fit now, with or without borrowing?"""
    for cell, amount in demand.need.items():
        if not borrowing and cell.nominal < cell.usage + amount:
            return False
        if amount > max(0, available(cell)):
            return False
    return not demand.placing or scene.places.has_room(demand.placing)


def fill_back(scene: Scene, demand: Demand, trial: WhatIf, victims: list[Victim], *, borrowing: bool) -> list[Victim]:
    """Spare whom it does not need: latest choice first, the very last one has to go in any case.

    The last of the list takes the place of the one that is spared, as in Kueue: that decides who is looked at next.
    """
    for i in range(len(victims) - 2, -1, -1):
        trial.put_back(victims[i].work)
        if has_room(scene, demand, borrowing=borrowing):
            victims[i] = victims[-1]
            victims.pop()
        else:
            trial.remove(victims[i].work)
    return victims
