"""Which flavor each resource of each pod set gets, and how well that fits now.

    fine modes, best last:  no fit < no candidates < preempt < reclaim < fit          plus a borrow level, lower is better
    coarse modes:           NOFIT    └────── PREEMPT ───────┘       FIT

Flavors of a resource group are looked at in order; the ClusterQueue's fungibility says where to stop and which of two
flavors is better (KEP-582). What does not depend on quota, such as taints and node labels, is worked out once per shape and
ClusterQueue and kept as a `Plan`.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple

from hub.kueue.admission import preemption
from hub.kueue.admission.config import Flavor, Group, Queue
from hub.kueue.admission.quota import Cell, available, borrow_level, potential
from hub.kueue.admission.records import Charge, Tried, Work
from hub.kueue.admission.requests import PodSetNeed, scaled, search_rank
from hub.kueue.admission.scene import Scene
from hub.kueue.api.core import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodSpec,
    fits_node_labels,
    required_node_selector,
    untolerated,
)
from hub.kueue.api.quantity import add, text
from hub.kueue.api.v1beta2 import TopologyAssignment

NO_MATCHING_FLAVOR = "NoMatchingFlavor"
EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
WAITING_FOR_QUOTA = "WaitingForQuota"
TOPOLOGY_PLACEMENT_FAILED = "TopologyPlacementFailed"
#: How bad a reason is; the worst one of what must hold together is shown, and the mildest one of what are alternatives.
SEVERITY = {"": 0, TOPOLOGY_PLACEMENT_FAILED: 1, WAITING_FOR_QUOTA: 2, EXCEEDS_MAX_QUOTA: 3, NO_MATCHING_FLAVOR: 4}

#: In place of a reason: the flavor could do.
FITS = "-"


class Mode(IntEnum):
    """How an assignment fits."""

    NOFIT = 0
    PREEMPT = 1
    #: Once victims that others chose in this cycle are gone.
    DEFERRED = 2
    FIT = 3


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


class Choice:
    """The flavor of one resource of one pod set."""

    __slots__ = ("cell", "flavor", "level", "mode", "tried")

    def __init__(self, flavor: str, cell: Cell, mode: Mode, level: int) -> None:
        self.flavor = flavor
        self.cell = cell
        self.mode = mode
        self.level = level
        #: Index of the last flavor looked at; -1: all of them were.
        self.tried = 0


class PodSetChoice:
    """What was found for one pod set."""

    __slots__ = ("amounts", "attempts", "choices", "count", "delayed", "error", "need", "placement", "reasons")

    def __init__(self, need: PodSetNeed, count: int, amounts: dict[str, int]) -> None:
        self.need = need
        self.count = count
        #: resource -> amount of all pods together, the resource `pods` included where it is counted.
        self.amounts = amounts
        self.choices: dict[str, Choice] = {}
        self.reasons: list[str] = []
        self.error = ""
        #: flavor -> why it does not fit, "" when it could; with the index of its group.
        self.attempts: dict[str, tuple[int, str]] = {}
        self.placement: TopologyAssignment | None = None
        #: Placement waits for an admission check.
        self.delayed: Literal["Pending", "Ready"] | None = None

    @property
    def mode(self) -> Mode:
        if not self.reasons and not self.error:
            return Mode.FIT
        if self.error or not self.choices:
            return Mode.NOFIT
        return min(choice.mode for choice in self.choices.values())


class Assignment:
    """Flavors for a whole workload. Pod sets after the first that cannot be served are missing."""

    __slots__ = ("charges", "forced", "level", "no_fit_reason", "pod_sets", "tried")

    def __init__(self) -> None:
        self.pod_sets: list[PodSetChoice] = []
        #: cell -> amount, of all pod sets together.
        self.charges: dict[Cell, int] = {}
        #: How far up quota is borrowed from; 0: not at all.
        self.level = 0
        self.tried: Tried | None = None
        self.no_fit_reason = ""
        self.forced: Mode | None = None

    @property
    def mode(self) -> Mode:
        if self.forced is not None:
            return self.forced
        if not self.pod_sets:
            return Mode.NOFIT
        return min(p.mode for p in self.pod_sets)

    def contested(self) -> set[Cell]:
        """The cells in which somebody has to go."""
        return {c.cell for p in self.pod_sets for c in p.choices.values() if c.mode is Mode.PREEMPT}

    def message(self) -> str:
        parts: list[str] = []
        for pod_set in self.pod_sets:
            if pod_set.error:
                return f"failed to assign flavors to pod set {pod_set.need.name}: {pod_set.error}"
            if pod_set.reasons:
                reasons = ", ".join(sorted(pod_set.reasons))
                parts.append(f"couldn't assign flavors to pod set {pod_set.need.name}: {reasons}")
        return "; ".join(parts)


# --- plans ------------------------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """One flavor of a group, for a shape."""

    flavor: str
    #: Why pods of this shape cannot use it; empty: they can.
    refusal: str
    #: resource -> cell, in search order.
    cells: dict[str, Cell]


class Search(NamedTuple):
    """A resource group to be looked through."""

    group: Group
    options: tuple[Option, ...]


class PlanGroup(NamedTuple):
    """Pod sets that get the same flavors."""

    members: tuple[int, ...]
    name: str
    #: Resources asked for, in search order, each with the group that serves it; None: nobody does.
    searches: tuple[tuple[str, Search | None], ...]


class Plan(NamedTuple):
    groups: tuple[PlanGroup, ...]


def plan_for(scene: Scene, work: Work, queue: Queue) -> Plan:
    """What to look at when a workload of this shape is nominated in this ClusterQueue."""
    plan = queue.plans.get(work.shape.id)
    if plan is None:
        plan = queue.plans[work.shape.id] = _planned(scene, work, queue)
    return plan


def _planned(scene: Scene, work: Work, queue: Queue) -> Plan:
    needs = work.shape.pod_sets
    members: dict[str, list[int]] = {}
    for i, need in enumerate(needs):
        members.setdefault(need.group if need.group is not None else f"#{i}", []).append(i)
    return Plan(tuple(_plan_group(scene, work, queue, name, tuple(ids)) for name, ids in members.items()))


def _plan_group(scene: Scene, work: Work, queue: Queue, name: str, ids: tuple[int, ...]) -> PlanGroup:
    needs = [work.shape.pod_sets[i] for i in ids]
    wanted = {resource for need in needs for resource in need.per_pod}
    if queue.covers_pods:
        wanted.add("pods")
    order = sorted(wanted, key=search_rank)
    by_group: dict[int, Search] = {}
    searches: list[tuple[str, Search | None]] = []
    for resource in order:
        group = queue.group_of(resource)
        if group is None:
            searches.append((resource, None))
            continue
        if group.index not in by_group:
            covered = [r for r in order if r in group.resources]
            options = tuple(_option(scene, work, queue, group, f, needs, covered) for f in group.flavors)
            by_group[group.index] = Search(group, options)
        searches.append((resource, by_group[group.index]))
    return PlanGroup(ids, name, tuple(searches))


def _option(
    scene: Scene, work: Work, queue: Queue, group: Group, name: str, needs: Sequence[PodSetNeed], covered: Sequence[str]
) -> Option:
    flavor = scene.flavors.get(name)
    cells = {r: queue.cells[(name, r)] for r in covered if (name, r) in queue.cells}
    if work.shape.allowed is not None and name not in work.shape.allowed:
        return Option(name, f"flavor {name} is not among those that the workload allows", cells)
    if flavor is None:
        return Option(name, f"flavor {name} not found", cells)
    return Option(name, next((r for n in needs if (r := refusal(scene, queue, group, flavor, n))), ""), cells)


def refusal(scene: Scene, queue: Queue, group: Group, flavor: Flavor, need: PodSetNeed) -> str:
    """Why pods of this pod set cannot use the flavor, "" if they can."""
    if (reason := scene.places.mismatch(queue, group, flavor, need)) != "":
        return reason
    taint = untolerated(flavor.taints, [*need.spec.tolerations, *flavor.tolerations])
    if taint is not None:
        return f"untolerated taint {taint.key}={taint.value}:{taint.effect} in flavor {flavor.name}"
    if not fits_node_labels(_narrowed(need.spec, flavor.labels), flavor.labels):
        return f"flavor {flavor.name} doesn't match node affinity"
    return ""


def _narrowed(spec: PodSpec, labels: Mapping[str, str]) -> PodSpec:
    """What the pod says about the flavor's own label keys; nothing else counts.

    Terms are alternatives: one without any such key is satisfied by every flavor, and with it the whole affinity.
    """
    selector = {k: v for k, v in spec.node_selector.items() if k in labels}
    required = required_node_selector(spec)
    terms: list[NodeSelectorTerm] = []
    for term in required.node_selector_terms if required else ():
        kept = [e for e in term.match_expressions if e.key in labels]
        if not kept:
            terms = []
            break
        terms.append(NodeSelectorTerm(match_expressions=kept))
    return _pod_on(selector, NodeSelector(node_selector_terms=terms) if terms else None)


def _pod_on(selector: dict[str, str], required: NodeSelector | None) -> PodSpec:
    affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    return PodSpec(node_selector=selector, affinity=affinity if required else None)


# --- assigning ---------------------------------------------------------------------------------------------------------

#: Per pod set, resource -> flavor that must be kept while the assignment is computed anew within a cycle.
Pins = list[dict[str, str]]


def assign(
    scene: Scene, work: Work, queue: Queue, counts: Sequence[int] | None = None, pins: Pins | None = None
) -> Assignment:
    """Flavors for the workload, or for so many pods per pod set. Changes nothing."""
    result = Assignment()
    indexes: list[dict[str, int]] = []
    for group in plan_for(scene, work, queue).groups:
        members = [
            _pod_set_choice(work.shape.pod_sets[i], None if counts is None else counts[i], queue) for i in group.members
        ]
        failed = _assign_group(scene, work, queue, group, members, result, pins)
        for pod_set in members:
            _take(result, pod_set)
            indexes.append({r: c.tried for r, c in pod_set.choices.items()})
            failed = failed or bool(pod_set.error) or bool(pod_set.amounts and not pod_set.choices)
        if failed:
            break
    result.tried = Tried(indexes, queue.generation, scene.cycle, (work.shape.like, work.priority))
    if result.mode is not Mode.NOFIT:
        scene.places.place(scene, work, queue, result)
    if result.mode is Mode.NOFIT:
        result.no_fit_reason = _no_fit_reason(result)
    return result


def _pod_set_choice(need: PodSetNeed, count: int | None, queue: Queue) -> PodSetChoice:
    # A pod set whose pods were all given back stays empty, whatever smaller size is tried.
    real = need.count if count is None or need.count == 0 else count
    amounts = scaled(need.per_pod, real)
    if queue.covers_pods:
        amounts["pods"] = real
    return PodSetChoice(need, real, amounts)


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


def _take(result: Assignment, pod_set: PodSetChoice) -> None:
    result.pod_sets.append(pod_set)
    for resource, choice in pod_set.choices.items():
        result.level = max(result.level, choice.level)
        result.charges[choice.cell] = add(result.charges.get(choice.cell, 0), pod_set.amounts.get(resource, 0))


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


def charges_of(assignment: Assignment) -> list[Charge]:
    return list(assignment.charges.items())


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
