"""Who holds what on which cluster, from the offer until the agent says that nothing is left.

    Account of one (cluster, flavor, resource), in engine units:

        capacity ─┬─ others           from the agent's report
                  ├─ ours             from the agent's report: our copies, as it saw them
                  └─ charged          from this ledger: confirmed by the agent's word for that generation, or assumed

        free = capacity - others - max(ours, charged)

What the report counts as ours is charged here already: every copy has had a placement from the moment it was offered.
So the larger of the two is taken and nothing is subtracted twice, neither before the report arrives (charged is larger)
nor after it did (they are equal) nor while a copy that the ledger has released is still counted there (ours is larger).
"""

from collections.abc import Iterable

from msgspec import Struct

from hub.dispatch.placement import Placement, holds_room


class Account(Struct, kw_only=True):
    """One resource of one flavor (or of one flavor's quota in a worker's queue). Changed in place by its view only."""

    capacity: int = 0
    others: int = 0
    ours: int = 0
    confirmed: int = 0
    assumed: int = 0

    @property
    def used_by_us(self) -> int:
        return max(self.ours, self.confirmed + self.assumed)

    @property
    def free(self) -> int:
        return max(0, self.capacity - self.others - self.used_by_us)


class Entry(Struct, frozen=True, kw_only=True):
    """One row of the ledger."""

    placement: str
    cluster: str
    #: ClusterQueue of the worker that the workload is queued in.
    queue: str
    flavor: str
    resource: str
    amount: int
    confirmed: bool


def entries(placement: Placement) -> tuple[Entry, ...]:
    """The rows of one placement; none once it holds nothing."""
    if not holds_room(placement):
        return ()
    return tuple(
        Entry(
            placement=placement.id,
            cluster=placement.cluster,
            queue=placement.intent.cluster_queue,
            flavor=charge.flavor,
            resource=charge.resource,
            amount=charge.amount,
            confirmed=placement.confirmed,
        )
        for charge in placement.charges
    )


#: (ClusterQueue of the worker, flavor, resource).
Line = tuple[str, str, str]


class Held:
    """What is held on one cluster: the placements, and their sums line by line."""

    def __init__(self) -> None:
        self.placements: dict[str, Placement] = {}
        #: line -> [assumed, confirmed].
        self.sums: dict[Line, list[int]] = {}

    def count(self, rows: Iterable[Entry], sign: int) -> None:
        for row in rows:
            line = self.sums.setdefault((row.queue, row.flavor, row.resource), [0, 0])
            line[row.confirmed] += sign * row.amount


class Ledger:
    """All placements that hold room, by cluster. Putting the same placement twice changes nothing."""

    def __init__(self, placements: Iterable[Placement] = ()) -> None:
        self._held: dict[str, Held] = {}
        for placement in placements:
            self.put(placement)

    def put(self, placement: Placement) -> bool:
        """Take in the newest version of a placement. True when what it holds changed."""
        held = self.on(placement.cluster)
        before = held.placements.get(placement.id)
        if holds_room(placement):
            held.placements[placement.id] = placement
        else:
            held.placements.pop(placement.id, None)
        if before is not None and _alike(before, placement):
            return False
        old, new = entries(before) if before else (), entries(placement)
        held.count(old, -1)
        held.count(new, 1)
        return old != new

    def get(self, placement: Placement) -> Placement | None:
        """The version of it that the ledger counts."""
        return self.on(placement.cluster).placements.get(placement.id)

    def on(self, cluster: str) -> Held:
        return self._held.setdefault(cluster, Held())

    def entries(self, cluster: str) -> Iterable[Entry]:
        return (entry for placement in self.on(cluster).placements.values() for entry in entries(placement))


def _alike(before: Placement, after: Placement) -> bool:
    """Do two versions of one placement hold the same, seen at a glance?"""
    return (
        before.charges is after.charges
        and before.confirmed == after.confirmed
        and holds_room(before) == holds_room(after)
    )
