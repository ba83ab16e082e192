"""Keys that want attention: each once at a time, never two workers on one key, failed ones later and later.

add ──▶ ready ──get──▶ in work ──done──▶ (gone, or ready again if it was added meanwhile)
add_after, retry ──▶ waiting ──(time)──▶ ready
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

RETRY_MIN_S = 0.05
RETRY_MAX_S = 60.0


class WorkQueue(Generic[K]):
    def __init__(self, *, retry_min_s: float = RETRY_MIN_S, retry_max_s: float = RETRY_MAX_S) -> None:
        self._retry_min_s, self._retry_max_s = retry_min_s, retry_max_s
        self._urgent: OrderedDict[K, None] = OrderedDict()
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._in_work: set[K] = set()
        #: Added while in work, urgently or not: ready again once that is done.
        self._again: dict[K, bool] = {}
        self._waiting: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._wanted: asyncio.Event = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Keys that are ready or in work; waiting ones do not count."""
        return len(self._urgent) + len(self._ready) + len(self._in_work)

    def add(self, key: K, *, urgent: bool = False) -> None:
        """Ready now. A key that is ready already stays where it is; one in work comes again after that.

        Urgent keys are handed out before all others.
        """
        if (timer := self._waiting.pop(key, None)) is not None:
            timer.cancel()
        if self._closed:
            return
        if key in self._in_work:
            self._again[key] = urgent or self._again.get(key, False)
            return
        if urgent:
            self._ready.pop(key, None)
            self._urgent.setdefault(key)
        elif key not in self._urgent:
            self._ready.setdefault(key)
        self._wanted.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Ready after `delay_s`. The earlier of two such wishes counts."""
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if (timer := self._waiting.get(key)) is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._waiting[key] = loop.call_at(at, self.add, key)

    def retry(self, key: K, *, least_s: float = 0.0) -> float:
        """Ready again after a time that doubles with each failure in a row; returns that time, in seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay_s = min(self._retry_max_s, self._retry_min_s * 2 ** min(failures - 1, 30))
        delay_s = max(least_s, delay_s * random.uniform(0.75, 1.0))  # noqa: S311 - jitter
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """It went well: the next failure is the first one."""
        self._failures.pop(key, None)

    async def get(self) -> K | None:
        """The key that has been ready longest, now in work; None once the queue is closed. Pair it with `done`."""
        while not (self._urgent or self._ready or self._closed):
            self._wanted.clear()
            await self._wanted.wait()
        if self._closed:
            return None
        key, _ = (self._urgent or self._ready).popitem(last=False)
        self._in_work.add(key)
        return key

    def done(self, key: K) -> None:
        self._in_work.discard(key)
        if (urgent := self._again.pop(key, None)) is not None:
            self.add(key, urgent=urgent)

    def close(self) -> None:
        """Hand out nothing any more."""
        self._closed = True
        self._urgent.clear()
        self._ready.clear()
        self._again.clear()
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self._wanted.set()
