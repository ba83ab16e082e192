"""A loop that drains a work queue: several keys at a time, one look at a key at a time, failures later again."""

import asyncio
import logging
from collections.abc import Hashable
from typing import Generic, TypeVar

from hub.kueue.runtime.errors import Conflict, KubernetesError, TooManyRequests
from hub.kueue.runtime.loop import Clock, Loop, Signal, Tasks
from hub.kueue.runtime.workqueue import WorkQueue

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)


class Controller(Loop, Generic[K]):
    """Implement `look_at`. Keys come in through `queue.add`."""

    interval_s = 0.0

    def __init__(self, name: str, clock: Clock, *, workers: int = 16, queue: WorkQueue[K] | None = None) -> None:
        super().__init__(name, clock)
        self.queue: WorkQueue[K] = queue or WorkQueue()
        #: Set whenever nothing is ready or in work; tests wait for it.
        self.idle = Signal()
        self._slots = asyncio.Semaphore(workers)
        self._looks = Tasks(name)

    async def look_at(self, key: K) -> float | None:
        """Do what is due about this key. Returns after how many seconds to look again, None: when it is added again.

        Whatever it raises puts the key back with back-off.
        """
        raise NotImplementedError

    def failed(self, key: K, error: Exception) -> None:
        """Called when `look_at` raised, before the key is put back."""

    async def run_once(self) -> None:
        await self._slots.acquire()
        key = await self.queue.get()
        if key is None:
            self._slots.release()
            return
        self._looks.spawn(self._look(key), "look")

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take up nothing new, wait for what has begun."""
        self.queue.close()
        await super().stop(grace_s)
        await self._looks.stop(grace_s)

    async def _look(self, key: K) -> None:
        try:
            delay_s = await self.look_at(key)
        except Exception as error:  # noqa: BLE001 - one key's trouble is not the others'
            self._put_back(key, error)
        else:
            self.queue.forget(key)
            if delay_s is not None:
                self.queue.add_after(key, delay_s)
        finally:
            self.queue.done(key)
            self._slots.release()
            if not len(self.queue):
                self.idle.set()

    def _put_back(self, key: K, error: Exception) -> None:
        self.failed(key, error)
        least_s = error.retry_after_s if isinstance(error, TooManyRequests) else 0.0
        delay_s = self.queue.retry(key, least_s=least_s)
        if isinstance(error, Conflict):
            log.debug("%s: %s changed meanwhile, again in %.2f s", self.name, key, delay_s)
        elif isinstance(error, KubernetesError):
            log.warning("%s: %s: %s; again in %.1f s", self.name, key, error, delay_s)
        else:
            log.error("%s: %s failed; again in %.1f s", self.name, key, delay_s, exc_info=error)
