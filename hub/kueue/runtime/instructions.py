"""What the engine's instructions mean for a Workload object: the status to write, and the events to tell. Pure."""

from collections.abc import Sequence

from msgspec import structs

from hub.kueue.admission import messages as m
from hub.kueue.api.meta import Instant, find_condition, parse_time
from hub.kueue.api.resources import WORKLOADS
from hub.kueue.api.v1beta2 import RequeueState, Workload, WorkloadStatus, names
from hub.kueue.operations import EmitEvent, EventType, Operation, Patch
from hub.kueue.workloads import lifecycle

#: Instructions that others wait for; what only explains a wait may be written later.
URGENT = (m.ReserveQuota, m.Admit, m.Place, m.Evict, m.Deactivate)


def writes_for(workload: Workload, instructions: Sequence[m.Instruction], now: Instant) -> list[Operation]:
    """The writes that carry the instructions out, as few as can be; none when the object shows it all already.

    Raises InvalidTransition when the Workload is in no state for them any more.
    """
    after = workload
    for instruction in instructions:
        after = structs.replace(after, status=_status_after(after, instruction, now))
    patch = lifecycle.status_patch(workload, after.status)
    writes: list[Operation] = [patch] if patch else []
    if workload.spec.active and any(isinstance(instruction, m.Deactivate) for instruction in instructions):
        key, uid = workload.metadata.key, workload.metadata.uid
        writes.append(Patch(resource=WORKLOADS, key=key, body={"spec": {"active": False}}, uid=uid or None))
    return writes


def _status_after(workload: Workload, instruction: m.Instruction, now: Instant) -> WorkloadStatus:
    match instruction:
        case m.ReserveQuota():
            return lifecycle.reserve(workload, instruction.admission, instruction.checks, instruction.message, now)
        case m.Admit():
            return lifecycle.admit(workload, instruction.message, now)
        case m.Place():
            return lifecycle.place(workload, instruction.admission)
        case m.Evict():
            return lifecycle.evict(
                workload,
                instruction.reason,
                instruction.message,
                now,
                preemption_reason=instruction.preemption_reason,
                requeue=_requeue_state(instruction),
            )
        case m.ReportPending():
            requests = instruction.resource_requests
            return lifecycle.report_pending(workload, instruction.reason, instruction.message, requests, now)
        case m.Deactivate():
            return lifecycle.target_deactivation(workload, instruction.reason, instruction.message, now)
        case m.Requeue():
            return lifecycle.requeue(workload, instruction.reason, instruction.message, now)
        case m.Finish():
            return lifecycle.finish(workload, instruction.reason, instruction.message, now)
        case _:
            raise TypeError(f"no status for {type(instruction).__name__}")


def _requeue_state(evict: m.Evict) -> RequeueState | None:
    if evict.requeue_count is None and evict.requeue_at is None:
        return None
    return RequeueState(count=evict.requeue_count, requeue_at=evict.requeue_at)


# --- events ------------------------------------------------------------------------------------------------------------


def events_for(workload: Workload, instruction: m.Instruction, now: Instant) -> list[EmitEvent]:
    """What to tell about it, in Kueue's reason words. `workload`: as it was before."""

    def event(kind: EventType, reason: str, message: str) -> EmitEvent:
        meta = workload.metadata
        return EmitEvent(resource=WORKLOADS, key=meta.key, uid=meta.uid, type=kind, reason=reason, message=message)

    match instruction:
        case m.ReserveQuota():
            queue = instruction.admission.cluster_queue
            waited = f"Quota reserved in ClusterQueue {queue} after {_waited_s(workload, now)} s"
            events = [event("Normal", names.QUOTA_RESERVED, waited)]
            if not instruction.checks:
                events.append(event("Normal", names.ADMITTED, f"Admitted by ClusterQueue {queue}"))
            return events
        case m.Admit():
            return [event("Normal", names.ADMITTED, instruction.message)]
        case m.Evict():
            events = [event("Normal", f"EvictedDueTo{instruction.reason}", instruction.message)]
            if instruction.preemption_reason:
                events.append(event("Normal", names.PREEMPTED, instruction.message))
            return events
        case m.ReportPending():
            return [event("Warning", instruction.reason, instruction.message)]
        case m.Deactivate():
            rejected = instruction.reason == names.DeactivationCause.ADMISSION_CHECK
            return [event("Warning", "AdmissionCheckRejected" if rejected else instruction.reason, instruction.message)]
        case m.Finish():
            return [event("Normal", instruction.reason, instruction.message)]
        case _:
            return []


def _waited_s(workload: Workload, now: Instant) -> int:
    """Since it was queued: created, or put back after its last eviction."""
    requeued = find_condition(workload.status.conditions, names.REQUEUED)
    since = requeued.last_transition_time if requeued else workload.metadata.creation_timestamp
    return max(0, int(now - parse_time(since))) if since else 0
