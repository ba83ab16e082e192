"""Whose turn it is with fair sharing: heads meet level by level, the lower share wins (KEP-1714).

At each cohort the winners of its child cohorts and the heads of its ClusterQueues are compared by the share that their
branch would have if the head got in. What one head takes changes shares on its own branch only, so after each turn only
that branch is looked at again.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hub.kueue.admission.config import Queue
from hub.kueue.admission.fair_sharing import Share, share
from hub.kueue.admission.policy import Policy
from hub.kueue.admission.quota import Node
from hub.kueue.admission.what_if import WhatIf

if TYPE_CHECKING:
    from hub.kueue.admission.cycle import Head


def in_order(policy: Policy, heads: Iterable["Head"]) -> Iterator["Head"]:
    """The heads, each chosen on the state that the ones before it left. Trees take turns by name."""
    by_root: dict[tuple[bool, str], list[Head]] = {}
    for head in heads:
        root = head.queue.root
        by_root.setdefault((not root.is_cohort, root.name), []).append(head)
    for key in sorted(by_root):
        yield from _Tree(policy, by_root[key]).turns()


class _Contender:
    """A head with the shares of its branch, by the level at which they are compared."""

    __slots__ = ("head", "requested", "shares")

    def __init__(self, head: "Head") -> None:
        self.head = head
        self.requested: frozenset[tuple[str, str]] = frozenset()
        self.shares: dict[Node, Share] = {}

    def weigh(self) -> None:
        usage = self.head.usage
        self.requested = frozenset(cell.key for cell, amount in usage.items() if amount > 0)
        with WhatIf() as trial:
            trial.charge(usage)
            node: Node = self.head.queue
            while node.parent is not None:
                self.shares[node.parent] = share(node)
                node = node.parent


class _Tree:
    """The heads of one tree that have not had their turn."""

    def __init__(self, policy: Policy, heads: Iterable["Head"]) -> None:
        self._policy = policy
        self._contenders = {h.queue: _Contender(h) for h in heads}
        self._stale: set[Queue] = set(self._contenders)
        self._winners: dict[Node, _Contender | None] = {}

    def turns(self) -> Iterator["Head"]:
        while self._contenders:
            for queue in self._stale:
                self._contenders[queue].weigh()
            self._stale.clear()
            root = next(iter(self._contenders)).root
            winner = self._contenders[root] if isinstance(root, Queue) else self._winner(root)
            if winner is None:
                return
            queue = winner.head.queue
            del self._contenders[queue]
            before = _path_usage(queue)
            yield winner.head
            self._refresh(queue, before)

    def _refresh(self, queue: Queue, before: dict[Node, list[int]]) -> None:
        """Forget what the last turn made wrong: winners above its queue, and the shares below every node it changed."""
        for node in queue.ancestors():
            self._winners.pop(node, None)
        after = _path_usage(queue)
        top: Node | None = None
        for node in queue.ancestors():
            # The root has no share: what reaches it changes nobody's.
            if node.parent is not None and before[node] != after[node]:
                top = node
        if top is not None:
            self._spoil(top)

    def _spoil(self, cohort: Node) -> None:
        self._winners.pop(cohort, None)
        for queue in cohort.queues:
            if isinstance(queue, Queue) and queue in self._contenders:
                self._stale.add(queue)
        for child in cohort.cohorts:
            self._spoil(child)

    def _winner(self, cohort: Node) -> _Contender | None:
        if cohort in self._winners:
            return self._winners[cohort]
        best: _Contender | None = None
        for child in cohort.cohorts:
            best = self._better(best, self._winner(child), cohort)
        for queue in cohort.queues:
            if isinstance(queue, Queue):
                best = self._better(best, self._contenders.get(queue), cohort)
        self._winners[cohort] = best
        return best

    def _better(self, best: _Contender | None, other: _Contender | None, cohort: Node) -> _Contender | None:
        if best is None or other is None:
            return best if other is None else other
        return other if self._goes_before(other, best, cohort) else best

    def _goes_before(self, a: _Contender, b: _Contender, cohort: Node) -> bool:
        policy, fair = self._policy, self._policy.fair_sharing
        if a.head.has_claim != b.head.has_claim:
            return a.head.has_claim
        if policy.prioritize_preemptors and a.head.is_preemptor != b.head.is_preemptor:
            return a.head.is_preemptor
        mine, theirs = a.shares[cohort], b.shares[cohort]
        if fair is not None and fair.prioritize_non_borrowing:
            borrows, other_borrows = _borrows(mine, a.requested), _borrows(theirs, b.requested)
            if borrows != other_borrows:
                return not borrows
        if mine.rank != theirs.rank:
            return mine.rank < theirs.rank
        one, two = a.head.work, b.head.work
        if policy.priority_sorting and one.priority != two.priority:
            return one.priority > two.priority
        return one.timestamp < two.timestamp


def _borrows(own: Share, requested: frozenset[tuple[str, str]]) -> bool:
    """Does the branch borrow any of what its head asks for?"""
    return any(cell.key in requested for cell in own.borrowed)


def _path_usage(queue: Queue) -> dict[Node, list[int]]:
    return {node: [cell.usage for cell in node.cells.values()] for node in queue.ancestors()}
