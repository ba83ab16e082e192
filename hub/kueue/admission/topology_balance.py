"""Balanced placement: as few domains as possible, and about the same number of slices in each (KEP-2724).

Among domains that have one parent, the fewest that can hold the gang are found; every one of them should get at least so many
slices as the emptiest of them allows. The parent where that is most wins. Pods that only prefer a level are placed so when
the policy asks for it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hub.kueue.admission.topology import Domain


class Balance(NamedTuple):
    """Domains that share a parent, and how many slices each one that is chosen gets at least."""

    domains: list[Domain]
    least: int
    #: How many domains it takes.
    width: int = 0


def best_balance(groups: Sequence[Sequence[Domain]], need: int, leaders: int) -> Balance | None:
    """The group whose domains can get the most each, then the one that takes fewer. None: no group can hold everything."""
    best: Balance | None = None
    for group in groups:
        found = _balance(group, need, leaders)
        if found is not None and (best is None or (found.least, -found.width) > (best.least, -best.width)):
            best = found
    return best


def _balance(group: Sequence[Domain], need: int, leaders: int) -> Balance | None:
    """How evenly the fewest domains of the group that hold everything can share it."""
    rest = list(group)
    left = least = need
    width = 0
    if leaders:
        first = max((d for d in rest if d.leader), key=lambda d: d.slices_led, default=None)
        if first is None:
            return None
        rest.remove(first)
        width, left, least = 1, need - first.slices_led, first.slices_led
    for domain in sorted(rest, key=lambda d: -d.slices):
        if left <= 0 or domain.slices <= 0:
            break
        width += 1
        left -= domain.slices
        least = min(least, domain.slices)
    least = min(least, need // max(1, width))
    if left > 0 or least <= 0:
        return None
    return Balance([d for d in group if d.slices >= least], least, width)


#: A domain and the leaders that go there.
Chosen = tuple[Domain, int]


def fewest(domains: Sequence[Domain], need: int, leaders: int, least: int) -> list[Chosen]:
    """The fewest domains that hold the gang, of these the ones with the least to spare, the first of equals.

    Domains come in the order in which they are preferred; `least` is what the one with the leader must still hold. Empty:
    they do not hold the gang.
    """
    domains = _useful(domains, need)
    #: (leaders, slices) placed -> domains, and how far we are in the list.
    reached: dict[tuple[int, int], tuple[int, tuple[Chosen, ...]]] = {(0, 0): (0, ())}
    for _ in domains:
        further: dict[tuple[int, int], tuple[int, tuple[Chosen, ...]]] = {}
        for (led, slices), (start, chosen) in reached.items():
            for at, domain in enumerate(domains[start:], start + 1):
                if led < leaders and domain.leader and domain.slices_led >= least:
                    further.setdefault((1, slices + domain.slices_led), (at, (*chosen, (domain, 1))))
                further.setdefault((led, slices + domain.slices), (at, (*chosen, (domain, 0))))
        done = [(slices, found) for (led, slices), (_, found) in further.items() if led >= leaders and slices >= need]
        if done:
            return list(min(done, key=lambda one: one[0])[1])
        reached = further
    return []


def _useful(domains: Sequence[Domain], need: int) -> list[Domain]:
    """Without those that come after enough equal ones."""
    seen: Counter[tuple[int, int, int]] = Counter()
    kept: list[Domain] = []
    for domain in domains:
        kind = (domain.slices, domain.slices_led, domain.leader)
        seen[kind] += 1
        if (seen[kind] - 2) * max(1, domain.slices) < need:
            kept.append(domain)
    return kept
