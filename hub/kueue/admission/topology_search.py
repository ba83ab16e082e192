"""Looking for domains that can take a gang: bottom-up how much fits where, then top-down as few domains as possible.

    phase 1    leaves: how many pods fit;  inner domains: sums, in whole slices
    phase 2    at the level asked for: one domain that holds all, or several, or one of a wider level
    phase 3    from there down: the fewest children, level by level; at and below the level of slices
               every parent's share stays below that parent

Best fit takes the fullest domain that still holds everything, otherwise the emptiest first. The profile for pods that do
not care takes the domain with the least room first, so that large free ones stay whole (KEP-2724).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hub.kueue.admission.topology import Domain, Leaf, Tree
from hub.kueue.admission.topology_balance import Balance, Chosen, best_balance, fewest
from hub.kueue.admission.topology_counts import Gang, fill
from hub.kueue.admission.topology_wishes import Wish


class Share(NamedTuple):
    """So many pods, in whole slices or single, in a domain."""

    domain: Domain
    amount: int
    leader: int


class Rules(NamedTuple):
    mixed_profile: bool = True
    balanced: bool = False


class Found(NamedTuple):
    """Leaf and number of pods, by values of the levels; and where the leader goes."""

    pods: list[tuple[Leaf, int]]
    leader: list[tuple[Leaf, int]]


def search(tree: Tree, gang: Gang, wish: Wish, rules: Rules, *, empty: bool = False) -> Found | str:
    """Places for the gang, or why there are none. `empty`: as if no workload ran."""
    fill(tree, gang, wish, empty=empty)
    least_free = wish.unconstrained and rules.mixed_profile
    hunt = _Hunt(tree, gang, wish, least_free=least_free)
    even = hunt.balanced() if rules.balanced and not wish.required and not wish.unconstrained else []
    if rules.balanced:
        tree.counted = None  # balancing changes the notes
    if rules.balanced and not even:
        fill(tree, gang, wish, empty=empty)
    picked = even or hunt.pick(wish.level)
    if isinstance(picked, str):
        return picked
    shares = sorted(hunt.descend(picked, even=bool(even)), key=lambda share: share.domain.values)
    leaves = [(share.domain, share.amount, share.leader) for share in shares if isinstance(share.domain, Leaf)]
    return Found(
        [(leaf, count) for leaf, count, _ in leaves if count],
        [(leaf, leader) for leaf, _, leader in leaves if leader],
    )


# --- phases 2 and 3 ----------------------------------------------------------------------------------------------------


class _Hunt:
    def __init__(self, tree: Tree, gang: Gang, wish: Wish, *, least_free: bool) -> None:
        self._tree = tree
        self._wish = wish
        self._slices = gang.pods // wish.slice_size
        self._leaders = 0 if gang.leader is None else 1
        self._least_free = least_free

    def pick(self, level: int) -> list[Share] | str:
        """Domains of the level, or of a wider one where that is allowed, that hold the gang."""
        domains = self._by_leader(self._tree.domains[level].values())
        need, leaders = self._slices, self._leaders
        if not domains:
            return f"no topology domains at level: {self._tree.levels[level]}"
        if self._least_free:
            one = next((d for d in domains if _holds(d, need, leaders)), None)
        else:
            one = best_fit(domains, need, leaders) if _holds(domains[0], need, leaders) else None
        if one is not None:
            return [Share(one, need, leaders)]
        if self._wish.required:
            return self._shortage(domains[0].slices_led if leaders else domains[0].slices)
        if level > 0 and not self._wish.unconstrained:
            return self.pick(level - 1)
        shares, missing, missing_leaders = self._consume(domains, need, leaders)
        return self._shortage(need - missing) if missing or missing_leaders else shares

    def _shortage(self, fits: int) -> str:
        what = "slice" if self._wish.slice_size > 1 else "pod"
        name = self._tree.topology
        if fits <= 0:
            return f'topology "{name}" has no room for any of {self._slices} {what}(s)'
        return f'topology "{name}" has room for {fits} of {self._slices} {what}(s)'

    def balanced(self) -> list[Share]:
        """Places with about as much in each domain; empty where that cannot be.

        The domains are those below the level that is preferred, unless slices end there.
        """
        level, need, leaders = self._wish.level, self._slices, self._leaders
        domains = self._tree.domains
        groups = [list(domains[0].values())]
        if level > 0:
            groups = [parent.children for _, parent in sorted(domains[level - 1].items())]
        if level == self._wish.slice_level:
            balance = best_balance(groups, need, leaders)
            kept = balance.domains if balance else []
        else:
            balance = best_balance([[c for d in group for c in d.children] for group in groups], need, leaders)
            kept = self._above(balance) if balance else []
        if balance is None:
            return []
        return self._evenly(fewest(self._plain(kept), need, leaders, balance.least), need, balance.least)

    def _above(self, balance: Balance) -> list[Domain]:
        """Those below the fewest parents that hold everything."""
        parents: dict[Domain, list[Domain]] = {}
        for domain in balance.domains:
            if domain.parent is not None:
                parents.setdefault(domain.parent, []).append(domain)
        for parent, children in parents.items():
            parent.slices = sum(c.slices for c in children)
            hosts = [c.slices - c.slices_led for c in children if c.leader]
            parent.leader = 1 if hosts else 0
            parent.slices_led = parent.slices - min(hosts, default=0)
        chosen = fewest(self._plain(parents), self._slices, self._leaders, balance.least)
        return [child for parent, _ in chosen for child in parents[parent]]

    def _evenly(self, chosen: list[Chosen], need: int, least: int) -> list[Share]:
        shares: list[Share] = []
        extra = need - least * len(chosen)
        for domain, leader in chosen:
            more = min(extra, (domain.slices_led if leader else domain.slices) - least)
            shares.append(Share(domain, least + more, leader))
            extra -= more
        return shares

    def descend(self, shares: list[Share], *, even: bool) -> list[Share]:
        """The same, at the lowest level. Counts are pods then."""
        wish, lowest = self._wish, len(self._tree.levels) - 1
        level = shares[0].domain.level
        while level < wish.slice_level and not even:
            pool = self._plain(child for share in shares for child in share.domain.children)
            shares, _, _ = self._consume(pool, self._slices, self._leaders)
            level += 1
        shares = [Share(domain, count * wish.slice_size, leader) for domain, count, leader in shares]
        while level < lowest:
            level += 1
            unit = wish.slice_size if level <= wish.slice_level else wish.inner.get(level, 1)
            shares = [below for share in shares for below in self._divide(share, unit)]
        return shares

    def _divide(self, share: Share, unit: int) -> list[Share]:
        children = share.domain.children
        if share.domain.level < self._wish.slice_level:
            order = self._plain(children)
        else:  # below the level of slices domains with the least room come first, whatever the profile
            order = sorted(children, key=lambda d: (d.pods, d.values))
            for child in children:
                child.slices, child.slices_led = child.pods // unit, child.pods_led // unit
        below, _, _ = self._consume(order, share.amount // unit, share.leader)
        return [Share(domain, count * unit, leader) for domain, count, leader in below]

    def _consume(self, domains: list[Domain], need: int, leaders: int) -> tuple[list[Share], int, int]:
        """Fill domains in order until nothing is left, and say what is left."""
        shares: list[Share] = []
        if leaders:
            first = self._leader_first(domains, need)
            if first is None:
                return [], need, leaders
            taken = min(need, first.slices_led)
            shares.append(Share(first, taken, 1))
            need -= taken
            domains = self._plain([d for d in domains if d is not first])
        for i, domain in enumerate(domains):
            if need <= 0:
                break
            if domain.slices <= 0:
                continue
            if domain.slices >= need:
                last = domain if self._least_free else best_fit(domains[i:], need, 0)
                shares.append(Share(last, need, 0))
                need = 0
                break
            shares.append(Share(domain, domain.slices, 0))
            need -= domain.slices
        return shares, need, 0

    def _leader_first(self, domains: Sequence[Domain], need: int) -> Domain | None:
        """The first domain that can take the leader without making the rest too small."""
        total = sum(d.slices for d in domains)
        hosts = [d for d in domains if d.leader and total - d.slices + d.slices_led >= need]
        if not hosts:
            return None
        if not self._least_free and _holds(hosts[0], need, 1):
            return best_fit(hosts, need, 1)
        return hosts[0]

    def _by_leader(self, domains: Iterable[Domain]) -> list[Domain]:
        if not self._leaders:
            return self._plain(domains)
        if self._least_free:
            return sorted(domains, key=lambda d: (-d.leader, d.slices_led, d.pods_led, d.values))
        return sorted(domains, key=lambda d: (-d.leader, -d.slices_led, d.pods_led, d.values))

    def _plain(self, domains: Iterable[Domain]) -> list[Domain]:
        if self._least_free:
            return sorted(domains, key=lambda d: (d.slices, d.pods, d.values))
        return sorted(domains, key=lambda d: (-d.slices, d.pods, d.values))


def _holds(domain: Domain, slices: int, leaders: int) -> bool:
    if leaders:
        return domain.leader >= leaders and domain.slices_led >= slices
    return domain.slices >= slices


def best_fit(domains: Sequence[Domain], slices: int, leaders: int) -> Domain:
    """The fullest domain that holds everything, the first of equals; the first domain must hold it."""
    best = domains[0]
    for domain in domains:
        if _holds(domain, slices, leaders):
            if leaders:
                if domain.slices_led < best.slices_led:
                    best = domain
            elif domain.slices < best.slices:
                best = domain
    return best
