"""Another node for the pods of one that failed, so that the gang stays what it asked to be.

The other pods stay where they are. What was required to be together stays together, and a slice that lost pods gets them back
in its own domain; otherwise the pods go where there is room.
"""

from collections import Counter
from collections.abc import Sequence

from hub.kueue.admission.requests import PodSetNeed, wants_topology
from hub.kueue.admission.topology import Tree, Values
from hub.kueue.admission.topology_counts import Gang
from hub.kueue.admission.topology_encoding import Placed, encode
from hub.kueue.admission.topology_search import Rules, search
from hub.kueue.admission.topology_wishes import Wish, wish_of
from hub.kueue.api.v1beta2 import TopologyAssignment


def replacement(
    tree: Tree, need: PodSetNeed, placed: Sequence[Placed], failed: frozenset[str], rules: Rules
) -> TopologyAssignment | str:
    """The assignment with the pods of failed nodes elsewhere, or why that cannot be. Nodes are host names."""
    wish = wish_of(tree, need.topology if wants_topology(need.topology) else None)
    if isinstance(wish, str):
        return wish
    by_host = {values[-1]: values for values in tree.leaves}
    lost = sum(pods for values, pods in placed if values[-1] in failed)
    left: Counter[str] = Counter({values[-1]: pods for values, pods in placed if values[-1] not in failed})
    if stale := sorted(host for host in left if host not in by_host):
        return f"node {stale[0]}, which runs other pods of it, is not usable any more"
    kept = [(by_host[host], pods) for host, pods in left.items()]
    within, narrowed = _bounds(wish, kept, lost)
    gang = Gang(need, lost, within=within, without=failed)
    found = search(tree, gang, narrowed, rules)
    if isinstance(found, str):
        return found
    for leaf, pods in found.pods:
        left[leaf.values[-1]] += pods
    merged = sorted((by_host[host], pods) for host, pods in left.items())
    return encode(tree.levels[-1:], [(values[-1:], pods) for values, pods in merged])


def _bounds(wish: Wish, kept: Sequence[Placed], lost: int) -> tuple[Values, Wish]:
    """The domain in which the lost pods have to stay, and what they ask for there."""
    within: Values = ()
    if wish.required and kept:
        within = kept[0][0][: wish.level + 1]
    if lost % wish.slice_size == 0:
        return within, wish
    shares: Counter[Values] = Counter()
    for values, pods in kept:
        shares[values[: wish.slice_level + 1]] += pods
    broken = min((values for values, pods in shares.items() if pods % wish.slice_size), default=within)
    return max(within, broken, key=len), _narrowed(wish, lost)


def _narrowed(wish: Wish, lost: int) -> Wish:
    """With the innermost slices that the lost pods make up, or none."""
    inner = [(level, size) for level, size in sorted(wish.inner.items()) if lost % size == 0]
    level, size = inner[0] if inner else (wish.slice_level, 1)
    rest = {below: size for below, size in inner if below > level}
    return wish._replace(level=min(wish.level, level), slice_level=level, slice_size=size, inner=rest)
