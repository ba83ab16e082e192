"""One scheduling cycle.

    1  wake      parked workloads return where something changed
    2  heads     one workload from every active ClusterQueue that has one, and workloads due for a second pass
    3  nominate  flavors and victims for each, all on the same state
    4  order     within nominal quota first, then priority, then time; with fair sharing a tournament by share
    5  process   one after the other on the state as the earlier ones leave it: admit, preempt, hold or skip
    6  requeue   who was not admitted goes back, ready or parked

Only admissions outlast the cycle. What preemptors and deferred workloads hold is held until step 6, so that nobody later in
the cycle takes the room that they wait for.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from hub.kueue.admission import tournament
from hub.kueue.admission.assignment import Assignment, Mode
from hub.kueue.admission.better import has_waited_enough
from hub.kueue.admission.config import Queue
from hub.kueue.admission.flavors import Pins
from hub.kueue.admission.nomination import nominate
from hub.kueue.admission.queues import Requeue
from hub.kueue.admission.quota import Cell, available
from hub.kueue.admission.records import Tried, Work
from hub.kueue.admission.scene import Scene
from hub.kueue.admission.victims import Victim
from hub.kueue.admission.what_if import WhatIf


class Outcome(StrEnum):
    """What became of a head."""

    ADMITTED = "admitted"
    PREEMPTING = "preempting"
    DEFERRED = "deferred"
    SKIPPED = "skipped"
    NO_FIT = "nofit"
    NO_CANDIDATES = "nocandidates"
    NOT_NOMINATED = "notnominated"
    NAMESPACE_MISMATCH = "namespacemismatch"
    GATED = "gated"
    EVICTED = "evicted"


class Head:
    """One head and what the cycle does with it."""

    __slots__ = (
        "assignment", "has_claim", "is_preemptor", "message", "outcome", "queue", "reason", "requeue", "second_pass", "victims", "work",
    )  # fmt: skip

    def __init__(self, work: Work, queue: Queue, *, second_pass: bool, is_preemptor: bool, has_claim: bool) -> None:
        self.work = work
        self.queue = queue
        #: It holds quota already and only needs a place.
        self.second_pass = second_pass
        self.is_preemptor = is_preemptor
        #: It made room more than once and lost it each time: now it goes first.
        self.has_claim = has_claim
        self.assignment: Assignment = _NOTHING
        self.victims: list[Victim] = []
        self.outcome = Outcome.NOT_NOMINATED
        self.requeue = Requeue.GENERIC
        #: Why it waits, in Kueue's words, and for people.
        self.reason = ""
        self.message = ""

    @property
    def usage(self) -> dict[Cell, int]:
        """Quota it would take on top of what it holds."""
        if self.second_pass:
            return {}
        old = self.assignment.replaces
        if old is None or old.reservation is None:
            return self.assignment.charges
        held = dict(old.reservation.charges)
        return {cell: max(0, amount - held.get(cell, 0)) for cell, amount in self.assignment.charges.items()}


_NOTHING = Assignment()


class Cycle:
    """Steps 3 to 5. The caller admits: `admit` is called for each head that gets in."""

    def __init__(self, scene: Scene, check: Callable[[Head], bool], admit: Callable[[Head], None]) -> None:
        self._scene = scene
        #: False, with a reason in the head: it may not be nominated.
        self._check = check
        self._admit = admit
        self._preempted: dict[Work, None] = {}
        self._admitted: dict[Work, None] = {}
        #: What preemptors will take, and what heads without candidates wait for.
        self._held = WhatIf()
        self._hoped_for = WhatIf()

    def run(self, heads: Iterable[Head]) -> list[Head]:
        """The heads in the order in which they were worked through, those not nominated last."""
        nominated: list[Head] = []
        rejected: list[Head] = []
        for head in heads:
            if self._check(head):
                head.assignment, head.victims = nominate(self._scene, head.work, head.queue)
                head.work.tried = _tried(self._scene, head)
                nominated.append(head)
            else:
                rejected.append(head)
        done: list[Head] = []
        try:
            for head in self._in_order(nominated):
                self._process(head)
                done.append(head)
        finally:
            self._held.undo()
            self._hoped_for.undo()
            self._scene.places.drop_held()
        return done + rejected

    # --- order ---------------------------------------------------------------------------------------------------------

    def _in_order(self, heads: list[Head]) -> Iterator[Head]:
        policy = self._scene.policy
        if policy.fair_sharing is not None:
            return tournament.in_order(policy, heads)
        preemptors_first, by_priority = policy.prioritize_preemptors, policy.priority_sorting

        def place(head: Head) -> tuple[bool, bool, bool, int, int, float, str]:
            work = head.work
            return (
                not head.has_claim,
                not head.second_pass,
                preemptors_first and not head.is_preemptor,
                head.assignment.level,
                -work.priority if by_priority else 0,
                work.timestamp,
                work.uid,
            )

        return iter(sorted(heads, key=place))

    # --- process -------------------------------------------------------------------------------------------------------

    def _process(self, head: Head) -> None:
        fits = self._up_to_date(head)
        mode = head.assignment.mode
        if mode is Mode.NOFIT:
            self._refuse(head, Outcome.NO_FIT, Requeue.NO_FIT, head.assignment.no_fit_reason)
        elif mode is Mode.PREEMPT and not head.victims:
            self._refuse(head, Outcome.NO_CANDIDATES, Requeue.NO_CANDIDATES, "WaitingForQuota")
            self._hold_what_is_left(head)
        elif mode is Mode.PREEMPT and head.work.facts.preemption_gated:
            head.work.tried = None
            head.message = "Workload requires preemption, but it's gated"
            self._refuse(head, Outcome.GATED, Requeue.PREEMPTION_GATED, "AdmissionGated")
        elif mode is Mode.DEFERRED:
            self._defer(head)
        elif any(v.work in self._preempted for v in head.victims):
            self._skip(head, "Workload has overlapping preemption targets with another workload")
        elif not fits and not (mode is Mode.FIT and self._fits_after_all(head)):
            self._skip(head, "Workload no longer fits after processing another workload")
        elif mode is Mode.PREEMPT:
            self._preempt(head)
        elif self._scene.blocked and not head.second_pass:
            message = "waiting for all admitted workloads to be in PodsReady condition"
            self._skip(head, message, "WaitingForPodsReady")
        else:
            head.outcome = Outcome.ADMITTED
            self._admitted[head.work] = None
            self._admit(head)

    def _refuse(self, head: Head, outcome: Outcome, requeue: Requeue, reason: str) -> None:
        head.outcome, head.requeue, head.reason = outcome, requeue, reason
        head.message = head.message or head.assignment.message()

    def _skip(self, head: Head, message: str, reason: str = "WaitingForQuota") -> None:
        head.outcome, head.requeue = Outcome.SKIPPED, Requeue.FAILED_AFTER_NOMINATION
        head.reason, head.message = reason, message
        if not self._scene.policy.preserve_scan_progress:
            head.work.tried = None

    def _defer(self, head: Head) -> None:
        head.work.tried = None
        head.outcome, head.requeue = Outcome.DEFERRED, Requeue.PENDING_PREEMPTION
        head.reason = "WaitingForPreemptedWorkloads"
        head.message = "Workload has overlapping preemption targets with another workload, but will fit after these preemptions complete"
        self._hold(head, head.usage)

    def _preempt(self, head: Head) -> None:
        self._preempted.update((v.work, None) for v in head.victims)
        self._hold(head, head.usage)
        head.work.tried = None
        head.outcome, head.requeue = Outcome.PREEMPTING, Requeue.PENDING_PREEMPTION
        head.reason = "WaitingForPreemptedWorkloads"
        head.message = f"{head.assignment.message()}. Pending the preemption of {len(head.victims)} workload(s)"

    def _hold(self, head: Head, usage: dict[Cell, int]) -> None:
        self._held.charge(usage)
        self._scene.places.hold(head.assignment)

    def _hold_what_is_left(self, head: Head) -> None:
        """A preemptor without candidates keeps others from borrowing the quota it waits for, unless it can always reclaim."""
        if head.queue.preemption.reclaim == "Any" and not (
            self._scene.policy.prioritize_preemptors and head.is_preemptor
        ):
            return
        borrowing = head.assignment.level > 0
        usage: dict[Cell, int] = {}
        for cell, amount in head.usage.items():
            if not borrowing:
                usage[cell] = max(0, min(amount, cell.nominal - cell.usage))
            elif cell.borrowing_limit is None:
                usage[cell] = amount
            else:
                usage[cell] = min(amount, cell.nominal + cell.borrowing_limit - cell.usage)
        self._hoped_for.charge(usage)
        self._scene.places.hold(head.assignment)

    def _fits_after_all(self, head: Head) -> bool:
        """Whoever has waited long enough may take room that another head only hopes for."""
        if not has_waited_enough(self._scene.policy, head.work, self._scene.now):
            return False
        self._hoped_for.undo()
        room, place = self._fits(head)
        return room and place

    # --- keeping nominations up to date ---------------------------------------------------------------------------------

    def _up_to_date(self, head: Head) -> bool:
        """Does the nomination still fit? It is computed anew when others took its victims or its place."""
        room, place = self._fits(head)
        policy = self._scene.policy
        if policy.recompute_overlap and any(v.work in self._preempted for v in head.victims):
            with WhatIf() as trial:
                trial.remove_all(self._preempted)
                self._nominate_again(head, gone=self._preempted)
            if head.assignment.mode is Mode.FIT:
                head.assignment.forced = Mode.DEFERRED
        elif room and not place and policy.topology is not None and policy.topology.recompute_within_cycle:
            self._nominate_again(head, gone={})
        else:
            return room and place
        room, place = self._fits(head)
        return room and place

    def _nominate_again(self, head: Head, gone: dict[Work, None]) -> None:
        """With the same flavors, and without the workloads that others preempt already."""
        pins = _pins(head)
        head.work.tried = None
        self._scene.hidden = {**gone, **self._admitted}  # who just got in is nobody's victim in the same cycle
        head.assignment, head.victims = nominate(self._scene, head.work, head.queue, pins)
        self._scene.hidden = ()
        head.work.tried = _tried(self._scene, head)
        head.message = ""

    def _fits(self, head: Head) -> tuple[bool, bool]:
        """Is there quota, and is there a place, once all victims chosen so far are gone?"""
        if not self._preempted and not head.victims:
            return self._has_quota(head), self._scene.places.still_free(head.assignment)
        with WhatIf() as trial:
            trial.remove_all(self._preempted)
            trial.remove_all(v.work for v in head.victims)
            return self._has_quota(head), self._scene.places.still_free(head.assignment)

    def _has_quota(self, head: Head) -> bool:
        for cell, amount in head.usage.items():  # noqa: SIM110 - hot path
            if amount > 0 and available(cell) < amount:
                return False
        return True


def _tried(scene: Scene, head: Head) -> Tried | None:
    """How far the search came. Assignments that workloads share carry only the part that is the same for all."""
    tried, work = head.assignment.tried, head.work
    if tried is None or head.assignment.ready is None:
        return tried
    return tried.of(head.queue.generation, scene.cycle, (work.shape.like, work.priority))


def _pins(head: Head) -> Pins:
    flavors = {p.need.name: {r: c.flavor for r, c in p.choices.items()} for p in head.assignment.pod_sets}
    return [flavors.get(need.name, {}) for need in head.work.shape.pod_sets]
