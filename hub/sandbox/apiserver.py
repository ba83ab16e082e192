"""One simulated cluster's API in the process: what controllers call, and what the HTTP edge is made of.

Returned objects are shared with storage, watches and other callers: never change one, copy it first.
"""

import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import ObjectKey, Resource, format_time
from hub.sandbox.access import Access, bootstrap_objects
from hub.sandbox.admission_plugins import PLUGINS
from hub.sandbox.builtin import BUILTIN
from hub.sandbox.collector import FOREGROUND, ORPHAN, Collector
from hub.sandbox.documents import Document, copied
from hub.sandbox.errors import conflict, not_found
from hub.sandbox.establishing import Establisher
from hub.sandbox.patches import merge_patch
from hub.sandbox.served import Registry, Served
from hub.sandbox.storage import LOG_EVENTS, Collection, Event, EventType, Key, Storage, Stored
from hub.sandbox.webhooks import WebhookIndex
from hub.sandbox.writing import (
    IN_PROCESS,
    Draft,
    NamePicker,
    WriteOptions,
    begin_apply,
    begin_create,
    begin_update,
    check_current,
    finish_create,
    finish_update,
    missing_namespace,
    reshape,
    unchanged,
)


def _priority_class(name: str, value: int, description: str) -> Document:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    return kind | {"value": value, "description": description}


NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
PRIORITY_CLASSES = (
    _priority_class(
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    _priority_class(
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
)
PROPAGATION_FINALIZER = {"Foreground": FOREGROUND, "Orphan": ORPHAN}

LogSource = Callable[[Document, str], "list[str]"]
#: Called with the kind of change and the object, after the commit and before the next one.
Handler = Callable[[str, Document], None]


class DeleteOptions(Struct, frozen=True, kw_only=True):
    """metav1.DeleteOptions. `propagation` None keeps the finalizers that the object has, as Background does mostly."""

    propagation: str | None = None
    grace_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


class ApiServer:
    """A cluster called `name`. `clock` gives seconds since the epoch; `skew_s` is how far this cluster's clock is off."""

    def __init__(
        self, name: str, clock: Callable[[], float], *, seed: int | None = None, log_events: int = LOG_EVENTS
    ) -> None:
        self.name = name
        self.skew_s = 0.0
        self._clock = clock
        self.rng = random.Random(seed)  # noqa: S311 - names and uids of a simulation, repeatable by seed
        self.names = NamePicker(self.rng)
        self.storage = Storage(log_events)
        self.registry = Registry(BUILTIN)
        self.collector = Collector(self.storage, self.registry, self)
        self.storage.observer = self.collector.observe
        #: What a container of a pod wrote: (pod, container) -> lines. Whoever runs the pods sets it.
        self.logs: LogSource = lambda pod, container: []
        self.access = Access(self.storage)
        self.webhooks = WebhookIndex(self.storage)
        self._establisher = Establisher(self, self.storage, self.registry)
        for manifest in (*map(_bare_namespace, NAMESPACES), *PRIORITY_CLASSES, *bootstrap_objects()):
            served = self.registry.of_kind(manifest["apiVersion"], manifest["kind"])
            assert served is not None
            self.create_served(served, "", copied(manifest))

    def clock(self) -> float:
        """The time as this cluster sees it."""
        return self._clock() + self.skew_s

    # --- for controllers and tests ---------------------------------------------------------------------------------

    def get(self, resource: Resource, key: ObjectKey) -> Document | None:
        served = self.registry.find(resource)
        stored = self.stored(served, (key.namespace, key.name))
        return served.read(stored.object) if stored else None

    def list(self, resource: Resource, namespace: str = "") -> list[Document]:
        served = self.registry.find(resource)
        collection = self.collection(served)
        return [served.read(collection.objects[key].object) for key in collection.ordered(namespace)]

    def create(self, resource: Resource, manifest: Document) -> Document:
        """Raises ApiError, as all writes do."""
        served = self.registry.find(resource)
        namespace = manifest.get("metadata", {}).get("namespace", "")
        return self.create_served(served, namespace, copied(manifest))

    def update(self, resource: Resource, manifest: Document, subresource: str = "") -> Document:
        served = self.registry.find(resource)
        meta = manifest["metadata"]
        stored = self.require(served, (meta.get("namespace", ""), meta["name"]))
        return self.finish(begin_update(served, stored, copied(manifest), subresource, IN_PROCESS))

    def merge(self, resource: Resource, key: ObjectKey, body: Document, subresource: str = "") -> Document:
        """Apply a JSON merge patch (RFC 7386)."""
        served = self.registry.find(resource)
        stored = self.require(served, (key.namespace, key.name))
        patched = copied(merge_patch(served.read(stored.object), body))
        return self.finish(begin_update(served, stored, patched, subresource, IN_PROCESS))

    def delete(
        self, resource: Resource, key: ObjectKey, propagation: str = "Background", grace_s: int | None = None
    ) -> None:
        """Delete, or begin to: finalizers and grace keep the object for a while. Nothing happens when it is not there."""
        served = self.registry.find(resource)
        if self.stored(served, (key.namespace, key.name)) is not None:
            options = DeleteOptions(propagation=propagation, grace_s=grace_s)
            self.delete_served(served, (key.namespace, key.name), options)

    def subscribe(self, resource: Resource, handler: Handler) -> Callable[[], None]:
        """Call `handler` after every commit to the resource; the returned function ends it."""
        served = self.registry.find(resource)
        collection = self.collection(served)

        def listener(event: Event) -> None:
            handler(event.type, served.read(event.stored.object))

        collection.listeners.append(listener)
        return lambda: collection.listeners.remove(listener)

    # --- look-ups ----------------------------------------------------------------------------------------------------

    def collection(self, served: Served) -> Collection:
        return self.storage.collection(served.collection)

    def stored(self, served: Served, key: Key) -> Stored | None:
        return self.collection(served).objects.get(key)

    def require(self, served: Served, key: Key) -> Stored:
        """Raises ApiError 404."""
        if (stored := self.stored(served, key)) is None:
            raise not_found(served.group, served.plural, key[1])
        return stored

    # --- writes, step by step (the HTTP edge calls webhooks between the steps) -----------------------------------------

    def draft_create(self, served: Served, namespace: str, body: Any, options: WriteOptions) -> Draft:
        draft = begin_create(served, namespace, body, options)
        self._check_namespace(draft)
        self._admit(draft)
        return draft

    def draft_apply(self, served: Served, key: Key, config: Any, subresource: str, options: WriteOptions) -> Draft:
        draft = begin_apply(served, key, self.stored(served, key), config, subresource, options, self.clock())
        if draft.stored is None:
            self._check_namespace(draft)
            self._admit(draft)
        return draft

    def _admit(self, draft: Draft) -> None:
        """What kube-apiserver's built-in admission plugins do."""
        if (plugin := PLUGINS.get(draft.served.collection)) is not None:
            plugin(self.storage, draft.new)

    def _check_namespace(self, draft: Draft) -> None:
        if draft.served.resource.namespaced:
            home = self.storage.collection("namespaces").objects.get(("", draft.key[0]))
            missing_namespace(draft.served, home, draft.key)

    def reshape(self, draft: Draft) -> None:
        reshape(draft)

    def check(self, draft: Draft) -> None:
        if draft.stored is None:
            finish_create(draft, self.names, self.collection(draft.served), self.clock())
        else:
            finish_update(draft, self.clock())

    def commit(self, draft: Draft) -> Document:
        """Store the draft and return it in the version of the request."""
        served = draft.served
        collection = self.collection(served)
        check_current(draft, collection.objects.get(draft.key))
        if draft.stored is not None and unchanged(draft):
            assert draft.old is not None
            return draft.old
        if draft.options.dry_run:
            return draft.new
        kind: EventType = "ADDED" if draft.stored is None else "MODIFIED"
        if kind == "MODIFIED" and _may_go(draft.new):
            kind = "DELETED"
        stored = self._write(collection, kind, draft.key, served.store(draft.new))
        return served.read(stored.object)

    def finish(self, draft: Draft) -> Document:
        self.check(draft)
        return self.commit(draft)

    def create_served(
        self, served: Served, namespace: str, body: Document, options: WriteOptions = IN_PROCESS
    ) -> Document:
        return self.finish(self.draft_create(served, namespace, body, options))

    def _write(self, collection: Collection, kind: EventType, key: Key, obj: Document) -> Stored:
        stored = self.storage.commit(collection, kind, key, obj)
        self.collector.run()
        return stored

    # --- deletes -----------------------------------------------------------------------------------------------------

    def delete_served(self, served: Served, key: Key, options: DeleteOptions) -> tuple[Document, bool]:
        """Begin or complete a delete. Returns the object as it is afterwards and whether it is gone. Raises ApiError."""
        stored = self.require(served, key)
        _check_preconditions(served, stored, options)
        old = stored.object
        grace_s = served.rules.grace_s(old, options.grace_s)
        marked = _marked_for_deletion(served, old, options, grace_s, self.clock())
        gone = _may_go(marked)
        if options.dry_run:
            return served.read(marked), gone
        if not gone and marked == old:
            return served.read(old), False
        kind: EventType = "DELETED" if gone else "MODIFIED"
        written = self._write(self.collection(served), kind, key, marked)
        return served.read(written.object), gone

    def remove(self, served: Served, key: Key, propagation: str) -> None:
        """A delete by the collector."""
        self.delete_served(served, key, DeleteOptions(propagation=propagation))

    def rewrite(self, served: Served, key: Key, change: Callable[[Document], Document | None]) -> None:
        """Put `change(object)` in its place without any checks: for the parts of the server that own the fields they set."""
        collection = self.collection(served)
        if (stored := collection.objects.get(key)) is None or (new := change(stored.object)) is None:
            return
        new = {**new, "metadata": dict(new["metadata"])}
        self._write(collection, "DELETED" if _may_go(new) else "MODIFIED", key, new)


def _bare_namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _may_go(obj: Document) -> bool:
    """Nothing holds the object any more: it was deleted, its grace is over and the finalizers are done."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers") or meta.get("deletionGracePeriodSeconds"):
        return False
    return not (obj["kind"] == "Namespace" and (obj.get("spec") or {}).get("finalizers"))


def _check_preconditions(served: Served, stored: Stored, options: DeleteOptions) -> None:
    uid = stored.object["metadata"]["uid"]
    why = ""
    if options.uid and options.uid != uid:
        why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {uid}"
    elif options.resource_version and options.resource_version != str(stored.version):
        why = (
            f"Precondition failed: ResourceVersion in precondition: {options.resource_version}, "
            f"ResourceVersion in object meta: {stored.version}"
        )
    if why:
        raise conflict(served.group, served.plural, stored.key[1], why)


def _deletion_finalizers(old: Document, propagation: str | None) -> list[str]:
    finalizers: list[str] = list(old["metadata"].get("finalizers") or [])
    if propagation is None:
        return finalizers
    kept = [f for f in finalizers if f not in (FOREGROUND, ORPHAN)]
    wanted = PROPAGATION_FINALIZER.get(propagation)
    return [*kept, wanted] if wanted else kept


def _marked_for_deletion(served: Served, old: Document, options: DeleteOptions, grace_s: int, now: float) -> Document:
    """The object with its deletion under way. A second delete may shorten the grace, never lengthen it."""
    meta = dict(old["metadata"])
    finalizers = _deletion_finalizers(old, options.propagation)
    if not meta.get("deletionTimestamp"):
        finalizers += [f for f in served.rules.deletion_finalizers if f not in finalizers]
    meta.pop("finalizers", None)
    if finalizers:
        meta["finalizers"] = finalizers
    running_s = meta.get("deletionGracePeriodSeconds")
    if not meta.get("deletionTimestamp"):
        meta["deletionTimestamp"] = format_time(now + grace_s)
        meta["deletionGracePeriodSeconds"] = grace_s
        if served.generation:
            meta["generation"] = meta.get("generation", 0) + 1
    elif running_s is not None and grace_s < running_s:
        meta["deletionTimestamp"] = format_time(now + grace_s)
        meta["deletionGracePeriodSeconds"] = grace_s
    marked = {**old, "metadata": meta}
    if old["kind"] == "Namespace":
        marked["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return marked
