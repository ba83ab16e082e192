"""Keeps what is served in step with the CustomResourceDefinitions that are stored."""

from typing import Any, Protocol

from hub.sandbox.definitions import CLEANUP_FINALIZER, COLLECTION, name_conflict, served_versions, status_of
from hub.sandbox.documents import Document
from hub.sandbox.served import Registry, Served
from hub.sandbox.storage import Event, Key, Storage


class Writes(Protocol):
    """What the establisher needs of the API server."""

    def remove(self, served: Served, key: Key, propagation: str) -> None: ...
    def rewrite(self, served: Served, key: Key, change: Any) -> None: ...
    def clock(self) -> float: ...


class Establisher:
    """Hears of every change to a definition in the moment of its commit, so its kind is served before the answer is out."""

    def __init__(self, writes: Writes, storage: Storage, registry: Registry) -> None:
        self._writes, self._storage, self._registry = writes, storage, registry
        #: Name of the definition -> what it made us serve.
        self._served: dict[str, list[Served]] = {}
        self._emptying: set[str] = set()
        storage.collection(COLLECTION).listeners.append(self._observe)

    def _observe(self, event: Event) -> None:
        name, definition = event.stored.key[1], event.stored.object
        if event.type == "DELETED":
            self._withdraw(name)
            return
        before = event.previous.object if event.previous else None
        deleting = bool(definition["metadata"].get("deletionTimestamp"))
        if (
            before is None
            or before["spec"] != definition["spec"]
            or deleting != bool(before["metadata"].get("deletionTimestamp"))
        ):
            self._serve(name, definition)
        if deleting:
            self._empty(name)

    def _serve(self, name: str, definition: Document) -> None:
        conflict = name_conflict(self._registry, definition)
        for served in self._served.pop(name, ()):
            self._registry.remove(served)
        if not conflict:
            self._served[name] = served_versions(definition)
            for served in self._served[name]:
                self._registry.add(served)
        self._rewrite(name, lambda d: _with_status(d, status_of(d, conflict, self._writes.clock())))

    def _withdraw(self, name: str) -> None:
        for served in self._served.pop(name, ()):
            self._registry.remove(served)
        self._storage.drop(name)
        self._emptying.discard(name)

    # --- deletion ------------------------------------------------------------------------------------------------------

    def _empty(self, name: str) -> None:
        """Delete every instance; the definition goes after the last of them."""
        if name not in self._emptying:
            self._emptying.add(name)
            self._storage.collection(name).listeners.append(lambda event: self._instance_changed(name, event))
        if (found := self._served.get(name)) is not None:
            for key in self._storage.collection(name).ordered():
                stored = self._storage.collection(name).objects.get(key)
                if stored is not None and not stored.object["metadata"].get("deletionTimestamp"):
                    self._writes.remove(found[0], key, "Background")
        self._finalize(name)

    def _instance_changed(self, name: str, event: Event) -> None:
        if event.type == "DELETED":
            self._finalize(name)

    def _finalize(self, name: str) -> None:
        if not self._storage.collection(name).objects:
            self._rewrite(name, _without_cleanup)

    def _rewrite(self, name: str, change: Any) -> None:
        served = self._registry.at("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        assert served is not None
        self._writes.rewrite(served, ("", name), change)


def _with_status(definition: Document, status: Document) -> Document | None:
    return None if definition.get("status") == status else {**definition, "status": status}


def _without_cleanup(definition: Document) -> Document | None:
    meta = definition["metadata"]
    if CLEANUP_FINALIZER not in (meta.get("finalizers") or ()):
        return None
    kept = [f for f in meta["finalizers"] if f != CLEANUP_FINALIZER]
    rest = {k: v for k, v in meta.items() if k != "finalizers"}
    return {**definition, "metadata": rest | {"finalizers": kept} if kept else rest}
