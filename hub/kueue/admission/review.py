"""What has to be done about workloads that hold quota: admit, evict, or take the reservation back.

The order of the questions decides which reason wins, as in Kueue's workload controller:
switched off, then checks (Rejected before Retry), then the LocalQueue, then the ClusterQueue, then time limits.
"""

from hub.kueue.admission import messages as m
from hub.kueue.admission.policy import PodsReady, Policy
from hub.kueue.admission.records import Facts, Reservation, Work
from hub.kueue.api.meta import Instant, format_time, parse_time
from hub.kueue.api.v1beta2 import AdmissionCheckState
from hub.kueue.api.v1beta2 import names as n

Found = tuple[m.AnyInstruction | None, Instant | None]


def review(work: Work, reservation: Reservation, policy: Policy, now: Instant) -> Found:
    """The instruction that is due for a workload that holds quota, and when to look again."""
    if reservation.evicted:
        return None, None
    facts = work.facts
    if not facts.active:  # also when it was us who asked for that: switching off comes before the eviction
        return _switched_off(work), None
    if reservation.returning:
        return None, None
    due = _failed_checks(work, facts, now) or _stopped(work, reservation)
    if due is not None:
        return due, None
    if not reservation.admitted:
        return _admission(work, reservation), None
    return _time_limits(work, reservation, policy, now)


def _switched_off(work: Work) -> m.Evict:
    cause = work.facts.cause
    reason = n.DEACTIVATED_DUE_TO + cause if cause else n.EvictedReason.DEACTIVATED
    return m.Evict(key=work.key, reason=reason, message="The workload is deactivated")


# --- admission checks ----------------------------------------------------------------------------------------------------


def _failed_checks(work: Work, facts: Facts, now: Instant) -> m.AnyInstruction | None:
    rejected = [c for c in facts.checks if c.state == "Rejected"]
    if rejected:
        told = "; ".join(f"{c.name}: {c.message}" for c in rejected)
        return m.Deactivate(
            key=work.key, reason=n.DeactivationCause.ADMISSION_CHECK, message=f"Admission check(s) rejected it: {told}"
        )
    retries = [c for c in facts.checks if c.state == "Retry"]
    if not retries:
        return None
    at = max([facts.requeue_at or 0.0, *(_back_at(c) for c in retries)])
    return m.Evict(
        key=work.key,
        reason=n.EvictedReason.ADMISSION_CHECK,
        message=f"At least one admission check asks for another try: {', '.join(c.name for c in retries)}",
        requeue_count=facts.requeue_count or None,
        requeue_at=format_time(at) if at > now else None,
    )


def _back_at(check: AdmissionCheckState) -> Instant:
    if not check.last_transition_time:
        return 0.0
    return parse_time(check.last_transition_time) + (check.requeue_after_seconds or 0)


def _admission(work: Work, reservation: Reservation) -> m.Admit | None:
    """Admitted, once every check that the chosen flavors call for is there and Ready and no place is outstanding."""
    flavors = {f for p in reservation.admission.pod_set_assignments for f in p.flavors.values()}
    required = set(reservation.queue.checks_for(flavors))
    states = {c.name: c.state for c in work.facts.checks}
    if any(states.get(name) != "Ready" for name in required) or any(s != "Ready" for s in states.values()):
        return None
    late = not reservation.queue.places_elsewhere
    if late and any(p.delayed_topology_request == "Pending" for p in reservation.admission.pod_set_assignments):
        return None
    return m.Admit(key=work.key, message=f"The workload is admitted by ClusterQueue {reservation.queue.name}")


# --- queues that stopped ---------------------------------------------------------------------------------------------------


def _stopped(work: Work, reservation: Reservation) -> m.AnyInstruction | None:
    local, queue = work.local, reservation.queue
    for kind, name, stop, there, reason in (
        ("LocalQueue", local.key.name, local.stop, local.exists, n.EvictedReason.LOCAL_QUEUE_STOPPED),
        (
            "ClusterQueue",
            queue.name,
            queue.stop,
            queue.exists and not queue.terminating,
            n.EvictedReason.CLUSTER_QUEUE_STOPPED,
        ),
    ):
        if reservation.admitted and there and stop == "HoldAndDrain":
            return m.Evict(key=work.key, reason=reason, message=f"The {kind} is stopped")
        if reservation.admitted:
            continue
        if not there:
            return _give_back(work, n.QuotaReservedReason.MISCONFIGURED, f"{kind} {name} is terminating or missing")
        if stop != "None":
            return _give_back(work, n.QuotaReservedReason.SUSPENDED, f"{kind} {name} is stopped")
    return None


def _give_back(work: Work, reason: str, message: str) -> m.ReportPending:
    return m.ReportPending(key=work.key, reason=reason, message=message)


# --- time ------------------------------------------------------------------------------------------------------------------


def _time_limits(work: Work, reservation: Reservation, policy: Policy, now: Instant) -> Found:
    ready_by = _ready_by(work.facts, reservation, policy.pods_ready)
    if policy.pods_ready is not None and ready_by is not None and ready_by <= now:
        return _not_ready(work, policy.pods_ready, now), None
    ends_by = _ends_by(work.facts, reservation)
    if ends_by is not None and ends_by <= now:
        cause = n.DeactivationCause.MAXIMUM_EXECUTION_TIME_EXCEEDED
        return m.Deactivate(key=work.key, reason=cause, message="exceeding the maximum execution time"), None
    times = [t for t in (ready_by, ends_by) if t is not None]
    return None, min(times, default=None)


def _ready_by(facts: Facts, reservation: Reservation, rules: PodsReady | None) -> Instant | None:
    if rules is None or facts.pods_ready:
        return None
    if facts.pods_ready_reason == n.PodsReadyReason.WAIT_FOR_RECOVERY:
        return facts.pods_ready_at + rules.recovery_timeout_s if rules.recovery_timeout_s else None
    return reservation.admitted_at + rules.timeout_s


def _ends_by(facts: Facts, reservation: Reservation) -> Instant | None:
    if facts.max_execution_s is None:
        return None
    return reservation.admitted_at + facts.max_execution_s - facts.accumulated_s


def backoff(rules: PodsReady, count: int) -> float:
    """Seconds to wait before try number `count` + 1: doubled every time up to the maximum."""
    return min(rules.backoff_base_s * 2.0 ** (min(count, 64) - 1), rules.backoff_max_s)


def _not_ready(work: Work, rules: PodsReady, now: Instant) -> m.AnyInstruction:
    count = work.facts.requeue_count + 1
    if rules.backoff_limit is not None and count > rules.backoff_limit:
        cause = n.DeactivationCause.REQUEUING_LIMIT_EXCEEDED
        return m.Deactivate(key=work.key, reason=cause, message="exceeding the maximum number of re-queuing retries")
    at = max(work.facts.requeue_at or 0.0, now + backoff(rules, count))
    return m.Evict(
        key=work.key,
        reason=n.EvictedReason.PODS_READY_TIMEOUT,
        message=f"Exceeded the PodsReady timeout {work.key}",
        requeue_count=count,
        requeue_at=format_time(at),
    )
