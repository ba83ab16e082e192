"""Which flavors a workload would get: what a search for flavors finds, and how well it fits."""

from enum import IntEnum
from typing import Literal, NamedTuple

from hub.kueue.admission.config import Queue
from hub.kueue.admission.quota import Cell, FlavorResource
from hub.kueue.admission.records import Charge, Tried, Work
from hub.kueue.admission.requests import PodSetNeed, scaled
from hub.kueue.admission.topology_usage import Placement
from hub.kueue.api.quantity import add, text
from hub.kueue.api.v1beta2 import Admission, PodSetAssignment

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


class Ready(NamedTuple):
    """What admitting takes, the same for every workload of one shape that gets the same flavors."""

    admission: Admission
    charges: list[Charge]
    pairs: frozenset[FlavorResource]
    checks: tuple[str, ...]


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
        self.placement: Placement | None = None
        #: Placement waits for an admission check.
        self.delayed: Literal["Pending", "Ready"] | None = None

    def demote(self, mode: Mode, why: str) -> None:
        """There is no place for it in the topology of its flavor, or only once others are gone."""
        for choice in self.choices.values():
            choice.mode = mode
            if why and choice.flavor in self.attempts:
                self.attempts[choice.flavor] = (self.attempts[choice.flavor][0], TOPOLOGY_PLACEMENT_FAILED)
        if why:
            self.reasons.append(why)

    @property
    def mode(self) -> Mode:
        if not self.reasons and not self.error:
            return Mode.FIT
        if self.error or not self.choices:
            return Mode.NOFIT
        return min(choice.mode for choice in self.choices.values())


class Assignment:
    """Flavors for a whole workload. Pod sets after the first that cannot be served are missing."""

    __slots__ = ("charges", "forced", "level", "no_fit_reason", "pod_sets", "ready", "replaces", "tried")

    def __init__(self) -> None:
        self.pod_sets: list[PodSetChoice] = []
        #: cell -> amount, of all pod sets together.
        self.charges: dict[Cell, int] = {}
        #: How far up quota is borrowed from; 0: not at all.
        self.level = 0
        self.tried: Tried | None = None
        self.no_fit_reason = ""
        self.forced: Mode | None = None
        #: What admitting it takes, worked out before; None: work it out.
        self.ready: Ready | None = None
        #: The slice whose quota it takes over.
        self.replaces: Work | None = None

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


def pod_set_choice(need: PodSetNeed, count: int | None, queue: Queue) -> PodSetChoice:
    # A pod set whose pods were all given back stays empty, whatever smaller size is tried.
    real = need.count if count is None or need.count == 0 else count
    amounts = scaled(need.per_pod, real)
    if queue.covers_pods:
        amounts["pods"] = real
    return PodSetChoice(need, real, amounts)


def take(result: Assignment, pod_set: PodSetChoice) -> None:
    result.pod_sets.append(pod_set)
    for resource, choice in pod_set.choices.items():
        result.level = max(result.level, choice.level)
        result.charges[choice.cell] = add(result.charges.get(choice.cell, 0), pod_set.amounts.get(resource, 0))


def admission_of(queue: Queue, assignment: Assignment) -> Admission:
    """What is written to `status.admission`."""
    return Admission(cluster_queue=queue.name, pod_set_assignments=[_assigned(p) for p in assignment.pod_sets])


def _assigned(pod_set: PodSetChoice) -> PodSetAssignment:
    choices = pod_set.choices
    return PodSetAssignment(
        name=pod_set.need.name,
        flavors={resource: choice.flavor for resource, choice in choices.items()},
        resource_usage={resource: text(resource, pod_set.amounts.get(resource, 0)) for resource in choices},
        count=pod_set.count,
        topology_assignment=None if pod_set.placement is None else pod_set.placement.assignment(),
        delayed_topology_request=pod_set.delayed,
    )
