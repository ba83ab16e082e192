"""Trying things on the live quota tree and taking them back.

    with WhatIf() as trial:
        trial.remove(victim)
        ... available(cell) ...            # as if the victim were gone
    # everything is as before

There are no snapshots. Usage of a cohort is a function of the usage of its children, so undoing restores every cell
exactly, in whatever order removals were put back before.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from hub.kueue.admission.quota import Cell, add_usage, remove_usage
from hub.kueue.admission.records import Reservation, Work


class WhatIf:
    """What was tried, to be undone. Usable as a context manager or with `undo`."""

    __slots__ = ("_added", "_removed")

    def __init__(self) -> None:
        self._removed: dict[Work, Reservation] = {}
        self._added: list[tuple[Cell, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def remove(self, work: Work) -> None:
        """As if the workload had given its quota back. Once is enough."""
        reservation = work.reservation
        if reservation is None or work in self._removed:
            return
        for cell, amount in reservation.charges:
            remove_usage(cell, amount)
        for usage in reservation.topology:
            usage.release()
        self._removed[work] = reservation

    def remove_all(self, works: Iterable[Work]) -> None:
        for work in works:
            self.remove(work)

    def put_back(self, work: Work) -> None:
        reservation = self._removed.pop(work)
        for cell, amount in reservation.charges:
            add_usage(cell, amount)
        for usage in reservation.topology:
            usage.occupy()

    def charge(self, need: Mapping[Cell, int]) -> None:
        """As if so much more were used."""
        for cell, amount in need.items():
            add_usage(cell, amount)
            self._added.append((cell, amount))

    def undo(self) -> None:
        for cell, amount in self._added:
            remove_usage(cell, amount)
        self._added.clear()
        for work in list(self._removed):
            self.put_back(work)
