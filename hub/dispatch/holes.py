"""Pods into the free room of nodes, equal nodes folded.

A pod set fits when its pods fit node by node, not when the sum fits: 8 GPUs free on two nodes hold no pod that wants 8.
Pods go to the tightest node that takes them, so that large holes stay large. This is what a node scheduler would roughly
do, and it only has to be good enough to know where an offer is worth while: the worker's own admission has the last word.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hub.kueue.wire import Hole

#: Core's own resource: how many pods a node takes. A report that does not say so sets no limit.
_PODS = "pods"
#: Pods that ask for nothing, on a node that sets no limit.
_ANY_NUMBER = 1 << 30


class Holes:
    """Free room of the nodes of one flavor: how many nodes have exactly this much. Never changed, only made anew."""

    __slots__ = ("groups", "resources")

    def __init__(self, resources: tuple[str, ...], groups: dict[tuple[int, ...], int]) -> None:
        #: The order of the amounts in `groups`.
        self.resources = resources
        #: amounts free on one node -> how many such nodes.
        self.groups = groups

    @classmethod
    def of(cls, reported: Iterable[Hole]) -> "Holes":
        holes = list(reported)
        resources = tuple(sorted({r for hole in holes for r in hole.free}))
        groups: dict[tuple[int, ...], int] = {}
        for hole in holes:
            free = tuple(hole.free.get(r, 0) for r in resources)
            groups[free] = groups.get(free, 0) + hole.nodes
        return cls(resources, groups)

    def need(self, per_pod: Mapping[str, int]) -> tuple[int, ...] | None:
        """What one pod takes, in the order of `resources`. None: it asks for something that no node here has."""
        if any(amount > 0 and r not in self.resources and r != _PODS for r, amount in per_pod.items()):
            return None
        return tuple(max(1, per_pod.get(r, 1)) if r == _PODS else per_pod.get(r, 0) for r in self.resources)

    def largest(self, resource: str) -> int:
        """The most of one resource that one node has free."""
        if resource not in self.resources:
            return 0
        place = self.resources.index(resource)
        return max((free[place] for free in self.groups), default=0)

    def total(self, resource: str) -> int:
        if resource not in self.resources:
            return 0
        place = self.resources.index(resource)
        return sum(free[place] * nodes for free, nodes in self.groups.items())


class Packed(NamedTuple):
    #: Room that is left.
    holes: Holes
    #: Pods that found no place; 0 means that all did.
    missing: int


def pods_per_node(free: tuple[int, ...], need: tuple[int, ...]) -> int:
    """How many such pods one node with this much free takes."""
    fits = [f // n for f, n in zip(free, need, strict=True) if n > 0]
    return min(fits) if fits else _ANY_NUMBER


def pack(holes: Holes, per_pod: Mapping[str, int], count: int) -> Packed:
    """Place `count` pods, tightest nodes first."""
    need = holes.need(per_pod)
    if need is None or count == 0:
        return Packed(holes, count)
    slots = [(n, free) for free in holes.groups if (n := pods_per_node(free, need)) > 0]
    groups, missing = dict(holes.groups), count
    for per_node, free in sorted(slots):
        nodes = groups[free]
        taken = min(missing, per_node * nodes)
        _take(groups, free, need, per_node, taken)
        missing -= taken
        if not missing:
            break
    return Packed(Holes(holes.resources, groups), missing)


def _take(
    groups: dict[tuple[int, ...], int], free: tuple[int, ...], need: tuple[int, ...], per_node: int, taken: int
) -> None:
    """Put so many pods on nodes that are alike: some are full then, at most one is partly used, the rest untouched."""
    full, rest = divmod(taken, per_node)
    touched = full + (1 if rest else 0)
    if touched == groups[free]:
        del groups[free]
    else:
        groups[free] -= touched
    for nodes, pods in ((full, per_node), (1 if rest else 0, rest)):
        if nodes:
            left = tuple(f - pods * n for f, n in zip(free, need, strict=True))
            groups[left] = groups.get(left, 0) + nodes
