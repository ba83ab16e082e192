"""Which ClusterQueues and cohorts form which trees.

Cohorts exist as soon as somebody names them, with or without an object. Changes are noted and settled together, once,
before the next decision: a thousand new ClusterQueues of one cohort cost one pass over its tree.

A cohort that is its own ancestor is cut loose, and nothing below it admits until somebody repairs the loop.
"""

from collections.abc import Iterator

from hub.kueue.admission.config import Queue
from hub.kueue.admission.quota import DEPTH_MAX, Node, refresh


class Forest:
    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.cohorts: dict[str, Node] = {}
        #: ClusterQueue -> its cohort; cohort -> its parent; "" for none.
        self._cohort_of: dict[str, str] = {}
        self._parent_of: dict[str, str] = {}
        #: Cohorts with an object of their own.
        self._explicit: set[str] = set()
        self._stale: dict[int, Node] = {}
        self._links_stale = False
        self._looped: set[str] = set()
        self._moved: list[Node] = []

    # --- changing ------------------------------------------------------------------------------------------------------

    def put_queue(self, queue: Queue, cohort: str) -> None:
        """A ClusterQueue is new, or its quotas or cohort changed."""
        self.queues[queue.name] = queue
        self._touch(queue)
        if self._cohort_of.get(queue.name) != cohort:
            self._cohort_of[queue.name] = cohort
            self._links_stale = True

    def remove_queue(self, queue: Queue) -> None:
        self._touch(queue)
        del self.queues[queue.name]
        self._cohort_of.pop(queue.name, None)
        self._links_stale = True

    def put_cohort(self, name: str, parent: str) -> Node:
        """A Cohort object is there. Returns its node, to take over the quotas."""
        node = self._named(name)
        self._explicit.add(name)
        self._touch(node)
        if self._parent_of.get(name) != parent:
            self._parent_of[name] = parent
            self._links_stale = True
        return node

    def remove_cohort(self, name: str) -> Node:
        """The object is gone; the cohort stays as long as somebody names it."""
        node = self._named(name)
        self._touch(node)
        self._explicit.discard(name)
        self._parent_of.pop(name, None)
        self._links_stale = True
        return node

    def _named(self, name: str) -> Node:
        node = self.cohorts.get(name)
        if node is None:
            node = self.cohorts[name] = Node(name, is_cohort=True)
            self._links_stale = True
        return node

    def _touch(self, node: Node) -> None:
        root = node.root
        self._stale[id(root)] = root

    # --- settling ------------------------------------------------------------------------------------------------------

    @property
    def stale(self) -> bool:
        return bool(self._stale) or self._links_stale

    def settle(self) -> list[Queue]:
        """Bring links and quotas up to date. Returns the ClusterQueues whose tree changed."""
        if not self.stale:
            return []
        touched = list(self._stale.values())
        if self._links_stale:
            self._relink()
        self._stale.clear()
        roots: dict[int, Node] = {}
        for node in touched:
            roots[id(node.root)] = node.root
        for node in self._moved:
            roots[id(node.root)] = node.root
        self._moved = []
        changed: list[Queue] = []
        for root in roots.values():
            refresh(root)
            for queue in queues_below(root):
                queue.generation += 1
                queue.plans.clear()
                changed.append(queue)
        return changed

    def _relink(self) -> None:
        self._links_stale = False
        before = {id(n): n.parent for n in (*self.cohorts.values(), *self.queues.values())}
        self._drop_unnamed()
        for cohort in self.cohorts.values():
            cohort.cohorts, cohort.queues = [], []
        self._looped = {name for name in self.cohorts if self._loops(name)}
        for name, cohort in sorted(self.cohorts.items()):
            parent = "" if name in self._looped else self._parent_of.get(name, "")
            cohort.parent = self.cohorts[parent] if parent else None
            if cohort.parent is not None:
                cohort.parent.cohorts.append(cohort)
        for name, queue in sorted(self.queues.items()):
            cohort = self._cohort_of.get(name, "")
            queue.parent = self.cohorts[cohort] if cohort else None
            if queue.parent is not None:
                queue.parent.queues.append(queue)
        nodes = (*self.cohorts.values(), *self.queues.values())
        self._moved = [n for n in nodes if before.get(id(n), n) is not n.parent]
        left = [p for n in nodes if (p := before.get(id(n))) is not None and p is not n.parent]
        self._moved += [p for p in left if self.cohorts.get(p.name) is p]

    def _drop_unnamed(self) -> None:
        """Forget implicit cohorts that nobody names any more, and make those that are named for the first time."""
        named = {c for c in self._cohort_of.values() if c} | {p for p in self._parent_of.values() if p} | self._explicit
        self.cohorts = {n: c for n, c in self.cohorts.items() if n in named}
        for name in named:
            if name not in self.cohorts:
                self.cohorts[name] = Node(name, is_cohort=True)

    def _loops(self, name: str) -> bool:
        at = name
        for _ in range(DEPTH_MAX):
            at = self._parent_of.get(at, "")
            if not at:
                return False
            if at == name:
                return True
        return True

    # --- reading -------------------------------------------------------------------------------------------------------

    def looped(self, queue: Queue) -> bool:
        """Is the ClusterQueue below a loop of cohorts?"""
        if not self._looped:
            return False
        return any(node.name in self._looped for node in queue.ancestors())


def queues_below(node: Node) -> Iterator[Queue]:
    """Every ClusterQueue of the tree under `node`, itself included."""
    if isinstance(node, Queue):
        yield node
        return
    for queue in node.queues:
        if isinstance(queue, Queue):
            yield queue
    for cohort in node.cohorts:
        yield from queues_below(cohort)
