"""Which flavor each resource of each pod set gets, and how well that fits now.

    fine modes, best last:  no fit < no candidates < preempt < reclaim < fit          plus a borrow level, lower is better
    coarse modes:           NOFIT    └────── PREEMPT ───────┘       FIT

Flavors of a resource group are looked at in order; the ClusterQueue's fungibility says where to stop and which of two
flavors is better (KEP-582). What does not depend on quota, such as taints and node labels, is worked out once per shape and
ClusterQueue and kept as a `Plan`.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from hub.kueue.admission import preemption
from hub.kueue.admission.assignment import (
    EXCEEDS_MAX_QUOTA,
    FITS,
    NO_MATCHING_FLAVOR,
    SEVERITY,
    WAITING_FOR_QUOTA,
    Assignment,
    Choice,
    Mode,
    PodSetChoice,
    pod_set_choice,
    take,
)
from hub.kueue.admission.config import Queue
from hub.kueue.admission.plans import Option, PlanGroup, Search, plan_for
from hub.kueue.admission.quota import Cell, available, borrow_level, potential
from hub.kueue.admission.records import Tried, Work
from hub.kueue.admission.scene import Scene
from hub.kueue.api.quantity import add, text


class Fine(IntEnum):
    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


_COARSE = (Mode.NOFIT, Mode.PREEMPT, Mode.PREEMPT, Mode.PREEMPT, Mode.FIT)


class Grade(NamedTuple):
    """How a flavor would do."""

    fine: Fine
    level: int


_BEST = Grade(Fine.FIT, 0)
_WORST = Grade(Fine.NO_FIT, 1 << 30)


# --- assigning ---------------------------------------------------------------------------------------------------------

#: Per pod set, resource -> flavor that must be kept while the assignment is computed anew within a cycle.
Pins = list[dict[str, str]]


def assign_first(scene: Scene, work: Work, queue: Queue) -> Assignment | None:
    """The assignment, if the first flavors that its pods may use have room now. None: call `assign`.

    Most admissions are of this kind, and equal ones share everything.
    """
    tried = work.tried
    if tried is not None and tried.pending:
        return None
    first = plan_for(scene, work, queue).first
    if first is None or work.facts.replaces:
        return None
    level = 0
    for cell, amount in first.charges:
        if amount > 0 and amount > available(cell):
            return None
        if cell.nominal < cell.usage + amount:
            level = max(level, borrow_level(cell, amount)[0])
    if level and not queue.stops_at_borrowing and scene.policy.flavor_fungibility:
        return None
    return first.at_level(level)


def assign(
    scene: Scene, work: Work, queue: Queue, counts: Sequence[int] | None = None, pins: Pins | None = None
) -> Assignment:
    """Flavors for the workload, or for so many pods per pod set. Changes nothing."""
    result = Assignment()
    indexes: list[dict[str, int]] = []
    for group in plan_for(scene, work, queue).groups:
        members = [
            pod_set_choice(work.shape.pod_sets[i], None if counts is None else counts[i], queue) for i in group.members
        ]
        failed = _assign_group(scene, work, queue, group, members, result, pins)
        for pod_set in members:
            take(result, pod_set)
            indexes.append({r: c.tried for r, c in pod_set.choices.items()})
            failed = failed or bool(pod_set.error) or bool(pod_set.amounts and not pod_set.choices)
        if failed:
            break
    result.tried = Tried(indexes, queue.generation, scene.cycle, (work.shape.like, work.priority))
    if result.mode is not Mode.NOFIT:
        scene.places.place(work, queue, result)
    if result.mode is Mode.NOFIT:
        result.no_fit_reason = _no_fit_reason(result)
    return result


def _assign_group(
    scene: Scene,
    work: Work,
    queue: Queue,
    group: PlanGroup,
    members: list[PodSetChoice],
    result: Assignment,
    pins: Pins | None,
) -> bool:
    """Find flavors for pod sets that share them. True: there are none."""
    amounts = members[0].amounts if len(members) == 1 else _summed(members)
    chosen: dict[str, Choice] = {}
    reasons: list[str] = []
    attempts: dict[str, tuple[int, str]] = {}
    failed = False
    for resource, search in group.searches:
        if resource not in amounts:
            continue
        if search is None:
            if amounts[resource] == 0 or scene.policy.ignore_undeclared:
                continue
            reasons = [f"resource {resource} unavailable in ClusterQueue"]
            failed = True
            break
        if resource in chosen:
            continue
        found = _Hunt(scene, work, queue, group.members, resource, search, amounts, result.charges, pins)
        picked = found.run()
        attempts.update(found.attempts)
        if not picked:
            chosen, failed, reasons = {}, True, found.reasons
            break
        chosen.update(picked)
        if found.best.fine is not Fine.FIT:
            reasons += found.reasons
    for pod_set in members:
        pod_set.reasons = list(reasons)
        pod_set.attempts = attempts
        if not failed:
            pod_set.choices = _own_choices(
                scene, queue, pod_set, chosen, len(members) > 1 or not group.name.startswith("#")
            )
    return failed


def _summed(members: Sequence[PodSetChoice]) -> dict[str, int]:
    total: dict[str, int] = {}
    for pod_set in members:
        for resource, value in pod_set.amounts.items():
            total[resource] = add(total.get(resource, 0), value)
    return total


def _own_choices(
    scene: Scene, queue: Queue, pod_set: PodSetChoice, chosen: dict[str, Choice], grouped: bool
) -> dict[str, Choice]:
    if pod_set.amounts:
        return {r: c for r, c in chosen.items() if r in pod_set.amounts}
    if grouped:
        # Asks for nothing itself, but must run beside its group.
        return {r: c for r, c in chosen.items() if scene.places.is_topology_flavor(queue, c.flavor)}
    return {}


class _Hunt:
    """The search for a flavor of one resource group."""

    __slots__ = (
        "amounts", "assumed", "attempts", "best", "ids", "pins", "queue", "reasons", "resource", "scene", "search", "work",
    )  # fmt: skip

    def __init__(
        self,
        scene: Scene,
        work: Work,
        queue: Queue,
        ids: tuple[int, ...],
        resource: str,
        search: Search,
        amounts: dict[str, int],
        assumed: dict[Cell, int],
        pins: Pins | None,
    ) -> None:
        self.scene, self.work, self.queue = scene, work, queue
        self.ids, self.resource, self.search = ids, resource, search
        self.amounts = amounts
        #: What pod sets before this one take.
        self.assumed = assumed
        self.pins = pins
        self.reasons: list[str] = []
        self.attempts: dict[str, tuple[int, str]] = {}
        self.best = _WORST

    def run(self) -> dict[str, Choice]:
        """Resource -> choice, empty when nothing fits, not even with preemption."""
        options = self.search.options
        chosen: dict[str, Choice] = {}
        fungible = self.scene.policy.flavor_fungibility
        last = -1
        for index in range(self._start(), len(options)):
            last = index
            option = options[index]
            if self._is_refused(option):
                continue
            grade, choices = self._grade(option)
            if not fungible:
                if grade.fine > self.best.fine:
                    chosen, self.best = choices, grade
                    if grade.fine is Fine.FIT:
                        break
            elif not self._goes_on(grade):
                chosen, self.best = choices, grade
                break
            elif is_preferred(grade, self.best, less_borrowing=self.queue.prefers_no_borrowing):
                chosen, self.best = choices, grade
        if fungible:
            tried = -1 if last == len(options) - 1 else last
            for choice in chosen.values():
                choice.tried = tried
        return chosen

    def _start(self) -> int:
        tried = self.work.tried
        if tried is None or not self.scene.policy.flavor_fungibility:
            return 0
        return tried.next_index(self.ids[0], self.resource)

    def _is_refused(self, option: Option) -> bool:
        if self.pins is not None and all(self.pins[i].get(self.resource) != option.flavor for i in self.ids):
            self.reasons.append(f"flavor {option.flavor} is not the one nominated for {self.resource}")
            return True
        if option.refusal:
            self.reasons.append(option.refusal)
            self.attempts[option.flavor] = (self.search.group.index, NO_MATCHING_FLAVOR)
            return True
        return False

    def _goes_on(self, grade: Grade) -> bool:
        """Is the next flavor worth a look although this one could do?"""
        if grade.fine <= Fine.NO_CANDIDATES:
            return True
        if grade.fine is not Fine.FIT and not self.queue.stops_at_preemption:
            return True
        return grade.level > 0 and not self.queue.stops_at_borrowing

    def _grade(self, option: Option) -> tuple[Grade, dict[str, Choice]]:
        worst = _BEST
        choices: dict[str, Choice] = {}
        failure = ""
        for resource, cell in option.cells.items():
            if resource not in self.amounts:
                continue
            grade, reason, why = self._fits(cell, self.amounts[resource])
            if reason:
                self.reasons.append(reason)
                failure = max(failure, why, key=SEVERITY.__getitem__)
            if is_preferred(worst, grade, less_borrowing=self.queue.prefers_no_borrowing):
                worst = grade
            if worst.fine is Fine.NO_FIT:
                continue
            choices[resource] = Choice(option.flavor, cell, _COARSE[grade.fine], grade.level)
        self.attempts[option.flavor] = (self.search.group.index, failure if worst.fine is Fine.NO_FIT else FITS)
        return worst, choices

    def _fits(self, cell: Cell, amount: int) -> tuple[Grade, str, str]:
        """How the amount fits into one cell, with the reason when it does not fit at once."""
        before = self.assumed.get(cell, 0)
        value = add(before, amount)
        flavor, resource = cell.key
        most = potential(cell)
        if value > most:
            reason = (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered podsets requests "
                f"({text(resource, before)}) + current podset request ({text(resource, amount)}) > maximum capacity "
                f"({text(resource, most)})"
            )
            return Grade(Fine.NO_FIT, 0), reason, EXCEEDS_MAX_QUOTA
        level, below_root = borrow_level(cell, value)
        room = max(0, available(cell))
        if value <= room:
            return Grade(Fine.FIT, level), "", ""
        reason = (
            f"insufficient unused quota for {resource} in flavor {flavor}, {text(resource, value - room)} more needed"
        )
        if cell.nominal >= value or below_root or self._may_preempt_and_borrow():
            fine, level = _asked(self.scene, self.work, self.queue, cell, value)
            return Grade(fine, level), reason, ""
        return Grade(Fine.NO_FIT, level), reason, WAITING_FOR_QUOTA

    def _may_preempt_and_borrow(self) -> bool:
        rules = self.queue.preemption
        return rules.may_borrow or (self.scene.policy.fair_sharing is not None and rules.reclaim != "Never")


def _asked(scene: Scene, work: Work, queue: Queue, cell: Cell, value: int) -> tuple[Fine, int]:
    """Would preemption make room in this cell, and how much would still be borrowed then?"""
    possibility, level = preemption.possibility(scene, work, queue, cell, value)
    return Fine(possibility), level


def is_preferred(a: Grade, b: Grade, *, less_borrowing: bool) -> bool:
    """Is `a` strictly better? A flavor without candidates for preemption never beats a viable one."""
    if a.fine is Fine.NO_FIT:
        return False
    if b.fine is Fine.NO_FIT:
        return True
    if (a.fine is Fine.NO_CANDIDATES) != (b.fine is Fine.NO_CANDIDATES):
        return a.fine is not Fine.NO_CANDIDATES
    if less_borrowing and a.level != b.level:
        return a.level < b.level
    if a.fine is not b.fine:
        return a.fine > b.fine
    return a.level < b.level


def _no_fit_reason(result: Assignment) -> str:
    """The one reason to show: alternatives count by the mildest, what must hold together by the worst."""
    worst = ""
    for pod_set in result.pod_sets:
        if pod_set.mode is not Mode.NOFIT and result.forced is not Mode.NOFIT:
            continue
        mildest: dict[int, str] = {}
        for group, reason in pod_set.attempts.values():
            if reason != FITS:
                mildest[group] = min(mildest.get(group, reason), reason, key=SEVERITY.__getitem__)
        found = max(
            mildest.values(), key=SEVERITY.__getitem__, default=NO_MATCHING_FLAVOR if not pod_set.attempts else ""
        )
        worst = max(worst, found, key=SEVERITY.__getitem__)
    return worst


def preemption_need(assignment: Assignment) -> dict[Cell, int]:
    """What a preemptor wants to have free: amounts that are not zero, without the number of pods.

    Kueue leaves the resource `pods` out when it looks for victims; so do we.
    """
    need: dict[Cell, int] = {}
    for pod_set in assignment.pod_sets:
        for resource, value in pod_set.amounts.items():
            choice = pod_set.choices.get(resource)
            if choice is not None and value and resource != "pods":
                need[choice.cell] = add(need.get(choice.cell, 0), value)
    return need
