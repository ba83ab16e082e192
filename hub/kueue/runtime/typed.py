"""Typed views of informers: every object decoded once, however many loops read it."""

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hub.kueue.api.errors import DecodeError
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import AnyKind, decode_as
from hub.kueue.runtime.informer import Informer

log = logging.getLogger(__name__)

K = TypeVar("K", bound=AnyKind)
Handler = Callable[[ObjectKey, K | None, K | None], None]


class TypedView(Generic[K]):
    """The objects of an informer as Structs. One that cannot be read is logged and counts as absent."""

    def __init__(self, informer: Informer, kind: type[K]) -> None:
        self.objects: dict[ObjectKey, K] = {}
        #: The same by name alone; of use for resources without namespaces.
        self.by_name: dict[str, K] = {}
        self._kind = kind
        self._handlers: list[Handler[K]] = []
        informer.on_change(self._changed)

    def get(self, key: ObjectKey) -> K | None:
        return self.objects.get(key)

    def on_change(self, handler: Handler[K]) -> Callable[[], None]:
        """Like Informer.on_change, with typed objects."""
        self._handlers.append(handler)
        for key, obj in list(self.objects.items()):
            handler(key, None, obj)
        return lambda: self._handlers.remove(handler)

    def _changed(self, key: ObjectKey, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        before = self.objects.pop(key, None)
        after = self._read(key, new)
        if after is None:
            self.by_name.pop(key.name, None)
        else:
            self.objects[key] = self.by_name[key.name] = after
        if before is not None or after is not None:
            for handler in tuple(self._handlers):
                handler(key, before, after)

    def _read(self, key: ObjectKey, manifest: dict[str, Any] | None) -> K | None:
        if manifest is None:
            return None
        try:
            return decode_as(self._kind, manifest)
        except DecodeError as error:
            log.warning("%s is left out: %s", key, error)
            return None
