"""The informers of one cluster, one for each resource, and their typed views, shared by all loops that look at it."""

import asyncio
from typing import Any, TypeVar, cast

from hub.kueue.api.meta import Resource
from hub.kueue.api.v1beta2 import AnyKind
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.informer import Informer, Keep
from hub.kueue.runtime.loop import Clock
from hub.kueue.runtime.typed import TypedView

K = TypeVar("K", bound=AnyKind)


class Informers:
    def __init__(self, client: Client, clock: Clock) -> None:
        self.client = client
        self._clock = clock
        self._by_resource: dict[Resource, Informer] = {}
        self._typed: dict[Resource, TypedView[Any]] = {}
        self._started = False

    def of(self, resource: Resource, *, keep: Keep | None = None) -> Informer:
        """The informer of all objects of this resource. The first who asks says what is kept of them."""
        found = self._by_resource.get(resource)
        if found is None:
            found = self._by_resource[resource] = Informer(self.client, resource, self._clock, keep=keep)
            if self._started:
                found.start()
        return found

    def typed(self, resource: Resource, kind: type[K]) -> TypedView[K]:
        """Its objects as Structs of that kind."""
        found = self._typed.get(resource)
        if found is None:
            found = self._typed[resource] = TypedView(self.of(resource), kind)
        return cast("TypedView[K]", found)

    @property
    def all(self) -> list[Informer]:
        return list(self._by_resource.values())

    @property
    def synced(self) -> bool:
        """Has every list been complete once? Before that, what is missing may just not have arrived."""
        return all(informer.synced for informer in self._by_resource.values())

    def start(self) -> None:
        self._started = True
        for informer in self.all:
            informer.start()

    async def wait_synced(self) -> None:
        for informer in self.all:
            await informer.synced_event.wait()

    async def stop(self) -> None:
        await asyncio.gather(*(informer.stop() for informer in self.all))
