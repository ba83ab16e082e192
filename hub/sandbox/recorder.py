"""Events that the simulated controllers write, as `kubectl describe` shows them. Repeated ones are counted, old ones dropped."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from hub.kueue.api.meta import ObjectKey, format_time
from hub.kueue.api.resources import CORE_EVENTS
from hub.kueue.operations import EventType
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.errors import ApiError
from hub.sandbox.inprocess import create

#: Events kept per cluster. A real API server forgets them after an hour.
EVENTS_MOST = 20_000


class Recorder:
    def __init__(self, server: ApiServer, most: int = EVENTS_MOST) -> None:
        self._server, self._most = server, most
        #: (uid, reason, message) -> where the event is, and how often it was said.
        self._said: OrderedDict[tuple[str, str, str], tuple[ObjectKey, int]] = OrderedDict()
        self._number = 0

    def emit(self, component: str, about: Mapping[str, Any], kind: EventType, reason: str, message: str) -> None:
        """Say it about the object. One that may not be written (its namespace is going) is dropped, as everywhere."""
        what = (about["metadata"]["uid"], reason, message)
        try:
            if (said := self._said.get(what)) is not None and self._count_up(said):
                self._said[what] = (said[0], said[1] + 1)
            else:
                self._said[what] = (self._write(component, about, kind, reason, message), 1)
        except ApiError:
            self._said.pop(what, None)
        while len(self._said) > self._most:
            _, (key, _) = self._said.popitem(last=False)
            self._server.delete(CORE_EVENTS, key)

    def _count_up(self, said: tuple[ObjectKey, int]) -> bool:
        key, count = said
        if self._server.get(CORE_EVENTS, key) is None:
            return False
        body = {"count": count + 1, "lastTimestamp": format_time(self._server.clock())}
        self._server.merge(CORE_EVENTS, key, body)
        return True

    def _write(self, component: str, about: Mapping[str, Any], kind: str, reason: str, message: str) -> ObjectKey:
        meta, when = about["metadata"], format_time(self._server.clock())
        self._number += 1
        namespace = meta.get("namespace") or "default"
        # Names of events in the order in which they were written, as those of client-go.
        key = ObjectKey(namespace, f"{meta['name'][:236]}.{int(self._server.clock() * 1e9) + self._number:x}")
        regarding = {"apiVersion": about["apiVersion"], "kind": about["kind"], "name": meta["name"], "uid": meta["uid"]}
        if meta.get("namespace"):
            regarding["namespace"] = namespace
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": key.name, "namespace": namespace}}
        event |= {"involvedObject": regarding, "type": kind, "reason": reason, "message": message, "count": 1}
        event |= {"firstTimestamp": when, "lastTimestamp": when, "source": {"component": component}}
        create(self._server, CORE_EVENTS, event | {"reportingComponent": component})
        return key
