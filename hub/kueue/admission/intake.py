"""From a Workload object to what the engine keeps of it."""

from collections.abc import Mapping

from hub.kueue.admission.config import Queue
from hub.kueue.admission.policy import Policy
from hub.kueue.admission.quota import FlavorResource, cell_of
from hub.kueue.admission.records import Charge, Facts, Reservation
from hub.kueue.admission.requests import Shape
from hub.kueue.api.errors import ApiError
from hub.kueue.api.meta import Condition, Instant, parse_time
from hub.kueue.api.quantity import amount
from hub.kueue.api.v1beta2 import Admission, Workload, WorkloadStatus
from hub.kueue.api.v1beta2 import names as n

#: What most waiting workloads say about themselves: nothing.
_SILENT = Facts()


def facts_of(workload: Workload) -> Facts:
    """Read the object's spec and status once."""
    spec, status, meta = workload.spec, workload.status, workload.metadata
    silent = (
        spec.active
        and not meta.annotations
        and not spec.preemption_gates
        and spec.maximum_execution_time_seconds is None
    )
    if silent and status == _NO_STATUS:
        return _SILENT
    facts = Facts()
    facts.active = spec.active
    facts.max_execution_s = spec.maximum_execution_time_seconds
    facts.accumulated_s = status.accumulated_past_execution_time_seconds or 0
    facts.checks = tuple(status.admission_checks)
    facts.unhealthy_nodes = tuple(node.name for node in status.unhealthy_nodes)
    facts.replaces = meta.annotations.get(n.WORKLOAD_SLICE_REPLACEMENT_FOR, "")
    facts.admission = status.admission
    facts.reclaimable = status.reclaimable_pods
    if status.requeue_state is not None:
        facts.requeue_count = status.requeue_state.count or 0
        facts.requeue_at = _instant(status.requeue_state.requeue_at)
    opened = {g.name for g in status.preemption_gates if g.position == "Open"}
    facts.preemption_gated = any(g.name not in opened for g in spec.preemption_gates)
    if meta.annotations.get(n.ADMISSION_GATED_BY):
        facts.gate = f"admission is gated by {meta.annotations[n.ADMISSION_GATED_BY]}"
    for condition in status.conditions:
        reader = _READERS.get(condition.type)
        if reader is not None:
            reader(facts, condition)
    return facts


_NO_STATUS = WorkloadStatus()


def _quota_reserved(facts: Facts, condition: Condition) -> None:
    at = _instant(condition.last_transition_time) or 0.0
    if condition.status == "True":
        facts.reserved, facts.reserved_at = True, at
        return
    facts.unreserved_at, facts.waits_because, facts.waits_message = at, condition.reason, condition.message
    if condition.reason == n.QuotaReservedReason.ON_HOLD:
        facts.gate = facts.gate or "it is on hold"


def _admitted(facts: Facts, condition: Condition) -> None:
    facts.admitted = condition.status == "True"
    facts.admitted_at = _instant(condition.last_transition_time) or 0.0


def _evicted(facts: Facts, condition: Condition) -> None:
    facts.evicted = condition.status == "True"
    facts.evicted_reason = condition.reason
    facts.evicted_at = _instant(condition.last_transition_time) or 0.0


def _preempted(facts: Facts, condition: Condition) -> None:
    if condition.status == "True" and condition.reason == n.PreemptedReason.IN_COHORT_RECLAIM_WHILE_BORROWING:
        facts.borrowed_away_at = _instant(condition.last_transition_time) or 0.0


def _requeued(facts: Facts, condition: Condition) -> None:
    facts.requeued, facts.requeued_reason = condition.status == "True", condition.reason


def _pods_ready(facts: Facts, condition: Condition) -> None:
    facts.pods_ready, facts.pods_ready_reason = condition.status == "True", condition.reason
    facts.pods_ready_at = _instant(condition.last_transition_time) or 0.0


def _finished(facts: Facts, condition: Condition) -> None:
    facts.finished = condition.status == "True"


def _deactivation(facts: Facts, condition: Condition) -> None:
    if condition.status == "True":
        facts.cause = condition.reason


def _replacement_pods(facts: Facts, condition: Condition) -> None:
    if condition.status == "True":
        facts.gate = facts.gate or "it waits for replacement pods"


_READERS = {
    n.QUOTA_RESERVED: _quota_reserved,
    n.ADMITTED: _admitted,
    n.EVICTED: _evicted,
    n.PREEMPTED: _preempted,
    n.REQUEUED: _requeued,
    n.PODS_READY: _pods_ready,
    n.FINISHED: _finished,
    n.DEACTIVATION_TARGET: _deactivation,
    n.WAITING_FOR_REPLACEMENT_PODS: _replacement_pods,
}


def _instant(text: str | None) -> Instant | None:
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None


def priority_of(workload: Workload, policy: Policy) -> int:
    """Priority, plus the boost that an external controller may write."""
    priority = workload.spec.priority or 0
    if policy.priority_boost:
        boost = workload.metadata.annotations.get(n.PRIORITY_BOOST, "0")
        priority += int(boost) if boost.lstrip("+-").isdecimal() else 0
    return priority


def queue_time(created: Instant, facts: Facts, policy: Policy) -> Instant:
    """Its place among equals. Only a failed start and a failed check cost it its place; preemption does not."""
    if facts.evicted:
        late = policy.pods_ready is None or policy.pods_ready.requeue_by_eviction
        if facts.evicted_reason == n.EvictedReason.PODS_READY_TIMEOUT and late:
            return facts.evicted_at
        if facts.evicted_reason == n.EvictedReason.ADMISSION_CHECK:
            return facts.evicted_at
    if facts.borrowed_away_at and not policy.priority_sorting:
        return facts.borrowed_away_at + 0.001  # behind the one that took its place, which may have the same time
    return created


def allowed_flavors(annotations: Mapping[str, str]) -> frozenset[str] | None:
    """Flavors that the workload restricts itself to; None: all."""
    listed = annotations.get(n.ALLOWED_RESOURCE_FLAVORS)
    return None if listed is None else frozenset(f.strip() for f in listed.split(",") if f.strip())


def reservation_of(queue: Queue, admission: Admission, shape: Shape) -> Reservation:
    """What a workload with this admission holds in the ClusterQueue: as assigned, less the pods given back since."""
    needs = {need.name: need for need in shape.pod_sets}
    totals: dict[FlavorResource, int] = {}
    for assigned in admission.pod_set_assignments:
        need = needs.get(assigned.name)
        count = assigned.count if assigned.count is not None else (need.count if need else 0)
        left = min(count, need.count) if need else count
        for resource, flavor in assigned.flavors.items():
            total = _amount(resource, assigned.resource_usage.get(resource, 0))
            if left < count:
                total = total // count * left
            key = (flavor, resource)
            totals[key] = totals.get(key, 0) + total
    charges: list[Charge] = [(cell_of(queue, key), total) for key, total in totals.items()]
    return Reservation(queue, admission, charges, frozenset(totals))


def _amount(resource: str, quantity: str | int) -> int:
    try:
        return amount(resource, quantity)
    except ApiError:
        return 0
