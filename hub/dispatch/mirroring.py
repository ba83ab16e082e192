"""What the management cluster's Workload and job should say about a placement: decisions about one workload at a time.

    placement          Workload                                             job
    ─────────────────────────────────────────────────────────────────────────────────────────────────
    none, waiting      check Pending, with the reason why                   as it is
    never fits         QuotaReserved=False, OnHold: its quota is free       as it is
    Offered            as it is: no agent has said anything yet             as it is
    Admitted, Running  check Ready, clusterName, Admitted                   status as on the worker
    Refused            as it is: the next cluster is asked at once          as it is
    Evicted, Lost      check Retry: evicted, requeued, placed again         as it was
    Finished           Finished with the worker's reason                    the worker's last status

A Workload that lost its reservation, was switched off or deleted does not want its placement any more (`wish_of`); it is
withdrawn, and until the agent says Gone the quota stays taken (`Board.is_placed`).
"""

from typing import Any

import msgspec
from msgspec import Struct

from hub.dispatch.decide import DecisionRecord, Outcome
from hub.dispatch.offer import Wish
from hub.dispatch.placement import Placement, State
from hub.dispatch.possible import NO_OBJECTION, Judgement
from hub.dispatch.routes import Route
from hub.kueue.api.decoding import part_of
from hub.kueue.api.meta import Instant, find_condition, key_of
from hub.kueue.api.resources import WORKLOADS
from hub.kueue.api.v1beta2 import Workload, WorkloadStatus, names
from hub.kueue.integrations.interface import Integration
from hub.kueue.operations import EmitEvent, EventType, Operation, Patch, merge_patch_between
from hub.kueue.workloads import lifecycle
from hub.kueue.workloads.lifecycle import State as WorkloadState
from hub.kueue.workloads.lifecycle import chained, state_of, status_patch

#: Reason of the events about dispatch, as MultiKueue has it.
EVENT_REASON = "MultiKueue"

_RUNS = frozenset({State.ADMITTED, State.RUNNING})
_HOPELESS = frozenset({Outcome.NEVER_FITS, Outcome.NO_CLUSTER})
_WAITING_TEXT = 1024


class Subject(Struct, frozen=True, kw_only=True):
    """One workload with everything that its mirror image depends on."""

    workload: Workload
    route: Route
    #: The placement of this very Workload that counts: its newest.
    placement: Placement | None = None
    #: The last decision about it, while it has no live placement.
    record: DecisionRecord | None = None
    #: Which flavors could ever do.
    judgement: Judgement = NO_OBJECTION
    integration: Integration | None = None
    job: dict[str, Any] | None = None


class Mirrored(Struct, frozen=True, kw_only=True):
    operations: tuple[Operation, ...] = ()
    events: tuple[EmitEvent, ...] = ()


def check_state(workload: Workload, check: str) -> str:
    """Pending, Ready, Retry or Rejected; "" when the Workload has no such check."""
    return next((c.state for c in workload.status.admission_checks if c.name == check), "")


def wish_of(workload: Workload | None, uid: str) -> Wish:
    """Does the management cluster (still) want placements of the Workload with this uid?"""
    if workload is None or workload.metadata.uid != uid:
        return Wish(wanted=False, reason="Deleted", message="the Workload was deleted")
    if workload.metadata.deletion_timestamp:
        return Wish(wanted=False, reason="Deleted", message="the Workload is being deleted")
    state = state_of(workload)
    if state is WorkloadState.FINISHED:
        finished = find_condition(workload.status.conditions, names.FINISHED)
        return Wish(wanted=False, reason="Finished", message=finished.message if finished else "")
    if not workload.spec.active:
        return Wish(wanted=False, reason="Deactivated", message="the Workload was switched off (spec.active is false)")
    if state is WorkloadState.EVICTED:
        evicted = find_condition(workload.status.conditions, names.EVICTED)
        assert evicted is not None
        return Wish(wanted=False, reason=evicted.reason, message=evicted.message)
    if state is WorkloadState.PENDING:
        return Wish(wanted=False, reason="NoReservation", message="the Workload has no quota reserved any more")
    return Wish(wanted=True)


def wants_a_cluster(workload: Workload, route: Route) -> bool:
    """Is it time to dispatch: quota is reserved, and every check but ours is Ready (kueue#9622)?"""
    if not wish_of(workload, workload.metadata.uid).wanted or check_state(workload, route.check) != "Pending":
        return False
    return all(c.state == "Ready" for c in workload.status.admission_checks if c.name != route.check)


# --- the mirror --------------------------------------------------------------------------------------------------------


def mirror(subject: Subject, now: Instant) -> Mirrored:
    """The writes that make the management cluster say what is known; none when it says so already."""
    if (restriction := _restricted(subject)) is not None:
        return Mirrored(operations=(restriction,))
    status, events = _status(subject, now)
    operations: list[Operation] = []
    if (job := _job_status(subject)) is not None:
        operations.append(job)  # first: when the Workload is Finished, the job's status is final
    if (patch := status_patch(subject.workload, status)) is not None:
        operations.append(patch)
    return Mirrored(operations=tuple(operations), events=tuple(events) if patch is not None else ())


def _status(s: Subject, now: Instant) -> tuple[WorkloadStatus, list[EmitEvent]]:
    p, workload = s.placement, s.workload
    state = state_of(workload)
    if state is WorkloadState.FINISHED:
        return workload.status, []
    if p is not None and p.state is State.FINISHED:
        return _finished(s, p, now)
    if state is WorkloadState.PENDING:
        return _queued(s, now), []
    if state is WorkloadState.EVICTED:
        return workload.status, []
    if p is not None and p.state in _RUNS:
        return _admitted(s, p, now)
    if check_state(workload, s.route.check) == "Ready":
        return _taken_back(s, p, now)
    if p is not None and p.state is State.OFFERED:
        return workload.status, []
    return _waiting(s, now), []


def _admitted(s: Subject, p: Placement, now: Instant) -> tuple[WorkloadStatus, list[EmitEvent]]:
    """One write: the check, the cluster and, when nothing else is outstanding, Admitted."""
    check = s.route.check
    told = check_state(s.workload, check) == "Ready" and s.workload.status.cluster_name == p.cluster
    message = f'The workload got reservation on "{p.cluster}"'

    def place(w: Workload) -> WorkloadStatus:
        if told:
            return w.status
        status = lifecycle.set_check(w, check, "Ready", message, now)
        return msgspec.structs.replace(status, cluster_name=p.cluster, nominated_cluster_names=[])

    def admit(w: Workload) -> WorkloadStatus:
        if any(c.state != "Ready" for c in w.status.admission_checks):
            return w.status
        return lifecycle.admit(w, f"The workload is admitted on {p.cluster}", now)

    return chained(s.workload, place, admit), [_event(s, "Normal", message)]


def _finished(s: Subject, p: Placement, now: Instant) -> tuple[WorkloadStatus, list[EmitEvent]]:
    default = names.FinishedReason.SUCCEEDED if p.succeeded else names.FinishedReason.FAILED
    message = p.message or ("Job finished successfully" if p.succeeded else "Job failed")
    status = lifecycle.finish(s.workload, p.reason or default, message, now)
    if status.cluster_name is None and state_of(s.workload) is WorkloadState.QUOTA_RESERVED:
        status = msgspec.structs.replace(status, cluster_name=p.cluster, nominated_cluster_names=[])
    return status, [_event(s, "Normal" if p.succeeded else "Warning", f"Finished on {p.cluster}: {message}")]


def _taken_back(s: Subject, p: Placement | None, now: Instant) -> tuple[WorkloadStatus, list[EmitEvent]]:
    """The worker that had it has it no more. Retry evicts the Workload, and it is queued and placed again."""
    if p is None:
        message = (
            f'Nothing is known of the workload\'s run on "{s.workload.status.cluster_name or "any cluster"}" any more'
        )
    elif p.state is State.OFFERED:
        return s.workload.status, []
    else:
        said = f"{p.reason}: {p.message}" if p.message else p.reason
        message = f'{p.state.value} on "{p.cluster}": {said}'
    status = lifecycle.set_check(s.workload, s.route.check, "Retry", message, now)
    return status, [_event(s, "Warning", message)]


def _waiting(s: Subject, now: Instant) -> WorkloadStatus:
    """It has quota and no cluster: why. The caller keeps a record until its gist changes, so figures cause no writes."""
    record = s.record
    if s.route.problem:
        return _set_pending(s, s.route.problem, now)
    if record is None or record.outcome is Outcome.OFFERED:
        return s.workload.status
    if record.outcome not in _HOPELESS:
        return _set_pending(s, record.message, now)
    if s.judgement.possible:  # not with the flavors that it was given, but with others
        return _give_back(s.workload, names.QuotaReservedReason.PENDING_EVALUATION, record.message, now)
    return _give_back(s.workload, names.QuotaReservedReason.ON_HOLD, s.judgement.message or record.message, now)


def _queued(s: Subject, now: Instant) -> WorkloadStatus:
    """It waits for quota, or on hold for a fleet that could take it."""
    reserved = find_condition(s.workload.status.conditions, names.QUOTA_RESERVED)
    held = reserved is not None and reserved.reason == names.QuotaReservedReason.ON_HOLD
    if s.judgement.hopeless and s.workload.spec.active:
        return _give_back(s.workload, names.QuotaReservedReason.ON_HOLD, s.judgement.message, now)
    if held and not s.judgement.hopeless:
        message = "The fleet has changed: it may fit now"
        return _give_back(s.workload, names.QuotaReservedReason.PENDING_EVALUATION, message, now)
    return s.workload.status


def _give_back(workload: Workload, reason: str, message: str, now: Instant) -> WorkloadStatus:
    return lifecycle.report_pending(workload, reason, _short(message), [], now)


def _restricted(s: Subject) -> Operation | None:
    """Let the engine assign only flavors that some cluster could ever serve; it must know before it assigns.

    A list that the user wrote stays as it is; ours is recognised by its twin, and goes when it is no longer needed.
    """
    if state_of(s.workload) is WorkloadState.FINISHED or users_flavors(s.workload) is not None:
        return None
    meta = s.workload.metadata
    wanted = ",".join(s.judgement.possible) if s.judgement.possible else None
    if meta.annotations.get(names.POSSIBLE_FLAVORS) == wanted:
        return None
    both = {names.ALLOWED_RESOURCE_FLAVORS: wanted, names.POSSIBLE_FLAVORS: wanted}
    return Patch(resource=WORKLOADS, key=meta.key, body={"metadata": {"annotations": both}}, uid=meta.uid)


def users_flavors(workload: Workload) -> frozenset[str] | None:
    """The flavors to which the user restricted the workload; None: no restriction, or only ours."""
    listed = workload.metadata.annotations.get(names.ALLOWED_RESOURCE_FLAVORS)
    if listed is None or listed == workload.metadata.annotations.get(names.POSSIBLE_FLAVORS):
        return None
    return frozenset(name.strip() for name in listed.split(",") if name.strip())


def _set_pending(s: Subject, message: str, now: Instant) -> WorkloadStatus:
    return lifecycle.set_check(s.workload, s.route.check, "Pending", _short(message), now)


def _short(message: str) -> str:
    return message if len(message) <= _WAITING_TEXT else message[: _WAITING_TEXT - 3] + "..."


def not_copied(workload: Workload, refusal: str) -> EmitEvent:
    """The event about a job status that this cluster's API server does not accept (kueue#11649)."""
    return _about(workload, "Warning", f"The job's status on the worker cannot be copied here: {refusal}")


def _event(s: Subject, kind: EventType, message: str) -> EmitEvent:
    return _about(s.workload, kind, message)


def _about(workload: Workload, kind: EventType, message: str) -> EmitEvent:
    meta = workload.metadata
    return EmitEvent(resource=WORKLOADS, key=meta.key, uid=meta.uid, type=kind, reason=EVENT_REASON, message=message)


# --- the job -----------------------------------------------------------------------------------------------------------


def _job_status(s: Subject) -> Patch | None:
    """The job's status as on the worker, by the rules of its kind."""
    p, job = s.placement, s.job
    if p is None or job is None or s.integration is None or not p.job_status:
        return None
    if p.state not in _RUNS and p.state is not State.FINISHED:
        return None
    remote = {**job, "spec": {**part_of(job, "spec"), "suspend": False}, "status": p.job_status}
    after = s.integration.status_for_manager(job, remote)
    if after is None:
        return None
    body = merge_patch_between(part_of(job, "status"), after)
    if not body:
        return None
    return Patch(
        resource=s.integration.resource,
        key=key_of(job),
        body={"status": body},
        subresource="status",
        uid=job["metadata"].get("uid"),
    )
