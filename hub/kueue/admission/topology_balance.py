"""Balanced placement: as few domains as possible, and about the same number of slices in each (KEP-2724).

Among domains that have one parent, the fewest that can hold the gang are found; every one of them should get at least so many
slices as the emptiest of them allows. The parent where that is most wins. Pods that only prefer a level are placed so when
the policy asks for it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hub.kueue.admission.topology import Domain


class Balance(NamedTuple):
    """Domains that share a parent, and how many slices each one that is chosen gets at least."""

    domains: list[Domain]
    least: int


def best_balance(groups: Sequence[Sequence[Domain]], need: int, leaders: int) -> Balance | None:
    """The group whose domains can get the most each. None: no group can hold everything."""
    best: Balance | None = None
    for group in groups:
        least = _least(group, need, leaders)
        if least > (best.least if best else 0):
            kept = [d for d in group if (d.slices_led if leaders and d.leader else d.slices) >= least]
            if _least(kept, need, leaders):
                best = Balance(kept, least)
    return best


def _least(group: Sequence[Domain], need: int, leaders: int) -> int:
    """Slices that every one of the fewest domains that hold the gang can get; 0: they cannot hold it."""
    chosen = 0
    least = need
    rest = list(group)
    left = need
    if leaders:
        first = max((d for d in rest if d.leader), key=lambda d: d.slices_led, default=None)
        if first is None:
            return 0
        rest.remove(first)
        chosen, left, least = 1, need - first.slices_led, min(least, first.slices_led)
    for domain in sorted(rest, key=lambda d: -d.slices):
        if left <= 0 or domain.slices <= 0:
            break
        chosen += 1
        left -= domain.slices
        least = min(least, domain.slices)
    return 0 if left > 0 or not chosen else min(least, need // chosen)


def fewest(domains: Sequence[Domain], need: int, leaders: int) -> list[Domain]:
    """The fewest domains that hold the gang, of these the ones with the least to spare, the first of equals.

    The first of them takes the leader. Domains come in the order in which they are preferred.
    """
    #: (leaders, slices) placed -> domains.
    reached: dict[tuple[int, int], tuple[Domain, ...]] = {(0, 0): ()}
    for _ in domains:
        further: dict[tuple[int, int], tuple[Domain, ...]] = {}
        for (led, slices), chosen in reached.items():
            start = domains.index(chosen[-1]) + 1 if chosen else 0
            for domain in domains[start:]:
                if led < leaders and domain.leader:
                    further.setdefault((led + 1, slices + domain.slices_led), (*chosen, domain))
                further.setdefault((led, slices + domain.slices), (*chosen, domain))
        done = [(slices, chosen) for (led, slices), chosen in further.items() if led >= leaders and slices >= need]
        if done:
            return list(min(done, key=lambda found: found[0])[1])
        reached = further
    return []
