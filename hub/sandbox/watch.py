"""A watch: from a version on, every change that its selectors let through, in order, until somebody ends it.

`offer` runs inside the commit and only appends bytes; the connection's task is woken and writes what has gathered, so a
burst of events costs one write, and a slow client is cut off instead of holding anybody up.
"""

import asyncio
import random
from collections.abc import Mapping

from msgspec import Struct

from hub.sandbox.errors import ApiError, expired, forbidden_field, future_version, invalid_options
from hub.sandbox.reading import ListParameters, parse_version, whole_number
from hub.sandbox.rendering import Rendering, error_line
from hub.sandbox.storage import Collection, Event, Stored

#: Events that may wait for a slow client.
BACKLOG = 20_000
BOOKMARK_S = 30.0
#: A watch without timeoutSeconds ends after half an hour to an hour, as kube-apiserver's do.
TIMEOUT_MIN_S = 1800


class WatchParameters(Struct, frozen=True, kw_only=True):
    selection: ListParameters
    bookmarks: bool = False
    initial: bool | None = None
    timeout_s: float = 0.0


def flag(query: Mapping[str, str], name: str) -> bool:
    """Clients write true, True and 1."""
    return query.get(name, "").lower() in ("true", "1")


def watch_parameters(selection: ListParameters, query: Mapping[str, str]) -> WatchParameters:
    """Raises ApiError 422."""
    initial = flag(query, "sendInitialEvents") if "sendInitialEvents" in query else None
    if initial is not None and selection.match != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid_options("ListOptions", forbidden_field("resourceVersionMatch", why))
    if initial is None and selection.match:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise invalid_options("ListOptions", forbidden_field("resourceVersionMatch", why))
    timeout_s = whole_number(query, "timeoutSeconds") or random.uniform(1, 2) * TIMEOUT_MIN_S  # noqa: S311 - jitter
    bookmarks = flag(query, "allowWatchBookmarks")
    return WatchParameters(selection=selection, bookmarks=bookmarks, initial=initial, timeout_s=timeout_s)


class Watcher:
    """Collects the lines of one watch. Make it, `start` it, then await `lines` again and again; `stop` ends it."""

    def __init__(self, collection: Collection, parameters: WatchParameters, rendering: Rendering) -> None:
        self._collection, self._parameters, self._rendering = collection, parameters, rendering
        self._lines: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._headers_due = rendering.form == "Table"
        self.ended = False
        selection = parameters.selection
        self._namespace, self._selective = selection.namespace, selection.selective

    def start(self, version: int) -> None:
        """Queue what the client is to see first, and listen. `version` is the storage's present one."""
        p = self._parameters
        asked = p.selection.resource_version
        try:
            if p.initial or (p.initial is None and asked in ("", "0")):
                self._send_state(version)
            elif asked not in ("", "0"):
                self._resume(parse_version(asked), version)
        except ApiError as refusal:
            self._lines.append(error_line(refusal.status()))
            self.stop()
            return
        self._collection.listeners.append(self.offer)

    def _send_state(self, version: int) -> None:
        selection = self._parameters.selection
        for key in self._collection.ordered(selection.namespace):
            stored = self._collection.objects[key]
            if not self._selective or selection.selects(stored.object):
                self._append(self._rendering.line("ADDED", stored))
        if self._parameters.initial and self._parameters.bookmarks:
            self._append(self._rendering.bookmark(version, initial_end=True))

    def _resume(self, asked: int, version: int) -> None:
        if asked > version:
            raise future_version(asked, version)
        if (events := self._collection.since(asked)) is None:
            raise expired(f"too old resource version: {asked} ({self._collection.compacted})")
        for event in events:
            self.offer(event)

    def stop(self) -> None:
        """End the watch. What has been queued is still given out."""
        self.ended = True
        if self.offer in self._collection.listeners:
            self._collection.listeners.remove(self.offer)
        self._wake()

    def bookmark(self, version: int) -> None:
        """Queue a bookmark behind the changes up to `version`, the storage's present one: none after it may be covered."""
        self._lines.append(self._rendering.bookmark(version))
        self._wake()

    def offer(self, event: Event) -> None:
        """Take one committed change."""
        if self._namespace and event.stored.key[0] != self._namespace:
            return
        if self._selective:
            self._offer_selected(event)
        else:
            self._append(self._rendering.event(event.type, event))
        if len(self._lines) > BACKLOG:
            self.stop()
        if self._waiter is not None:
            self._wake()

    def _offer_selected(self, event: Event) -> None:
        """A change may carry an object into the selection or out of it."""
        selects = self._parameters.selection.selects
        now = event.type != "DELETED" and selects(event.stored.object)
        before = event.previous is not None and selects(event.previous.object)
        if now:
            self._append(self._rendering.event("MODIFIED" if before else "ADDED", event))
        elif before and event.type == "DELETED":
            self._append(self._rendering.event("DELETED", event))
        elif before:
            assert event.previous is not None
            last = event.previous.object
            left = {**last, "metadata": {**last["metadata"], "resourceVersion": str(event.version)}}
            self._append(self._rendering.line("DELETED", Stored(event.stored.key, left, event.version)))

    def _append(self, line: bytes) -> None:
        if self._headers_due:
            self._headers_due = False
            line = self._rendering.with_headers(line)
        self._lines.append(line)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def lines(self) -> bytes:
        """What has gathered since the last call; waits for something. b"" when the watch has ended."""
        if not self._lines and not self.ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        gathered, self._lines = self._lines, []
        return b"".join(gathered)
