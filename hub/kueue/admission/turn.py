"""One cycle on the state: who takes part, who may be nominated, and what follows for each head."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hub.kueue.admission import messages as m
from hub.kueue.admission.admitting import explain_preemption
from hub.kueue.admission.assignment import Assignment, Ready, admission_of
from hub.kueue.admission.better import LONGEST_GAP_S, PATIENCE_S, has_claim, has_waited_enough, note_preemption
from hub.kueue.admission.config import Queue
from hub.kueue.admission.cycle import Cycle, Head, Outcome
from hub.kueue.admission.queues import Requeue
from hub.kueue.admission.records import Reservation, Work
from hub.kueue.api.v1beta2 import names as n

if TYPE_CHECKING:
    from hub.kueue.admission.state import AdmissionState

#: Outcomes after which a head may come back at once, with nothing decided.
_UNDECIDED = frozenset({Outcome.SKIPPED, Outcome.NO_FIT, Outcome.NO_CANDIDATES})
_Waiting = n.QuotaReservedReason


def take(state: "AdmissionState") -> list[Head]:
    """Run the cycle. Admissions are made and instructed as they come; the rest is for `settle`."""
    rules = state.policy.pods_ready
    state.config.scene.blocked = rules is not None and rules.block_admission and _somebody_starts(state)
    cycle = Cycle(state.config.scene, lambda head: _may_be_nominated(state, head), lambda head: _admit(state, head))
    return cycle.run(list(_heads(state)))


def _somebody_starts(state: "AdmissionState") -> bool:
    """Is anybody admitted whose pods are not ready yet?"""
    running = (work for queue in state.config.queues.values() for work in queue.running)
    return any(w.reservation is not None and w.reservation.admitted and not w.facts.pods_ready for w in running)


def _heads(state: "AdmissionState") -> Iterator[Head]:
    for name in sorted(state.candidates):
        queue = state.candidates[name]
        if not queue.pending.ready or not queue.active:
            del state.candidates[name]
        else:
            work = queue.pending.pop()
            if work is not None:
                yield Head(
                    work,
                    queue,
                    second_pass=False,
                    is_preemptor=queue.pending.is_preemptor(work),
                    has_claim=has_claim(state.policy, work, state.now),
                )


def _may_be_nominated(state: "AdmissionState", head: Head) -> bool:
    work = head.work
    namespace = work.key.namespace
    if any(c.state in ("Retry", "Rejected") for c in work.facts.checks):
        head.reason, head.message = _Waiting.PENDING_EVALUATION, "The workload has failed admission checks"
    elif namespace not in state.config.namespaces:
        head.reason, head.message = _Waiting.MISCONFIGURED, f"namespace {namespace} not found"
    elif not state.config.matches(head.queue, namespace):
        head.reason, head.message = _Waiting.MISCONFIGURED, "Workload namespace doesn't match ClusterQueue selector"
        head.outcome, head.requeue = Outcome.NAMESPACE_MISMATCH, Requeue.NAMESPACE_MISMATCH
    elif work.shape.problem:
        head.reason, head.message = _Waiting.MISCONFIGURED, work.shape.problem
    else:
        return True
    return False


def _admit(state: "AdmissionState", head: Head) -> None:
    work, queue = head.work, head.queue
    ready = head.assignment.ready or _made_ready(queue, head.assignment)
    reservation = Reservation(queue, ready.admission, ready.charges, ready.pairs)
    reservation.topology = state.config.scene.places.usages(head.assignment)
    reservation.reserved_at = state.now
    reservation.assumed = True
    if not ready.checks:
        reservation.admitted, reservation.admitted_at = True, state.now
    queue.pending.remove(work)
    state.hold(work, reservation)
    if head.assignment.replaces is not None:
        state.hand_over(head.assignment.replaces, work)
    state.charge_history(work, queue)
    rules = state.policy.pods_ready
    if rules is not None and rules.block_admission and reservation.admitted:
        state.config.scene.blocked = True
    message = f"Quota reserved in ClusterQueue {queue.name}"
    state.out.append(m.ReserveQuota(key=work.key, admission=ready.admission, checks=ready.checks, message=message))


def _made_ready(queue: Queue, assignment: Assignment) -> Ready:
    charges = list(assignment.charges.items())
    pairs = frozenset(cell.key for cell, _ in charges)
    return Ready(admission_of(queue, assignment), charges, pairs, queue.checks_for({flavor for flavor, _ in pairs}))


def settle(state: "AdmissionState", head: Head) -> bool:
    """Put a head that did not get in back into its queue. True: something changed, so the next cycle may differ."""
    work, queue = head.work, head.queue
    if head.outcome is Outcome.ADMITTED:
        return True
    if head.outcome is Outcome.PREEMPTING:
        for victim in head.victims:
            _preempt(state, head, victim.work, victim.reason, explain_preemption(work, queue, victim))
    _note_waiting(state, head)
    ready = queue.pending.requeue(work, head.requeue, head.reason, state.now)
    if ready:
        state.watch(queue)
    state.report(work, head.reason or _Waiting.PENDING_EVALUATION, head.message)
    return not ready or head.outcome is Outcome.PREEMPTING or (work.tried is not None and work.tried.pending)


def _note_waiting(state: "AdmissionState", head: Head) -> None:
    """Remember since when it comes back from every cycle without a decision; at some point that ends."""
    work = head.work
    if head.outcome not in _UNDECIDED:
        work.stuck = None
        return
    since, last = work.stuck or (state.now, state.now)
    if state.now - last > LONGEST_GAP_S:
        since = state.now
    work.stuck = (since, state.now)
    if since == state.now and state.policy.rules == "hub":
        state.alarm(since + PATIENCE_S, work.key)
    if has_waited_enough(state.policy, work, state.now) and head.outcome is not Outcome.SKIPPED:
        work.tried = None


def _preempt(state: "AdmissionState", head: Head, victim: Work, reason: str, message: str) -> None:
    reservation = victim.reservation
    if reservation is None or reservation.evicted:
        return
    reservation.evicted = True
    reservation.queue.running.refresh(victim)
    note_preemption(head.work, victim, state.now)
    state.out.append(
        m.Evict(
            key=victim.key,
            reason=n.EvictedReason.PREEMPTED,
            message=message,
            preemption_reason=reason,
            preemptor=head.work.key,
        )
    )
