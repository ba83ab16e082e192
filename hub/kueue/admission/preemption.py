"""Which running workloads have to go so that a waiting one fits: the classical way, by quota and priority.

    own queue ─ policy withinClusterQueue           other queues ─ policy reclaimWithinCohort
                                                     only those that use more than their own quota

Candidates are removed one after the other until the demand fits; then those that turn out not to be needed are put back.
A preemptor whose request fits into the quota of a subtree has a right to it (hierarchical reclaim) and asks first where
that right is. Whether victims in other queues may be taken while the preemptor still borrows is the
borrowWithinCohort policy (KEP-1337).

With fair sharing, `fair_sharing` chooses instead.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import merge
from itertools import dropwhile, takewhile
from typing import NamedTuple

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


class Candidate(NamedTuple):
    work: Work
    variant: Variant
    #: The lowest cohort that holds both queues; None in the own queue.
    common: Node | None


#: What `possibility` answers, as flavors grades it.
NO_CANDIDATES, PREEMPT, RECLAIM = 1, 2, 3


def possibility(scene: Scene, work: Work, queue: Queue, cell: Cell, value: int) -> tuple[int, int]:
    """Could preemption make room for this one resource, by whom, and what would be borrowed afterwards?"""
    safe = better.safe_from(scene.policy, work, scene.now)
    demand = Demand(work, queue, {cell: value}, frozenset((cell.key,)), None, safe)
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


def _classical(scene: Scene, demand: Demand) -> list[Victim]:
    same = Lazily(_same_queue(scene, demand))
    by_right, by_priority = _other_queues(scene, demand)
    if not (same or by_right or by_priority):
        return []
    lists = (by_right, by_priority, same)
    for borrowing in _attempts(demand, by_right, by_priority):
        with WhatIf() as trial:
            victims = _attempt(scene, demand, trial, _in_order(lists), borrowing=borrowing)
        if victims:
            return victims
    return []


def _in_order(lists: Sequence[Lazily[Candidate]]) -> Iterator[Candidate]:
    """Who is evicted already comes first in every list, and in all of them before anybody else."""
    for part in lists:
        yield from takewhile(_evicted, part)
    for part in lists:
        yield from dropwhile(_evicted, part)


def _evicted(candidate: Candidate) -> bool:
    reservation = candidate.work.reservation
    return reservation is not None and reservation.evicted


def _attempts(demand: Demand, by_right: Lazily[Candidate], by_priority: Lazily[Candidate]) -> tuple[bool, ...]:
    """Whether to let the preemptor borrow afterwards: which answers to try, in order."""
    forbidden = not demand.queue.preemption.may_borrow
    under_nominal = all(c.nominal > c.usage for k in demand.contested if (c := demand.queue.cells.get(k)) is not None)
    if not (by_right or by_priority) or (forbidden and not under_nominal):
        return (True,)
    if forbidden and not by_right:
        return (False, True)
    return (True, False)


def _attempt(
    scene: Scene, demand: Demand, trial: WhatIf, ordered: Iterable[Candidate], *, borrowing: bool
) -> list[Victim]:
    victims: list[Victim] = []
    for candidate in ordered:
        if not _may_go(demand, candidate, borrowing=borrowing):
            continue
        trial.remove(candidate.work)
        victims.append(Victim(candidate.work, REASONS[candidate.variant]))
        if has_room(scene, demand, borrowing=borrowing):
            return fill_back(scene, demand, trial, victims, borrowing=borrowing)
    return []


def _may_go(demand: Demand, candidate: Candidate, *, borrowing: bool) -> bool:
    """Does the ground still hold, with the victims chosen so far gone?"""
    if candidate.common is None:
        return True
    if borrowing and candidate.variant is Variant.WITHOUT_BORROWING:
        return False
    node: Node | None = candidate.work.queue
    while node is not None and node is not candidate.common:
        if within_nominal(node, demand.contested):
            return False
        node = node.parent
    return True


def _same_queue(scene: Scene, demand: Demand) -> Iterator[Candidate]:
    queue = demand.queue
    if queue.preemption.within == "Never":
        return
    found: Iterable[Work] = candidates(scene, demand, queue, queue.preemption.within)
    usage = queue.pending.usage_of
    if usage is not None:
        found = sorted(found, key=lambda w: (not _is_evicted(w), -usage(w.local)))
    for work in found:
        yield Candidate(work, Variant.WITHIN_QUEUE, None)


def _is_evicted(work: Work) -> bool:
    return work.reservation is not None and work.reservation.evicted


def _other_queues(scene: Scene, demand: Demand) -> tuple[Lazily[Candidate], Lazily[Candidate]]:
    """Candidates elsewhere in the tree: those the preemptor has a right to, and those that policy alone gives it."""
    by_right: list[Iterator[Candidate]] = []
    by_priority: list[Iterator[Candidate]] = []
    queue = demand.queue
    if queue.parent is not None and queue.preemption.reclaim != "Never":
        right, rest = _fits_in_quota(queue, {cell.key: amount for cell, amount in demand.need.items()})
        below: Node | None = None
        for cohort in queue.ancestors():
            found = by_right if right else by_priority
            for other in _borrowers(demand, cohort, below):
                found.append(_of_queue(scene, demand, other, cohort, right=right))
            fits, rest = _fits_in_quota(cohort, rest)
            right = right or fits
            below = cohort
    return Lazily(merge(*by_right, key=_rank)), Lazily(merge(*by_priority, key=_rank))


def _rank(candidate: Candidate) -> tuple[bool, bool, int, int, str]:
    return order_key(candidate.work.queue, candidate.work) if candidate.work.queue else (True, True, 0, 0, "")


def _of_queue(scene: Scene, demand: Demand, queue: Queue, common: Node, *, right: bool) -> Iterator[Candidate]:
    for work in candidates(scene, demand, queue, demand.queue.preemption.reclaim):
        yield Candidate(work, _variant(demand, work, right=right), common)


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
