"""Status of ClusterQueues, LocalQueues and Cohorts: counted by the engine, written when it differs, once a second at most."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

from hub.kueue.admission.messages import QueueStatus
from hub.kueue.admission.state import AdmissionState
from hub.kueue.admission.status import cohort_share
from hub.kueue.api.decoding import document
from hub.kueue.api.meta import Condition, Instant, ObjectKey, Resource, set_condition
from hub.kueue.api.quantity import text
from hub.kueue.api.resources import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES
from hub.kueue.api.v1beta2 import (
    ClusterQueue,
    ClusterQueueStatus,
    Cohort,
    CohortStatus,
    FairSharingStatus,
    FlavorUsage,
    LocalQueue,
    LocalQueueStatus,
    ResourceUsage,
    names,
)
from hub.kueue.operations import merge_patch_between
from hub.kueue.runtime.controller import Controller
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.loop import Clock

log = logging.getLogger(__name__)

PERIOD_S = 1.0
SHARE_MAX = 2**63 - 1

Target = tuple[Resource, ObjectKey]
Usage = Mapping[str, Mapping[str, tuple[int, int]]]


class QueueStatusWriter(Controller[Target]):
    """`mark` what may have changed; it is counted and written within a second, and not again sooner than that."""

    def __init__(self, informers: Informers, state: AdmissionState, clock: Clock, *, workers: int = 8) -> None:
        super().__init__("queue status", clock, workers=workers)
        self._client = informers.client
        self._state = state
        self._queues = informers.typed(CLUSTER_QUEUES, ClusterQueue)
        self._locals = informers.typed(LOCAL_QUEUES, LocalQueue)
        self._cohorts = informers.typed(COHORTS, Cohort)

    def mark(self, resource: Resource, key: ObjectKey) -> None:
        self.queue.add_after((resource, key), PERIOD_S)

    def mark_all(self) -> None:
        """Something changed that may concern every queue: a flavor, a check, a cohort."""
        for resource, view in ((CLUSTER_QUEUES, self._queues), (LOCAL_QUEUES, self._locals), (COHORTS, self._cohorts)):
            for key in view.objects:
                self.mark(resource, key)

    async def look_at(self, key: Target) -> None:
        resource, name = key
        body = self._difference(resource, name)
        if body:
            await self._client.patch(resource, name, {"status": body}, subresource="status")

    def _difference(self, resource: Resource, key: ObjectKey) -> dict[str, Any]:
        now = self.clock()
        if resource == CLUSTER_QUEUES and (queue := self._queues.get(key)) is not None:
            found = self._state.queue_status("ClusterQueue", key)
            return merge_patch_between(document(queue.status), document(cluster_queue_status(queue, found, now)))
        if resource == LOCAL_QUEUES and (local := self._locals.get(key)) is not None:
            found = self._state.queue_status("LocalQueue", key)
            return merge_patch_between(document(local.status), document(local_queue_status(local, found, now)))
        if resource == COHORTS and (cohort := self._cohorts.get(key)) is not None:
            share = cohort_share(self._state, key.name)
            after = CohortStatus(fair_sharing=_fair_sharing(share))
            return merge_patch_between(document(cohort.status), document(after))
        return {}


def cluster_queue_status(queue: ClusterQueue, found: QueueStatus, now: Instant) -> ClusterQueueStatus:
    """The status that a ClusterQueue should have, given what was counted."""
    return ClusterQueueStatus(
        conditions=set_condition(queue.status.conditions, _active(found), now),
        flavors_reservation=_usage(found.reservation, found.nominal, borrowed=bool(queue.spec.cohort_name)),
        flavors_usage=_usage(found.usage, found.nominal, borrowed=bool(queue.spec.cohort_name)),
        pending_workloads=found.pending,
        reserving_workloads=found.reserving,
        admitted_workloads=found.admitted,
        fair_sharing=_fair_sharing(found.weighted_share),
    )


def local_queue_status(local: LocalQueue, found: QueueStatus, now: Instant) -> LocalQueueStatus:
    """The status that a LocalQueue should have; its fair sharing is written by whoever samples usage."""
    return LocalQueueStatus(
        conditions=set_condition(local.status.conditions, _active(found), now),
        pending_workloads=found.pending,
        reserving_workloads=found.reserving,
        admitted_workloads=found.admitted,
        flavors_reservation=_usage(found.reservation, found.nominal),
        flavors_usage=_usage(found.usage, found.nominal),
        fair_sharing=local.status.fair_sharing,
    )


def _active(found: QueueStatus) -> Condition:
    status: Literal["True", "False"] = "True" if found.active else "False"
    return Condition(type=names.ACTIVE, status=status, reason=found.reason, message=found.message)


def _usage(
    usage: Usage, nominal: Usage | Mapping[str, Mapping[str, int]], *, borrowed: bool = False
) -> list[FlavorUsage]:
    """Flavors in the order of the queue, resources by name; those with quota and no use are there with 0."""
    flavors = dict.fromkeys([*nominal, *usage])
    return [
        FlavorUsage(
            name=flavor,
            resources=[
                _resource(name, *usage.get(flavor, {}).get(name, (0, 0)), borrowed=borrowed)
                for name in sorted({*nominal.get(flavor, {}), *usage.get(flavor, {})})
            ],
        )
        for flavor in flavors
    ]


def _resource(name: str, total: int, above: int, *, borrowed: bool) -> ResourceUsage:
    return ResourceUsage(name=name, total=text(name, total), borrowed=text(name, above) if borrowed else None)


def _fair_sharing(share: float | None) -> FairSharingStatus | None:
    if share is None:
        return None
    whole = SHARE_MAX if share == float("inf") else min(SHARE_MAX, -int(-share // 1))
    return FairSharingStatus(weighted_share=whole)
