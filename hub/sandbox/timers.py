"""Time of the simulated clusters: one queue of what is due, driven by a clock that either runs or is turned by hand.

    after(delay_s, action) ──▶ heap by due time ──▶ run_due() ──▶ action() ──▶ soon(more) ──▶ ...
                                    ▲
            LoopTimers: woken by the asyncio loop, real time (the product)
            VirtualTimers: advance(seconds) by the test, no time passes

Nothing polls: the cost is that of what happens. All clusters of a process share one queue, so that an order of events in
one cluster stays an order against the others. Time here never jumps; a cluster's own clock, which may be skewed, only
dates its objects.
"""

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

Action = Callable[[], None]

#: Longest stretch of work before the asyncio loop gets a turn for sockets.
SLICE_S = 0.005


class Timer:
    """A planned action. `cancel()` may come at any time, also after it ran."""

    __slots__ = ("action", "due", "order")

    def __init__(self, due: float, order: int, action: Action) -> None:
        self.due, self.order = due, order
        self.action: Action | None = action

    def cancel(self) -> None:
        self.action = None

    def __lt__(self, other: "Timer") -> bool:
        return (self.due, self.order) < (other.due, other.order)


class Timers:
    """What is due when. Actions of one instant run in the order in which they were planned."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._heap: list[Timer] = []
        self._soon: deque[Action] = deque()
        self._planned = 0

    def after(self, delay_s: float, action: Action) -> Timer:
        """Run `action` once, `delay_s` seconds from now."""
        self._planned += 1
        timer = Timer(self.clock() + max(0.0, delay_s), self._planned, action)
        heapq.heappush(self._heap, timer)
        self._changed()
        return timer

    def soon(self, action: Action) -> None:
        """Run `action` after what runs now and before time moves on."""
        self._soon.append(action)
        self._changed()

    @property
    def next_due(self) -> float | None:
        """When there is something to do; None when nothing is planned."""
        while self._heap and self._heap[0].action is None:
            heapq.heappop(self._heap)
        if self._soon:
            return self.clock()
        return self._heap[0].due if self._heap else None

    def run_next(self) -> bool:
        """Run one action that is due. False when none is."""
        if self._soon:
            self._run(self._soon.popleft())
            return True
        if (due := self.next_due) is None or due > self.clock():
            return False
        action = heapq.heappop(self._heap).action
        assert action is not None
        self._run(action)
        return True

    def _run(self, action: Action) -> None:
        action()

    def _changed(self) -> None:
        """Something was planned: a running driver may have to wake earlier."""


class VirtualTimers(Timers):
    """Time that stands still until a test moves it."""

    def __init__(self, start: float = 1_767_225_600.0) -> None:  # 2026-01-01T00:00:00Z
        self.now = start
        super().__init__(lambda: self.now)

    def settle(self) -> None:
        """Do everything that is due at this instant."""
        while self.run_next():
            pass

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; what falls due on the way runs at its own time."""
        end = self.now + seconds
        self.settle()
        while (due := self.next_due) is not None and due <= end:
            self.now = max(self.now, due)
            self.settle()
        self.now = end


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch that never jump, whatever is done to the machine's clock meanwhile."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class LoopTimers(Timers):
    """Real time, on the running asyncio loop. A failing action is logged and does not stop the others."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        super().__init__(clock or steady_clock())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Handle | None = None
        self._wake_at = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed()

    def stop(self) -> None:
        """What is planned stays planned and does not run any more."""
        self._loop = None
        self._forget_wake()

    def _forget_wake(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None

    def _changed(self) -> None:
        if self._loop is None or (due := self.next_due) is None:
            return
        if self._wake is not None and self._wake_at <= due:
            return
        self._forget_wake()
        self._wake_at = due
        delay_s = due - self.clock()
        self._wake = self._loop.call_later(delay_s, self._turn) if delay_s > 0 else self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._wake = None
        stop_at = time.monotonic() + SLICE_S
        while time.monotonic() < stop_at and self.run_next():
            pass
        self._changed()

    def _run(self, action: Action) -> None:
        try:
            action()
        except Exception:
            log.exception("a simulated event failed; the simulation goes on")
