"""Pods into the free room of nodes, equal nodes folded.

A pod set fits when its pods fit node by node, not when the sum fits: 8 GPUs free on two nodes hold no pod that wants 8.
Pods go to the tightest node that takes them, so that large holes stay large. This is what a node scheduler would roughly
do, and it only has to be good enough to know where an offer is worth while: the worker's own admission has the last word.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from hub.kueue.wire import Hole

#: Core's own resource: how many pods a node takes. A report that does not say so sets no limit.
_PODS = "pods"


class Packed(Struct, frozen=True):
    #: Room that is left.
    holes: tuple[Hole, ...]
    #: Pods that found no place; 0 means that all did.
    missing: int


def pods_per_node(free: Mapping[str, int], per_pod: Mapping[str, int]) -> int:
    """How many such pods one node with this much free takes. A pod that asks for nothing is limited by `pods` alone."""
    fits = [free.get(resource, 0) // amount for resource, amount in per_pod.items() if amount > 0 and resource != _PODS]
    if _PODS in free:
        fits.append(free[_PODS] // max(1, per_pod.get(_PODS, 1)))
    return min(fits) if fits else 1 << 30


def pack(holes: Iterable[Hole], per_pod: Mapping[str, int], count: int) -> Packed:
    """Place `count` pods, tightest nodes first."""
    slots = [(pods_per_node(hole.free, per_pod), index, hole) for index, hole in enumerate(holes)]
    left: list[Hole] = [hole for n, _, hole in slots if n == 0]
    missing = count
    for per_node, _, hole in sorted((s for s in slots if s[0] > 0), key=lambda s: s[:2]):
        taken = min(missing, per_node * hole.nodes)
        left.extend(_after(hole, per_pod, per_node, taken))
        missing -= taken
    return Packed(tuple(left), missing)


def _after(hole: Hole, per_pod: Mapping[str, int], per_node: int, taken: int) -> list[Hole]:
    """What is left of equal nodes: some are full, at most one is partly used, the rest untouched."""
    full, rest = divmod(taken, per_node)
    parts = [
        (full, _less(hole.free, per_pod, per_node)),
        (1 if rest else 0, _less(hole.free, per_pod, rest)),
        (hole.nodes - full - (1 if rest else 0), hole.free),
    ]
    return [Hole(free=free, nodes=nodes) for nodes, free in parts if nodes > 0]


def _less(free: Mapping[str, int], per_pod: Mapping[str, int], pods: int) -> dict[str, int]:
    left = {r: amount - pods * per_pod.get(r, 0) for r, amount in free.items() if r != _PODS}
    return left if _PODS not in free else left | {_PODS: free[_PODS] - pods * max(1, per_pod.get(_PODS, 1))}


def largest(holes: Sequence[Hole], resource: str) -> int:
    """The most of one resource that one node has free."""
    return max((hole.free.get(resource, 0) for hole in holes), default=0)
