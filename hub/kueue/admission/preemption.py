"""Which running workloads have to go so that a waiting one fits: the classical way, by quota and priority.

    own queue ─ policy withinClusterQueue           other queues ─ policy reclaimWithinCohort
                                                     only those that use more than their own quota

Candidates are removed one after the other until the demand fits; then those that turn out not to be needed are put back.
A preemptor whose request fits into the quota of a subtree has a right to it (hierarchical reclaim) and asks first where
that right is. Whether victims in other queues may be taken while the preemptor still borrows is the
borrowWithinCohort policy (KEP-1337).

With fair sharing, `fair_sharing` chooses instead.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from heapq import heapify, heappop, heapreplace
from itertools import dropwhile, takewhile

from hub.kueue.admission import better, fair_sharing
from hub.kueue.admission.config import Queue
from hub.kueue.admission.quota import Cell, Node, borrow_level
from hub.kueue.admission.records import Work
from hub.kueue.admission.scene import Scene
from hub.kueue.admission.victims import (
    IN_CLUSTER_QUEUE,
    IN_COHORT_RECLAIM_WHILE_BORROWING,
    IN_COHORT_RECLAMATION,
    Demand,
    Lazily,
    Victim,
    candidates,
    fill_back,
    has_room,
    order_key,
    within_nominal,
)
from hub.kueue.admission.what_if import WhatIf


class Variant(IntEnum):
    """On what ground a candidate may be taken."""

    WITHIN_QUEUE = 0
    HIERARCHICAL = 1
    WITHOUT_BORROWING = 2
    WHILE_BORROWING = 3


REASONS = (IN_CLUSTER_QUEUE, IN_COHORT_RECLAMATION, IN_COHORT_RECLAMATION, IN_COHORT_RECLAIM_WHILE_BORROWING)


#: What `possibility` answers, as flavors grades it.
NO_CANDIDATES, PREEMPT, RECLAIM = 1, 2, 3


def possibility(scene: Scene, work: Work, queue: Queue, cell: Cell, value: int) -> tuple[int, int]:
    """Could preemption make room for this one resource, by whom, and what would be borrowed afterwards?"""
    safe = better.safe_from(scene.policy, work, scene.now)
    demand = Demand(work, queue, {cell: value}, frozenset((cell.key,)), (), safe)
    victims = find(scene, demand)
    if not victims:
        return NO_CANDIDATES, borrow_level(cell, value)[0]
    with WhatIf() as trial:
        trial.remove_all(v.work for v in victims)
        level = borrow_level(cell, value)[0]
    own = any(v.work.queue is queue for v in victims)
    return (PREEMPT if own else RECLAIM), level


def find(scene: Scene, demand: Demand) -> list[Victim]:
    """A minimal set of victims, or none when no set would do."""
    if scene.policy.fair_sharing is not None:
        return fair_sharing.find(scene, demand)
    return _classical(scene, demand)


class _Source:
    """Candidates of one other queue, first victim first, and the ground on which they may go."""

    __slots__ = ("common", "found", "queue", "right")

    def __init__(self, queue: Queue, common: Node, found: Lazily[Work], *, right: bool) -> None:
        self.queue = queue
        #: The lowest cohort that holds both queues.
        self.common = common
        self.found = found
        #: The preemptor has a right to the room, whatever its priority.
        self.right = right


def _classical(scene: Scene, demand: Demand) -> list[Victim]:
    same = Lazily(_same_queue(scene, demand))
    by_right, by_priority = _other_queues(scene, demand)
    if not (same or by_right or by_priority):
        return []
    for borrowing in _attempts(demand, by_right, by_priority):
        ordered = _in_order(demand, by_right, by_priority, same, borrowing=borrowing)
        with WhatIf() as trial:
            victims = _attempt(scene, demand, trial, ordered, borrowing=borrowing)
        if victims:
            return victims
    return []


def _in_order(
    demand: Demand, by_right: list[_Source], by_priority: list[_Source], same: Lazily[Work], *, borrowing: bool
) -> Iterator[Victim]:
    """Who is evicted already comes first in every list, and in all of them before anybody else."""
    right = _Merged(demand, by_right, borrowing=borrowing)
    # A preemptor that may not take from others and borrow takes nobody by priority alone while it borrows.
    allowed = by_priority if demand.queue.preemption.may_borrow or not borrowing else []
    priority = _Merged(demand, allowed, borrowing=borrowing)
    yield from right.evicted()
    yield from priority.evicted()
    yield from (Victim(w, IN_CLUSTER_QUEUE) for w in takewhile(_is_evicted, same))
    yield from right.others()
    yield from priority.others()
    yield from (Victim(w, IN_CLUSTER_QUEUE) for w in dropwhile(_is_evicted, same))


class _Merged:
    """Candidates of several queues in one order. A queue that is back within its quota is dropped with all it has left."""

    def __init__(self, demand: Demand, sources: Iterable[_Source], *, borrowing: bool) -> None:
        self._demand = demand
        self._borrowing = borrowing
        self._heap: list[tuple[tuple[bool, bool, int, int, str], int, Work, Iterator[Work], _Source]] = []
        for number, source in enumerate(sources):
            works = iter(source.found)
            work = next(works, None)
            if work is not None:
                self._heap.append((order_key(demand.queue, work), number, work, works, source))
        heapify(self._heap)

    def evicted(self) -> Iterator[Victim]:
        while self._heap and not self._heap[0][0][0]:
            yield from self._pull()

    def others(self) -> Iterator[Victim]:
        while self._heap:
            yield from self._pull()

    def _pull(self) -> Iterator[Victim]:
        """The next candidate, if the ground on which it may go still holds with the victims chosen so far gone."""
        _, number, work, works, source = self._heap[0]
        if not _still_borrows(self._demand, source):
            heappop(self._heap)
            return
        following = next(works, None)
        if following is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (order_key(self._demand.queue, following), number, following, works, source))
        variant = _variant(self._demand, work, right=source.right)
        if variant is not Variant.WITHOUT_BORROWING or not self._borrowing:
            yield Victim(work, REASONS[variant])


def _still_borrows(demand: Demand, source: _Source) -> bool:
    """Are the queue, and all cohorts up to the common one, still above their quota of something contested?"""
    node: Node | None = source.queue
    while node is not None and node is not source.common:
        if within_nominal(node, demand.contested):
            return False
        node = node.parent
    return True


def _attempts(demand: Demand, by_right: list[_Source], by_priority: list[_Source]) -> tuple[bool, ...]:
    """Whether to let the preemptor borrow afterwards: which answers to try, in order."""
    forbidden = not demand.queue.preemption.may_borrow
    under_nominal = all(c.nominal > c.usage for k in demand.contested if (c := demand.queue.cells.get(k)) is not None)
    if not (by_right or by_priority) or (forbidden and not under_nominal):
        return (True,)
    if forbidden and not by_right:
        return (False, True)
    return (True, False)


def _attempt(
    scene: Scene, demand: Demand, trial: WhatIf, ordered: Iterable[Victim], *, borrowing: bool
) -> list[Victim]:
    victims: list[Victim] = []
    for victim in ordered:
        trial.remove(victim.work)
        victims.append(victim)
        if has_room(scene, demand, borrowing=borrowing):
            return fill_back(scene, demand, trial, victims, borrowing=borrowing)
    return []


def _same_queue(scene: Scene, demand: Demand) -> Iterable[Work]:
    queue = demand.queue
    if queue.preemption.within == "Never":
        return ()
    found = candidates(scene, demand, queue, queue.preemption.within)
    usage = queue.pending.usage_of
    return found if usage is None else sorted(found, key=lambda w: (not _is_evicted(w), -usage(w.local)))


def _is_evicted(work: Work) -> bool:
    return work.reservation is not None and work.reservation.evicted


def _other_queues(scene: Scene, demand: Demand) -> tuple[list[_Source], list[_Source]]:
    """Candidates elsewhere in the tree: those the preemptor has a right to, and those that policy alone gives it."""
    by_right: list[_Source] = []
    by_priority: list[_Source] = []
    queue = demand.queue
    if queue.parent is None or queue.preemption.reclaim == "Never":
        return by_right, by_priority
    right, rest = _fits_in_quota(queue, {cell.key: amount for cell, amount in demand.need.items()})
    below: Node | None = None
    for cohort in queue.ancestors():
        for other in _borrowers(demand, cohort, below):
            found = Lazily(candidates(scene, demand, other, queue.preemption.reclaim))
            if found:
                (by_right if right else by_priority).append(_Source(other, cohort, found, right=right))
        fits, rest = _fits_in_quota(cohort, rest)
        right = right or fits
        below = cohort
    return by_right, by_priority


def _fits_in_quota(node: Node, wanted: dict[tuple[str, str], int]) -> tuple[bool, dict[tuple[str, str], int]]:
    """Is all of it within the node's own quota? And what remains for the parent when its free local part is taken."""
    fits = True
    rest: dict[tuple[str, str], int] = {}
    for key, amount in wanted.items():
        cell = node.cells[key]
        if cell.subtree < cell.usage + amount:
            fits = False
        rest[key] = max(0, amount - max(0, cell.local - cell.usage))
    return fits, rest


def _borrowers(demand: Demand, cohort: Node, skip: Node | None) -> Iterator[Queue]:
    """Queues below the cohort, but not below `skip`, that use more than their quota of something contested."""
    for child in cohort.cohorts:
        if child is not skip and not within_nominal(child, demand.contested):
            yield from _borrowers(demand, child, skip)
    for queue in cohort.queues:
        if queue is not demand.queue and isinstance(queue, Queue) and not within_nominal(queue, demand.contested):
            yield queue


def _variant(demand: Demand, candidate: Work, *, right: bool) -> Variant:
    if right:
        return Variant.HIERARCHICAL
    rules = demand.queue.preemption
    threshold = rules.borrow_threshold
    if not rules.may_borrow or candidate.priority >= demand.work.priority:
        return Variant.WITHOUT_BORROWING
    if threshold is not None and candidate.priority > threshold:
        return Variant.WITHOUT_BORROWING
    return Variant.WHILE_BORROWING
