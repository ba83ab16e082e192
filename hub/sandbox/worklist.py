"""Keys to look at: each once however often it was named, in the order in which they came, in small portions."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hub.sandbox.timers import Timer, Timers

K = TypeVar("K", bound=Hashable)

#: Keys handled before other actions get their turn.
PORTION = 20


class Worklist(Generic[K]):
    def __init__(self, timers: Timers, handle: Callable[[K], None]) -> None:
        self._timers, self._handle = timers, handle
        self._keys: dict[K, None] = {}
        self._later: dict[K, Timer] = {}
        self._planned = False
        self._held = False

    def add(self, key: K) -> None:
        self._keys[key] = None
        self._plan()

    def add_later(self, key: K, delay_s: float) -> None:
        """Look at it in `delay_s` seconds; of several such wishes the earliest counts."""
        if delay_s <= 0:
            self.add(key)
            return
        due = self._timers.clock() + delay_s
        if (known := self._later.get(key)) is not None:
            if known.due <= due:
                return
            known.cancel()
        self._later[key] = self._timers.after(delay_s, lambda: self._now(key))

    def hold(self, held: bool) -> None:
        """While held, keys are taken in and nothing is done about them."""
        self._held = held
        self._plan()

    def _now(self, key: K) -> None:
        self._later.pop(key, None)
        self.add(key)

    def _plan(self) -> None:
        if self._keys and not self._planned and not self._held:
            self._planned = True
            self._timers.soon(self._turn)

    def _turn(self) -> None:
        self._planned = False
        try:
            for _ in range(PORTION):
                if not self._keys or self._held:
                    break
                key = next(iter(self._keys))
                del self._keys[key]
                self._handle(key)
        finally:
            self._plan()
