"""Fair sharing: how much a queue or cohort borrows for its weight, and whose workloads have to go for balance (KEP-1714).

    share = max over resources of  borrowed * 1000 / lendable in the parent's tree  / weight

The root never has a share. A node of weight 0 that borrows has an infinite one; two such compare by the bare ratio.

Victims are taken from where the share is highest, one workload at a time, as long as a strategy allows:

    LessThanOrEqualToFinalShare     preemptor's share with its workload  <=  victim's share without its workload
    LessThanInitialShare            preemptor's share with its workload  <   victim's share before

Both shares are read at the two children of the lowest cohort that holds both queues ("almost LCA").
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hub.kueue.admission.config import Queue
from hub.kueue.admission.forest import queues_below
from hub.kueue.admission.policy import FINAL_SHARE, INITIAL_SHARE
from hub.kueue.admission.quota import FlavorResource, Node, borrows
from hub.kueue.admission.records import Work
from hub.kueue.admission.scene import Scene
from hub.kueue.admission.victims import (
    IN_CLUSTER_QUEUE,
    IN_COHORT_FAIR_SHARING,
    IN_COHORT_RECLAMATION,
    Demand,
    Lazily,
    Victim,
    candidates,
    fill_back,
    has_room,
    order_key,
)
from hub.kueue.admission.what_if import WhatIf

#: Compares like the share: (is it infinite, the value that counts).
Rank = tuple[int, float]
_NOTHING: Rank = (0, -1.0)


class Share(NamedTuple):
    """The dominant resource share of a node now."""

    rank: Rank
    #: Uses more than its quota of something, even where nothing could be lent.
    borrowing: bool
    #: Of these, to be told whether it borrows what somebody asks for.
    borrowed: tuple[FlavorResource, ...]

    @property
    def infinite(self) -> bool:
        return self.rank[0] == 1

    @property
    def value(self) -> float:
        """For people: infinity for a borrower of weight 0."""
        return float("inf") if self.infinite else self.rank[1]


_ZERO = Share((0, 0.0), False, ())


def share(node: Node) -> Share:
    """The node's share of its parent."""
    parent = node.parent
    if parent is None:
        return _ZERO
    borrowed: dict[str, int] = {}
    pairs: list[FlavorResource] = []
    for cell in node.cells.values():
        beyond = cell.usage - cell.subtree
        if beyond > 0 and cell.quoted:
            resource = cell.key[1]
            borrowed[resource] = borrowed.get(resource, 0) + beyond
            pairs.append(cell.key)
    if not borrowed:
        return _ZERO
    ratio = 0.0
    for resource, amount in borrowed.items():
        lendable = parent.lendable.get(resource, 0)
        if lendable > 0:
            ratio = max(ratio, amount * 1000.0 / lendable)
    if ratio == 0:
        rank: Rank = (0, 0.0)
    elif node.weight == 0:
        rank = (1, ratio)
    else:
        rank = (0, ratio / node.weight)
    return Share(rank, True, tuple(pairs))


# --- choosing victims ---------------------------------------------------------------------------------------------------


def find(scene: Scene, demand: Demand) -> list[Victim]:
    """A set of victims that keeps the balance, or none."""
    fair = scene.policy.fair_sharing
    waiting = {q: found for q, found in _all_candidates(scene, demand) if found}
    if not waiting or fair is None:
        return []
    strategies = fair.strategies or (FINAL_SHARE, INITIAL_SHARE)
    with WhatIf() as trial:
        with WhatIf() as own:
            own.charge(demand.need)
            fits, victims, left = _first_strategy(scene, demand, trial, own, _Targets(demand, waiting), strategies[0])
            if not fits and len(strategies) > 1:
                fits = _second_strategy(scene, demand, trial, own, _Targets(demand, _by_queue(left)), victims)
        if not fits:
            return []
        return fill_back(scene, demand, trial, victims, borrowing=True)


def _all_candidates(scene: Scene, demand: Demand) -> Iterator[tuple[Queue, Lazily[Work]]]:
    queue = demand.queue
    if queue.preemption.within != "Never":
        own: Iterable[Work] = candidates(scene, demand, queue, queue.preemption.within)
        usage = queue.pending.usage_of
        if usage is not None:
            own = sorted(own, key=lambda w: -usage(w.local))
        yield queue, Lazily(own)
    if queue.parent is None or queue.preemption.reclaim == "Never":
        return
    for other in queues_below(queue.root):
        if other is not queue and _borrows_contested(other, demand):
            yield other, Lazily(candidates(scene, demand, other, queue.preemption.reclaim))


def _by_queue(works: Iterable[Work]) -> dict[Queue, Lazily[Work]]:
    lists: dict[Queue, list[Work]] = {}
    for work in works:
        if work.queue is not None:
            lists.setdefault(work.queue, []).append(work)
    return {queue: Lazily(found) for queue, found in lists.items()}


def _borrows_contested(queue: Queue, demand: Demand) -> bool:
    return any(borrows(cell) for key in demand.contested if (cell := queue.cells.get(key)) is not None)


def _fits(scene: Scene, demand: Demand, own: WhatIf) -> bool:
    """Is there room for the demand, which is charged already so that shares include it?"""
    own.undo()
    room = has_room(scene, demand, borrowing=True)
    own.charge(demand.need)
    return room


def _first_strategy(
    scene: Scene, demand: Demand, trial: WhatIf, own: WhatIf, targets: "_Targets", strategy: str
) -> tuple[bool, list[Victim], list[Work]]:
    victims: list[Victim] = []
    retry: list[Work] = []
    fair = scene.policy.fair_sharing
    entitled = fair is not None and fair.preempt_within_nominal and not _borrows_contested(demand.queue, demand)
    for queue in targets:
        if queue is demand.queue or entitled:
            reason = IN_CLUSTER_QUEUE if queue is demand.queue else IN_COHORT_RECLAMATION
            taken = targets.take(queue)
        else:
            reason = IN_COHORT_FAIR_SHARING
            taken = _first_allowed(demand, trial, targets, queue, strategy, retry)
        if taken is None:
            continue
        trial.remove(taken)
        victims.append(Victim(taken, reason))
        if _fits(scene, demand, own):
            return True, victims, []
    return False, victims, retry


def _first_allowed(
    demand: Demand, trial: WhatIf, targets: "_Targets", queue: Queue, strategy: str, retry: list[Work]
) -> Work | None:
    """The first candidate of the queue that the strategy lets go. Those it does not are kept for the second strategy."""
    mine, theirs = _almost_common(demand.queue, queue)
    new, old = share(mine), share(theirs)
    if new.infinite and not old.infinite:
        while targets.has(queue):
            retry.append(targets.take(queue))
        return None
    while targets.has(queue):
        work = targets.take(queue)
        trial.remove(work)
        left = share(theirs)
        trial.put_back(work)
        if new.rank <= left.rank if strategy == FINAL_SHARE else new.rank < old.rank:
            return work
        retry.append(work)
    return None


def _second_strategy(
    scene: Scene, demand: Demand, trial: WhatIf, own: WhatIf, targets: "_Targets", victims: list[Victim]
) -> bool:
    """One more from each queue whose share before is above the preemptor's."""
    for queue in targets:
        mine, theirs = _almost_common(demand.queue, queue)
        work = targets.take(queue)
        if share(mine).rank < share(theirs).rank:
            trial.remove(work)
            victims.append(Victim(work, IN_COHORT_FAIR_SHARING))
            if _fits(scene, demand, own):
                return True
        targets.drop(queue)
    return False


def _almost_common(own: Queue, other: Queue) -> tuple[Node, Node]:
    """The children of the lowest common cohort on the paths to the two queues."""
    path: list[Node] = [own, *own.ancestors()]
    node: Node = other
    while node.parent is not None and node.parent not in path:
        node = node.parent
    if node.parent is None:
        return own, other
    return path[path.index(node.parent) - 1], node


class _Targets:
    """Which queue has to give next: the highest share, level by level from the root."""

    def __init__(self, demand: Demand, waiting: dict[Queue, Lazily[Work]]) -> None:
        self._own = demand.queue
        self._path = set(demand.queue.ancestors())
        self._waiting = {queue: iter(found) for queue, found in waiting.items()}
        #: The next candidate of each queue that has one.
        self._next_of: dict[Queue, Work] = {}
        for queue in self._waiting:
            self._advance(queue)
        self._pruned: set[Node] = set()

    def _advance(self, queue: Queue) -> None:
        work = next(self._waiting[queue], None)
        if work is None:
            self._next_of.pop(queue, None)
        else:
            self._next_of[queue] = work

    def has(self, queue: Queue) -> bool:
        return queue in self._next_of

    def take(self, queue: Queue) -> Work:
        work = self._next_of[queue]
        self._advance(queue)
        return work

    def drop(self, queue: Queue) -> None:
        self._pruned.add(queue)

    def __iter__(self) -> Iterator[Queue]:
        root = self._own.root
        if root is self._own:
            while root not in self._pruned and self.has(self._own):
                yield self._own
            return
        while root not in self._pruned:
            queue = self._next(root)
            if queue is not None:
                yield queue

    def _next(self, cohort: Node) -> Queue | None:
        queue, queue_rank = self._highest_queue(cohort)
        child, child_rank = self._highest_cohort(cohort)
        if child is None and queue is None:
            self._pruned.add(cohort)
            return None
        if child is not None and child_rank >= queue_rank:
            return self._next(child)
        return queue

    def _highest_queue(self, cohort: Node) -> tuple[Queue | None, Rank]:
        best: Queue | None = None
        best_rank = _NOTHING
        for queue in cohort.queues:
            if queue in self._pruned or not isinstance(queue, Queue):
                continue
            own = share(queue)
            if (not own.borrowing and queue is not self._own) or not self.has(queue):
                self._pruned.add(queue)
            elif own.rank > best_rank or (
                own.rank == best_rank and best is not None and self._goes_before(queue, best)
            ):
                best, best_rank = queue, own.rank
        return best, best_rank

    def _goes_before(self, queue: Queue, other: Queue) -> bool:
        """Between equal shares, the queue whose first candidate would go first."""
        return order_key(self._own, self._next_of[queue]) < order_key(self._own, self._next_of[other])

    def _highest_cohort(self, cohort: Node) -> tuple[Node | None, Rank]:
        best: Node | None = None
        best_rank = _NOTHING
        for child in cohort.cohorts:
            if child in self._pruned:
                continue
            own = share(child)
            if not own.borrowing and child not in self._path:
                self._pruned.add(child)
            elif own.rank >= best_rank:
                best, best_rank = child, own.rank
        return best, best_rank
