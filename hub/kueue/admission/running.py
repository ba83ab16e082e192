"""The workloads that hold quota in one ClusterQueue, in the order in which they would be preempted.

The order is kept as they come and go, so that a search for victims looks at the first few instead of sorting all of them.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hub.kueue.api.meta import ObjectKey

if TYPE_CHECKING:
    from hub.kueue.admission.records import Work

#: Already evicted first, then low priority, then lately admitted (whole seconds), then small uid.
Rank = tuple[bool, int, int, str, int, "Work"]


class Running:
    __slots__ = ("_by_key", "_ranked", "_serial")

    def __init__(self) -> None:
        self._by_key: dict[ObjectKey, Rank] = {}
        self._ranked: list[Rank] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._ranked)

    def __iter__(self) -> Iterator["Work"]:
        """In order; do not change it meanwhile."""
        return (rank[5] for rank in self._ranked)

    def __contains__(self, work: "Work") -> bool:
        rank = self._by_key.get(work.key)
        return rank is not None and rank[5] is work

    def add(self, work: "Work") -> None:
        reservation = work.reservation
        if reservation is None:
            return
        self._serial += 1
        rank = (not reservation.evicted, work.priority, -int(reservation.reserved_at), work.uid, self._serial, work)
        self._by_key[work.key] = rank
        insort(self._ranked, rank)

    def remove(self, work: "Work") -> None:
        rank = self._by_key.pop(work.key, None)
        if rank is not None:
            del self._ranked[bisect_left(self._ranked, rank)]

    def refresh(self, work: "Work") -> None:
        """Its priority, its time or its eviction changed: give it its new place."""
        rank, reservation = self._by_key.get(work.key), work.reservation
        if rank is None or reservation is None:
            return
        if rank[:4] != (not reservation.evicted, work.priority, -int(reservation.reserved_at), work.uid):
            self.remove(work)
            self.add(work)

    def first_to_go(self) -> Iterator[Rank]:
        return iter(self._ranked)
