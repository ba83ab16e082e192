"""The management cluster as the dispatching loops see it: caches, and what they mean together."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hub.dispatch.capacity import Fleet
from hub.dispatch.mirroring import users_flavors
from hub.dispatch.possible import NO_OBJECTION, Judgement, draft_of, judge
from hub.dispatch.request import LostPolicy, Request, lost_policy_of, request_of
from hub.dispatch.routes import Route, route_of
from hub.kueue.api.errors import ApiError
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    MULTI_KUEUE_CLUSTERS,
    MULTI_KUEUE_CONFIGS,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from hub.kueue.api.v1beta2 import (
    AdmissionCheck,
    ClusterQueue,
    LocalQueue,
    MultiKueueCluster,
    MultiKueueConfig,
    ResourceFlavor,
    Workload,
)
from hub.kueue.integrations.compose import controller_of
from hub.kueue.integrations.interface import Integration
from hub.kueue.runtime.informers import Informers

Manifest = dict[str, Any]


class Management:
    def __init__(
        self, informers: Informers, integrations: Iterable[Integration], *, lost_policy: LostPolicy = "Wait"
    ) -> None:
        self.informers = informers
        self.integrations = tuple(integrations)
        self.workloads = informers.typed(WORKLOADS, Workload)
        self.queues = informers.typed(CLUSTER_QUEUES, ClusterQueue)
        self.local_queues = informers.typed(LOCAL_QUEUES, LocalQueue)
        self.flavors = informers.typed(RESOURCE_FLAVORS, ResourceFlavor)
        self.checks = informers.typed(ADMISSION_CHECKS, AdmissionCheck)
        self.configs = informers.typed(MULTI_KUEUE_CONFIGS, MultiKueueConfig)
        self.clusters = informers.typed(MULTI_KUEUE_CLUSTERS, MultiKueueCluster)
        self._jobs = {i.resource: informers.of(i.resource) for i in self.integrations}
        self._by_kind = {(i.resource.api_version, i.resource.kind): i for i in self.integrations}
        self._lost_policy: LostPolicy = lost_policy
        #: (shape of the draft, queue) -> (version of fleet and queue, judgement)
        self._judged: dict[tuple[str, str], tuple[tuple[int, str], Judgement]] = {}

    @property
    def synced(self) -> bool:
        return self.informers.synced

    def on_job(self, handler: Callable[[ObjectKey], None]) -> list[Callable[[], None]]:
        """Call `handler` with the key of the Workload of every job that changes."""

        def changed(key: ObjectKey, old: Manifest | None, new: Manifest | None) -> None:
            uid = ((new or old or {}).get("metadata") or {}).get("uid", "")
            if (workload := self._workload_of_job.get(uid)) is not None:
                handler(workload)

        return [informer.on_change(changed) for informer in self._jobs.values()]

    # --- lookups -----------------------------------------------------------------------------------------------------

    def follow_owners(self) -> Callable[[], None]:
        """Keep the index of jobs to Workloads; the first subscriber of Workload changes."""
        self._workload_of_job: dict[str, ObjectKey] = {}

        def changed(key: ObjectKey, old: Workload | None, new: Workload | None) -> None:
            for workload, there in ((old, False), (new, True)):
                owner = controller_of(workload) if workload is not None else None
                if owner is not None and there:
                    self._workload_of_job[owner.uid] = key
                elif owner is not None:
                    self._workload_of_job.pop(owner.uid, None)

        return self.workloads.on_change(changed)

    def job_of(self, workload: Workload) -> tuple[Integration | None, Manifest | None]:
        """The integration of the Workload's owner, and the owner if it is there."""
        owner = controller_of(workload)
        integration = self._by_kind.get((owner.api_version, owner.kind)) if owner else None
        if owner is None or integration is None:
            return None, None
        job = self._jobs[integration.resource].objects.get(ObjectKey(workload.metadata.namespace, owner.name))
        return integration, job if job is not None and job["metadata"].get("uid") == owner.uid else None

    def queue_of(self, workload: Workload) -> ClusterQueue | None:
        """The ClusterQueue that it has quota in, or is queued for."""
        if (admission := workload.status.admission) is not None:
            return self.queues.by_name.get(admission.cluster_queue)
        local = self.local_queues.get(ObjectKey(workload.metadata.namespace, workload.spec.queue_name))
        return self.queues.by_name.get(local.spec.cluster_queue) if local else None

    def route_of(self, workload: Workload) -> Route | None:
        queue = self.queue_of(workload)
        return route_of(queue, self.checks.by_name, self.configs.by_name) if queue else None

    def request_of(self, workload: Workload, route: Route, kind: str) -> Request:
        """Raises ApiError for a pod template that cannot be read."""
        queue = self.queue_of(workload)
        annotations: Mapping[str, str] = queue.metadata.annotations if queue else {}
        return request_of(
            workload,
            kind=kind,
            flavors=self.flavors.by_name,
            configured=route.clusters,
            lost_policy=lost_policy_of(annotations, self._lost_policy),
        )

    def judgement_of(self, workload: Workload, route: Route, fleet: Fleet) -> Judgement:
        """Which flavors could ever do. Remembered by shape, until the fleet or the queue changes."""
        queue, (integration, _) = self.queue_of(workload), self.job_of(workload)
        if queue is None or integration is None or route.problem:
            return NO_OBJECTION
        try:
            draft = draft_of(workload, kind=kind_text(integration), queue=queue.metadata.name, route=route)
        except ApiError:
            return NO_OBJECTION
        allowed = users_flavors(workload)
        key = (f"{draft.shape()} {sorted(allowed) if allowed is not None else ''}", queue.metadata.name)
        version = (fleet.setup_version, queue.metadata.resource_version)
        found = self._judged.get(key)
        if found is None or found[0] != version:
            if len(self._judged) > 20_000:
                self._judged.clear()
            views = [fleet.view(n) for n in (route.clusters or fleet.clusters) if n in fleet.clusters]
            found = self._judged[key] = (version, judge(draft, queue, self.flavors.by_name, views, allowed))
        return found[1]


def kind_text(integration: Integration) -> str:
    """As agents report the kinds that they serve: "batch/v1, Job"."""
    return f"{integration.resource.api_version}, {integration.resource.kind}"
