"""How much of a gang fits where: the notes that a search for places reads, in every domain of a tree.

Leaves say how many pods fit, inner domains the sum of their children in whole slices. Between two searches for gangs that ask
for the same, only the leaves that changed, and what is above them, are looked at again: a search for victims asks after every
single one of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hub.kueue.admission.requests import PodSetNeed
from hub.kueue.admission.topology import PODS, Domain, Leaf, Tree, Values
from hub.kueue.admission.topology_wishes import Wish


class Gang(NamedTuple):
    """Pods to be placed, and perhaps one leader that goes into one of their domains."""

    need: PodSetNeed
    pods: int
    leader: PodSetNeed | None = None
    #: Only below this domain.
    within: Values = ()
    #: Not on these nodes, by host name.
    without: frozenset[str] = frozenset()


class _Question(NamedTuple):
    """All that counts depend on, besides what is free."""

    wanted: tuple[tuple[str, int], ...]
    led: tuple[tuple[str, int], ...] | None
    #: The pod set, where it cannot run on some nodes.
    picky: PodSetNeed | None
    slice_level: int
    slice_size: int
    inner: tuple[tuple[int, int], ...]
    empty: bool
    within: Values
    without: frozenset[str]


def fill(tree: Tree, gang: Gang, wish: Wish, *, empty: bool) -> None:
    """Note in every domain how much of the gang fits."""
    excluded = tree.excluded(gang.need)
    question = _Question(
        _amounts(gang.need),
        None if gang.leader is None else _amounts(gang.leader),
        gang.need if excluded else None,
        wish.slice_level,
        wish.slice_size,
        tuple(wish.inner.items()),
        empty,
        gang.within,
        gang.without,
    )
    if tree.counted == question:
        leaves: Iterable[Leaf] = tree.changed
    else:
        leaves = tree.leaves.values()
    touched = list(leaves)
    for leaf in touched:
        if leaf in excluded or _is_out(leaf, gang):
            leaf.pods = leaf.pods_led = leaf.slices = leaf.slices_led = leaf.leader = 0
        else:
            _fill_leaf(leaf, wish, question)
    _fill_above(tree, wish, touched, question)
    tree.counted = question
    tree.changed.clear()


def _amounts(need: PodSetNeed) -> tuple[tuple[str, int], ...]:
    """What one pod takes, itself as one of `pods`."""
    return (*((r, v) for r, v in need.raw_per_pod.items() if v > 0), (PODS, 1))


def _is_out(leaf: Leaf, gang: Gang) -> bool:
    """Are pods of the gang not to go there, for a reason of the search?"""
    return leaf.values[: len(gang.within)] != gang.within or leaf.values[-1] in gang.without


def _fill_leaf(leaf: Leaf, wish: Wish, question: _Question) -> None:
    free, used, assumed = leaf.free, leaf.room.used, leaf.room.assumed
    if question.empty:
        used = assumed
    elif assumed:
        used = {r: used.get(r, 0) + assumed.get(r, 0) for r in {*used, *assumed}}
    leaf.pods = leaf.pods_led = _times(free, used, question.wanted)
    leaf.leader = leaf.slices = leaf.slices_led = 0
    led = question.led
    if led is not None and _times(free, used, led):
        leaf.leader = 1
        taken = dict(used)
        for resource, value in led:
            taken[resource] = taken.get(resource, 0) + value
        leaf.pods_led = _times(free, taken, question.wanted)
    if leaf.level == wish.slice_level:
        leaf.slices, leaf.slices_led = leaf.pods // wish.slice_size, leaf.pods_led // wish.slice_size


def _fill_above(tree: Tree, wish: Wish, touched: Sequence[Leaf], question: _Question) -> None:
    """Inner domains from the lowest level up: all of them, or those above a few leaves."""
    led = question.led is not None
    if len(touched) == len(tree.leaves):
        for level in range(len(tree.levels) - 2, -1, -1):
            for domain in tree.domains[level].values():
                _fill_inner(domain, wish, led=led)
        return
    above = {leaf.parent for leaf in touched}
    while above:
        domains = [domain for domain in above if domain is not None]
        for domain in domains:
            _fill_inner(domain, wish, led=led)
        above = {domain.parent for domain in domains}


def _times(free: Mapping[str, int], used: Mapping[str, int], wanted: Sequence[tuple[str, int]]) -> int:
    """How many times a pod fits."""
    most = 1 << 60
    for resource, value in wanted:
        count = (free.get(resource, 0) - used.get(resource, 0)) // value
        if count < most:
            if count <= 0:
                return 0
            most = count
    return most


def _fill_inner(domain: Domain, wish: Wish, *, led: bool) -> None:
    children = domain.children
    unit = wish.inner.get(domain.level + 1, 1)
    pods = sum(c.pods // unit * unit for c in children)
    slices = sum(c.slices for c in children)
    domain.pods = domain.pods_led = pods
    domain.slices = domain.slices_led = slices
    domain.leader = 0
    if led:
        hosts = [c for c in children if c.leader]
        if hosts:
            domain.leader = 1
            domain.pods_led = pods - min(c.pods // unit * unit - c.pods_led // unit * unit for c in hosts)
            domain.slices_led = slices - min(c.slices - c.slices_led for c in hosts)
        else:
            domain.pods_led = domain.slices_led = 0
    if domain.level == wish.slice_level:
        domain.slices, domain.slices_led = domain.pods // wish.slice_size, domain.pods_led // wish.slice_size
    elif domain.level > wish.slice_level:
        domain.slices = domain.slices_led = 0
