"""One line about a workload and one about a queue, as lists show them."""

from collections.abc import Sequence

from msgspec import Struct

from hub.dispatch.placement import LIVE, Placement, State
from hub.kueue.admission.messages import Position, QueueStatus
from hub.kueue.api.errors import ApiError
from hub.kueue.api.meta import Condition, Instant, find_condition, parse_time
from hub.kueue.api.v1beta2 import ClusterQueue, LocalQueue, Workload, names
from hub.kueue.integrations.compose import controller_of
from hub.kueue.workloads.lifecycle import State as WorkloadState
from hub.kueue.workloads.lifecycle import state_of
from hub.kueue.workloads.pod_sets import totals


class WorkloadRow(Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    job_kind: str = ""
    job_name: str = ""
    local_queue: str = ""
    cluster_queue: str = ""
    priority: int = 0
    #: Pending, QuotaReserved, Admitted, Running, Finished, Evicted, ...
    state: str
    reason: str = ""
    message: str = ""
    cluster: str = ""
    placement_id: str = ""
    #: In its ClusterQueue; 0 is the head. None: not waiting, or parked.
    position: int | None = None
    gpus: int = 0
    #: resource -> amount in engine units, over all pods.
    requests: dict[str, int] = {}
    created_at: Instant = 0.0
    placed_at: Instant | None = None
    running_at: Instant | None = None
    finished_at: Instant | None = None
    updated_at: Instant = 0.0
    succeeded: bool | None = None


class QueueRow(Struct, frozen=True, kw_only=True):
    #: ClusterQueue or LocalQueue.
    kind: str
    #: "" for a ClusterQueue.
    namespace: str = ""
    name: str
    cohort: str = ""
    cluster_queue: str = ""
    pending: int = 0
    reserving: int = 0
    admitted: int = 0
    #: flavor -> resource -> {nominal, reserved, used, borrowed}, in engine units.
    usage: dict[str, dict[str, dict[str, int]]] = {}
    active: bool = False
    reason: str = ""
    updated_at: Instant = 0.0


#: Shown in place of Admitted while the agent says that pods run.
RUNNING = "Running"

#: The condition that explains each state.
_EXPLAINED_BY = {
    WorkloadState.PENDING: names.QUOTA_RESERVED,
    WorkloadState.QUOTA_RESERVED: names.QUOTA_RESERVED,
    WorkloadState.ADMITTED: names.ADMITTED,
    WorkloadState.EVICTED: names.EVICTED,
    WorkloadState.FINISHED: names.FINISHED,
}


def workload_row(
    workload: Workload, placements: Sequence[Placement], position: Position | None, now: Instant
) -> WorkloadRow:
    """`placements`: the workload's own, newest last. `position`: the engine's word while it waits for quota."""
    state, last = state_of(workload), placements[-1] if placements else None
    live = last if last is not None and last.state in LIVE else None
    ended = last if last is not None and last.state is State.FINISHED else None
    shown = live or ended
    explained = find_condition(workload.status.conditions, _EXPLAINED_BY[state])
    owner, admission = controller_of(workload), workload.status.admission
    requests = _requests(workload)
    queue = admission.cluster_queue if admission else position.cluster_queue if position else ""
    return WorkloadRow(
        namespace=workload.metadata.namespace,
        name=workload.metadata.name,
        uid=workload.metadata.uid,
        job_kind=owner.kind if owner else "",
        job_name=owner.name if owner else "",
        local_queue=workload.spec.queue_name,
        cluster_queue=queue,
        priority=workload.spec.priority or 0,
        state=RUNNING if state is WorkloadState.ADMITTED and live and live.state is State.RUNNING else state.value,
        reason=position.reason if position else explained.reason if explained else "",
        message=position.message if position else _message(workload, state, explained),
        cluster=shown.cluster if shown else workload.status.cluster_name or "",
        placement_id=last.id if last else "",
        position=position.position if position else None,
        gpus=sum(count for resource, count in requests.items() if resource.endswith("/gpu")),
        requests=requests,
        created_at=_instant(workload.metadata.creation_timestamp) or 0.0,
        placed_at=shown.offered_at if shown else None,
        running_at=shown.running_at if shown else None,
        finished_at=_instant(explained.last_transition_time) if explained and state is WorkloadState.FINISHED else None,
        updated_at=now,
        succeeded=ended.succeeded if ended else None,
    )


def _message(workload: Workload, state: WorkloadState, explained: Condition | None) -> str:
    """While it has quota and no cluster, the check that is not Ready says why."""
    if state is WorkloadState.QUOTA_RESERVED:
        outstanding = [c for c in workload.status.admission_checks if c.state != "Ready" and c.message]
        if outstanding:
            return outstanding[0].message
    return explained.message if explained else ""


def _requests(workload: Workload) -> dict[str, int]:
    try:
        return totals(workload.spec.pod_sets)
    except ApiError:
        return {}


def _instant(text: str | None) -> Instant | None:
    return parse_time(text) if text else None


def queue_row(queue: ClusterQueue | LocalQueue, status: QueueStatus, now: Instant) -> QueueRow:
    is_cluster_queue = isinstance(queue, ClusterQueue)
    return QueueRow(
        kind="ClusterQueue" if is_cluster_queue else "LocalQueue",
        namespace=queue.metadata.namespace,
        name=queue.metadata.name,
        cohort=queue.spec.cohort_name if isinstance(queue, ClusterQueue) else "",
        cluster_queue=queue.spec.cluster_queue if isinstance(queue, LocalQueue) else "",
        pending=status.pending,
        reserving=status.reserving,
        admitted=status.admitted,
        usage=_usage(status),
        active=status.active,
        reason=status.reason,
        updated_at=now,
    )


def _usage(status: QueueStatus) -> dict[str, dict[str, dict[str, int]]]:
    """Flavor -> resource -> nominal, reserved, used, borrowed."""
    flavors = [*status.nominal, *(f for f in status.reservation if f not in status.nominal)]
    return {
        flavor: {resource: _figures(status, flavor, resource) for resource in _resources(status, flavor)}
        for flavor in flavors
    }


def _resources(status: QueueStatus, flavor: str) -> list[str]:
    nominal, reserved = status.nominal.get(flavor, {}), status.reservation.get(flavor, {})
    return [*nominal, *(r for r in reserved if r not in nominal)]


def _figures(status: QueueStatus, flavor: str, resource: str) -> dict[str, int]:
    reserved, borrowed = status.reservation.get(flavor, {}).get(resource, (0, 0))
    used, _ = status.usage.get(flavor, {}).get(resource, (0, 0))
    nominal = status.nominal.get(flavor, {}).get(resource, 0)
    return {"nominal": nominal, "reserved": reserved, "used": used, "borrowed": borrowed}
