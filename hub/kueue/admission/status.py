"""What can be asked about the state without changing it: figures of queues, and why a workload waits."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from hub.kueue.admission.config import LocalQ, Queue
from hub.kueue.admission.fair_sharing import share
from hub.kueue.admission.messages import Position, QueueStatus
from hub.kueue.admission.quota import Node, available, potential
from hub.kueue.admission.records import Spot, Work
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import names as n

if TYPE_CHECKING:
    from hub.kueue.admission.state import AdmissionState

#: flavor -> resource -> (total, above nominal)
Usage = dict[str, dict[str, tuple[int, int]]]


def queue_status(state: "AdmissionState", kind: Literal["ClusterQueue", "LocalQueue"], key: ObjectKey) -> QueueStatus:
    """Figures for the status of a queue. One that does not exist is inactive and empty."""
    state.flush_wakes()
    if kind == "ClusterQueue":
        queue = state.config.queues.get(key.name)
        return _of_queue(state, queue) if queue is not None else _missing(kind)
    local = state.config.locals.get(key)
    return _of_local(state, local) if local is not None and local.exists else _missing(kind)


def _missing(kind: str) -> QueueStatus:
    return QueueStatus(active=False, reason=n.ClusterQueueActiveReason.UNKNOWN, message=f"there is no such {kind}")


def _of_queue(state: "AdmissionState", queue: Queue) -> QueueStatus:
    reserved = list(queue.running)
    admitted = [w for w in reserved if w.reservation is not None and w.reservation.admitted]
    usage = {key: cell.usage for key, cell in queue.cells.items() if cell.named or cell.usage}
    used = usage if len(admitted) == len(reserved) else _summed(admitted, usage)
    nominal: dict[str, dict[str, int]] = {}
    room: dict[str, dict[str, tuple[int, int]]] = {}
    for (flavor, resource), cell in queue.cells.items():
        if cell.named:
            nominal.setdefault(flavor, {})[resource] = cell.nominal
            room.setdefault(flavor, {})[resource] = (max(0, available(cell)), potential(cell))
    return QueueStatus(
        pending=len(queue.pending),
        reserving=len(reserved),
        admitted=len(admitted),
        reservation=_nested(queue, usage),
        usage=_nested(queue, used),
        nominal=nominal,
        room=room,
        active=queue.active,
        reason=queue.inactive_reason or n.ClusterQueueActiveReason.READY,
        message=queue.inactive_message or "Can admit new workloads",
        weighted_share=share(queue).value if state.policy.fair_sharing is not None else None,
    )


def _summed(works: Iterable[Work], keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    total = dict.fromkeys(keys, 0)
    for work in works:
        for cell, amount in work.reservation.charges if work.reservation is not None else ():
            total[cell.key] = total.get(cell.key, 0) + amount
    return total


def _nested(queue: Queue, usage: dict[tuple[str, str], int]) -> Usage:
    nested: Usage = {}
    for key, total in usage.items():
        borrowed = max(0, total - queue.cells[key].nominal) if queue.parent is not None else 0
        nested.setdefault(key[0], {})[key[1]] = (total, borrowed)
    return nested


def _of_local(state: "AdmissionState", local: LocalQ) -> QueueStatus:
    queue = state.config.queue_of(local)
    reserved = [w for w in local.members.values() if w.reservation is not None]
    admitted = [w for w in reserved if w.reservation is not None and w.reservation.admitted]
    pending = sum(1 for w in local.members.values() if w.spot in (Spot.QUEUED, Spot.ASIDE))
    named = [key for key, cell in queue.cells.items() if cell.named] if queue is not None else []
    reason, message = _local_activity(local, queue)
    return QueueStatus(
        pending=pending,
        reserving=len(reserved),
        admitted=len(admitted),
        reservation=_plain(_summed(reserved, named)),
        usage=_plain(_summed(admitted, named)),
        active=reason == n.LocalQueueActiveReason.READY,
        reason=reason,
        message=message,
    )


def _plain(usage: dict[tuple[str, str], int]) -> Usage:
    nested: Usage = {}
    for (flavor, resource), total in usage.items():
        nested.setdefault(flavor, {})[resource] = (total, 0)
    return nested


def _local_activity(local: LocalQ, queue: Queue | None) -> tuple[str, str]:
    if local.stop != "None":
        return n.LocalQueueActiveReason.STOPPED, "LocalQueue is stopped"
    if queue is None:
        return n.LocalQueueActiveReason.CLUSTER_QUEUE_DOES_NOT_EXIST, "Can't submit new workloads to clusterQueue"
    if not queue.active:
        return n.LocalQueueActiveReason.CLUSTER_QUEUE_IS_INACTIVE, "Can't submit new workloads to clusterQueue"
    return n.LocalQueueActiveReason.READY, "Can submit new workloads to clusterQueue"


def cohort_share(state: "AdmissionState", name: str) -> float | None:
    """The fair share of a cohort for its status; None: there is no such cohort, or no fair sharing."""
    state.flush_wakes()
    node: Node | None = state.config.forest.cohorts.get(name)
    if node is None or state.policy.fair_sharing is None:
        return None
    return share(node).value


def position(state: "AdmissionState", key: ObjectKey) -> Position | None:
    """Why a pending workload waits and where it stands. None: it does not wait."""
    state.flush_wakes()
    work = state.works.get(key)
    if work is None or work.reservation is not None:
        return None
    queue = work.queue
    return Position(
        reason=work.reason or n.QuotaReservedReason.PENDING_EVALUATION,
        message=work.message or "It has not been looked at yet",
        cluster_queue=work.local.cluster_queue,
        position=queue.pending.ahead_of(work) if queue is not None else None,
    )


def positions(state: "AdmissionState", cluster_queue: str) -> list[ObjectKey]:
    """The workloads that wait in a ClusterQueue in the order in which they will be looked at; parked ones are left out."""
    state.flush_wakes()
    queue = state.config.queues.get(cluster_queue)
    return [w.key for w in queue.pending.in_order()] if queue is not None else []
