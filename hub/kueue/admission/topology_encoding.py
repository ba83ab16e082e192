"""TopologyAssignment: domains with their pod counts, written compactly.

    node-1: 2, node-2: 2, node-3: 2   ──▶   prefix "node-", roots 1 2 3, two pods each

Values of a level that are alike are written once; otherwise what they start and end with is. Host names are also tried in
runs that share a prefix up to a dash, which is shorter where several pools of nodes are involved (KEP-2724).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import msgspec

from hub.kueue.api.v1beta2 import (
    TopologyAssignment,
    TopologyAssignmentSlice,
    TopologySliceIndividual,
    TopologySliceLevelValues,
    TopologySlicePodCounts,
)

#: Values of the levels, and pods there.
Placed = tuple[tuple[str, ...], int]

SLICES_MAX = 1000
DOMAINS_MAX = 100_000


def encode(levels: Sequence[str], domains: Sequence[Placed]) -> TopologyAssignment:
    """The shortest form of the assignment. Order is kept."""
    whole = TopologyAssignment(levels=list(levels), slices=_chunks(domains))
    if len(levels) > 1 or len(domains) < 2:
        return whole
    runs = _runs(domains)
    if len(runs) < 2:
        return whole
    split = TopologyAssignment(levels=list(levels), slices=[part for run in runs for part in _chunks(run)])
    if len(split.slices) > SLICES_MAX:
        return whole
    return min(whole, split, key=lambda form: len(msgspec.json.encode(form)))


def decode(assignment: TopologyAssignment) -> list[Placed]:
    """Domains in the order written. Shapes that do not fit together end early instead of failing."""
    found: list[Placed] = []
    for part in assignment.slices:
        columns = [_values(level, part.domain_count) for level in part.values_per_level]
        counts = part.pod_counts
        pods = counts.individual or [counts.universal or 0] * part.domain_count
        found += zip(zip(*columns, strict=False), pods, strict=False)
    return found


def _values(level: TopologySliceLevelValues, count: int) -> list[str]:
    parts = level.individual
    if parts is None:
        return [level.universal or ""] * count
    before, after = parts.prefix or "", parts.suffix or ""
    return [before + root + after for root in parts.roots]


def _chunks(domains: Sequence[Placed]) -> list[TopologyAssignmentSlice]:
    return [_slice(domains[at : at + DOMAINS_MAX]) for at in range(0, len(domains), DOMAINS_MAX)]


def _slice(domains: Sequence[Placed]) -> TopologyAssignmentSlice:
    counts = [count for _, count in domains]
    alike = len(set(counts)) == 1
    return TopologyAssignmentSlice(
        domain_count=len(domains),
        values_per_level=[_column(column) for column in zip(*(values for values, _ in domains), strict=True)],
        pod_counts=TopologySlicePodCounts(universal=counts[0]) if alike else TopologySlicePodCounts(individual=counts),
    )


def _column(values: Sequence[str]) -> TopologySliceLevelValues:
    if len(set(values)) == 1:
        return TopologySliceLevelValues(universal=values[0])
    shortest = min(len(value) for value in values)
    before = _common(values)
    after = _common([value[::-1] for value in values])[::-1]
    before = before[: max(0, shortest - len(after))]
    roots = [value[len(before) : len(value) - len(after)] for value in values]
    return TopologySliceLevelValues(
        individual=TopologySliceIndividual(prefix=before or None, suffix=after or None, roots=roots)
    )


def _common(values: Sequence[str]) -> str:
    """What all of them start with."""
    first, last = min(values), max(values)
    alike = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:alike]


def _runs(domains: Sequence[Placed]) -> list[list[Placed]]:
    """Neighbours that share the longest dashed prefix that occurs twice; shorter prefixes where there are too many runs."""
    hosts = [values[0] for values, _ in domains]
    for depth in range(max(host.count("-") for host in hosts), 0, -1):
        prefixes = [_prefixes(host, depth) for host in hosts]
        seen = Counter(prefix for found in prefixes for prefix in found)
        best = [next((p for p in found if seen[p] > 1), "") for found in prefixes]
        numbered = groupby(range(len(domains)), key=best.__getitem__)
        runs = [[domains[i] for i in run] for _, run in numbered]
        if len(runs) <= SLICES_MAX:
            return runs
    return [list(domains)]


def _prefixes(host: str, depth: int) -> list[str]:
    """Prefixes that end with one of the first dashes, longest first."""
    parts = host.split("-")
    return ["-".join(parts[:i]) + "-" for i in range(min(depth, len(parts) - 1), 0, -1)]
