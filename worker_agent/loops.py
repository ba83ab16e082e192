"""Load, decide, apply: what the agent does in the background.

informers ──changed──▶ MirrorLoop: copies of placements ──mirror.step──▶ operations on this cluster, reports
                       CapacityLoop: nodes, pods, queues ──report.capacity──▶ the capacity that the hub is told
polls ──intents──▶ MirrorLoop
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from hub.kueue.admission.messages import QueueStatus
from hub.kueue.api import resources
from hub.kueue.api.meta import ObjectKey, Resource
from hub.kueue.api.v1beta2 import ResourceFlavor, Workload, decode_as, names
from hub.kueue.integrations.interface import Integration
from hub.kueue.integrations.registry import INTEGRATIONS, integration_for
from hub.kueue.operations import Create, Operation
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.errors import Conflict, Forbidden, Invalid, KubernetesError
from hub.kueue.runtime.informer import Informer
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.loop import Clock, Loop
from hub.kueue.wire import Action, Intent, Phase, PlacementReport, Refusal
from worker_agent import mirror, report
from worker_agent.exchange import Exchange

log = logging.getLogger(__name__)

WRITES_AT_ONCE = 16
#: A step that could not be applied is tried again after this.
RETRY_S = 0.5


class Caches(Struct, frozen=True, kw_only=True):
    """The informers of the worker cluster. Complete when all are synced; before that nothing is concluded from them."""

    workloads: Informer
    pods: Informer
    nodes: Informer
    namespaces: Informer
    local_queues: Informer
    cluster_queues: Informer
    flavors: Informer
    #: One per job kind that this cluster serves.
    jobs: dict[Resource, Informer]

    def all(self) -> list[Informer]:
        fixed = (
            self.workloads,
            self.pods,
            self.nodes,
            self.namespaces,
            self.local_queues,
            self.cluster_queues,
            self.flavors,
        )
        return [*fixed, *self.jobs.values()]

    @property
    def synced(self) -> bool:
        return all(informer.synced for informer in self.all())


def caches_of(informers: Informers, job_resources: Iterable[Resource]) -> Caches:
    """The caches that the agent looks at, shared with the loops that admit and start local jobs."""
    return Caches(
        workloads=informers.of(resources.WORKLOADS),
        pods=informers.of(resources.PODS),
        nodes=informers.of(resources.NODES),
        namespaces=informers.of(resources.NAMESPACES),
        local_queues=informers.of(resources.LOCAL_QUEUES),
        cluster_queues=informers.of(resources.CLUSTER_QUEUES),
        flavors=informers.of(resources.RESOURCE_FLAVORS),
        jobs={resource: informers.of(resource) for resource in job_resources},
    )


class KindsLoop(Loop):
    """Which job kinds the cluster serves: asked now and then, since a CRD may be installed at any time."""

    interval_s = 15.0

    def __init__(self, client: Client, clock: Clock) -> None:
        super().__init__("kinds", clock)
        self._client = client
        self.kinds: frozenset[str] = frozenset()

    async def run_once(self) -> None:
        served = frozenset(await self._client.served_kinds())
        self.kinds = served & {mirror.kind_text(integration.resource) for integration in INTEGRATIONS.values()}


class MirrorLoop(Loop):
    """Brings the copies of placements nearer to the hub's intents, one look per placement that something happened to."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        exchange: Exchange,
        policy: mirror.Policy,
        kinds: Callable[[], frozenset[str]],
        announce: Callable[[], Any],
        clock: Clock,
    ) -> None:
        super().__init__("mirror", clock)
        self._client = client
        self._caches = caches
        self._exchange = exchange
        self._policy = policy
        self._kinds = kinds
        self._announce = announce
        self._dirty: set[str] = set()
        self._later: list[tuple[float, str]] = []
        self._endings: dict[str, PlacementReport] = {}
        self._names: dict[str, _Names] = {}
        self._pods: dict[str, set[ObjectKey]] = {}
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        caches.workloads.on_change(self._copy_changed)
        caches.pods.on_change(self._pod_changed)
        for informer in caches.jobs.values():
            informer.on_change(self._copy_changed)

    def touch(self, placements: Iterable[str]) -> None:
        """Look at these again: their intents changed."""
        self._dirty.update(placements)
        self.wake()

    async def run_once(self) -> None:
        if not self._caches.synced:
            self.interval_s = 0.1
            return
        now = self.clock()
        while self._later and self._later[0][0] <= now:
            self._dirty.add(heapq.heappop(self._later)[1])
        self._dirty.update(placement for placement in self._names if self._exchange.is_unwanted(placement))
        batch, self._dirty = self._dirty, set()
        scene = self._scene()
        # Sorted, so that two runs over the same events do the same things in the same order.
        told = await asyncio.gather(*(self._one(placement, scene) for placement in sorted(batch)))
        if any(told):
            await self._announce()
        self.interval_s = max(0.0, min(1.0, self._later[0][0] - self.clock())) if self._later else 1.0

    async def _one(self, placement: str, scene: mirror.Scene) -> bool:
        """One look at one placement. True when the hub has something new to hear."""
        step = self._decide(placement, scene)
        if step is None:
            return False
        if step.ending is not None:
            self._endings[placement] = step.ending
        if step.again_s is not None:
            self._look_again(placement, step.again_s)
        # Written first and told then: what the hub has heard must be true even if this process ends here.
        if not await self._apply(placement, step.operations) or step.report is None:
            return False
        if step.report.phase in _NOTHING_LEFT:
            self._endings.pop(placement, None)
            self._names.pop(placement, None)
        return self._exchange.tell(step.report, self.clock())

    def _decide(self, placement: str, scene: mirror.Scene) -> mirror.Step | None:
        intent = self._exchange.intents.get(placement)
        integration = _integration(intent)
        if intent is not None and intent.action is Action.RUN:
            self._names[placement] = _names_of(intent, integration)
        copy = self._copy(placement)
        if intent is None:
            intent = mirror.adopted(copy, self._policy)
            if intent is None or intent.placement != placement:
                return None
            if self._exchange.is_unwanted(placement):
                return mirror.withdraw(placement, intent.generation, copy, self._policy)
            integration = _integration(intent)
        return mirror.step(
            intent,
            copy,
            scene,
            integration,
            self._policy,
            self.clock(),
            self._endings.get(placement),
            end_is_known=self._exchange.end_is_known(placement, intent.generation),
        )

    def _copy(self, placement: str) -> mirror.Copy:
        known = self._names.get(placement)
        pods = len(self._pods.get(placement, ()))
        if known is None:
            return mirror.Copy(pods=pods)
        jobs = self._caches.jobs.get(known.job_resource) if known.job_resource else None
        return mirror.Copy(
            workload=self._caches.workloads.objects.get(known.workload),
            job=jobs.objects.get(known.job) if jobs is not None else None,
            pods=pods,
        )

    async def _apply(self, placement: str, operations: Iterable[Operation]) -> bool:
        """Carry the operations out in order. False when one was not done: this placement is looked at again."""
        for operation in operations:
            try:
                async with self._writes:
                    await self._client.run(operation)
            except Conflict:
                self._look_again(placement, 0.0)
                return False
            except KubernetesError as error:
                if isinstance(error, Invalid | Forbidden) and isinstance(operation, Create):
                    self._refused(placement, error)
                else:
                    log.info("placement %s: %s; trying again", placement, error)
                self._look_again(placement, RETRY_S)
                return False
        return True

    def _refused(self, placement: str, error: KubernetesError) -> None:
        """The API server will not have this copy: take away what is there of it, then say so."""
        intent = self._exchange.intents.get(placement)
        if intent is not None:
            self._endings[placement] = PlacementReport(
                placement=placement,
                generation=intent.generation,
                phase=Phase.REFUSED,
                reason=Refusal.INVALID_OBJECT,
                message=str(error)[:2000],
            )

    def _look_again(self, placement: str, delay_s: float) -> None:
        heapq.heappush(self._later, (self.clock() + delay_s, placement))
        self.wake()

    def _scene(self) -> mirror.Scene:
        return mirror.Scene(
            namespaces=frozenset(key.name for key in self._caches.namespaces.objects),
            local_queues=_targets(self._caches.local_queues),
            cluster_queues=frozenset(key.name for key in self._caches.cluster_queues.objects),
            flavors={key.name: decode_as(ResourceFlavor, f) for key, f in self._caches.flavors.objects.items()},
            kinds=self._kinds(),
        )

    def _copy_changed(self, key: ObjectKey, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        for manifest in (old, new):
            mark = mirror.mark_of(manifest, self._policy.origin)
            if mark is None or manifest is None:
                continue
            self._dirty.add(mark[0])
            known = self._exchange.intents.get(mark[0])
            if known is None or known.action is Action.WITHDRAW:
                self._names[mark[0]] = _names_in(self._names.get(mark[0]), manifest, key)
            self.wake()

    def _pod_changed(self, key: ObjectKey, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        for manifest in (old, new):
            placement = ((manifest or {}).get("metadata", {}).get("labels") or {}).get(names.PLACEMENT)
            if not placement:
                continue
            pods = self._pods.setdefault(placement, set())
            (pods.add if new is not None else pods.discard)(key)
            if not pods:
                del self._pods[placement]
            self._dirty.add(placement)
            self.wake()


_NOTHING_LEFT = frozenset({Phase.REFUSED, Phase.EVICTED, Phase.GONE})


def _integration(intent: Intent | None) -> Integration | None:
    return integration_for(intent.job.get("apiVersion", ""), intent.job.get("kind", "")) if intent else None


class _Names(Struct, frozen=True, kw_only=True):
    """Under which names the copy of a placement stands here."""

    workload: ObjectKey
    job: ObjectKey
    job_resource: Resource | None


def _names_of(intent: Intent, integration: Integration | None) -> _Names:
    name = intent.job.get("metadata", {}).get("name", "")
    return _Names(
        workload=ObjectKey(intent.namespace, intent.workload),
        job=ObjectKey(intent.namespace, name),
        job_resource=integration.resource if integration else None,
    )


def _names_in(known: _Names | None, manifest: dict[str, Any], key: ObjectKey) -> _Names:
    """Names of a copy whose intent we do not have (yet): read from its own objects."""
    if manifest["kind"] == resources.WORKLOADS.kind:
        return _Names(workload=key, job=known.job if known else key, job_resource=known.job_resource if known else None)
    workload = (manifest["metadata"].get("annotations") or {}).get(names.PREBUILT_WORKLOAD_NAME, "")
    integration = integration_for(manifest["apiVersion"], manifest["kind"])
    resource = integration.resource if integration else None
    return _Names(workload=ObjectKey(key.namespace, workload), job=key, job_resource=resource)


def _targets(local_queues: Informer) -> dict[ObjectKey, str]:
    return {key: queue["spec"]["clusterQueue"] for key, queue in local_queues.objects.items()}


class CapacityLoop(Loop):
    """Tells the hub what this cluster has and what of it is free, when that changed and at most twice a second."""

    interval_s = 0.5

    def __init__(
        self,
        caches: Caches,
        exchange: Exchange,
        policy: mirror.Policy,
        kinds: Callable[[], frozenset[str]],
        queue_status: Callable[[str], QueueStatus],
        version: str,
        announce: Callable[[], Any],
        clock: Clock,
    ) -> None:
        super().__init__("capacity", clock)
        self._caches = caches
        self._exchange = exchange
        self._policy = policy
        self._kinds = kinds
        self._queue_status = queue_status
        self._version = version
        self._announce = announce
        self._nodes: dict[ObjectKey, report.NodeRoom] = {}
        self._pods: dict[ObjectKey, report.PodUse] = {}
        self._quota: dict[ObjectKey, report.QuotaUse] = {}
        caches.workloads.on_change(self._workload_changed)
        caches.nodes.on_change(self._node_changed)
        caches.pods.on_change(self._pod_changed)

    async def run_once(self) -> None:
        if not self._caches.synced:
            return
        policy = self._policy
        seen = report.capacity(
            self._cluster(),
            creates=(policy.create_namespaces, policy.create_local_queues, policy.default_cluster_queue),
            version=self._version,
            now=self.clock(),
        )
        if self._exchange.tell_capacity(seen):
            await self._announce()

    def _cluster(self) -> report.Cluster:
        queues = {key.name: self._queue_status(key.name) for key in self._caches.cluster_queues.objects}
        pods = list(self._pods.values())
        return report.Cluster(
            nodes=list(self._nodes.values()),
            pods=pods,
            unbound=frozenset(pod.placement for pod in pods if not pod.node),
            flavors=[decode_as(ResourceFlavor, f) for f in self._caches.flavors.objects.values()],
            queues=queues,
            ours=report.quota_by_queue(self._quota.values()),
            local_queues=_targets(self._caches.local_queues),
            namespaces=[key.name for key in self._caches.namespaces.objects],
            kinds=sorted(self._kinds()),
        )

    def _workload_changed(self, key: ObjectKey, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        self._quota.pop(key, None)
        if new is not None and mirror.mark_of(new, self._policy.origin) is not None:
            use = report.quota_use(decode_as(Workload, new), self._policy.origin)
            if use is not None:
                self._quota[key] = use

    def _node_changed(self, key: ObjectKey, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        self._nodes.pop(key, None)
        if new is not None:
            self._nodes[key] = report.node_room(new)

    def _pod_changed(self, key: ObjectKey, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        self._pods.pop(key, None)
        if new is not None and (use := report.pod_use(new)) is not None:
            self._pods[key] = use
