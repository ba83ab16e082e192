"""Rules that API servers enforce by themselves, in the Common Expression Language.

These are the rules of `validation` that CEL states well and cheaply; the others need the webhook. An API server bounds
what an expression may cost at worst, so rules here never compare each with each in lists without a short limit.
"""

from msgspec import Struct

from hub.kueue.api.core import Toleration
from hub.kueue.api.v1beta2.checks import AdmissionCheckSpec, ClusterSource, MultiKueueConfigSpec
from hub.kueue.api.v1beta2.names import HOSTNAME_LABEL
from hub.kueue.api.v1beta2.queues import (
    ClusterQueuePreemption,
    ClusterQueueSpec,
    CohortSpec,
    ConcurrentAdmissionMigration,
    FlavorFungibility,
    LocalQueueSpec,
    ResourceFlavorSpec,
    ResourceGroup,
    TopologySpec,
)
from hub.kueue.api.v1beta2.workload import (
    Admission,
    PodSet,
    PodSetTopologyRequest,
    PriorityClassRef,
    TopologyAssignment,
    TopologyAssignmentSlice,
    TopologySliceLevelValues,
    TopologySlicePodCounts,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
)


class Rule(Struct, frozen=True):
    rule: str
    message: str


def _holds(of: str, condition: str) -> str:
    conditions = f"{of}.status.conditions"
    return (
        f"(has({of}.status) && has({conditions}) && "
        f"{conditions}.exists(c, c.type == '{condition}' && c.status == 'True'))"
    )


def _unless(condition: str, then: str) -> str:
    return f"!({condition}) || ({then})"


def _limits_need(parent: str) -> tuple[Rule, ...]:
    """Nothing can be borrowed or lent outside a cohort."""
    has_parent = f"(has(self.{parent}) && size(self.{parent}) > 0)"
    return tuple(
        Rule(
            f"{has_parent} || !has(self.resourceGroups) || "
            f"self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(r, !has(r.{limit}))))",
            f"{limit} must not be set without {parent}",
        )
        for limit in ("borrowingLimit", "lendingLimit")
    )


def _same(field: str) -> str:
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


_RESERVED, _WAS_RESERVED = _holds("self", "QuotaReserved"), _holds("oldSelf", "QuotaReserved")
_STAYS_RESERVED = f"{_RESERVED} && {_WAS_RESERVED}"
_STAYS_ADMITTED = f"{_holds('self', 'Admitted')} && {_holds('oldSelf', 'Admitted')}"
_REF = "spec.priorityClassRef"
_ONE_OF_TWO = Rule("has(self.universal) != has(self.individual)", "exactly one of universal and individual must be set")
_TOTALS_MAX, _PAIRS_MAX, _VARIANTS_MAX = 256, 512, 16
_LAST_FLAVOR = "self.concurrentAdmissionPolicy.migration.constraints.lastAcceptableFlavorName"

#: Rules of a type, wherever it stands.
TYPE_RULES: dict[type[Struct], tuple[Rule, ...]] = {
    Toleration: (
        Rule(
            "(has(self.key) && size(self.key) > 0) || (has(self.operator) && self.operator == 'Exists')",
            "operator must be Exists when key is empty",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "effect must be NoExecute when tolerationSeconds is set",
        ),
        Rule(
            "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || size(self.value) == 0",
            "value must be empty when operator is Exists",
        ),
    ),
    ResourceFlavorSpec: (
        Rule(
            "!has(self.topologyName) || (has(self.nodeLabels) && size(self.nodeLabels) > 0)",
            "at least one nodeLabel is required when topologyName is set",
        ),
        Rule(
            "!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)",
            "topologyName cannot be changed or removed once it is set",
        ),
    ),
    ResourceGroup: (
        Rule(
            "self.flavors.all(f, size(f.resources) == size(self.coveredResources))",
            "every flavor must have the same number of resources as coveredResources",
        ),
        Rule(
            "self.flavors.all(f, f.resources.map(r, r.name) == self.coveredResources)",
            "the resources of every flavor must stand in the order of coveredResources",
        ),
        Rule(
            f"size(self.flavors) * size(self.coveredResources) <= {_PAIRS_MAX}",
            f"must have at most {_PAIRS_MAX} pairs of flavor and resource",
        ),
    ),
    FlavorFungibility: (
        Rule(
            "!has(self.preference) || "
            "(self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')",
            "preference may only be set when whenCanBorrow and whenCanPreempt are TryNextFlavor",
        ),
    ),
    ClusterQueuePreemption: (
        Rule(
            "self.reclaimWithinCohort != 'Never' || !has(self.borrowWithinCohort) || "
            "self.borrowWithinCohort.policy == 'Never'",
            "borrowWithinCohort.policy must be Never when reclaimWithinCohort is Never",
        ),
    ),
    ConcurrentAdmissionMigration: (
        Rule(
            "!has(self.constraints) || self.mode == 'TryPreferredFlavors'",
            "constraints may only be set when mode is TryPreferredFlavors",
        ),
    ),
    ClusterQueueSpec: (
        *_limits_need("cohortName"),
        Rule(
            "!has(self.concurrentAdmissionPolicy) || (self.queueingStrategy != 'StrictFIFO' && has(self.resourceGroups)"
            f" && size(self.resourceGroups) == 1 && size(self.resourceGroups[0].flavors) <= {_VARIANTS_MAX})",
            f"concurrentAdmissionPolicy needs exactly one resource group with at most {_VARIANTS_MAX} flavors, "
            "and a strategy other than StrictFIFO",
        ),
        Rule(
            f"!has(self.concurrentAdmissionPolicy) || !has(self.concurrentAdmissionPolicy.migration.constraints) || !has({_LAST_FLAVOR}) || !has(self.resourceGroups) || "
            f"self.resourceGroups.exists(g, g.flavors.exists(f, f.name == {_LAST_FLAVOR}))",
            "lastAcceptableFlavorName must be a flavor of this ClusterQueue",
        ),
    ),
    CohortSpec: _limits_need("parentName"),
    ClusterSource: (
        Rule(
            "has(self.kubeConfig) != has(self.clusterProfileRef)",
            "exactly one of kubeConfig and clusterProfileRef must be set",
        ),
    ),
    PodSet: (Rule("!has(self.minCount) || self.minCount <= self.count", "minCount must not exceed count"),),
    PodSetTopologyRequest: (
        Rule(
            "(has(self.required) ? 1 : 0) + (has(self.preferred) ? 1 : 0) + "
            "(has(self.unconstrained) && self.unconstrained ? 1 : 0) <= 1",
            "at most one of required, preferred and unconstrained may be set",
        ),
        Rule(
            "has(self.podSetSliceRequiredTopology) == has(self.podSetSliceSize)",
            "podSetSliceRequiredTopology and podSetSliceSize must be set together",
        ),
        Rule(
            "!has(self.podSetSliceSize) || !has(self.podsetSliceRequiredTopologyConstraints) || "
            "size(self.podsetSliceRequiredTopologyConstraints) == 0",
            "podsetSliceRequiredTopologyConstraints must not be set beside podSetSliceSize",
        ),
    ),
    PriorityClassRef: (
        Rule(
            "(self.group == 'scheduling.k8s.io') == (self.kind == 'PriorityClass')",
            "kind must be PriorityClass in group scheduling.k8s.io and WorkloadPriorityClass in group kueue.x-k8s.io",
        ),
    ),
    WorkloadSpec: (
        Rule("!has(self.priorityClassRef) || has(self.priority)", "priority is required when priorityClassRef is set"),
    ),
    TopologyAssignment: (
        Rule(
            "self.slices.all(s, size(s.valuesPerLevel) == size(self.levels))",
            "valuesPerLevel must have one entry for each of levels",
        ),
    ),
    TopologyAssignmentSlice: (
        Rule(
            "!has(self.podCounts.individual) || size(self.podCounts.individual) == self.domainCount",
            "podCounts.individual must have domainCount entries",
        ),
        Rule(
            "self.valuesPerLevel.all(v, !has(v.individual) || size(v.individual.roots) == self.domainCount)",
            "individual.roots must have domainCount entries",
        ),
    ),
    TopologySliceLevelValues: (_ONE_OF_TWO,),
    TopologySlicePodCounts: (_ONE_OF_TWO,),
    WorkloadStatus: (
        Rule(
            "!has(oldSelf.clusterName) || !has(self.clusterName) || self.clusterName == oldSelf.clusterName",
            "clusterName cannot be changed once it is set",
        ),
        Rule(
            "!has(self.clusterName) || !has(self.nominatedClusterNames) || size(self.nominatedClusterNames) == 0",
            "clusterName and nominatedClusterNames must not be set together",
        ),
    ),
    Workload: (
        Rule(
            _unless(
                f"{_RESERVED} && has(self.status.admission)",
                "size(self.spec.podSets) == size(self.status.admission.podSetAssignments)",
            ),
            "podSetAssignments must have one entry for each of the podSets",
        ),
        Rule(_unless(_STAYS_RESERVED, _same("spec.queueName")), "queueName cannot be changed while quota is reserved"),
        Rule(
            _unless(_WAS_RESERVED, f"has(self.{_REF}) == has(oldSelf.{_REF})"),
            "priorityClassRef cannot be set or removed while quota is reserved",
        ),
        Rule(
            _unless(
                f"{_WAS_RESERVED} && has(self.{_REF}) && has(oldSelf.{_REF})",
                f"self.{_REF}.group == oldSelf.{_REF}.group && self.{_REF}.kind == oldSelf.{_REF}.kind",
            ),
            "group and kind of priorityClassRef cannot be changed while quota is reserved",
        ),
        Rule(
            _unless(
                f"{_WAS_RESERVED} && has(self.{_REF}) && has(oldSelf.{_REF}) && self.{_REF}.kind == 'PriorityClass'",
                f"self.{_REF}.name == oldSelf.{_REF}.name",
            ),
            "name of a PriorityClass in priorityClassRef cannot be changed while quota is reserved",
        ),
        Rule(
            _unless(_STAYS_ADMITTED, _same("spec.maximumExecutionTimeSeconds")),
            "maximumExecutionTimeSeconds cannot be changed while the workload is admitted",
        ),
    ),
}

_IMMUTABLE = Rule("self == oldSelf", "cannot be changed")


def _ends_with_host(levels: str) -> str:
    return f"{levels}[size({levels}) - 1].nodeLabel == '{HOSTNAME_LABEL}'"


#: Rules of one field.
FIELD_RULES: dict[tuple[type[Struct], str], tuple[Rule, ...]] = {
    (LocalQueueSpec, "cluster_queue"): (_IMMUTABLE,),
    (AdmissionCheckSpec, "controller_name"): (_IMMUTABLE,),
    (MultiKueueConfigSpec, "clusters"): (Rule("self.all(x, self.exists_one(y, x == y))", "must be unique"),),
    (TopologySpec, "levels"): (
        Rule("self.all(x, self.exists_one(y, x.nodeLabel == y.nodeLabel))", "must be unique"),
        Rule(
            f"!self.exists(l, l.nodeLabel == '{HOSTNAME_LABEL}') || {_ends_with_host('self')}",
            f"{HOSTNAME_LABEL} may only be the last level",
        ),
        Rule(
            f"self == oldSelf || ({_ends_with_host('self')} && {_ends_with_host('oldSelf')})",
            f"levels may only change when {HOSTNAME_LABEL} is the last one before and after",
        ),
    ),
    (ClusterQueueSpec, "resource_groups"): (
        Rule(
            f"self.map(g, size(g.flavors)).sum() <= {_TOTALS_MAX}",
            f"all groups together must have at most {_TOTALS_MAX} flavors",
        ),
        Rule(
            f"self.map(g, size(g.coveredResources)).sum() <= {_TOTALS_MAX}",
            f"all groups together must have at most {_TOTALS_MAX} resources",
        ),
    ),
    (ClusterQueueSpec, "concurrent_admission_policy"): (_IMMUTABLE,),
    (ResourceFlavorSpec, "node_taints"): (
        Rule(
            "self.all(x, self.exists_one(y, x.key == y.key && x.effect == y.effect))",
            "key and effect together must be unique",
        ),
    ),
    (Admission, "cluster_queue"): (_IMMUTABLE,),
    (WorkloadSpec, "pod_sets"): (
        Rule("self.filter(p, has(p.minCount)).size() <= 1", "at most one pod set may have minCount"),
    ),
}
FIELD_RULES[CohortSpec, "resource_groups"] = FIELD_RULES[ClusterQueueSpec, "resource_groups"]
