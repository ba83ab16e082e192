"""The one way to run things in the background.

A loop implements `run_once()` and nothing else. The base starts it, wakes it early when told to, backs off when it fails,
stops it by asking before cancelling, and keeps a status that people can read.

    start() ──▶ run_once() ──▶ sleep(interval_s), cut short by wake() or stop() ──▶ run_once() ...
                    │ raises
                    ▼
                log once per streak, sleep with back-off and jitter, try again
"""

import asyncio
import logging
import random
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from hub.kueue.runtime.errors import KubernetesError

log = logging.getLogger(__name__)

Clock = Callable[[], float]

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 5.0


class LoopStatus(Struct, frozen=True, kw_only=True):
    """What a person asks of a loop: is it running, when did it last work, what went wrong."""

    name: str
    runs: int = 0
    failures_in_row: int = 0
    last_start: float | None = None
    last_elapsed_s: float | None = None
    last_error: str = ""


class Signal:
    """Something happened. Free in production; tests await it instead of sleeping."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Return at the next `set()`; one that came before the call counts once."""
        await self._event.wait()
        self._event.clear()


class Loop:
    """Base of every background loop. Set `interval_s` and implement `run_once`."""

    #: Longest time between two runs when nobody wakes the loop.
    interval_s: float = 1.0
    #: For a loop that only reads: stopping it in mid-turn harms nothing, and its turns may be long.
    stops_by_cancelling: bool = False

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.done_once = Signal()
        self._status = LoopStatus(name=name)
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def run_once(self) -> None:
        """One turn: load, decide, apply. Whatever it raises is logged and tried again with back-off."""
        raise NotImplementedError

    @property
    def status(self) -> LoopStatus:
        return self._status

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        assert self._task is None, f"{self.name} was started twice"
        self._task = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Run again as soon as the current turn is over. Many wakes while one turn runs make one further turn."""
        self._wake.set()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Ask first: a task cancelled in mid-transaction leaves its connection in a bad state. Cancel after `grace_s`."""
        self._stopping.set()
        self._wake.set()
        if self._task is None:
            return
        if self.stops_by_cancelling:
            self._task.cancel()
        _, pending = await asyncio.wait({self._task}, timeout=grace_s)
        if pending:
            log.warning("%s did not stop within %.0f s and is cancelled", self.name, grace_s)
            self._task.cancel()
            await asyncio.wait({self._task})
        self._task = None

    async def sleep_until_stopped(self, delay_s: float) -> bool:
        """Sleep, but wake for `wake()` or `stop()`. True when the loop is to stop."""
        if delay_s <= 0:
            await asyncio.sleep(0)
        else:
            try:
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()
        return self.stopping

    async def _run(self) -> None:
        while not self.stopping:
            failed = await self._turn()
            if failed:
                await self._back_off()
            elif await self.sleep_until_stopped(self.interval_s):
                return

    async def _turn(self) -> bool:
        started = self.clock()
        error = ""
        try:
            await self.run_once()
        except asyncio.CancelledError:
            raise
        except Exception as caught:  # noqa: BLE001 - a loop survives whatever one turn did
            error = f"{type(caught).__name__}: {caught}"
            if self._status.last_error != error:
                # An API server's refusal says all there is to say; anything else needs its place in the code.
                place = "" if isinstance(caught, KubernetesError) else "\n" + traceback.format_exc(limit=-6)
                log.warning("%s failed: %s%s", self.name, error, place)
        before = self._status
        self._status = LoopStatus(
            name=self.name,
            runs=before.runs + 1,
            failures_in_row=before.failures_in_row + 1 if error else 0,
            last_start=started,
            last_elapsed_s=self.clock() - started,
            last_error=error,
        )
        self.done_once.set()
        return bool(error)

    async def _back_off(self) -> None:
        """Only `stop()` cuts this short: a busy waker must not turn a failing loop into a hot one."""
        streak = min(self._status.failures_in_row, 10)
        delay_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2**streak) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            pass


class Tasks:
    """A set of background tasks that are awaited together on the way out; a failure is logged, never lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    def __len__(self) -> int:
        return len(self._tasks)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Wait so long for tasks to end by themselves, then cancel what is left."""
        if self._tasks and grace_s > 0:
            await asyncio.wait(list(self._tasks), timeout=grace_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
