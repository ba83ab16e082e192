"""A local copy of the objects of one resource, kept up to date by list and watch. See watch.py for the states."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from hub.kueue.api.meta import ObjectKey, Resource, key_of
from hub.kueue.runtime import watch
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.errors import Expired, KubernetesError, Request, TooManyRequests, Unreachable
from hub.kueue.runtime.loop import Clock, Loop, Signal

Handler = Callable[[ObjectKey, dict[str, Any] | None, dict[str, Any] | None], None]
Keep = Callable[[dict[str, Any]], dict[str, Any]]

#: A watch that ends without an event sooner than this was cut short by something; opening the next at once would be hot.
WATCH_MIN_S = 1.0


def without_managed_fields(manifest: dict[str, Any]) -> dict[str, Any]:
    """What an informer keeps when nothing else is said: managedFields are half of many objects and nobody reads them."""
    manifest.get("metadata", {}).pop("managedFields", None)
    return manifest


class Informer(Loop):
    """`objects` is complete once `synced`; before that, absence means nothing.

    Objects handed out are shared: copy before changing one.
    """

    interval_s = 0.0
    stops_by_cancelling = True

    def __init__(
        self,
        client: Client,
        resource: Resource,
        clock: Clock,
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        keep: Keep | None = None,
    ) -> None:
        super().__init__(f"informer/{resource.plural}", clock)
        self.resource = resource
        self.objects: dict[ObjectKey, dict[str, Any]] = {}
        self.synced_event = asyncio.Event()
        #: Set after every change, for tests.
        self.changed = Signal()
        #: Clock time of the last sign of life from the server, None before the first.
        self.last_contact: float | None = None
        self._client = client
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._keep = keep or without_managed_fields
        self._handlers: list[Handler] = []
        self._state: watch.State = watch.Empty()

    @property
    def synced(self) -> bool:
        """Has a list been complete at least once?"""
        return self.synced_event.is_set()

    def on_change(self, handler: Handler) -> Callable[[], None]:
        """Call `handler(key, old, new)` for every object there is and for every change. It must not await or raise.

        `old` None: it appeared. `new` None: it is gone. One that was replaced by a namesake is gone first, then appears.
        Returns what ends the calls.
        """
        self._handlers.append(handler)
        for key, manifest in list(self.objects.items()):
            handler(key, None, manifest)
        return lambda: self._handlers.remove(handler)

    async def run_once(self) -> None:
        """One list and one watch, or the next watch. Whatever fails is left to the Loop's back-off."""
        listed = False
        try:
            while isinstance(wish := watch.wanted(self._state), watch.ListPage):
                listed = True
                await self._list(wish.token)
            assert isinstance(wish, watch.OpenWatch)
            await self._watch(wish.resource_version)
        except Expired:
            self._tell(watch.TooOld())
            if listed:  # too old as soon as it was new: a server in trouble, listing again at once would not help it
                raise
        except TooManyRequests as error:
            self._tell(watch.Ended())
            await self.sleep_until_stopped(error.retry_after_s)
            raise
        except KubernetesError:
            self._tell(watch.Ended())
            raise

    async def _list(self, token: str) -> None:
        page = await self._client.list_page(
            self.resource,
            self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            token=token,
        )
        self._tell(watch.PageArrived(items=page.items, resource_version=page.resource_version, token=page.token))

    async def _watch(self, resource_version: str) -> None:
        opened, events = time.monotonic(), 0
        stream = self._client.watch(
            self.resource,
            resource_version,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        self._tell(watch.WatchOpened())
        async with aclosing(stream):
            async for kind, manifest in stream:
                events += 1
                self._tell(watch.EventArrived(type=kind, object=manifest))
        self._tell(watch.Ended())
        self.last_contact = self.clock()
        if not events and time.monotonic() - opened < WATCH_MIN_S:
            raise Unreachable(Request.on("watch", self.resource), "the server ends watches as soon as they begin")

    def _tell(self, seen: watch.Seen) -> None:
        self._state, changes = watch.step(self._state, seen)
        if isinstance(seen, watch.PageArrived | watch.EventArrived):
            self.last_contact = self.clock()
        for change in changes:
            match change:
                case watch.Put():
                    self._put(change.object)
                case watch.Gone():
                    self._replace(key_of(change.object), None)
                case watch.Complete():
                    for key in self.objects.keys() - change.keys:
                        self._replace(key, None)
                    self.synced_event.set()
        if changes:
            self.changed.set()

    def _put(self, manifest: dict[str, Any]) -> None:
        key = key_of(manifest)
        old = self.objects.get(key)
        if old is None:
            self._replace(key, self._keep(manifest))
            return
        before, after = old["metadata"], manifest["metadata"]
        if before.get("uid") != after.get("uid"):
            self._replace(key, None)
        elif before.get("resourceVersion") == after.get("resourceVersion"):
            return
        self._replace(key, self._keep(manifest))

    def _replace(self, key: ObjectKey, new: dict[str, Any] | None) -> None:
        old = self.objects.pop(key, None)
        if new is not None:
            self.objects[key] = new
        if old is not None or new is not None:
            for handler in tuple(self._handlers):
                handler(key, old, new)
