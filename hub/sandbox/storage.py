"""What etcd and the watch cache are to kube-apiserver: objects by resource, one version counter, a bounded log per resource.

Nothing here knows what the objects mean. A stored dict is never changed again: writers put a new one in its place, so
everybody may hold on to what they read. The log keeps the last `LOG_EVENTS` changes with the object before each, which
is enough to resume a watch and to answer a list as of an older version.
"""

import logging
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import orjson

from hub.sandbox.documents import Document

log = logging.getLogger(__name__)

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
#: (namespace, name); plain tuples because they are hashed and compared on every path.
Key = tuple[str, str]

LOG_EVENTS = 8192


class Stored:
    """One version of one object, with its JSON made once."""

    __slots__ = ("_raw", "key", "object", "version")

    def __init__(self, key: Key, obj: Document, version: int) -> None:
        self.key, self.object, self.version = key, obj, version
        self._raw: bytes | None = None

    @property
    def raw(self) -> bytes:
        if self._raw is None:
            self._raw = orjson.dumps(self.object)
        return self._raw


class Event:
    """One committed change. `chunks` holds its wire forms, made by the first watcher that wants one and shared."""

    __slots__ = ("chunks", "previous", "stored", "type", "version")

    def __init__(self, kind: EventType, stored: Stored, previous: Stored | None) -> None:
        self.type: EventType = kind
        self.stored, self.previous = stored, previous
        self.version = stored.version
        self.chunks: dict[Any, bytes] = {}


Listener = Callable[[Event], None]


class Collection:
    """The objects of one resource in key order, and the log of their changes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[Key, Stored] = {}
        self.listeners: list[Listener] = []
        self.log: list[Event] = []
        #: Changes up to and including this version are no longer in the log.
        self.compacted = 0
        self._keys: list[Key] = []

    def ordered(self, namespace: str = "", after: Key | None = None) -> list[Key]:
        """Keys in order, of one namespace ("" for all), those behind `after`."""
        low = bisect_left(self._keys, (namespace, "")) if namespace else 0
        high = bisect_left(self._keys, (namespace + "\0", "")) if namespace else len(self._keys)
        if after is not None:
            low = max(low, bisect_right(self._keys, after))
        return self._keys[low:high]

    def since(self, version: int) -> list[Event] | None:
        """The changes after `version`, oldest first; None when the log no longer reaches back so far."""
        if version < self.compacted:
            return None
        return self.log[bisect_right(self.log, version, key=lambda event: event.version) :]

    def as_of(self, version: int) -> dict[Key, Stored | None] | None:
        """What differs from now in the state at `version` (None: was not there); None when that is too long ago."""
        if (events := self.since(version)) is None:
            return None
        past: dict[Key, Stored | None] = {}
        for event in events:
            past.setdefault(event.stored.key, event.previous)
        return past

    def compact(self, version: int) -> None:
        """Forget the changes up to `version`: who asks for them is told 410 Gone."""
        self.log = self.log[bisect_right(self.log, version, key=lambda event: event.version) :]
        self.compacted = max(self.compacted, version)

    def _record(self, event: Event, limit: int) -> None:
        key = event.stored.key
        if event.type == "DELETED":
            del self.objects[key]
            del self._keys[bisect_left(self._keys, key)]
        else:
            if event.type == "ADDED":
                insort(self._keys, key)
            self.objects[key] = event.stored
        self.log.append(event)
        if len(self.log) > 2 * limit:
            self.compact(self.log[-limit - 1].version)


class Storage:
    """All collections of one cluster under one version counter. Listeners hear of changes in commit order."""

    def __init__(self, log_events: int = LOG_EVENTS) -> None:
        self.version = 1
        self.log_events = log_events
        self.collections: dict[str, Collection] = {}
        #: Told of every commit first, before any listener can react to it.
        self.observer: Callable[[Collection, Event], None] = lambda collection, event: None
        self._pending: deque[tuple[Collection, Event]] = deque()
        self._delivering = False

    def collection(self, name: str) -> Collection:
        if (found := self.collections.get(name)) is None:
            found = self.collections[name] = Collection(name)
            found.compacted = 0
        return found

    def drop(self, name: str) -> None:
        """Forget a collection and its listeners: its resource is no longer served."""
        self.collections.pop(name, None)

    def commit(self, collection: Collection, kind: EventType, key: Key, obj: Document) -> Stored:
        """Store `obj` (owned by the storage from now on), stamp its resourceVersion and tell the listeners."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        event = Event(kind, Stored(key, obj, self.version), collection.objects.get(key))
        collection._record(event, self.log_events)
        self.observer(collection, event)
        self._pending.append((collection, event))
        self._deliver()
        return event.stored

    def compact(self) -> None:
        """Forget all history, as etcd's compaction does."""
        for collection in self.collections.values():
            collection.compact(self.version)

    def _deliver(self) -> None:
        """A listener may write; what it causes is delivered after what everybody must hear first."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._pending:
                collection, event = self._pending.popleft()
                for listener in tuple(collection.listeners):
                    _tell(listener, event)
        finally:
            self._delivering = False

    def __iter__(self) -> Iterator[Collection]:
        return iter(list(self.collections.values()))


def _tell(listener: Listener, event: Event) -> None:
    try:
        listener(event)
    except Exception:  # a broken listener must not undo somebody else's committed write
        log.exception("a listener failed on %s %s", event.type, event.stored.key)
