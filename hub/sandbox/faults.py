"""Faults of one cluster's API, switched on and off while it runs; all chance comes from one seeded generator.

cut         connections are closed, new ones too
hang        connections stay open and nothing is answered; watches fall silent (a half-open connection)
slow_s      every answer and watch event is late
drop        that share of requests is carried out and the reply lost
skew_s      the cluster's clock is off by so much
reject      writes are refused: by verb and kind
mutate      a field of new objects is changed on the way in, as some webhook of the cluster might
restart()   every connection is closed and the history forgotten: resumed watches get 410 Gone
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from hub.sandbox.apiserver import ApiServer
from hub.sandbox.errors import ApiError
from hub.sandbox.served import Served


class Reject(Struct, frozen=True, kw_only=True):
    """Refuse writes. `verb` is create, update, patch or delete; "*" stands for all, as it does for `kind`."""

    verb: str = "*"
    kind: str = "*"
    code: int = 500
    reason: str = "InternalError"
    message: str = "rejected by a fault of the sandbox"


class Mutate(Struct, frozen=True, kw_only=True):
    """Set the field at the dotted `path` of every new object of `kind`."""

    kind: str
    path: str
    value: Any


class FaultSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cut: bool = False
    hang: bool = False
    slow_s: float = 0.0
    drop: float = 0.0
    skew_s: float = 0.0
    reject: list[Reject] = []
    mutate: list[Mutate] = []


class CutError(Exception):
    """The connection of this request is to be closed without an answer."""


class Faults:
    """`settings` is what is on now. The HTTP edge asks at every turn; `active` is False when there is nothing to ask."""

    def __init__(self, server: ApiServer, seed: int = 0) -> None:
        self._server = server
        self._rng = random.Random(seed)  # noqa: S311 - faults are to be repeatable
        self.settings = FaultSettings()
        self.active = False
        self._changed = asyncio.Event()
        #: Set by the HTTP edge: close every open connection.
        self.close_connections: Callable[[], None] = lambda: None

    def set(self, settings: FaultSettings) -> None:
        """Replace all faults at once; `FaultSettings()` ends them."""
        self.settings = settings
        self.active = settings != FaultSettings(skew_s=settings.skew_s)
        self._server.skew_s = settings.skew_s
        self._changed.set()
        self._changed = asyncio.Event()
        if settings.cut:
            self.close_connections()

    def restart(self) -> None:
        self._server.storage.compact()
        self.close_connections()

    async def gate(self) -> None:
        """Wait as long as answers are held back. Raises CutError."""
        while self.settings.hang and not self.settings.cut:
            await self._changed.wait()
        if self.settings.cut:
            raise CutError
        if self.settings.slow_s:
            await asyncio.sleep(self.settings.slow_s)

    def loses_reply(self) -> bool:
        return self.settings.drop > 0 and self._rng.random() < self.settings.drop

    def check_write(self, verb: str, served: Served) -> None:
        """Raises ApiError when this write is to be refused."""
        for reject in self.settings.reject:
            if reject.verb in ("*", verb) and reject.kind in ("*", served.resource.kind):
                raise ApiError(reject.code, reject.reason, reject.message)

    def mutate(self, served: Served, body: dict[str, Any]) -> None:
        """Change a new object in place."""
        for change in self.settings.mutate:
            if change.kind == served.resource.kind:
                *parents, last = change.path.split(".")
                target = body
                for step in parents:
                    target = target.setdefault(step, {})
                target[last] = change.value
