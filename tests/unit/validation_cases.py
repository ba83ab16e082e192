"""Manifests that are wrong in one way, and what has to be said about them.

A case takes a manifest of the files beside, changes it, and names the errors. `by_server` says whether an API server
that has our CustomResourceDefinitions refuses it without a webhook's help.
"""

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "manifests"
MANIFESTS = [doc for path in sorted(FOLDER.glob("*.yaml")) for doc in yaml.safe_load_all(path.read_text())]
GONE = object()
#: What a Workload was before anything was decided about it.
BLANK = {"status": GONE}


def manifest(kind: str, name: str) -> dict[str, Any]:
    return next(m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name))


def changed(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with other values at these paths, written like spec.podSets[0].count; GONE removes."""
    result = copy.deepcopy(given)
    for path, value in changes.items():
        *way, last = [
            int(s) if s.isdecimal() else s for s in re.findall(r"\(([^)]*)\)|([^.\[\]()]+)", path) for s in s if s
        ]
        at = result
        for step in way:
            at = at[step] if isinstance(step, int) else at.setdefault(step, {})
        if value is GONE:
            del at[last]
        else:
            at[last] = value
    return result


@dataclass(frozen=True)
class Case:
    id: str
    of: tuple[str, str]
    changes: dict[str, Any]
    want: tuple[str, ...]
    #: For updates: what the object was before. None: it is created.
    was: dict[str, Any] | None = None
    by_server: bool = True

    @property
    def old(self) -> dict[str, Any] | None:
        return None if self.was is None else changed(manifest(*self.of), self.was)

    @property
    def new(self) -> dict[str, Any]:
        base = manifest(*self.of)
        return changed(base if self.was in (None, BLANK) else changed(base, self.was), self.changes)


TEAM, TRIAL, FLAVOR, TOPOLOGY = (
    ("ClusterQueue", "team-a"),
    ("ClusterQueue", "trial"),
    ("ResourceFlavor", "h100"),
    ("Topology", "gpu-racks"),
)
CHILD, LOCAL = ("Cohort", "research"), ("LocalQueue", "training")
CHECK, WORKERS, EAST, SCALE_UP = (
    ("AdmissionCheck", "scale-up"),
    ("MultiKueueConfig", "workers"),
    ("MultiKueueCluster", "east"),
    ("ProvisioningRequestConfig", "scale-up"),
)

_QUOTA = "spec.resourceGroups[0].flavors[0].resources[0]"


def _flavor(name: str, *resources: str) -> dict[str, Any]:
    return {"name": name, "resources": [{"name": r, "nominalQuota": 1} for r in resources]}


QUEUE_CASES = [
    Case(
        "a negative quota",
        TEAM,
        {f"{_QUOTA}.nominalQuota": "-1"},
        ('spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: Invalid value: "-1": must be greater',),
    ),
    Case(
        "a quota that is no quantity",
        TEAM,
        {f"{_QUOTA}.nominalQuota": "1 core"},
        ("spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: Invalid value: \"1 core\": '1 core' is not a",),
    ),
    Case(
        "a borrowing limit outside a cohort",
        TRIAL,
        {f"{_QUOTA}.borrowingLimit": 1},
        ("resources[0].borrowingLimit: Invalid value: 1: must not be set when cohortName is empty",),
    ),
    Case(
        "a lending limit outside a cohort",
        TRIAL,
        {f"{_QUOTA}.lendingLimit": 1},
        ("resources[0].lendingLimit: Invalid value: 1: must not be set when cohortName is empty",),
    ),
    Case(
        "lending more than there is",
        TEAM,
        {f"{_QUOTA}.lendingLimit": "40.5"},
        ('lendingLimit: Invalid value: "40.5": must be less than or equal to the nominalQuota, 40',),
        by_server=False,
    ),
    Case(
        "resources in another order than the group's",
        TEAM,
        {"spec.resourceGroups[0].coveredResources": ["memory", "cpu", "pods"]},
        ("spec.resourceGroups[0].flavors[0].resources: Invalid value:", "in the same order: memory, cpu, pods"),
    ),
    Case(
        "a flavor without one of the resources",
        TEAM,
        {"spec.resourceGroups[1].coveredResources": ["nvidia.com/gpu", "example.com/nic"]},
        ("spec.resourceGroups[1].flavors[0].resources: Invalid value:",),
    ),
    Case(
        "a resource in two groups",
        TEAM,
        {"spec.resourceGroups[1]": {"coveredResources": ["cpu"], "flavors": [_flavor("h100", "cpu")]}},
        ('spec.resourceGroups[1].coveredResources[0]: Duplicate value: "cpu"',),
        by_server=False,
    ),
    Case(
        "a flavor in two groups",
        TEAM,
        {"spec.resourceGroups[1].flavors[0].name": "plain"},
        ('spec.resourceGroups[1].flavors[0].name: Duplicate value: "plain"',),
        by_server=False,
    ),
    Case(
        "a flavor twice in a group",
        TRIAL,
        {"spec.resourceGroups[0].flavors": [_flavor("plain", "cpu"), _flavor("plain", "cpu")]},
        ('spec.resourceGroups[0].flavors[1].name: Duplicate value: "plain"',),
    ),
    Case(
        "too many flavors over all groups",
        TRIAL,
        {
            "spec.concurrentAdmissionPolicy": GONE,
            "spec.resourceGroups": [
                {"coveredResources": [f"r{g}"], "flavors": [_flavor(f"f{g}-{i}", f"r{g}") for i in range(60)]}
                for g in range(5)
            ],
        },
        ("flavors of all groups: Too many: 300: must have at most 256 items",),
    ),
    Case(
        "too many pairs in a group",
        TRIAL,
        {
            "spec.concurrentAdmissionPolicy": GONE,
            "spec.resourceGroups": [
                {
                    "coveredResources": [f"r{r}" for r in range(27)],
                    "flavors": [_flavor(f"f{i}", *(f"r{r}" for r in range(27))) for i in range(19)],
                }
            ],
        },
        ("pairs of flavor and resource: Too many: 513: must have at most 512 items",),
    ),
    Case(
        "too many groups",
        TRIAL,
        {
            "spec.concurrentAdmissionPolicy": GONE,
            "spec.resourceGroups": [
                {"coveredResources": [f"r{g}"], "flavors": [_flavor(f"f{g}", f"r{g}")]} for g in range(17)
            ],
        },
        ("spec.resourceGroups: Too many: 17: must have at most 16 items",),
    ),
    Case(
        "a resource name that is none",
        TRIAL,
        {"spec.resourceGroups[0]": {"coveredResources": ["a b"], "flavors": [_flavor("plain", "a b")]}},
        ("spec.resourceGroups[0].coveredResources[0]: Invalid value:",),
        by_server=False,
    ),
    Case(
        "an unknown strategy",
        TEAM,
        {"spec.queueingStrategy": "LIFO"},
        ("spec.queueingStrategy: Invalid enum value 'LIFO'",),
    ),
    Case(
        "a cohort name that is no DNS name",
        TEAM,
        {"spec.cohortName": "Not_DNS"},
        ('spec.cohortName: Invalid value: "Not_DNS": should match \'^[a-z0-9]',),
    ),
    Case(
        "borrowing with preemption but no reclaim",
        TEAM,
        {"spec.preemption.reclaimWithinCohort": "Never"},
        (
            "spec.preemption.borrowWithinCohort.policy: Invalid value:",
            "must be Never when reclaimWithinCohort is Never",
        ),
    ),
    Case(
        "a preference where the search may stop",
        TEAM,
        {"spec.flavorFungibility.whenCanBorrow": "MayStopSearch"},
        ("spec.flavorFungibility.preference: Invalid value:",),
    ),
    Case(
        "a check on a flavor that is not there",
        TEAM,
        {"spec.admissionChecksStrategy.admissionChecks[1].onFlavors": ["a100"]},
        ('spec.admissionChecksStrategy.admissionChecks[1].onFlavors[0]: Not found: "a100"',),
        by_server=False,
    ),
    Case(
        "a selector that compares with nothing",
        TEAM,
        {"spec.namespaceSelector.matchExpressions": [{"key": "a", "operator": "In"}]},
        ("spec.namespaceSelector.matchExpressions[0].values: Required value",),
        by_server=False,
    ),
    Case(
        "a weight that is negative",
        TEAM,
        {"spec.fairSharing.weight": "-1"},
        ('spec.fairSharing.weight: Invalid value: "-1": must be greater than or equal to 0',),
    ),
    Case(
        "a weight too small to measure",
        TEAM,
        {"spec.fairSharing.weight": "1n"},
        ('spec.fairSharing.weight: Invalid value: "1n": must be 0 or greater than 1n',),
        by_server=False,
    ),
    Case(
        "a weight too small to measure, of a LocalQueue",
        LOCAL,
        {"spec.fairSharing.weight": "1n"},
        ('spec.fairSharing.weight: Invalid value: "1n": must be 0 or greater than 1n',),
        by_server=False,
    ),
    Case(
        "a weight too small to measure, of a Cohort",
        CHILD,
        {"spec.fairSharing.weight": "0.5n"},
        ('spec.fairSharing.weight: Invalid value: "0.5n": must be 0 or greater than 1n',),
        by_server=False,
    ),
    Case(
        "concurrent admission in strict order",
        TRIAL,
        {"spec.queueingStrategy": "StrictFIFO"},
        ("spec.queueingStrategy: Invalid value:",),
    ),
    Case(
        "concurrent admission over too many flavors",
        TRIAL,
        {
            "spec.resourceGroups": [
                {
                    "coveredResources": ["cpu"],
                    "flavors": [_flavor("plain", "cpu")] + [_flavor(f"f{i}", "cpu") for i in range(16)],
                }
            ]
        },
        ("spec.resourceGroups[0].flavors: Too many: 17: must have at most 16 items",),
    ),
    Case(
        "concurrent admission over two groups",
        TRIAL,
        {
            "spec.resourceGroups": [
                {"coveredResources": ["cpu"], "flavors": [_flavor("plain", "cpu")]},
                {"coveredResources": ["memory"], "flavors": [_flavor("other", "memory")]},
            ],
        },
        ("spec.resourceGroups: Invalid value: 2:",),
    ),
    Case(
        "a last acceptable flavor that is not there",
        TRIAL,
        {"spec.concurrentAdmissionPolicy.migration.constraints.lastAcceptableFlavorName": "gold"},
        ('constraints.lastAcceptableFlavorName: Not found: "gold"',),
    ),
    Case(
        "constraints for a policy that has none",
        TRIAL,
        {"spec.concurrentAdmissionPolicy.migration.mode": "RetainFirstAdmission"},
        ("spec.concurrentAdmissionPolicy.migration.constraints: Forbidden:",),
    ),
    Case(
        "concurrent admission that changes",
        TRIAL,
        {
            "spec.concurrentAdmissionPolicy": {"migration": {"mode": "RetainFirstAdmission"}},
        },
        ("spec.concurrentAdmissionPolicy: Invalid value:", "field is immutable"),
        was={},
    ),
    Case(
        "a limit of a root cohort",
        CHILD,
        {"spec.parentName": GONE},
        (
            "borrowingLimit: Invalid value: 16: must not be set when parentName is empty",
            "lendingLimit: Invalid value: ",
        ),
    ),
    Case(
        "a cohort that is its own parent",
        CHILD,
        {"spec.parentName": "research"},
        ("spec.parentName: Invalid value:",),
        by_server=False,
    ),
    Case(
        "another ClusterQueue for a LocalQueue",
        LOCAL,
        {"spec.clusterQueue": "trial"},
        ('spec.clusterQueue: Invalid value: "trial": field is immutable',),
        was={},
    ),
    Case(
        "a topology without node labels",
        FLAVOR,
        {"spec.nodeLabels": GONE},
        ("spec.nodeLabels: Required value: at least one",),
    ),
    Case(
        "a topology that is taken away",
        FLAVOR,
        {"spec.topologyName": GONE},
        ("spec.topologyName: Invalid value: null: field is immutable once it is set",),
        was={},
    ),
    Case(
        "a taint with an unknown effect",
        FLAVOR,
        {"spec.nodeTaints[0].effect": "Never"},
        ('spec.nodeTaints[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule"',),
    ),
    Case(
        "a taint that is there twice",
        FLAVOR,
        {"spec.nodeTaints[1]": {"key": "nvidia.com/gpu", "effect": "NoSchedule"}},
        ('spec.nodeTaints[1]: Duplicate value: "nvidia.com/gpu:NoSchedule"',),
    ),
    Case(
        "too many taints",
        FLAVOR,
        {"spec.nodeTaints": [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(9)]},
        ("spec.nodeTaints: Too many: 9: must have at most 8 items",),
    ),
    Case(
        "a toleration of everything that names a value",
        FLAVOR,
        {"spec.tolerations[0]": {"operator": "Exists", "value": "v"}},
        ("spec.tolerations[0].value: Invalid value:",),
    ),
    Case(
        "a toleration without key or operator",
        FLAVOR,
        {"spec.tolerations[0]": {"value": "v"}},
        ("spec.tolerations[0].operator: Invalid value:", "must be Exists when key is empty"),
    ),
    Case(
        "a time-out for an effect that has none",
        FLAVOR,
        {"spec.tolerations[1].effect": "NoSchedule"},
        ("spec.tolerations[1].effect: Invalid value:", "must be NoExecute when tolerationSeconds is set"),
    ),
    Case(
        "a node label that is none",
        FLAVOR,
        {"spec.nodeLabels": {"a b": "c"}},
        ("spec.nodeLabels: Invalid value:",),
        by_server=False,
    ),
    Case(
        "hosts in the middle of a topology",
        TOPOLOGY,
        {"spec.levels[1].nodeLabel": "kubernetes.io/hostname", "spec.levels[2].nodeLabel": "example.com/rack"},
        ("spec.levels[1].nodeLabel: Invalid value:", "may only be the last level"),
    ),
    Case(
        "a level that is there twice",
        TOPOLOGY,
        {"spec.levels[1].nodeLabel": "example.com/block"},
        ('spec.levels[1]: Duplicate value: "example.com/block"',),
    ),
    Case(
        "levels that change without hosts at the end",
        TOPOLOGY,
        {"spec.levels": [{"nodeLabel": "example.com/block"}]},
        ("spec.levels: Invalid value:", "may only change when kubernetes.io/hostname is the last level"),
        was={},
    ),
    Case(
        "another controller for a check",
        CHECK,
        {"spec.controllerName": "example.com/mine"},
        ("spec.controllerName: Invalid value:", "field is immutable"),
        was={},
    ),
    Case(
        "a worker that is named twice",
        WORKERS,
        {"spec.clusters": ["east", "east"]},
        ('spec.clusters[1]: Duplicate value: "east"',),
    ),
    Case(
        "no workers at all",
        WORKERS,
        {"spec.clusters": []},
        ("spec.clusters: Required value: must have at least 1 item",),
    ),
    Case(
        "two ways to a worker",
        EAST,
        {"spec.clusterSource.clusterProfileRef": {"name": "east"}},
        ("spec.clusterSource: Invalid value:", "exactly one of kubeConfig and clusterProfileRef must be set"),
    ),
    Case(
        "no way to a worker",
        EAST,
        {"spec.clusterSource": {}},
        ("spec.clusterSource: Invalid value: []",),
    ),
    Case(
        "a parameter that is too long",
        SCALE_UP,
        {"spec.parameters": {"a": "x" * 256}},
        ("spec.parameters[a]: Too long: may not be more than 255 characters",),
    ),
    Case(
        "too many node labels",
        FLAVOR,
        {"spec.nodeLabels": {f"k{i}": "v" for i in range(9)}},
        ("spec.nodeLabels: Too many: 9: must have at most 8 items",),
    ),
    Case(
        "a node label with a name and a prefix that are too long",
        FLAVOR,
        {"spec.nodeLabels": {"n" * 64: "v", f"{'p' * 254}/n": "v", "k": "v" * 64}},
        (
            'spec.nodeLabels: Invalid value: "nnn',
            'spec.nodeLabels: Invalid value: "ppp',
            'spec.nodeLabels[k]: Invalid value: "vvv',
        ),
        by_server=False,
    ),
    Case(
        "a node label with a value that is none",
        FLAVOR,
        {"spec.nodeLabels": {"k": "a b"}},
        ('spec.nodeLabels[k]: Invalid value: "a b": a label value has at most 63',),
        by_server=False,
    ),
    Case(
        "a taint with a key and a value that are none",
        FLAVOR,
        {"spec.nodeTaints[0].key": "a b", "spec.nodeTaints[0].value": "c d"},
        ('spec.nodeTaints[0].key: Invalid value: "a b"', 'spec.nodeTaints[0].value: Invalid value: "c d"'),
        by_server=False,
    ),
    Case(
        "tolerations of a key and a value that are none",
        FLAVOR,
        {"spec.tolerations[0].key": "a b", "spec.tolerations[1].value": "c d"},
        ('spec.tolerations[0].key: Invalid value: "a b"', 'spec.tolerations[1].value: Invalid value: "c d"'),
        by_server=False,
    ),
    Case(
        "a check without a controller",
        CHECK,
        {"spec.controllerName": ""},
        ("spec.controllerName: Required value: must not be empty",),
    ),
    Case(
        "a selector with keys that are none",
        TEAM,
        {
            "spec.namespaceSelector.matchLabels": {"a b": "c"},
            "spec.namespaceSelector.matchExpressions[0].key": "d e",
        },
        (
            'spec.namespaceSelector.matchLabels: Invalid value: "a b"',
            'spec.namespaceSelector.matchExpressions[0].key: Invalid value: "d e"',
        ),
        by_server=False,
    ),
    Case(
        "a selector that compares in an unknown way",
        TEAM,
        {"spec.namespaceSelector.matchExpressions[0].operator": "Like"},
        ('matchExpressions[0].operator: Unsupported value: "Like"',),
        by_server=False,
    ),
    Case(
        "a selector that asks for existence and values",
        TEAM,
        {"spec.namespaceSelector.matchExpressions[0].operator": "Exists"},
        ("matchExpressions[0].values: Forbidden:",),
        by_server=False,
    ),
]

#: Manifests that go to the limit and not beyond.
QUEUE_ALLOWED = [
    Case(
        "as many node labels and taints as there may be",
        FLAVOR,
        {
            "spec.nodeLabels": {f"k{i}": "v" * 63 for i in range(8)},
            "spec.nodeTaints": [{"key": f"k{i}", "effect": "NoSchedule"} for i in range(8)],
        },
        (),
    ),
    Case("a label key as long as it may be", FLAVOR, {"spec.nodeLabels": {f"{'a' * 63}.io/{'b' * 63}": ""}}, ()),
    Case(
        "a topology that comes later",
        FLAVOR,
        {"spec.topologyName": "gpu-racks"},
        (),
        was={"spec.topologyName": GONE},
    ),
    Case(
        "levels that change with hosts at the end",
        TOPOLOGY,
        {"spec.levels": [{"nodeLabel": "example.com/zone"}, {"nodeLabel": "kubernetes.io/hostname"}]},
        (),
        was={},
    ),
    Case("lending all there is", TEAM, {f"{_QUOTA}.lendingLimit": "40000m"}, ()),
    Case("a weight of nothing", TEAM, {"spec.fairSharing.weight": 0}, ()),
    Case("a weight that is just measurable", TEAM, {"spec.fairSharing.weight": "2n"}, ()),
    Case("a quota of nothing", TEAM, {f"{_QUOTA}.nominalQuota": "0"}, ()),
    Case("a cohort without a limit", CHILD, {"spec": {"resourceGroups": []}}, ()),
    Case(
        "selectors of every kind",
        TEAM,
        {
            "spec.namespaceSelector.matchExpressions": [
                {"key": "a", "operator": "In", "values": ["b"]},
                {"key": "a", "operator": "Exists"},
                {"key": "c", "operator": "DoesNotExist"},
            ]
        },
        (),
    ),
    Case(
        "as many groups, flavors and resources as there may be",
        TRIAL,
        {
            "spec.concurrentAdmissionPolicy": GONE,
            "spec.resourceGroups": [
                {
                    "coveredResources": [f"r{g}-{r}" for r in range(16)],
                    "flavors": [_flavor(f"f{g}-{i}", *(f"r{g}-{r}" for r in range(16))) for i in range(16)],
                }
                for g in range(16)
            ],
        },
        (),
    ),
    Case(
        "as many pairs in a group as there may be",
        TRIAL,
        {
            "spec.concurrentAdmissionPolicy": GONE,
            "spec.resourceGroups": [
                {
                    "coveredResources": [f"r{r}" for r in range(32)],
                    "flavors": [_flavor(f"f{i}", *(f"r{r}" for r in range(32))) for i in range(16)],
                }
            ],
        },
        (),
    ),
    Case(
        "concurrent admission over as many flavors as there may be",
        TRIAL,
        {
            "spec.resourceGroups": [
                {
                    "coveredResources": ["cpu"],
                    "flavors": [_flavor(name, "cpu") for name in ["plain", *(f"f{i}" for i in range(15))]],
                }
            ]
        },
        (),
    ),
    Case(
        "concurrent admission that begins",
        TRIAL,
        {"spec.concurrentAdmissionPolicy": {"migration": {"mode": "RetainFirstAdmission"}}},
        (),
        was={"spec.concurrentAdmissionPolicy": GONE},
    ),
    Case(
        "a flavor that goes before its check does", TEAM, {"spec.resourceGroups[1].flavors[0].name": "a100"}, (), was={}
    ),
]
