"""The job loop: every job of an enabled kind and its Workload are looked at when either changes, and made to agree.

What to do is decided by hub.kueue.integrations.reconcile; here are the caches that it is asked with, the writes that it
answers with, and one rule of our own: nothing that runs is stopped on the word of a cache. A look that would stop a job is
taken again with objects read from the API server, because a Workload may just not have arrived yet.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import Struct, structs

from hub.kueue.api.meta import ObjectKey, Resource
from hub.kueue.api.resources import PRIORITY_CLASSES, RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES, WORKLOADS
from hub.kueue.api.v1beta2 import ResourceFlavor, Workload, WorkloadPriorityClass, decode_as, names
from hub.kueue.integrations import compose
from hub.kueue.integrations.interface import Integration
from hub.kueue.integrations.reconcile import STOPPED, Context, Operations, Policy, orphaned, reconcile
from hub.kueue.integrations.templates import labels_of
from hub.kueue.operations import EmitEvent, RequeueAfter
from hub.kueue.runtime.controller import Controller
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.loop import Clock

Manifest = dict[str, Any]


class Look(Struct, frozen=True):
    """What is to be looked at: a job, or (resource WORKLOADS) a Workload that may have none."""

    resource: Resource
    key: ObjectKey

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.key}"


class JobLoop(Controller[Look]):
    def __init__(
        self,
        informers: Informers,
        clock: Clock,
        recorder: EventRecorder,
        *,
        policy: Policy,
        integrations: Iterable[Integration],
        placed: Callable[[ObjectKey], bool] = lambda _: False,
        reports_pods_ready: bool = True,
        excluded_namespaces: Iterable[str] = ("kube-system",),
        workers: int = 16,
    ) -> None:
        """`placed`, MANAGER only: has this Workload a placement that was not seen stopped? `touch` it when that changes."""
        super().__init__("jobs", clock, workers=workers)
        self._informers = informers
        self._client = informers.client
        self._recorder = recorder
        self._integrations = {integration.resource: integration for integration in integrations}
        self._placed = placed
        self._jobs = {resource: informers.of(resource) for resource in self._integrations}
        self._pod_classes = informers.of(PRIORITY_CLASSES)
        self._workloads = informers.typed(WORKLOADS, Workload)
        self._classes = informers.typed(WORKLOAD_PRIORITY_CLASSES, WorkloadPriorityClass)
        self._context = Context(
            policy=policy,
            flavors=informers.typed(RESOURCE_FLAVORS, ResourceFlavor).by_name,
            priority_classes=self._classes.by_name,
            managed_kinds=frozenset((r.api_version, r.kind) for r in self._integrations),
            excluded_namespaces=frozenset(excluded_namespaces),
            reports_pods_ready=reports_pods_ready,
        )
        self._links = _Links(self._integrations)
        self._unsubscribe: list[Callable[[], None]] = []

    async def run_once(self) -> None:
        if not self._unsubscribe:
            # A look at half of the caches would stop what runs.
            if not self._informers.synced:
                await self.sleep_until_stopped(0.05)
                return
            self._subscribe()
        await super().run_once()

    async def stop(self, grace_s: float = 5.0) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        await super().stop(grace_s)

    def touch(self, workload: ObjectKey) -> None:
        """Look at this Workload and its job again: something changed that no object shows, such as its placement."""
        for look in self._links.looks_of(workload):
            self.queue.add(look)

    # --- what wakes a look -------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        for resource, informer in self._jobs.items():
            self._unsubscribe.append(informer.on_change(self._job_changed(resource)))
        self._unsubscribe.append(self._workloads.on_change(self._workload_changed))
        self._unsubscribe.append(self._classes.on_change(self._class_changed))

    def _job_changed(self, resource: Resource) -> Callable[[ObjectKey, Manifest | None, Manifest | None], None]:
        def changed(key: ObjectKey, old: Manifest | None, new: Manifest | None) -> None:
            look = Look(resource, key)
            if new is None and old is not None:
                for workload in self._links.owned_by(old["metadata"].get("uid", "")):
                    self.queue.add(Look(WORKLOADS, workload))
            self._links.set_job(look, new)
            self.queue.add(look)

        return changed

    def _workload_changed(self, key: ObjectKey, old: Workload | None, new: Workload | None) -> None:
        looks = self._links.looks_of(key)  # whoever owned it so far has something to do, too
        self._links.set_workload(key, new)
        for look in dict.fromkeys([*looks, *self._links.looks_of(key)]):
            self.queue.add(look)

    def _class_changed(
        self, key: ObjectKey, old: WorkloadPriorityClass | None, new: WorkloadPriorityClass | None
    ) -> None:
        """Its value is copied into every Workload that names it."""
        for resource, informer in self._jobs.items():
            for job, manifest in informer.objects.items():
                if labels_of(manifest).get(names.PRIORITY_CLASS) == key.name:
                    self.queue.add(Look(resource, job))

    # --- one look ----------------------------------------------------------------------------------------------------

    async def look_at(self, key: Look) -> float | None:
        if key.resource == WORKLOADS:
            return await self._look_at_orphan(key.key)
        integration = self._integrations[key.resource]
        job = self._jobs[key.resource].objects.get(key.key)
        if job is None:
            return None
        found = self._decide(integration, job, self._workloads_of(job))
        if _stops(found):
            job = await self._client.get(key.resource, key.key)
            if job is None:
                return None
            found = self._decide(integration, job, await self._live_workloads(integration, job))
        return await self._apply(found)

    def _decide(self, integration: Integration, job: Manifest, workloads: Sequence[Workload]) -> Operations:
        context = structs.replace(
            self._context,
            placed=any(self._placed(workload.metadata.key) for workload in workloads),
            pod_priority_classes={key.name: manifest for key, manifest in self._pod_classes.objects.items()},
        )
        return reconcile(integration, job, workloads, context, self.clock())

    async def _look_at_orphan(self, key: ObjectKey) -> float | None:
        """A Workload whose job is not in the cache."""
        workload = self._workloads.get(key)
        if workload is None or names.PLACEMENT in workload.metadata.annotations or await self._has_job(workload):
            return None
        return await self._apply(orphaned(workload, self.clock(), placed=self._placed(key)))

    async def _has_job(self, workload: Workload) -> bool:
        """Does its owner exist, or does a job name it? One of a kind that is not enabled here is none of our business."""
        owner = compose.controller_of(workload)
        if owner is None:
            return self._links.is_named(workload.metadata.key)
        resource = next(
            (r for r in self._integrations if (r.api_version, r.kind) == (owner.api_version, owner.kind)), None
        )
        if resource is None:
            return True
        key = ObjectKey(workload.metadata.namespace, owner.name)
        if _is(self._jobs[resource].objects.get(key), owner.uid):
            return True
        return _is(await self._client.get(resource, key), owner.uid)

    def _workloads_of(self, job: Manifest) -> list[Workload]:
        keys = [*self._links.owned_by(job["metadata"].get("uid", "")), *_prebuilt_key(job)]
        return [workload for key in dict.fromkeys(keys) if (workload := self._workloads.get(key)) is not None]

    async def _live_workloads(self, integration: Integration, job: Manifest) -> list[Workload]:
        expected = ObjectKey(job["metadata"].get("namespace", ""), compose.name_for(integration, job))
        known = [w.metadata.key for w in self._workloads_of(job)]
        keys = dict.fromkeys([*known, expected, *_prebuilt_key(job)])
        manifests = [await self._client.get(WORKLOADS, key) for key in keys]
        return [decode_as(Workload, manifest) for manifest in manifests if manifest is not None]

    async def _apply(self, operations: Operations) -> float | None:
        """Write in order. Conflict ends the look: the object changed, and that change is the next look."""
        delay_s = None
        for operation in operations:
            if isinstance(operation, RequeueAfter):
                delay_s = operation.delay_s
            elif isinstance(operation, EmitEvent):
                self._recorder.record([operation])
            else:
                await self._client.run(operation)
        return delay_s


def _is(job: Manifest | None, uid: str) -> bool:
    return job is not None and job["metadata"].get("uid") == uid


def _stops(operations: Operations) -> bool:
    return any(isinstance(operation, EmitEvent) and operation.reason == STOPPED for operation in operations)


def _prebuilt_key(job: Manifest) -> list[ObjectKey]:
    name = compose.prebuilt_name(job)
    return [ObjectKey(job["metadata"].get("namespace", ""), name)] if name else []


class _Links:
    """Which jobs and Workloads belong together, both ways."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._resources = {(r.api_version, r.kind): r for r in resources}
        #: uid of a job -> keys of the Workloads that it controls.
        self._owned: dict[str, dict[ObjectKey, None]] = {}
        #: Workload -> (uid of its job, the look at that job).
        self._owner: dict[ObjectKey, tuple[str, Look]] = {}
        #: Workload -> jobs that name it as their prebuilt one; and the other way round.
        self._named: dict[ObjectKey, dict[Look, None]] = {}
        self._names: dict[Look, ObjectKey] = {}

    def owned_by(self, uid: str) -> list[ObjectKey]:
        return list(self._owned.get(uid, ()))

    def is_named(self, workload: ObjectKey) -> bool:
        return bool(self._named.get(workload))

    def looks_of(self, workload: ObjectKey) -> list[Look]:
        """Everything to look at when this Workload changes; itself too, in case its job is gone."""
        owner = self._owner.get(workload)
        jobs = [*([owner[1]] if owner else []), *self._named.get(workload, ())]
        return [*jobs, Look(WORKLOADS, workload)]

    def set_job(self, look: Look, job: Manifest | None) -> None:
        before, after = self._names.pop(look, None), _prebuilt_key(job) if job else []
        if before is not None:
            _discard(self._named, before, look)
        for key in after:
            self._names[look] = key
            self._named.setdefault(key, {})[look] = None

    def set_workload(self, key: ObjectKey, workload: Workload | None) -> None:
        if (before := self._owner.pop(key, None)) is not None:
            _discard(self._owned, before[0], key)
        owner = compose.controller_of(workload) if workload else None
        resource = self._resources.get((owner.api_version, owner.kind)) if owner else None
        if owner is not None and resource is not None:
            self._owner[key] = (owner.uid, Look(resource, ObjectKey(key.namespace, owner.name)))
            self._owned.setdefault(owner.uid, {})[key] = None


A = TypeVar("A")
B = TypeVar("B")


def _discard(index: dict[A, dict[B, None]], key: A, value: B) -> None:
    """Take it out, and the entry with it when that was the last: an index must not grow with what is gone."""
    values = index.get(key)
    if values is not None:
        values.pop(value, None)
        if not values:
            del index[key]
