"""What happens to other objects when one goes: owners and dependents, namespaces and their contents.

    owner deleted, Background ──▶ gone ──▶ its dependents are deleted, if no other owner is left
                   Foreground ──▶ waits (finalizer foregroundDeletion) until the dependents that block it are gone
                   Orphan     ──▶ waits (finalizer orphan) until its dependents have forgotten it
    namespace deleted         ──▶ waits (spec.finalizers) until everything in it is gone

kube-controller-manager does this by watching; here the storage's own events feed a queue of work that is emptied at the
end of the write that caused it, so the result is the same and nothing has to be polled.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from hub.kueue.api.meta import format_time
from hub.sandbox.documents import Document
from hub.sandbox.errors import ApiError
from hub.sandbox.served import Registry, Served
from hub.sandbox.storage import Collection, Event, Key, Storage, Stored

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
#: Work done at once before other requests get their turn.
BUDGET = 500

#: (collection, key)
Place = tuple[str, Key]


class Writes(Protocol):
    """What the collector needs of the API server."""

    def remove(self, served: Served, key: Key, propagation: str) -> None: ...
    def rewrite(self, served: Served, key: Key, change: Callable[[Document], Document | None]) -> None: ...
    def clock(self) -> float: ...


class Collector:
    def __init__(self, storage: Storage, registry: Registry, writes: Writes) -> None:
        self._storage, self._registry, self._writes = storage, registry, writes
        self._places: dict[str, Place] = {}
        self._dependents: dict[str, dict[Place, None]] = {}
        self._terminating: set[str] = set()
        self._work: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._running = False
        self._scheduled = False

    # --- what changed ------------------------------------------------------------------------------------------------

    def observe(self, collection: Collection, event: Event) -> None:
        """Keep the indexes and note what there is to do. Does not write."""
        meta, place = event.stored.object["metadata"], (collection.name, event.stored.key)
        before = event.previous.object["metadata"].get("ownerReferences") if event.previous else None
        after = meta.get("ownerReferences") if event.type != "DELETED" else None
        if before or after:
            self._index_owners(place, before or [], after or [])
        if event.type == "ADDED":
            self._places[meta["uid"]] = place
        elif event.type == "DELETED":
            self._gone(meta, place)
        if meta.get("deletionTimestamp") and event.type != "DELETED":
            self._observe_deleting(meta, place)

    def _index_owners(self, place: Place, before: list[Document], after: list[Document]) -> None:
        old, new = [o["uid"] for o in before], [o["uid"] for o in after]
        for uid in old:
            if uid not in new and uid in self._dependents:
                self._dependents[uid].pop(place, None)
                self._recheck_foreground(uid)
        for uid in new:
            self._dependents.setdefault(uid, {})[place] = None
        if any(uid not in old and uid not in self._places for uid in new):
            self._work.append((self._check_owners, (place,)))

    def _gone(self, meta: Document, place: Place) -> None:
        self._places.pop(meta["uid"], None)
        if dependents := self._dependents.pop(meta["uid"], None):
            for dependent in dependents:
                self._work.append((self._check_owners, (dependent,)))
        namespace = place[1][0]
        if namespace in self._terminating:
            self._work.append((self._finalize_namespace, (namespace,)))
        if place[0] == "namespaces":
            self._terminating.discard(place[1][1])

    def _observe_deleting(self, meta: Document, place: Place) -> None:
        finalizers = meta.get("finalizers") or ()
        if ORPHAN in finalizers:
            self._work.append((self._orphan, (meta["uid"],)))
        elif FOREGROUND in finalizers:
            self._work.append((self._delete_dependents, (meta["uid"],)))
        if place[0] == "namespaces" and place[1][1] not in self._terminating:
            self._terminating.add(place[1][1])
            self._work.append((self._empty_namespace, (place[1][1],)))

    def _recheck_foreground(self, uid: str) -> None:
        if (place := self._places.get(uid)) is None or (owner := self._stored(place)) is None:
            return
        meta = owner.object["metadata"]
        if meta.get("deletionTimestamp") and FOREGROUND in (meta.get("finalizers") or ()):
            self._work.append((self._delete_dependents, (uid,)))

    # --- doing it ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Empty the queue; what is beyond the budget waits for the event loop's next turn."""
        if self._running:
            return
        self._running = True
        try:
            for _ in range(BUDGET):
                if not self._work:
                    return
                step, arguments = self._work.popleft()
                step(*arguments)
        finally:
            self._running = False
        self._continue()

    def _continue(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.run()
            return
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._scheduled = False
        self.run()

    def _stored(self, place: Place) -> Stored | None:
        found = self._storage.collections.get(place[0])
        return found.objects.get(place[1]) if found else None

    def _served(self, collection: str) -> Served | None:
        return next((s for s in self._registry if s.collection == collection), None)

    def _remove(self, place: Place, propagation: str) -> None:
        if (served := self._served(place[0])) is None:
            return
        try:
            self._writes.remove(served, place[1], propagation)
        except ApiError as gone:
            if gone.code != 404:
                raise

    def _rewrite_metadata(self, place: Place, change: Callable[[Document], Document | None]) -> None:
        """Put changed metadata in place; `change` gets the old and returns the new, or None to leave it."""
        if (served := self._served(place[0])) is None:
            return

        def rewritten(obj: Document) -> Document | None:
            meta = change(obj["metadata"])
            return None if meta is None else {**obj, "metadata": meta}

        self._writes.rewrite(served, place[1], rewritten)

    # --- owners ------------------------------------------------------------------------------------------------------

    def _is_owner(self, reference: Document, namespace: str) -> bool:
        """An owner in another namespace does not count: the reference cannot mean it."""
        place = self._places.get(reference["uid"])
        return place is not None and place[1][0] in ("", namespace)

    def _check_owners(self, place: Place) -> None:
        """Delete an object all of whose owners are gone; strike out those that are gone while others remain."""
        if (stored := self._stored(place)) is None:
            return
        owners = stored.object["metadata"].get("ownerReferences") or []
        remaining = [o for o in owners if self._is_owner(o, place[1][0])]
        if not owners or len(remaining) == len(owners):
            return
        if remaining:
            self._rewrite_metadata(place, lambda meta: {**meta, "ownerReferences": remaining})
        elif not stored.object["metadata"].get("deletionTimestamp"):
            self._remove(place, self._cascade(stored))

    def _cascade(self, stored: Stored) -> str:
        finalizers = stored.object["metadata"].get("finalizers") or ()
        return "Orphan" if ORPHAN in finalizers else "Foreground" if FOREGROUND in finalizers else "Background"

    def _delete_dependents(self, uid: str) -> None:
        """Foreground: the owner goes when nothing that blocks it is left."""
        blocking = False
        for place in list(self._dependents.get(uid, ())):
            if (stored := self._stored(place)) is None:
                continue
            references = stored.object["metadata"].get("ownerReferences") or ()
            blocks = any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in references)
            if not stored.object["metadata"].get("deletionTimestamp"):
                self._remove(place, "Foreground" if blocks else "Background")
            blocking = blocking or (blocks and self._stored(place) is not None)
        if not blocking:
            self._drop_finalizer(uid, FOREGROUND)

    def _orphan(self, uid: str) -> None:
        for place in list(self._dependents.get(uid, ())):
            self._rewrite_metadata(place, lambda meta: _without_owner(meta, uid))
        self._drop_finalizer(uid, ORPHAN)

    def _drop_finalizer(self, uid: str, finalizer: str) -> None:
        if (place := self._places.get(uid)) is None:
            return
        self._rewrite_metadata(place, lambda meta: _without_finalizer(meta, finalizer))

    # --- namespaces --------------------------------------------------------------------------------------------------

    def _contents(self, namespace: str) -> list[Place]:
        return [(c.name, key) for c in self._storage for key in c.ordered(namespace)]

    def _empty_namespace(self, namespace: str) -> None:
        for place in self._contents(namespace):
            stored = self._stored(place)
            if stored is not None and not stored.object["metadata"].get("deletionTimestamp"):
                self._remove(place, "Background")
        self._work.append((self._finalize_namespace, (namespace,)))

    def _finalize_namespace(self, namespace: str) -> None:
        remaining = self._contents(namespace)
        place = ("namespaces", ("", namespace))
        if (stored := self._stored(place)) is None or (served := self._served("namespaces")) is None:
            return
        if not stored.object["metadata"].get("deletionTimestamp"):
            return
        conditions = self._conditions(remaining) if remaining else []

        def change(obj: Document) -> Document | None:
            status = {"phase": "Terminating"} | ({"conditions": conditions} if conditions else {})
            spec = obj.get("spec", {}) if remaining else {}
            if (obj.get("spec"), obj.get("status")) == (spec, status):
                return None
            return {**obj, "spec": spec, "status": status}

        self._writes.rewrite(served, place[1], change)

    def _conditions(self, remaining: list[Place]) -> list[Document]:
        counts: dict[str, int] = {}
        finalizers: dict[str, int] = {}
        for place in remaining:
            counts[place[0]] = counts.get(place[0], 0) + 1
            stored = self._stored(place)
            for finalizer in (stored.object["metadata"].get("finalizers") or ()) if stored else ():
                finalizers[finalizer] = finalizers.get(finalizer, 0) + 1
        content = ", ".join(f"{name} has {n} resource instances" for name, n in counts.items())
        found = [
            _condition("NamespaceContentRemaining", "SomeResourcesRemain", f"Some resources are remaining: {content}")
        ]
        if finalizers:
            listed = ", ".join(f"{name} in {n} resource instances" for name, n in finalizers.items())
            message = f"Some content in the namespace has finalizers remaining: {listed}"
            found.append(_condition("NamespaceFinalizersRemaining", "SomeFinalizersRemain", message))
        now = format_time(self._writes.clock())
        return [c | {"lastTransitionTime": now} for c in found]


def _condition(kind: str, reason: str, message: str) -> Document:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def _without_owner(meta: Document, uid: str) -> Document:
    owners = [o for o in meta.get("ownerReferences") or () if o["uid"] != uid]
    rest = {k: v for k, v in meta.items() if k != "ownerReferences"}
    return rest | {"ownerReferences": owners} if owners else rest


def _without_finalizer(meta: Document, finalizer: str) -> Document | None:
    if finalizer not in (meta.get("finalizers") or ()):
        return None
    kept = [f for f in meta["finalizers"] if f != finalizer]
    rest = {k: v for k, v in meta.items() if k != "finalizers"}
    return rest | {"finalizers": kept} if kept else rest
