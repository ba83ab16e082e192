"""The life of one Workload: which step may follow which, and the status that each step writes.

The conditions on the object are the state. A step is a function of the Workload and `now` that returns its next status; it
changes nothing that is right already, so that taking it twice writes once.

    Pending ──Reserve──▶ QuotaReserved ──Admit──▶ Admitted ──Evict──▶ Evicted ──Release──▶ Pending
       any state but Finished ──Finish──▶ Finished

`TRANSITIONS` is the whole of it. Evicted still holds its quota: it is released when the job is seen to have stopped, never
before (kueue#14395: quota that goes back while pods run is given away twice).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Literal

from msgspec import structs

from hub.kueue.api.decoding import document
from hub.kueue.api.meta import Condition, Instant, find_condition, format_time, is_true, parse_time, set_condition
from hub.kueue.api.resources import WORKLOADS
from hub.kueue.api.v1beta2 import (
    Admission,
    AdmissionCheckState,
    CheckState,
    EvictionCount,
    PodSetRequest,
    PreemptionGateState,
    ReclaimablePod,
    RequeueState,
    SchedulingStats,
    Workload,
    WorkloadStatus,
    names,
)
from hub.kueue.operations import Patch, merge_patch_between

MESSAGE_MAX = 32_768


class State(StrEnum):
    PENDING = "Pending"
    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    EVICTED = "Evicted"
    FINISHED = "Finished"


class Step(StrEnum):
    RESERVE = "Reserve"
    ADMIT = "Admit"
    EVICT = "Evict"
    RELEASE = "Release"
    REPORT = "Report"
    PLACE = "Place"
    FINISH = "Finish"


TRANSITIONS: dict[tuple[State, Step], State] = {
    (State.PENDING, Step.RESERVE): State.QUOTA_RESERVED,
    (State.PENDING, Step.REPORT): State.PENDING,  # why it waits
    (State.PENDING, Step.EVICT): State.PENDING,  # switched off while it waited: there is no quota to release
    (State.PENDING, Step.FINISH): State.FINISHED,
    (State.QUOTA_RESERVED, Step.RESERVE): State.QUOTA_RESERVED,  # the same admission again; another one is refused
    (State.QUOTA_RESERVED, Step.ADMIT): State.ADMITTED,
    (State.QUOTA_RESERVED, Step.PLACE): State.QUOTA_RESERVED,  # where its pods go is known now
    (State.QUOTA_RESERVED, Step.EVICT): State.EVICTED,
    (
        State.QUOTA_RESERVED,
        Step.REPORT,
    ): State.PENDING,  # its queue is held: nothing ran, so the quota goes back at once
    (State.QUOTA_RESERVED, Step.FINISH): State.FINISHED,
    (State.ADMITTED, Step.RESERVE): State.ADMITTED,  # likewise: the answer to the first write was lost
    (State.ADMITTED, Step.ADMIT): State.ADMITTED,
    (State.ADMITTED, Step.PLACE): State.ADMITTED,  # another node in place of one that failed
    (State.ADMITTED, Step.EVICT): State.EVICTED,
    (State.ADMITTED, Step.FINISH): State.FINISHED,
    (State.EVICTED, Step.EVICT): State.EVICTED,  # a graver reason came before the job had stopped
    (State.EVICTED, Step.RELEASE): State.PENDING,
    (State.EVICTED, Step.FINISH): State.FINISHED,
    (State.FINISHED, Step.FINISH): State.FINISHED,
}

#: Evictions after which a workload is in its queue again at once; after the others something else has to happen first.
BACK_AT_ONCE = frozenset({names.EvictedReason.PREEMPTED, names.EvictedReason.NODE_FAILURES})


class InvalidTransition(Exception):  # noqa: N818 - named like the other state machines' InvalidTransition
    """The table has no row for this state and step. Whoever decided on the step had an older object before him."""

    def __init__(self, workload: Workload, step: Step) -> None:
        story = ", ".join(f"{c.type}={c.status}/{c.reason}" for c in workload.status.conditions) or "no conditions"
        super().__init__(f"{step} while {state_of(workload)}: Workload {workload.metadata.key} has {story}")
        self.workload, self.step = workload, step


def table() -> str:
    """The transitions as people read them, one a line."""
    return "\n".join(f"{before} ──{step}──▶ {after}" for (before, step), after in TRANSITIONS.items())


def state_of(workload: Workload) -> State:
    conditions = workload.status.conditions
    if is_true(conditions, names.FINISHED):
        return State.FINISHED
    if not is_true(conditions, names.QUOTA_RESERVED):
        return State.PENDING
    if is_true(conditions, names.EVICTED):
        return State.EVICTED
    return State.ADMITTED if is_true(conditions, names.ADMITTED) else State.QUOTA_RESERVED


def status_patch(workload: Workload, after: WorkloadStatus) -> Patch | None:
    """What has to be written for the Workload to have this status; None when it has. Refused if it changed meanwhile."""
    body = merge_patch_between(document(workload.status), document(after))
    if not body:
        return None
    return Patch(
        resource=WORKLOADS,
        key=workload.metadata.key,
        body={"status": body},
        subresource="status",
        resource_version=workload.metadata.resource_version or None,
        uid=workload.metadata.uid or None,
    )


# --- steps of admission ------------------------------------------------------------------------------------------------


def reserve(
    workload: Workload, admission: Admission, checks: Sequence[str], message: str, now: Instant
) -> WorkloadStatus:
    """QuotaReserved with this admission, and Admitted too when there are no checks. Raises InvalidTransition."""
    state = _expect(workload, Step.RESERVE)
    if state is not State.PENDING and workload.status.admission != admission:
        raise InvalidTransition(workload, Step.RESERVE)
    status = _with(
        workload.status, names.QUOTA_RESERVED, "True", names.QuotaReservedReason.QUOTA_RESERVED, message, now
    )
    for over in (names.EVICTED, names.PREEMPTED):
        status = _over(status, over, now)
    status = structs.replace(
        status, admission=admission, resource_requests=[], admission_checks=_synced(status, checks, now)
    )
    after = structs.replace(workload, status=status)
    return status if checks else admit(after, f"Admitted by ClusterQueue {admission.cluster_queue}", now)


def admit(workload: Workload, message: str, now: Instant) -> WorkloadStatus:
    """Admitted: quota is reserved and every check is Ready. Raises InvalidTransition."""
    if _expect(workload, Step.ADMIT) is State.ADMITTED:
        return workload.status
    return _with(workload.status, names.ADMITTED, "True", names.AdmittedReason.ADMITTED, message, now)


def place(workload: Workload, admission: Admission) -> WorkloadStatus:
    """The admission with places found late, or anew after a node failed. Raises InvalidTransition."""
    _expect(workload, Step.PLACE)
    return structs.replace(workload.status, admission=admission, unhealthy_nodes=[])


def report_pending(
    workload: Workload, reason: str, message: str, requests: Sequence[PodSetRequest], now: Instant
) -> WorkloadStatus:
    """QuotaReserved=False with the reason why it waits. A reservation that was not used yet goes back."""
    state = _expect(workload, Step.REPORT)
    status = _with(workload.status, names.QUOTA_RESERVED, "False", reason, message, now)
    status = structs.replace(status, resource_requests=list(requests))
    if state is State.QUOTA_RESERVED:
        status = structs.replace(
            _without_admission(status), admission_checks=_reset_checks(status.admission_checks, now)
        )
    if find_condition(status.conditions, names.ADMITTED) is not None or state is State.QUOTA_RESERVED:
        status = _with(
            status, names.ADMITTED, "False", names.AdmittedReason.NO_RESERVATION, "The workload has no reservation", now
        )
    return status


def evict(
    workload: Workload,
    reason: str,
    message: str,
    now: Instant,
    *,
    preemption_reason: str = "",
    requeue: RequeueState | None = None,
) -> WorkloadStatus:
    """Evicted: the job must stop. Checks start over, clusters are no longer nominated, the eviction is counted.

    `reason` may be DeactivatedDueTo<cause>; the cause is then counted apart. Raises InvalidTransition.
    """
    _expect(workload, Step.EVICT)
    evicted = find_condition(workload.status.conditions, names.EVICTED)
    if evicted is not None and evicted.status == "True" and evicted.reason == reason:
        return workload.status
    status = _with(workload.status, names.EVICTED, "True", reason, message, now)
    if preemption_reason:
        status = _with(status, names.PREEMPTED, "True", preemption_reason, message, now)
    if is_true(status.conditions, names.BLOCKED_ON_PREEMPTION_GATES):
        status = _with(status, names.BLOCKED_ON_PREEMPTION_GATES, "False", reason, message, now)
    deactivated = reason.startswith(names.EvictedReason.DEACTIVATED)
    timed_out = reason == names.DEACTIVATED_DUE_TO + names.DeactivationCause.MAXIMUM_EXECUTION_TIME_EXCEEDED
    status = structs.replace(
        status,
        conditions=[c for c in status.conditions if not (deactivated and c.type == names.DEACTIVATION_TARGET)],
        cluster_name=None,
        nominated_cluster_names=[],
        admission_checks=_reset_checks(status.admission_checks, now),
        unhealthy_nodes=[],
        preemption_gates=[_closed(gate, now) for gate in status.preemption_gates],
        scheduling_stats=_counted(status.scheduling_stats, reason),
        requeue_state=None if deactivated else requeue or status.requeue_state,
        accumulated_past_execution_time_seconds=None if timed_out else status.accumulated_past_execution_time_seconds,
    )
    if deactivated and state_of(workload) is State.PENDING:
        status = _with(status, names.REQUEUED, "False", reason, message, now)
    return status


def release(workload: Workload, now: Instant, *, may_requeue: bool = True) -> WorkloadStatus:
    """Give the quota of an evicted workload back: its job has stopped. Raises InvalidTransition.

    `may_requeue` False: its pods are gone for good, nothing could be started again (a single plain pod).
    """
    _expect(workload, Step.RELEASE)
    evicted = find_condition(workload.status.conditions, names.EVICTED)
    assert evicted is not None
    back = "True" if may_requeue and evicted.reason in BACK_AT_ONCE else "False"
    ran_s = _admitted_seconds(workload, now)
    status = _with(workload.status, names.REQUEUED, back, evicted.reason, evicted.message, now)
    status = _with(
        status,
        names.QUOTA_RESERVED,
        "False",
        names.QuotaReservedReason.PENDING_EVALUATION,
        f"The quota was released after eviction: {evicted.message}",
        now,
    )
    status = _with(
        status, names.ADMITTED, "False", names.AdmittedReason.NO_RESERVATION, "The workload has no reservation", now
    )
    if is_true(status.conditions, names.PODS_READY):
        why = names.PodsReadyReason.WAIT_FOR_START
        status = _with(status, names.PODS_READY, "False", why, "Not all pods are ready or succeeded", now)
    past_s = status.accumulated_past_execution_time_seconds
    return structs.replace(
        _without_admission(status),
        accumulated_past_execution_time_seconds=(past_s or 0) + ran_s if ran_s else past_s,
    )


def finish(workload: Workload, reason: str, message: str, now: Instant) -> WorkloadStatus:
    """The end. What it says first stays: a later reason does not replace it."""
    if _expect(workload, Step.FINISH) is State.FINISHED:
        return workload.status
    return _with(workload.status, names.FINISHED, "True", reason, message, now)


# --- what else is written ------------------------------------------------------------------------------------------------


def requeue(workload: Workload, reason: str, message: str, now: Instant) -> WorkloadStatus:
    """Requeued: what it waited for has happened, it may be queued again."""
    status = _with(workload.status, names.REQUEUED, "True", reason, message, now)
    state = status.requeue_state
    if state is None or state.requeue_at is None:
        return status
    return structs.replace(status, requeue_state=RequeueState(count=state.count))


def target_deactivation(workload: Workload, reason: str, message: str, now: Instant) -> WorkloadStatus:
    """DeactivationTarget: the workload is to be switched off, for this cause. Written before spec.active=false is."""
    return _with(workload.status, names.DEACTIVATION_TARGET, "True", reason, message, now)


def pods_ready(workload: Workload, ready: bool, now: Instant) -> WorkloadStatus:
    """PodsReady: WaitForStart until all pods were ready once after admission, WaitForRecovery when they no longer are."""
    before = find_condition(workload.status.conditions, names.PODS_READY)
    may_run = state_of(workload) in (State.ADMITTED, State.EVICTED)
    value, reason = _readiness(before, ready) if may_run else ("False", names.PodsReadyReason.WAIT_FOR_START)
    waiting = names.PodsReadyReason.WAIT_FOR_START
    if ((before.status, before.reason) if before else ("False", waiting)) == (value, reason):
        return workload.status  # no condition says the same as WaitForStart
    message = "All pods are ready or succeeded" if value == "True" else "Not all pods are ready or succeeded"
    return _with(workload.status, names.PODS_READY, value, reason, message, now)


def reclaim(workload: Workload, done: Mapping[str, int]) -> WorkloadStatus:
    """`reclaimablePods`: so many pods of each pod set are not needed any more. Never goes down while quota is reserved."""
    held = {p.name: p.count for p in workload.status.reclaimable_pods}
    if state_of(workload) is State.PENDING:
        held = {}
    merged = {**held, **{name: max(count, held.get(name, 0)) for name, count in done.items()}}
    pods = [ReclaimablePod(name=name, count=count) for name, count in sorted(merged.items()) if count]
    return structs.replace(workload.status, reclaimable_pods=pods)


def set_check(
    workload: Workload,
    name: str,
    state: CheckState,
    message: str,
    now: Instant,
    *,
    requeue_after_s: int | None = None,
) -> WorkloadStatus:
    """One admission check's state. The transition time moves only when the state does."""
    before = next((c for c in workload.status.admission_checks if c.name == name), None)
    same = before is not None and before.state == state
    after = AdmissionCheckState(
        name=name,
        state=state,
        message=message[:MESSAGE_MAX],
        last_transition_time=before.last_transition_time if same and before else format_time(now),
        requeue_after_seconds=requeue_after_s,
        retry_count=before.retry_count if before else None,
        pod_set_updates=before.pod_set_updates if same and before else [],
    )
    others = [c for c in workload.status.admission_checks if c.name != name]
    return structs.replace(workload.status, admission_checks=sorted([*others, after], key=lambda check: check.name))


def sync_checks(workload: Workload, wanted: Sequence[str], now: Instant) -> WorkloadStatus:
    """The states of exactly these checks: missing ones start as Pending, others go."""
    return structs.replace(workload.status, admission_checks=_synced(workload.status, wanted, now))


# --- parts -------------------------------------------------------------------------------------------------------------


def _expect(workload: Workload, step: Step) -> State:
    state = state_of(workload)
    if (state, step) not in TRANSITIONS:
        raise InvalidTransition(workload, step)
    return state


def _with(
    status: WorkloadStatus, kind: str, value: Literal["True", "False"], reason: str, message: str, now: Instant
) -> WorkloadStatus:
    new = Condition(type=kind, status=value, reason=reason, message=message[:MESSAGE_MAX])
    conditions = set_condition(status.conditions, new, now)
    return status if conditions == status.conditions else structs.replace(status, conditions=conditions)


def _readiness(before: Condition | None, ready: bool) -> tuple[Literal["True", "False"], str]:
    reasons = names.PodsReadyReason
    recovering = before is not None and before.reason in (reasons.WAIT_FOR_RECOVERY, reasons.RECOVERED)
    if ready:
        return "True", reasons.RECOVERED if recovering else reasons.STARTED
    lost = recovering or (before is not None and before.status == "True")
    return "False", reasons.WAIT_FOR_RECOVERY if lost else reasons.WAIT_FOR_START


def _over(status: WorkloadStatus, kind: str, now: Instant) -> WorkloadStatus:
    """A condition that was true and no longer matters, now that quota is reserved again; it keeps its message."""
    before = find_condition(status.conditions, kind)
    if before is None or before.status != "True":
        return status
    reason = names.QuotaReservedReason.QUOTA_RESERVED
    return _with(status, kind, "False", reason, f"Previously: {before.message}", now)


def _without_admission(status: WorkloadStatus) -> WorkloadStatus:
    return structs.replace(status, admission=None, cluster_name=None, nominated_cluster_names=[])


def _synced(status: WorkloadStatus, wanted: Sequence[str], now: Instant) -> list[AdmissionCheckState]:
    have = {check.name: check for check in status.admission_checks}
    return [
        have.get(name)
        or AdmissionCheckState(
            name=name, state="Pending", message="The check has not been made yet", last_transition_time=format_time(now)
        )
        for name in sorted(set(wanted))
    ]


def _reset_checks(checks: Sequence[AdmissionCheckState], now: Instant) -> list[AdmissionCheckState]:
    return [check if check.state == "Pending" else _reset(check, now) for check in checks]


def _reset(check: AdmissionCheckState, now: Instant) -> AdmissionCheckState:
    return AdmissionCheckState(
        name=check.name,
        state="Pending",
        message=f"Reset to Pending after eviction. Previously: {check.state}"[:MESSAGE_MAX],
        last_transition_time=format_time(now),
        requeue_after_seconds=check.requeue_after_seconds,
        retry_count=(check.retry_count or 0) + 1 if check.state == "Retry" else None,
    )


def _closed(gate: PreemptionGateState, now: Instant) -> PreemptionGateState:
    if gate.position == "Closed":
        return gate
    return PreemptionGateState(name=gate.name, position="Closed", last_transition_time=format_time(now))


def _counted(stats: SchedulingStats | None, reason: str) -> SchedulingStats:
    """Evictions by reason and underlying cause; the last is empty except for a deactivation with a known cause."""
    cause = reason.removeprefix(names.DEACTIVATED_DUE_TO) if reason.startswith(names.DEACTIVATED_DUE_TO) else ""
    counted = names.EvictedReason.DEACTIVATED if cause else reason
    before = list(stats.evictions) if stats else []
    for place, entry in enumerate(before):
        if (entry.reason, entry.underlying_cause) == (counted, cause):
            before[place] = structs.replace(entry, count=entry.count + 1)
            return SchedulingStats(evictions=before)
    return SchedulingStats(evictions=[*before, EvictionCount(reason=counted, underlying_cause=cause, count=1)])


def _admitted_seconds(workload: Workload, now: Instant) -> int:
    admitted = find_condition(workload.status.conditions, names.ADMITTED)
    if admitted is None or admitted.status != "True":
        return 0
    return max(0, int(now - parse_time(admitted.last_transition_time)))


def chained(workload: Workload, *steps: Callable[[Workload], WorkloadStatus]) -> WorkloadStatus:
    """Several steps as one write: each sees the status that the one before it made."""
    for step in steps:
        workload = structs.replace(workload, status=step(workload))
    return workload.status
