"""The admission loop: informers feed the engine, the engine decides, the decisions are written. The same on hub and agent.

    informers ──▶ inbox (newest per object) ──▶ AdmissionState.handle ──▶ instructions ──▶ WorkloadWriter ──▶ API server
                                                   ▲    cycles while they may decide something  │
                                                   └──────────── WriteFailed ◀──────────────────┘
                                          QueueStatusWriter ◀── queues whose figures may have changed

Nothing is decided before every cache is complete. A turn works for a few milliseconds at most, then lets others run.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hub.kueue.admission import messages as m
from hub.kueue.admission.policy import Policy
from hub.kueue.admission.state import AdmissionState
from hub.kueue.api.meta import Instant, ObjectKey, Resource
from hub.kueue.api.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    LIMIT_RANGES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    RESOURCE_FLAVORS,
    TOPOLOGIES,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
)
from hub.kueue.api.v1beta2 import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Topology,
    Workload,
    WorkloadPriorityClass,
    kind_of,
)
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.loop import Clock, Loop
from hub.kueue.runtime.pod_usage import ForeignPods
from hub.kueue.runtime.queue_status import QueueStatusWriter
from hub.kueue.runtime.workload_writer import WorkloadWriter

log = logging.getLogger(__name__)

#: How long a turn works before it lets other tasks run.
TURN_S = 0.02
#: With more decisions than this waiting to be written, no new ones are taken.
BACKLOG_MAX = 2_000
#: How often to look when nothing is due.
IDLE_S = 1.0

CONFIGURATION: dict[Resource, type[Any]] = {
    RESOURCE_FLAVORS: ResourceFlavor,
    TOPOLOGIES: Topology,
    ADMISSION_CHECKS: AdmissionCheck,
    COHORTS: Cohort,
    CLUSTER_QUEUES: ClusterQueue,
    LOCAL_QUEUES: LocalQueue,
    WORKLOAD_PRIORITY_CLASSES: WorkloadPriorityClass,
}


class BuiltInCheck(Protocol):
    """An admission check that exists for the engine only, and the queues that have it."""

    def check(self) -> AdmissionCheck: ...

    def on(self, queue: ClusterQueue, checks: Mapping[str, AdmissionCheck]) -> ClusterQueue:
        """The queue as the engine is to see it."""
        ...


class AdmissionLoop(Loop):
    def __init__(
        self,
        informers: Informers,
        clock: Clock,
        recorder: EventRecorder,
        *,
        policy: Policy | None = None,
        watches_nodes: bool = False,
        built_in_check: BuiltInCheck | None = None,
        write_workers: int = 32,
    ) -> None:
        """`watches_nodes`: also see the nodes, and the pods of others on them (a worker cluster). `built_in_check`: what the
        engine is told beyond the objects that are there (a management cluster).
        """
        super().__init__("admission", clock)
        self.state = AdmissionState(policy)
        self.status_writer = QueueStatusWriter(informers, self.state, clock)
        self._informers = informers
        self._workloads = informers.typed(WORKLOADS, Workload)
        self._configs = {resource: informers.typed(resource, kind) for resource, kind in CONFIGURATION.items()}
        self._plain = [NAMESPACES, LIMIT_RANGES, *([NODES] if watches_nodes else [])]
        for resource in self._plain:
            informers.of(resource)
        self._pods = ForeignPods(informers) if watches_nodes else None
        self.writer = WorkloadWriter(
            informers.client, self._workloads, recorder, clock, self._write_failed, workers=write_workers
        )
        self._built_in_check = built_in_check
        self._inbox: dict[tuple[Resource, ObjectKey], None] = {}
        self._failures: list[tuple[ObjectKey, str]] = []
        self._due_at: Instant | None = None
        #: Have all queues been marked since a change that may concern each of them?
        self._all_marked = True
        self._unsubscribe: list[Callable[[], None]] = []

    @property
    def is_ready(self) -> bool:
        """Has the engine seen everything that was there when it started?"""
        return bool(self._unsubscribe) and not self._inbox

    def start(self) -> None:
        self.writer.start()
        self.status_writer.start()
        super().start()

    async def stop(self, grace_s: float = 5.0) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        await super().stop(grace_s)
        await self.writer.stop(grace_s)
        await self.status_writer.stop(grace_s)

    # --- what comes in -----------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        """Configuration first: workloads then find their queues at once."""
        if self._built_in_check is not None:
            self._handle(m.ConfigChanged(now=self.clock(), object=self._built_in_check.check()))
        views = [*self._configs.items()]
        self._unsubscribe += [view.on_change(self._changed(resource)) for resource, view in views]
        self._unsubscribe += [self._informers.of(r).on_change(self._changed(r)) for r in self._plain]
        if self._pods is not None:
            self._unsubscribe.append(self._pods.on_change(self._usage_changed))
        self._unsubscribe.append(self._workloads.on_change(self._workload_changed))

    def _changed(self, resource: Resource) -> Callable[[ObjectKey, Any, Any], None]:
        def changed(key: ObjectKey, old: Any, new: Any) -> None:
            self._inbox[resource, key] = None
            if resource == ADMISSION_CHECKS and self._built_in_check is not None:
                for queue in self._configs[CLUSTER_QUEUES].objects:  # which of them have it depends on their checks
                    self._inbox[CLUSTER_QUEUES, queue] = None
            if resource in self._configs and not _only_status(old, new):
                self._all_marked = False
            self.wake()

        return changed

    def _workload_changed(self, key: ObjectKey, old: Workload | None, new: Workload | None) -> None:
        self._inbox[WORKLOADS, key] = None
        for workload in (old, new):
            if workload is not None:
                self._mark(workload)
        self.wake()

    def _usage_changed(self, node: str) -> None:
        self._inbox[NODES, ObjectKey("usage", node)] = None
        self.wake()

    def _write_failed(self, key: ObjectKey, message: str) -> None:
        self._failures.append((key, message))
        self.wake()

    def _mark(self, workload: Workload) -> None:
        """Its queues' figures may have changed."""
        local = ObjectKey(workload.metadata.namespace, workload.spec.queue_name)
        self.status_writer.mark(LOCAL_QUEUES, local)
        found = self._configs[LOCAL_QUEUES].get(local)
        queues = {found.spec.cluster_queue} if found is not None else set()
        if workload.status.admission is not None:
            queues.add(workload.status.admission.cluster_queue)
        for name in queues:
            self.status_writer.mark(CLUSTER_QUEUES, ObjectKey("", name))

    def _mark_all(self) -> None:
        if not self._all_marked:
            self.status_writer.mark_all()
            self._all_marked = True

    # --- one turn ----------------------------------------------------------------------------------------------------

    async def run_once(self) -> None:
        if not self._unsubscribe:
            if not self._informers.synced:
                self.interval_s = 0.02
                return
            self._subscribe()
        until = time.monotonic() + TURN_S
        self._take_in(until)
        if not self._inbox:
            self._cycles(until)
            self._mark_all()
        self.interval_s = self._pause_s()

    def _take_in(self, until: float) -> None:
        failures, self._failures = self._failures, []
        for key, message in failures:
            self._handle(m.WriteFailed(now=self.clock(), key=key, message=message))
        while self._inbox and time.monotonic() < until:
            resource, key = next(iter(self._inbox))
            del self._inbox[resource, key]
            self._handle(self._event(resource, key))

    def _cycles(self, until: float) -> None:
        due = self._due_at is not None and self._due_at <= self.clock()
        while (due or self.state.needs_cycle) and len(self.writer.queue) < BACKLOG_MAX:
            if due:
                self._due_at, due = None, False
            self._handle(m.CycleDue(now=self.clock()))
            if time.monotonic() >= until:
                return

    def _pause_s(self) -> float:
        if self._inbox or self._failures:
            return 0.0
        if self.state.needs_cycle:
            return 0.0 if len(self.writer.queue) < BACKLOG_MAX else 0.02
        if self._due_at is None:
            return IDLE_S
        return min(IDLE_S, max(0.005, self._due_at - self.clock()))

    def _handle(self, event: m.Event) -> None:
        for instruction in self.state.handle(event):
            if isinstance(instruction, m.WakeAt):
                self._due_at = instruction.at if self._due_at is None else min(self._due_at, instruction.at)
                continue
            self.writer.submit(instruction)
            if (workload := self._workloads.get(instruction.key)) is not None:
                self._mark(workload)
            if isinstance(instruction, m.ReserveQuota):
                self.status_writer.mark(CLUSTER_QUEUES, ObjectKey("", instruction.admission.cluster_queue))

    def _as_told(self, obj: Any) -> Any:
        if isinstance(obj, ClusterQueue) and self._built_in_check is not None:
            return self._built_in_check.on(obj, self._configs[ADMISSION_CHECKS].by_name)
        return obj

    def _event(self, resource: Resource, key: ObjectKey) -> m.Event:
        """The newest of an object as the engine wants to hear of it."""
        now = self.clock()
        if resource == WORKLOADS:
            workload = self._workloads.get(key)
            return m.WorkloadChanged(now=now, workload=workload) if workload else m.WorkloadDeleted(now=now, key=key)
        if (view := self._configs.get(resource)) is not None:
            obj = self._as_told(view.get(key))
            kind: m.ConfigKind = resource.kind  # type: ignore[assignment]
            return m.ConfigChanged(now=now, object=obj) if obj else m.ConfigDeleted(now=now, kind=kind, key=key)
        if key.namespace == "usage" and self._pods is not None:
            return m.ForeignPodUsage(now=now, node=key.name, requests=self._pods.usage_on(key.name))
        return _plain_event(resource, key, self._informers.of(resource).objects.get(key), now)


def _only_status(old: Any, new: Any) -> bool:
    """Did nothing change but what we write ourselves?"""
    if old is None or new is None or old.metadata.deletion_timestamp != new.metadata.deletion_timestamp:
        return False
    if isinstance(new, WorkloadPriorityClass):
        return True  # counts nothing in any queue
    if isinstance(new, AdmissionCheck):
        return old == new
    return old.spec == new.spec and kind_of(old) == kind_of(new)


def _plain_event(resource: Resource, key: ObjectKey, manifest: dict[str, Any] | None, now: Instant) -> m.Event:
    if resource == NAMESPACES:
        if manifest is None:
            return m.NamespaceDeleted(now=now, name=key.name)
        return m.NamespaceChanged(now=now, name=key.name, labels=manifest["metadata"].get("labels") or {})
    if resource == LIMIT_RANGES:
        if manifest is None:
            return m.LimitRangeDeleted(now=now, namespace=key.namespace, name=key.name)
        spec = manifest.get("spec") or {}
        return m.LimitRangeChanged(now=now, namespace=key.namespace, name=key.name, spec=spec)
    if manifest is None:
        return m.NodeDeleted(now=now, name=key.name)
    return m.NodeChanged(now=now, node=manifest)
