"""What does not depend on quota when a workload of some shape looks for flavors in some ClusterQueue, worked out once.

Taints, node labels and allowed flavors decide which options there are. `FirstChoice` is the whole answer for the case that
is the most common by far: the first flavors that the pods may use have room.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hub.kueue.admission.assignment import Assignment, Choice, Mode, Ready, admission_of, pod_set_choice, take
from hub.kueue.admission.config import Flavor, Group, Queue
from hub.kueue.admission.quota import Cell
from hub.kueue.admission.records import Tried, Work
from hub.kueue.admission.requests import PodSetNeed, search_rank
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
    #: The answer when the first flavor that pods may use has room; None: it has to be searched for.
    first: "FirstChoice | None"


class FirstChoice:
    """The assignment to the first flavors that pods of a shape may use, by borrow level."""

    __slots__ = ("_by_level", "_model", "charges")

    def __init__(self, model: Assignment) -> None:
        self._model = model
        self.charges = list(model.charges.items())
        self._by_level: dict[int, Assignment] = {0: model}

    def at_level(self, level: int) -> Assignment:
        found = self._by_level.get(level)
        if found is None:
            found = self._by_level[level] = Assignment()
            found.pod_sets, found.charges, found.ready = self._model.pod_sets, self._model.charges, self._model.ready
            found.tried, found.level = self._model.tried, level
        return found


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
    groups = tuple(_plan_group(scene, work, queue, name, tuple(ids)) for name, ids in members.items())
    return Plan(groups, first_choice(scene, work, queue, groups))


def first_choice(scene: Scene, work: Work, queue: Queue, groups: Sequence[PlanGroup]) -> FirstChoice | None:
    """None where a search is needed in any case: no flavor will do, or a place has to be found as well."""
    if scene.places.matter(queue, work.shape):
        return None
    result = Assignment()
    indexes: list[dict[str, int]] = []
    for group in groups:
        firsts = _first_options(group)
        if firsts is None:
            return None
        for i in group.members:
            pod_set = pod_set_choice(work.shape.pod_sets[i], None, queue)
            for resource in pod_set.amounts:
                option, tried = firsts[resource]
                choice = pod_set.choices[resource] = Choice(option.flavor, option.cells[resource], Mode.FIT, 0)
                choice.tried = tried
            take(result, pod_set)
            indexes.append({r: c.tried if scene.policy.flavor_fungibility else 0 for r, c in pod_set.choices.items()})
    result.tried = Tried(indexes, 0, 0, (0, 0))
    admission = admission_of(queue, result)
    pairs = frozenset(cell.key for cell in result.charges)
    checks = queue.checks_for({flavor for flavor, _ in pairs})
    result.ready = Ready(admission, list(result.charges.items()), pairs, checks)
    return FirstChoice(result)


def _first_options(group: PlanGroup) -> dict[str, tuple[Option, int]] | None:
    """Resource -> the first option that is not refused, and the index to go on from. None: some resource has none."""
    found: dict[str, tuple[Option, int]] = {}
    for resource, search in group.searches:
        options = search.options if search is not None else ()
        at = next((i for i, option in enumerate(options) if not option.refusal and resource in option.cells), None)
        if at is None:
            return None
        found[resource] = (options[at], -1 if at == len(options) - 1 else at)
    return found


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
