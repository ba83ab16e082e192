"""Events about objects, written beside the decisions: they may be late, and in a flood some are lost, but they slow nothing."""

import logging
from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct

from hub.kueue.operations import EmitEvent
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.controller import Controller
from hub.kueue.runtime.loop import Clock

log = logging.getLogger(__name__)

#: More than this many waiting events are not kept.
BACKLOG_MAX = 5_000
#: The same event about the same object is not said again for so long.
QUIET_S = 300.0
_REMEMBERED_MAX = 20_000


class _Said(Struct, frozen=True):
    """What makes two events the same."""

    uid: str
    key: str
    reason: str
    message: str


class EventRecorder(Controller[_Said]):
    def __init__(self, client: Client, clock: Clock, *, workers: int = 2) -> None:
        super().__init__("events", clock, workers=workers)
        #: Events that were not kept.
        self.lost = 0
        self._client = client
        self._waiting: dict[_Said, EmitEvent] = {}
        self._said_at: OrderedDict[_Said, float] = OrderedDict()

    def record(self, events: Iterable[EmitEvent]) -> None:
        """Write them soon, leaving out what was said a short while ago."""
        for event in events:
            said = _Said(event.uid, str(event.key), event.reason, event.message)
            if self._is_news(said):
                self._waiting[said] = event
                self.queue.add(said)

    def _is_news(self, said: _Said) -> bool:
        now = self.clock()
        if (before := self._said_at.get(said)) is not None and now - before < QUIET_S:
            return False
        if len(self._waiting) >= BACKLOG_MAX:
            self.lost += 1
            if self.lost == 1:
                log.warning("more events than can be written: some are lost")
            return False
        self._said_at[said] = now
        self._said_at.move_to_end(said)
        if len(self._said_at) > _REMEMBERED_MAX:
            self._said_at.popitem(last=False)
        return True

    async def look_at(self, key: _Said) -> None:
        event = self._waiting.pop(key, None)
        if event is not None:
            await self._client.run(event)
