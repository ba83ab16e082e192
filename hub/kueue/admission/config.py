"""Queues, cohorts and flavors as decisions read them: compiled once from the objects, when they change."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hub.kueue.admission.queues import PendingQueue
from hub.kueue.admission.quota import Node, cell_of
from hub.kueue.admission.running import Running
from hub.kueue.api.core import LabelSelector, Taint, Toleration
from hub.kueue.api.errors import ApiError
from hub.kueue.api.meta import ObjectKey, parse_time
from hub.kueue.api.quantity import amount, nanos
from hub.kueue.api.v1beta2 import ClusterQueue, Cohort, LocalQueue, ResourceFlavor, ResourceGroup

if TYPE_CHECKING:
    from hub.kueue.admission.plans import Plan
    from hub.kueue.admission.records import Work

USAGE_BASED = "UsageBasedAdmissionFairSharing"


class Flavor:
    """A ResourceFlavor."""

    __slots__ = ("labels", "name", "taints", "tolerations", "topology")

    def __init__(self, flavor: ResourceFlavor) -> None:
        self.name = flavor.metadata.name
        self.labels: Mapping[str, str] = flavor.spec.node_labels
        self.taints: Sequence[Taint] = flavor.spec.node_taints
        self.tolerations: Sequence[Toleration] = flavor.spec.tolerations
        self.topology = flavor.spec.topology_name

    def differs(self, other: "Flavor") -> bool:
        return (self.labels, self.taints, self.tolerations) != (other.labels, other.taints, other.tolerations)


class Group:
    """Resources of a ClusterQueue that come from one and the same flavor."""

    __slots__ = ("flavors", "index", "resources")

    def __init__(self, index: int, group: ResourceGroup) -> None:
        self.index = index
        self.resources = frozenset(group.covered_resources)
        self.flavors = tuple(f.name for f in group.flavors)


class CheckRule:
    """An admission check and the flavors that call for it; empty: all of them."""

    __slots__ = ("flavors", "name")

    def __init__(self, name: str, flavors: Iterable[str]) -> None:
        self.name = name
        self.flavors = frozenset(flavors)


class Preemption:
    """Whom the workloads of a ClusterQueue may push out."""

    __slots__ = ("borrow_threshold", "may_borrow", "reclaim", "within")

    def __init__(self, within: str, reclaim: str, *, may_borrow: bool, borrow_threshold: int | None) -> None:
        #: Never, LowerPriority or LowerOrNewerEqualPriority.
        self.within = within
        #: Never, LowerPriority or Any.
        self.reclaim = reclaim
        #: May it preempt in other queues and still borrow afterwards? Then only up to this priority.
        self.may_borrow = may_borrow
        self.borrow_threshold = borrow_threshold


class LocalQ:
    """A LocalQueue: a namespace's door to a ClusterQueue. Kept for workloads that name one which does not exist, too."""

    __slots__ = ("cluster_queue", "exists", "key", "members", "penalties", "settled_at", "stop", "used", "weight")

    def __init__(self, key: ObjectKey) -> None:
        self.key = key
        self.exists = False
        self.cluster_queue = ""
        self.stop = "None"
        self.weight = 1.0
        self.members: dict[ObjectKey, Work] = {}
        #: Admission fair sharing: what it used, decayed, at this time; resource -> amount in base units.
        self.used: dict[str, float] = {}
        self.settled_at = 0.0
        #: Workloads with quota reserved and not admitted yet -> what they are charged meanwhile.
        self.penalties: dict[ObjectKey, dict[str, float]] = {}

    def set(self, queue: LocalQueue) -> None:
        self.exists = True
        self.cluster_queue = queue.spec.cluster_queue
        self.stop = queue.spec.stop_policy
        self.weight = weight_of(queue.spec.fair_sharing)
        if not self.settled_at:
            self._remember(queue)

    def _remember(self, queue: LocalQueue) -> None:
        """After a restart: what it had consumed, as its status says."""
        sharing = queue.status.fair_sharing
        history = sharing.admission_fair_sharing_status if sharing else None
        if history is None or not history.last_update:
            return
        try:
            self.used = {r: nanos(q) / 1e9 for r, q in history.consumed_resources.items()}
            self.settled_at = parse_time(history.last_update)
        except ValueError:
            self.used = {}


class Queue(Node):
    """A ClusterQueue."""

    __slots__ = (
        "checks", "covers_pods", "exists", "generation", "groups", "inactive_message", "inactive_reason", "pending", "places_elsewhere", "plans",
        "preemption", "prefers_no_borrowing", "problem", "running", "selector", "stop", "stops_at_borrowing",
        "stops_at_preemption", "takes", "terminating", "usage_based",
    )  # fmt: skip

    def __init__(self, name: str, *, hashing: bool) -> None:
        super().__init__(name, is_cohort=False)
        self.groups: tuple[Group, ...] = ()
        self.covers_pods = False
        self.selector: LabelSelector | None = None
        self.preemption = Preemption("Never", "Never", may_borrow=False, borrow_threshold=None)
        self.stops_at_borrowing = True
        self.stops_at_preemption = False
        self.prefers_no_borrowing = False
        self.checks: tuple[CheckRule, ...] = ()
        self.exists = True
        self.stop = "None"
        self.terminating = False
        self.usage_based = False
        #: Another cluster runs its workloads and finds their places.
        self.places_elsewhere = False
        #: What is wrong with the object itself; empty: nothing.
        self.problem = ""
        #: Why it admits nobody now, in Kueue's words; empty: it is active.
        self.inactive_reason = ""
        self.inactive_message = ""
        self.pending = PendingQueue(hashing=hashing)
        self.running = Running()
        #: Rises when quotas of the tree change and when a workload leaves.
        self.generation = 0
        #: Shape id -> what to look at when a workload of that shape is nominated.
        self.plans: dict[int, Plan] = {}
        #: Namespace -> does the selector take it? Worked out when asked.
        self.takes: dict[str, bool] = {}

    @property
    def active(self) -> bool:
        return not self.inactive_reason

    def group_of(self, resource: str) -> Group | None:
        return next((g for g in self.groups if resource in g.resources), None)

    def set(self, queue: ClusterQueue) -> None:
        """Take over the object's spec; membership in the tree is the caller's business."""
        spec = queue.spec
        self.groups = tuple(Group(i, g) for i, g in enumerate(spec.resource_groups))
        self.covers_pods = self.group_of("pods") is not None
        self.selector = spec.namespace_selector
        borrow = spec.preemption.borrow_within_cohort
        self.preemption = Preemption(
            spec.preemption.within_cluster_queue,
            spec.preemption.reclaim_within_cohort,
            may_borrow=borrow.policy != "Never",
            borrow_threshold=borrow.max_priority_threshold,
        )
        fungibility = spec.flavor_fungibility
        self.stops_at_borrowing = fungibility.when_can_borrow == "MayStopSearch"
        self.stops_at_preemption = fungibility.when_can_preempt == "MayStopSearch"
        self.prefers_no_borrowing = fungibility.preference == "PreemptionOverBorrowing"
        strategy = spec.admission_checks_strategy
        self.checks = tuple(CheckRule(r.name, r.on_flavors) for r in strategy.admission_checks) if strategy else ()
        self.stop = spec.stop_policy
        self.terminating = queue.metadata.deletion_timestamp is not None
        self.usage_based = spec.admission_scope is not None and spec.admission_scope.admission_mode == USAGE_BASED
        self.weight = weight_of(spec.fair_sharing)
        self.pending.strict = spec.queueing_strategy == "StrictFIFO"
        self.problem = set_quotas(self, spec.resource_groups)
        self.plans.clear()
        self.takes.clear()

    def checks_for(self, flavors: Iterable[str]) -> tuple[str, ...]:
        """Names of the checks that a workload with these flavors has to pass, sorted."""
        chosen = set(flavors)
        return tuple(sorted(rule.name for rule in self.checks if not rule.flavors or rule.flavors & chosen))


def set_quotas(node: Node, groups: Sequence[ResourceGroup]) -> str:
    """Put the quotas of a ClusterQueue or Cohort into its cells; what they no longer name is reset. Returns a problem."""
    for cell in node.cells.values():
        cell.named = False
        cell.nominal, cell.borrowing_limit, cell.lending_limit = 0, None, None
    problem = ""
    for group in groups:
        for flavor in group.flavors:
            for quota in flavor.resources:
                cell = cell_of(node, (flavor.name, quota.name))
                try:
                    cell.nominal = amount(quota.name, quota.nominal_quota)
                    cell.borrowing_limit = _limit(quota.name, quota.borrowing_limit)
                    cell.lending_limit = _limit(quota.name, quota.lending_limit)
                except ApiError as error:
                    problem = problem or f"flavor {flavor.name}, resource {quota.name}: {error}"
                cell.named = True
    return problem


def _limit(resource: str, quantity: str | int | None) -> int | None:
    return None if quantity is None else amount(resource, quantity)


def set_cohort(node: Node, cohort: Cohort | None) -> str:
    """Take over a Cohort object, or with None what an implicit cohort has: nothing of its own. Returns a problem."""
    node.weight = weight_of(cohort.spec.fair_sharing) if cohort else 1.0
    return set_quotas(node, cohort.spec.resource_groups if cohort else ())


def weight_of(fair_sharing: object) -> float:
    """The weight of a fairSharing section, 1 when there is none or it cannot be read."""
    weight = getattr(fair_sharing, "weight", "1")
    try:
        return nanos(weight) / 1e9
    except ApiError:
        return 1.0
