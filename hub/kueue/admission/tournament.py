"""Whose turn it is with fair sharing: heads meet level by level, the lower share wins (KEP-1714).

At each cohort the winners of its child cohorts and the heads of its ClusterQueues are compared by the share that their
branch would have if the head got in. What one head takes changes shares on its own branch only, so after each turn only
that branch is looked at again.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hub.kueue.admission.config import Queue
from hub.kueue.admission.fair_sharing import Rank, share
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


#: What is compared, the smaller one goes first: claim, preemptor, borrows what it asks for, share, priority, time.
Key = tuple[bool, bool, bool, Rank, int, float]


class _Contender:
    """A head with what it is compared by at each level: the share of its branch if it got in."""

    __slots__ = ("_policy", "head", "keys")

    def __init__(self, policy: Policy, head: "Head") -> None:
        self._policy = policy
        self.head = head
        #: Cohort -> key among the children of that cohort.
        self.keys: dict[Node, Key] = {}

    def weigh(self) -> None:
        policy, fair, head = self._policy, self._policy.fair_sharing, self.head
        usage = head.usage
        requested = {cell.key for cell, amount in usage.items() if amount > 0}
        if fair is None or not fair.prioritize_non_borrowing:
            requested.clear()
        second = policy.prioritize_preemptors and not head.is_preemptor
        priority = -head.work.priority if policy.priority_sorting else 0
        with WhatIf() as trial:
            trial.charge(usage)
            node: Node = head.queue
            while node.parent is not None:
                own = share(node)
                borrows = not requested.isdisjoint(own.borrowed) if own.borrowed else False
                self.keys[node.parent] = (
                    not head.has_claim, second, borrows, own.rank, priority, head.work.timestamp,
                )  # fmt: skip
                node = node.parent


class _Tree:
    """The heads of one tree that have not had their turn."""

    def __init__(self, policy: Policy, heads: Iterable["Head"]) -> None:
        self._contenders = {h.queue: _Contender(policy, h) for h in heads}
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
        contenders = [c for child in cohort.cohorts if (c := self._winner(child)) is not None]
        known = self._contenders
        contenders += [known[q] for q in cohort.queues if isinstance(q, Queue) and q in known]
        best = min(contenders, key=lambda c: c.keys[cohort], default=None)
        self._winners[cohort] = best
        return best


def _path_usage(queue: Queue) -> dict[Node, list[int]]:
    return {node: [cell.usage for cell in node.cells.values()] for node in queue.ancestors()}
