"""Rules for ResourceFlavor, Topology, ClusterQueue, LocalQueue and Cohort that their schemas do not state."""

from collections.abc import Sequence

from hub.kueue.api.errors import QuantityError
from hub.kueue.api.quantity import nanos
from hub.kueue.api.rules import pods
from hub.kueue.api.rules.field_errors import (
    FieldErrors,
    duplicate,
    duplicates,
    forbidden,
    immutable,
    invalid,
    not_found,
    required,
    too_many,
)
from hub.kueue.api.v1beta2.names import HOSTNAME_LABEL
from hub.kueue.api.v1beta2.queues import (
    ClusterQueue,
    ClusterQueueSpec,
    Cohort,
    ConcurrentAdmissionPolicy,
    FairSharing,
    LocalQueue,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
    Topology,
)

TOTALS_MAX, PAIRS_MAX, VARIANTS_MAX = 256, 512, 16
_SPEC, _GROUPS = "spec", "spec.resourceGroups"

# --- ResourceFlavor, Topology ------------------------------------------------------------------------------------------


def resource_flavor(new: ResourceFlavor, old: ResourceFlavor | None) -> FieldErrors:
    spec = new.spec
    yield from pods.labels(f"{_SPEC}.nodeLabels", spec.node_labels)
    yield from pods.taints(f"{_SPEC}.nodeTaints", spec.node_taints)
    yield from pods.tolerations(f"{_SPEC}.tolerations", spec.tolerations)
    if spec.topology_name and not spec.node_labels:
        yield required(f"{_SPEC}.nodeLabels", "at least one is needed when topologyName is set")
    if old and old.spec.topology_name and spec.topology_name != old.spec.topology_name:
        yield immutable(f"{_SPEC}.topologyName", spec.topology_name, "once it is set")


def topology(new: Topology, old: Topology | None) -> FieldErrors:
    levels, path = [level.node_label for level in new.spec.levels], f"{_SPEC}.levels"
    yield from duplicates(path, levels)
    for index, label in enumerate(levels[:-1]):
        if label == HOSTNAME_LABEL:
            yield invalid(f"{path}[{index}].nodeLabel", label, "may only be the last level")
    if old is None or old.spec.levels == new.spec.levels:
        return
    if not all(one.spec.levels[-1:] and one.spec.levels[-1].node_label == HOSTNAME_LABEL for one in (new, old)):
        yield invalid(path, levels, f"may only change when {HOSTNAME_LABEL} is the last level before and after")


# --- quotas ------------------------------------------------------------------------------------------------------------


def resource_groups(groups: Sequence[ResourceGroup], parent: str, parent_field: str) -> FieldErrors:
    """Of a ClusterQueue or Cohort; `parent` is what it may borrow from and lend to, "" for nothing."""
    yield from _totals(groups)
    for index, group in enumerate(groups):
        path = f"{_GROUPS}[{index}]"
        yield from _covered(path, group)
        for at, quota in _quotas(path, group):
            if not parent:
                yield from _limits_without_parent(at, quota, parent_field)


def _totals(groups: Sequence[ResourceGroup]) -> FieldErrors:
    """A resource, and a flavor, stands in one group only, and there are not too many of them."""
    resources: set[str] = set()
    flavors: set[str] = set()
    for index, group in enumerate(groups):
        for place, name in enumerate(group.covered_resources):
            if name in resources:
                yield duplicate(f"{_GROUPS}[{index}].coveredResources[{place}]", name)
            resources.add(name)
        for place, flavor in enumerate(group.flavors):
            if flavor.name in flavors:
                yield duplicate(f"{_GROUPS}[{index}].flavors[{place}].name", flavor.name)
            flavors.add(flavor.name)
    for what, names in (("flavors", flavors), ("resources", resources)):
        if len(names) > TOTALS_MAX:
            yield too_many(f"{_GROUPS}, {what} of all groups", len(names), TOTALS_MAX)


def _covered(path: str, group: ResourceGroup) -> FieldErrors:
    """Every flavor has a quota for each covered resource, in the same order."""
    covered = group.covered_resources
    for index, name in enumerate(covered):
        if not pods.is_qualified_name(name):
            yield invalid(f"{path}.coveredResources[{index}]", name, "must be a resource name such as nvidia.com/gpu")
    if len(covered) * len(group.flavors) > PAIRS_MAX:
        yield too_many(f"{path}, pairs of flavor and resource", len(covered) * len(group.flavors), PAIRS_MAX)
    for index, flavor in enumerate(group.flavors):
        names = [quota.name for quota in flavor.resources]
        if names != covered:
            detail = f"must be the coveredResources in the same order: {', '.join(covered)}"
            yield invalid(f"{path}.flavors[{index}].resources", names, detail)


def _quotas(path: str, group: ResourceGroup) -> list[tuple[str, ResourceQuota]]:
    return [
        (f"{path}.flavors[{f}].resources[{r}]", quota)
        for f, flavor in enumerate(group.flavors)
        for r, quota in enumerate(flavor.resources)
    ]


def _limits_without_parent(path: str, quota: ResourceQuota, parent_field: str) -> FieldErrors:
    for field, limit in (("borrowingLimit", quota.borrowing_limit), ("lendingLimit", quota.lending_limit)):
        if limit is not None:
            yield invalid(f"{path}.{field}", limit, f"must not be set when {parent_field} is empty")


def _lending_within_nominal(groups: Sequence[ResourceGroup]) -> FieldErrors:
    """A ClusterQueue lends no more than it has; a cohort may, since its children's quota is its own too."""
    for index, group in enumerate(groups):
        for path, quota in _quotas(f"{_GROUPS}[{index}]", group):
            if quota.lending_limit is not None and _exceeds(quota.lending_limit, quota.nominal_quota):
                detail = f"must be less than or equal to the nominalQuota, {quota.nominal_quota}"
                yield invalid(f"{path}.lendingLimit", quota.lending_limit, detail)


def _exceeds(limit: str | int, nominal: str | int) -> bool:
    try:
        return nanos(limit) > nanos(nominal)
    except QuantityError:
        return False  # the limits of the schema speak of it


def _fair_sharing(sharing: FairSharing | None) -> FieldErrors:
    """A weight is zero or at least measurable."""
    if sharing is None:
        return
    try:
        weight = nanos(sharing.weight)
    except QuantityError:
        return
    if weight == 1:
        yield invalid(f"{_SPEC}.fairSharing.weight", sharing.weight, "must be 0 or greater than 1n")


# --- ClusterQueue, LocalQueue, Cohort ----------------------------------------------------------------------------------


def cluster_queue(new: ClusterQueue, old: ClusterQueue | None) -> FieldErrors:
    spec = new.spec
    yield from resource_groups(spec.resource_groups, spec.cohort_name, "cohortName")
    yield from _lending_within_nominal(spec.resource_groups)
    yield from pods.label_selector(f"{_SPEC}.namespaceSelector", spec.namespace_selector)
    yield from _preemption(spec)
    yield from _fungibility(spec)
    yield from _fair_sharing(spec.fair_sharing)
    yield from _concurrent_admission(spec, old.spec.concurrent_admission_policy if old else None)
    # An update may remove a flavor that a check still names: the rule then waits for its return.
    if old is None:
        yield from _flavors_of_checks(spec)


def _preemption(spec: ClusterQueueSpec) -> FieldErrors:
    preemption = spec.preemption
    borrowing = preemption.borrow_within_cohort.policy
    if preemption.reclaim_within_cohort == "Never" and borrowing != "Never":
        path = f"{_SPEC}.preemption.borrowWithinCohort.policy"
        yield invalid(path, borrowing, "must be Never when reclaimWithinCohort is Never")


def _fungibility(spec: ClusterQueueSpec) -> FieldErrors:
    policy = spec.flavor_fungibility
    both_try_next = policy.when_can_borrow == policy.when_can_preempt == "TryNextFlavor"
    if policy.preference and not both_try_next:
        path = f"{_SPEC}.flavorFungibility.preference"
        detail = "may only be set when whenCanBorrow and whenCanPreempt are TryNextFlavor"
        yield invalid(path, policy.preference, detail)


def _flavors_of_checks(spec: ClusterQueueSpec) -> FieldErrors:
    known = _flavor_names(spec)
    rules = spec.admission_checks_strategy.admission_checks if spec.admission_checks_strategy else []
    for index, rule in enumerate(rules):
        for place, flavor in enumerate(rule.on_flavors):
            if flavor not in known:
                path = f"{_SPEC}.admissionChecksStrategy.admissionChecks[{index}].onFlavors[{place}]"
                yield not_found(path, flavor)


def _concurrent_admission(spec: ClusterQueueSpec, old: ConcurrentAdmissionPolicy | None) -> FieldErrors:
    policy, path = spec.concurrent_admission_policy, f"{_SPEC}.concurrentAdmissionPolicy"
    if old is not None and policy is not None and policy != old:
        yield immutable(path, policy.migration.mode)
    if policy is None:
        return
    if spec.queueing_strategy == "StrictFIFO":
        yield invalid(f"{_SPEC}.queueingStrategy", spec.queueing_strategy, "does not go with concurrentAdmissionPolicy")
    if len(spec.resource_groups) != 1:
        yield invalid(_GROUPS, len(spec.resource_groups), "concurrentAdmissionPolicy needs exactly one group")
    elif (count := len(spec.resource_groups[0].flavors)) > VARIANTS_MAX:
        yield too_many(f"{_GROUPS}[0].flavors", count, VARIANTS_MAX)
    yield from _last_acceptable(f"{path}.migration.constraints", spec, policy)


def _last_acceptable(path: str, spec: ClusterQueueSpec, policy: ConcurrentAdmissionPolicy) -> FieldErrors:
    constraints = policy.migration.constraints
    if constraints is None:
        return
    if policy.migration.mode != "TryPreferredFlavors":
        yield forbidden(path, "may only be set when mode is TryPreferredFlavors")
    last = constraints.last_acceptable_flavor_name
    if last and last not in _flavor_names(spec):
        yield not_found(f"{path}.lastAcceptableFlavorName", last)


def _flavor_names(spec: ClusterQueueSpec) -> set[str]:
    return {flavor.name for group in spec.resource_groups for flavor in group.flavors}


def local_queue(new: LocalQueue, old: LocalQueue | None) -> FieldErrors:
    yield from _fair_sharing(new.spec.fair_sharing)
    if old and old.spec.cluster_queue != new.spec.cluster_queue:
        yield immutable(f"{_SPEC}.clusterQueue", new.spec.cluster_queue)


def cohort(new: Cohort, old: Cohort | None) -> FieldErrors:
    spec = new.spec
    yield from resource_groups(spec.resource_groups, spec.parent_name, "parentName")
    yield from _fair_sharing(spec.fair_sharing)
    if spec.parent_name and spec.parent_name == new.metadata.name:
        yield invalid(f"{_SPEC}.parentName", spec.parent_name, "a cohort cannot be its own parent")
