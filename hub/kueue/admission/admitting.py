"""Decisions put into words that can be written: reasons for waiting, messages of preemption."""

from hub.kueue.admission.config import Queue
from hub.kueue.admission.messages import ReportPending
from hub.kueue.admission.records import Work
from hub.kueue.admission.requests import scaled
from hub.kueue.admission.victims import REASON_TEXT, Victim
from hub.kueue.api.quantity import text
from hub.kueue.api.v1beta2 import PodSetRequest


def pending_report(work: Work, reason: str, message: str) -> ReportPending:
    """Why the workload waits, and what the scheduler thinks it needs."""
    requests = tuple(
        PodSetRequest(name=p.name, resources={r: text(r, v) for r, v in scaled(p.per_pod, p.count).items()})
        for p in work.shape.pod_sets
    )
    return ReportPending(key=work.key, reason=reason, message=message, resource_requests=requests)


def explain_preemption(preemptor: Work, queue: Queue, victim: Victim) -> str:
    """Message of the victim's conditions: for whom, on what ground, and where both stand in the tree."""
    theirs = victim.work.queue
    return (
        f"Preempted to accommodate a workload (UID: {preemptor.uid or 'UNKNOWN'}, JobUID: UNKNOWN) due to "
        f"{REASON_TEXT[victim.reason]}; preemptor path: {queue.path()}; "
        f"preemptee path: {theirs.path() if theirs is not None else 'UNKNOWN'}"
    )
