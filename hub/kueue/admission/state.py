"""The state of admission and its only mutator.

    WorkloadChanged ─┐                      ┌─▶ ReserveQuota, Evict, ReportPending ...
    ConfigChanged  ──┼─▶ handle(event) ─────┤
    CycleDue  ───────┘                      └─▶ WakeAt

A workload is in exactly one place: queued, parked, holding quota, or out. Objects are the truth and events carry whole
objects, so the state can be rebuilt from them at any time, in any order. What the engine decided itself is assumed until the
object shows it, or until `WriteFailed`.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Literal, NamedTuple

from hub.kueue.admission import invariants, reactions, second_look, status, turn, usage_history
from hub.kueue.admission import messages as m
from hub.kueue.admission.admitting import pending_report
from hub.kueue.admission.config import LocalQ, Queue
from hub.kueue.admission.configuration import Configuration
from hub.kueue.admission.cycle import Head
from hub.kueue.admission.forest import queues_below
from hub.kueue.admission.intake import allowed_flavors, facts_of, priority_of, queue_time, reservation_of
from hub.kueue.admission.policy import Policy
from hub.kueue.admission.queues import may_return
from hub.kueue.admission.quota import Node, add_usage, remove_usage
from hub.kueue.admission.records import Facts, Reservation, Spot, Work
from hub.kueue.admission.requests import Shape, Shapes
from hub.kueue.admission.review import review
from hub.kueue.api.meta import Instant, ObjectKey, parse_time
from hub.kueue.api.v1beta2 import Admission, Workload
from hub.kueue.api.v1beta2 import names as n

_Waiting = n.QuotaReservedReason
_FRESH_START = {
    n.EvictedReason.CLUSTER_QUEUE_STOPPED: n.RequeuedReason.CLUSTER_QUEUE_RESTARTED,
    n.EvictedReason.LOCAL_QUEUE_STOPPED: n.RequeuedReason.LOCAL_QUEUE_RESTARTED,
}


class _Reading(NamedTuple):
    """A Workload object as it is now."""

    facts: Facts
    shape: Shape
    priority: int
    timestamp: Instant
    generation: int


class AdmissionState:
    """One cluster's queues. Not thread-safe; nothing in it waits."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.config = Configuration(self.policy)
        self.works: dict[ObjectKey, Work] = {}
        self.config.scene.works = self.works
        self.shapes = Shapes(self.policy)
        #: The heads of the last cycle with what became of them, in the order in which they were worked through.
        self.last_cycle: list[Head] = []
        self.now: Instant = 0.0
        self.out: list[m.AnyInstruction] = []
        #: Queues that may have a head; trees whose parked workloads return before the next cycle.
        self.candidates: dict[str, Queue] = {}
        self._woken: dict[int, Node] = {}
        #: uids of slices whose quota another slice took over, until their objects say Finished.
        self._replaced: set[str] = set()
        #: ClusterQueue that does not exist -> workloads that hold quota there.
        self._homeless: dict[str, dict[ObjectKey, Work]] = {}
        self._timers: list[tuple[Instant, int, ObjectKey]] = []
        self._serial = 0
        self._stirred = False

    # --- the door ------------------------------------------------------------------------------------------------------

    def handle(self, event: m.Event) -> list[m.AnyInstruction]:
        """Take the event in. Returns what is to be written because of it, in order."""
        self.now = self.config.scene.now = event.now
        self.out = []
        handler = HANDLERS[type(event)]
        handler(self, event)
        return self.out

    @property
    def needs_cycle(self) -> bool:
        """Could a cycle decide anything now? False after one that changed nothing, until the next event."""
        if not self._stirred:
            return False
        return bool(self._woken) or any(q.active and q.pending.ready for q in self.candidates.values())

    # --- questions -----------------------------------------------------------------------------------------------------

    def queue_status(self, kind: Literal["ClusterQueue", "LocalQueue"], key: ObjectKey) -> m.QueueStatus:
        """Figures for the status of a queue."""
        return status.queue_status(self, kind, key)

    def position(self, key: ObjectKey) -> m.Position | None:
        """Why a pending workload waits and where it stands. None: it does not wait."""
        return status.position(self, key)

    def positions(self, cluster_queue: str) -> list[ObjectKey]:
        """Who waits in a ClusterQueue, in order, without the parked ones. Cheaper than `position` for each."""
        return status.positions(self, cluster_queue)

    def validate(self) -> None:
        """Raises InvariantError when the state contradicts itself."""
        invariants.validate(self)

    # --- workload events -----------------------------------------------------------------------------------------------

    def workload_changed(self, event: m.WorkloadChanged) -> None:
        obj = event.workload
        key = obj.metadata.key
        work = self.works.get(key)
        if work is not None and work.uid != obj.metadata.uid:
            self.forget(work)
            work = None
        facts = facts_of(obj)
        if obj.metadata.uid in self._replaced:
            if facts.finished:
                self._replaced.discard(obj.metadata.uid)
            return
        if facts.finished:
            if work is not None:
                self.forget(work)
            return
        self.stir()
        reading = self._read(obj, facts)
        local = self.config.local(ObjectKey(key.namespace, obj.spec.queue_name))
        if work is None:
            work = self._met(obj, local, reading)
        elif work.local is not local:
            self._move(work, local)
        if facts.reserved and facts.admission is not None:
            self._reserved_by_object(work, facts.admission, reading)
        elif work.reservation is not None and is_stale(work.reservation, facts):
            return
        else:
            self._waits_by_object(work, reading)

    def workload_deleted(self, event: m.WorkloadDeleted) -> None:
        work = self.works.get(event.key)
        if work is not None:
            self.stir()
            self.forget(work)

    def write_failed(self, event: m.WriteFailed) -> None:
        """Our assumption about it was wrong."""
        work = self.works.get(event.key)
        if work is None:
            return
        self.stir()
        reservation = work.reservation
        if reservation is None:
            work.reason = work.message = ""  # what was to be written is to be written again
        elif reservation.assumed:
            self.release(work)
            self.enqueue(work)
        else:
            reservation.evicted = reservation.returning = False
            reservation.queue.running.refresh(work)
            reservation.admitted = work.facts.admitted
            self.review(work)

    def _read(self, obj: Workload, facts: Facts) -> _Reading:
        annotations = obj.metadata.annotations
        reclaimable = {p.name: p.count for p in obj.status.reclaimable_pods}
        shape = self.shapes.of(
            obj.spec.pod_sets, reclaimable, self.config.limits(obj.metadata.namespace), allowed_flavors(annotations)
        )
        timestamp = queue_time(_created(obj), facts, self.policy)
        return _Reading(facts, shape, priority_of(obj, self.policy), timestamp, obj.metadata.generation)

    def _met(self, obj: Workload, local: LocalQ, reading: _Reading) -> Work:
        key = obj.metadata.key
        work = self.works[key] = Work(key, obj.metadata.uid, local, reading.shape, reading.facts)
        work.reason, work.message = reading.facts.waits_because, reading.facts.waits_message
        local.members[key] = work
        return work

    def _move(self, work: Work, local: LocalQ) -> None:
        """It names another LocalQueue now."""
        if work.reservation is None:
            self.take_out(work)
        work.local.members.pop(work.key, None)
        work.local = local
        local.members[work.key] = work

    def _reserved_by_object(self, work: Work, admission: Admission, reading: _Reading) -> None:
        """The object shows quota: ours come back, another writer's, or what was there before a restart."""
        held = work.reservation
        queue = self.config.queues.get(admission.cluster_queue)
        if queue is None:
            self.take_out(work)
            _describe(work, reading)
            self._homeless.setdefault(admission.cluster_queue, {})[work.key] = work
            return
        same = held is not None and held.queue is queue and held.admission == admission and work.shape is reading.shape
        if held is not None and _frees(work, reading):
            self._wake_after(work, queue)
        if not same:
            self._replace_reservation(work, queue, admission, reading.shape)
        _describe(work, reading)
        queue.generation += 1
        facts, held = reading.facts, work.reservation
        if held is not None:
            held.assumed = False
            held.reserved_at = facts.reserved_at
            held.admitted, held.admitted_at = facts.admitted, facts.admitted_at
            held.evicted = facts.evicted
            queue.running.refresh(work)
            self.review(work)

    def _replace_reservation(self, work: Work, queue: Queue, admission: Admission, shape: Shape) -> None:
        before = work.reservation
        new = reservation_of(queue, admission, shape)
        new.topology = self.config.scene.places.occupied_by(admission, shape)
        if before is None:
            self.take_out(work)
        else:
            self._uncharge(work, before)
            if sum(v for _, v in new.charges) < sum(v for _, v in before.charges):
                self._wake_after(work, queue)  # an elastic job shrank
        self.hold(work, new)

    def _waits_by_object(self, work: Work, reading: _Reading) -> None:
        if work.reservation is not None:
            self.release(work)
        before = _fingerprint(work)
        was_active = work.facts.active
        same_place = (work.shape, work.priority, work.timestamp) == (reading.shape, reading.priority, reading.timestamp)
        _describe(work, reading)
        if work.tried is not None and not (
            self.policy.preserve_scan_progress and work.tried.likeness == (work.shape.like, work.priority)
        ):
            work.tried = None
        if was_active and not work.facts.active and (queue := self.config.queue_of(work.local)) is not None:
            self._wake_after(work, queue)
        if work.spot is Spot.OUT:
            self.enqueue(work)
        elif self._excuse(work) is not None:
            self.take_out(work)
            self.enqueue(work)
        elif work.queue is not None:
            self._requeue_changed(work, work.queue, moved=not same_place, relevant=before != _fingerprint(work))

    def _requeue_changed(self, work: Work, queue: Queue, *, moved: bool, relevant: bool) -> None:
        """A waiting workload changed: a parked one is looked at again if that could matter, a ready one changes its place."""
        pending = queue.pending
        if pending.is_parked(work):
            if relevant:
                pending.withdraw(work)
                self.enqueue(work)
        elif moved:
            pending.withdraw(work)
            pending.push(work)
            self.watch(queue)

    # --- waiting -------------------------------------------------------------------------------------------------------

    def enqueue(self, work: Work) -> None:
        """Put a workload that holds nothing where it belongs: into its queue, or out with a reason."""
        excuse = self._excuse(work)
        queue = self.config.queue_of(work.local)
        if excuse is not None or queue is None:
            work.queue = None
            self.report(
                work, *(excuse or (_Waiting.MISCONFIGURED, f"ClusterQueue {work.local.cluster_queue} doesn't exist"))
            )
            return
        work.queue = queue
        queue.pending.add(work, self.now)
        self.watch(queue)
        self.when_due(work)

    def _excuse(self, work: Work) -> tuple[str, str] | None:
        """Why it may not be queued, the reason that counts first. None: it may."""
        facts, local = work.facts, work.local
        if not facts.active:
            return _Waiting.DEACTIVATED, "The workload is deactivated"
        if facts.waits_because == _Waiting.ON_HOLD:
            return _Waiting.ON_HOLD, facts.waits_message
        if not local.exists:
            return _Waiting.MISCONFIGURED, f"LocalQueue {local.key.name} doesn't exist"
        if local.stop != "None":
            return _Waiting.SUSPENDED, f"LocalQueue {local.key.name} is stopped"
        if local.cluster_queue not in self.config.queues:
            return _Waiting.MISCONFIGURED, f"ClusterQueue {local.cluster_queue} doesn't exist"
        if facts.gate:
            return _Waiting.ADMISSION_GATED, facts.gate
        return None

    def when_due(self, work: Work) -> None:
        """Set the clock for the end of its back-off."""
        facts = work.facts
        if facts.requeued is False and facts.requeued_reason in _FRESH_START:
            self._restarted(work, facts)
        elif facts.requeue_at is not None and facts.requeue_at > self.now:
            self.alarm(facts.requeue_at, work.key)
        elif facts.requeued is False and facts.requeued_reason not in (_Waiting.INADMISSIBLE, ""):
            self._come_back(work, n.RequeuedReason.BACKOFF_FINISHED, "The workload's back-off is over")

    def _restarted(self, work: Work, facts: Facts) -> None:
        """It was evicted because its queue stopped; is that queue running again?"""
        queue = work.queue
        if queue is not None and queue.stop == "None" and work.local.stop == "None":
            self._come_back(work, _FRESH_START[facts.requeued_reason], "Its queue was restarted")

    def _come_back(self, work: Work, reason: str, message: str) -> None:
        self.out.append(m.Requeue(key=work.key, reason=reason, message=message))
        facts = work.facts
        facts.requeued, facts.requeued_reason, facts.requeue_at = True, reason, None
        if work.queue is not None:
            work.queue.pending.release(work)
            self.watch(work.queue)

    def report(self, work: Work, reason: str, message: str) -> None:
        """Say why it waits, if that is news."""
        if (work.reason, work.message) != (reason, message):
            work.reason, work.message = reason, message
            self.out.append(pending_report(work, reason, message))

    def take_out(self, work: Work) -> None:
        """Out of whatever queue it waits in."""
        if work.queue is not None and work.reservation is None:
            work.queue.pending.remove(work)
            work.queue = None
        work.spot = Spot.OUT

    def forget(self, work: Work) -> None:
        """It is finished or gone. What it held or waited for may let others in."""
        queue = work.queue
        if work.reservation is not None:
            self.release(work)
        else:
            self.take_out(work)
        if queue is not None:
            self._wake_after(work, queue)
        work.local.members.pop(work.key, None)
        del self.works[work.key]
        if not work.local.exists and not work.local.members:
            self.config.locals.pop(work.local.key, None)
        self.stir()

    # --- holding quota -------------------------------------------------------------------------------------------------

    def hold(self, work: Work, reservation: Reservation) -> None:
        """Count the reservation."""
        for cell, amount in reservation.charges:
            add_usage(cell, amount)
        for usage in reservation.topology:
            usage.occupy()
        work.reservation = reservation
        work.queue = reservation.queue
        work.spot = Spot.RESERVED
        work.reason = work.message = ""
        reservation.queue.running.add(work)

    def take_homeless_in(self, queue: Queue) -> None:
        """A ClusterQueue appeared: workloads that hold quota in it, by their objects, count from now on."""
        for work in self._homeless.pop(queue.name, {}).values():
            admission = work.facts.admission
            if work.reservation is None and admission is not None and self.works.get(work.key) is work:
                reservation = reservation_of(queue, admission, work.shape)
                reservation.topology = self.config.scene.places.occupied_by(admission, work.shape)
                reservation.reserved_at, reservation.evicted = work.facts.reserved_at, work.facts.evicted
                reservation.admitted, reservation.admitted_at = work.facts.admitted, work.facts.admitted_at
                self.hold(work, reservation)

    def make_homeless(self, queue: Queue) -> None:
        """The ClusterQueue is gone, and workloads still hold quota in it."""
        for work in list(queue.running):
            if work.reservation is not None:
                self._uncharge(work, work.reservation)
                self._homeless.setdefault(queue.name, {})[work.key] = work

    def _uncharge(self, work: Work, reservation: Reservation) -> None:
        for cell, amount in reservation.charges:
            remove_usage(cell, amount)
        for usage in reservation.topology:
            usage.release()
        reservation.queue.running.remove(work)
        reservation.queue.generation += 1
        work.local.penalties.pop(work.key, None)
        work.reservation = None
        work.queue = None
        work.spot = Spot.OUT

    def hand_over(self, old: Work, new: Work) -> None:
        """`new` has taken the quota of the slice that it replaces: the old one is done, and nobody gains room by it."""
        if old.reservation is not None:
            self._uncharge(old, old.reservation)
        old.local.members.pop(old.key, None)
        del self.works[old.key]
        self._replaced.add(old.uid)
        message = f"Replaced to accommodate a workload (UID: {new.uid}) due to workload slice aggregation"
        self.out.append(m.Finish(key=old.key, reason=n.FinishedReason.WORKLOAD_SLICE_REPLACED, message=message))

    def release(self, work: Work) -> None:
        """Its quota is free again, and its tree is woken."""
        reservation = work.reservation
        if reservation is not None:
            self._uncharge(work, reservation)
            self._wake_after(work, reservation.queue)
            work.tried = None

    def review(self, work: Work) -> None:
        """Do what is due about a workload that holds quota."""
        reservation = work.reservation
        if reservation is None:
            return
        due, again = review(work, reservation, self.policy, self.now)
        if again is not None:
            self.alarm(again, work.key)
        if due is None:
            second_look.look(self, work)
            return
        self.out.append(due)
        if isinstance(due, m.Admit):
            reservation.admitted, reservation.admitted_at = True, self.now
            usage_history.settle_penalty(work)
        elif isinstance(due, m.Evict):
            reservation.evicted = True
            reservation.queue.running.refresh(work)
        else:
            reservation.returning = True

    # --- what LocalQueues used ---------------------------------------------------------------------------------------

    def share_by_history(self, queue: Queue) -> None:
        """Let the workloads of this ClusterQueue queue by what their LocalQueues used, if it wants that."""
        rules = self.policy.admission_fair_sharing
        wanted = rules is not None and queue.usage_based
        if wanted != (queue.pending.usage_of is not None):
            queue.pending.usage_of = (lambda local: usage_history.usage(local, rules)) if rules and wanted else None
            queue.pending.reorder()

    def charge_history(self, work: Work, queue: Queue) -> None:
        rules = self.policy.admission_fair_sharing
        if rules is None or queue.pending.usage_of is None:
            return
        usage_history.penalize(work, rules)
        if work.reservation is not None and work.reservation.admitted:
            usage_history.settle_penalty(work)
        queue.pending.reorder()

    def _sample_history(self) -> None:
        rules = self.policy.admission_fair_sharing
        for queue in self.config.queues.values() if rules is not None else ():
            if rules is None or queue.pending.usage_of is None:
                continue
            moved = [usage_history.sample(local, rules, self.now) for local in self.config.locals_of(queue.name)]
            if any(moved):
                queue.pending.reorder()

    # --- waking --------------------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """Something happened: a cycle may decide differently from the last one."""
        self._stirred = True

    def watch(self, queue: Queue) -> None:
        """The queue may have a head now."""
        if queue.active and queue.pending.ready:
            self.candidates[queue.name] = queue

    def unwatch(self, queue: Queue) -> None:
        self.candidates.pop(queue.name, None)

    def wake(self, queue: Queue) -> None:
        """Parked workloads of its whole tree return before the next cycle."""
        self._woken[id(queue)] = queue
        self.stir()

    def _wake_after(self, work: Work, queue: Queue) -> None:
        """The workload makes room. Kueue overlooks that when the workload's LocalQueue is stopped or gone."""
        if self.policy.rules == "hub" or (work.local.exists and work.local.stop == "None"):
            self.wake(queue)

    def wake_node(self, node: Node) -> None:
        self._woken[id(node)] = node
        self.stir()

    def alarm(self, at: Instant, key: ObjectKey) -> None:
        """Look at the workload again at that time."""
        if not self._timers or at < self._timers[0][0]:
            self.out.append(m.WakeAt(at=at))
        self._serial += 1
        heappush(self._timers, (at, self._serial, key))

    def flush_wakes(self) -> None:
        """Let parked workloads return where something changed. Decisions and reports look at the result."""
        for queue in self.config.settle():
            self.watch(queue)
        if not self._woken:
            return
        nodes, self._woken = list(self._woken.values()), {}
        roots = {id(root): root for root in (node.root for node in nodes)}
        for root in roots.values():
            for queue in queues_below(root):
                self.wake_queue(queue)

    def wake_queue(self, queue: Queue) -> None:
        """Parked workloads of this one queue return now."""
        known: dict[str, bool] = {}

        def matches(local: LocalQ) -> bool:
            namespace = local.key.namespace
            if namespace not in known:
                known[namespace] = self.config.matches(queue, namespace)
            return known[namespace]

        if queue.pending.wake(matches, self.now):
            self.watch(queue)

    # --- the cycle -----------------------------------------------------------------------------------------------------

    def cycle_due(self, event: m.CycleDue) -> None:
        """Run one scheduling cycle; `cycle` numbers its steps."""
        self._ring()
        self._sample_history()
        self.flush_wakes()
        scene = self.config.scene
        scene.cycle += 1
        self.last_cycle = turn.take(self)
        effects = [turn.settle(self, head) for head in self.last_cycle]
        self._stirred = any(effects) or bool(self._woken)
        if self._timers:
            self.out.append(m.WakeAt(at=self._timers[0][0]))

    def _ring(self) -> None:
        """Look again at the workloads whose time has come."""
        while self._timers and self._timers[0][0] <= self.now:
            _, _, key = heappop(self._timers)
            work = self.works.get(key)
            if work is None:
                continue
            self.stir()
            if work.reservation is not None:
                self.review(work)
            elif work.queue is not None:
                self.when_due(work)
                if work.facts.requeue_at is not None and may_return(work, self.now):
                    work.queue.pending.release(work)
                    self.watch(work.queue)


def is_stale(reservation: Reservation, facts: Facts) -> bool:
    """Does an object without quota show the time before our decision, rather than that the quota was given back?"""
    if not reservation.assumed:
        return False
    return max(facts.unreserved_at, facts.evicted_at if facts.evicted else 0.0) <= reservation.reserved_at


def _frees(work: Work, reading: _Reading) -> bool:
    """Could others get in because a running workload changed: fewer pods, or a priority that can be preempted?"""
    return work.priority != reading.priority or list(work.facts.reclaimable) != list(reading.facts.reclaimable)


def _describe(work: Work, reading: _Reading) -> None:
    work.facts, work.shape, work.priority, work.timestamp, work.generation = reading


def _fingerprint(work: Work) -> tuple[Any, ...]:
    """What makes it worth another look when it changes while parked."""
    facts = work.facts
    return (
        work.shape.like, work.priority, work.timestamp, work.generation, facts.preemption_gated,
        facts.evicted, facts.evicted_reason, facts.evicted_at, facts.requeued, facts.requeued_reason,
    )  # fmt: skip


def _created(obj: Workload) -> Instant:
    text = obj.metadata.creation_timestamp
    return parse_time(text) if text else 0.0


HANDLERS: dict[type[m.Event], Callable[[AdmissionState, Any], None]] = {
    m.WorkloadChanged: AdmissionState.workload_changed,
    m.WorkloadDeleted: AdmissionState.workload_deleted,
    m.WriteFailed: AdmissionState.write_failed,
    m.CycleDue: AdmissionState.cycle_due,
    m.ConfigChanged: reactions.config_changed,
    m.ConfigDeleted: reactions.config_deleted,
    m.NamespaceChanged: reactions.namespace_changed,
    m.NamespaceDeleted: reactions.namespace_deleted,
    m.LimitRangeChanged: reactions.limits_changed,
    m.LimitRangeDeleted: reactions.limits_deleted,
    m.NodeChanged: reactions.node_changed,
    m.NodeDeleted: reactions.node_deleted,
    m.ForeignPodUsage: reactions.foreign_usage,
}
