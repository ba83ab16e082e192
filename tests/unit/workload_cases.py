"""Workloads that are wrong in one way; as `validation_cases`."""

from tests.unit.validation_cases import BLANK, GONE, Case

SMALL, FULL, RUNNING = ("Workload", "small"), ("Workload", "everything"), ("Workload", "running")
_REQUESTS = "spec.podSets[0].template.spec.containers[0].resources.requests"
_TOPOLOGY = "spec.podSets[2].topologyRequest"
_ASSIGNMENT = "status.admission.podSetAssignments[0]"
_ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
_POD = {"spec": {"containers": [{"name": "c", "image": "busybox"}]}}
_REF = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"}
_POD_REF = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}


def _group(**requests):
    return [{"name": n, "template": _POD, "count": 1, "topologyRequest": r} for n, r in requests.items()]


_RING = {"podSetGroupName": "ring", "required": "example.com/rack"}

SPEC_CASES = [
    Case(
        "a negative request",
        SMALL,
        {f"{_REQUESTS}.cpu": "-1"},
        (f'{_REQUESTS}[cpu]: Invalid value: "-1": must be greater than or equal to 0',),
        by_server=False,
    ),
    Case(
        "a request that is no quantity",
        SMALL,
        {f"{_REQUESTS}.cpu": "much"},
        (f"{_REQUESTS}[cpu]: Invalid value: \"much\": 'much' is not a quantity",),
        by_server=False,
    ),
    Case(
        "a request for pods",
        SMALL,
        {"spec.podSets[0].template.spec.initContainers": [{"name": "i", "resources": {"limits": {"pods": 1}}}]},
        ("template.spec.initContainers[0].resources.limits[pods]: Invalid value:",),
        by_server=False,
    ),
    Case(
        "negative amounts of the pod as a whole",
        SMALL,
        {
            "spec.podSets[0].template.spec.overhead": {"cpu": -1},
            "spec.podSets[0].template.spec.resources": {"requests": {"cpu": -2}, "limits": {"cpu": -3}},
        },
        ("spec.overhead[cpu]: Invalid value: -1", "requests[cpu]: Invalid value: -2", "limits[cpu]: Invalid value: -3"),
        by_server=False,
    ),
    Case(
        "a template of a wrong shape",
        SMALL,
        {"spec.podSets[0].template.spec.containers": {}},
        ("spec.podSets[0].template.spec.containers: Invalid value: Expected array, got object",),
        by_server=False,
    ),
    Case("no pod sets", SMALL, {"spec.podSets": []}, ("spec.podSets: Required value: must have at least 1 item",)),
    Case(
        "too many pod sets",
        SMALL,
        {"spec.podSets": [{"name": f"p{i}", "template": _POD} for i in range(19)]},
        ("spec.podSets: Too many: 19: must have at most 18 items",),
    ),
    Case(
        "two pod sets of one name, one of them by default",
        SMALL,
        {"spec.podSets": [{"template": _POD}, {"name": "main", "template": _POD}]},
        ('spec.podSets[1].name: Duplicate value: "main"',),
    ),
    Case(
        "a pod set name with capitals",
        SMALL,
        {"spec.podSets[0].name": "Main"},
        ('spec.podSets[0].name: Invalid value: "Main": should match',),
    ),
    Case(
        "a negative count",
        SMALL,
        {"spec.podSets[0].count": -1},
        ("spec.podSets[0].count: Invalid value: -1: must be greater than or equal to 0",),
    ),
    Case(
        "a count beyond 32 bits",
        SMALL,
        {"spec.podSets[0].count": 2**31},
        ("spec.podSets[0].count: Invalid value: 2147483648: must fit an int32",),
    ),
    Case(
        "fewer pods than the fewest",
        FULL,
        {"spec.podSets[2].minCount": 11},
        ("spec.podSets[2].minCount: Invalid value: 11: must not exceed count, 10",),
    ),
    Case(
        "two pod sets that may be partial",
        FULL,
        {"spec.podSets[1].minCount": 1},
        ("spec.podSets[2].minCount: Forbidden: at most one pod set may have it",),
    ),
    Case(
        "a partial elastic job",
        FULL,
        {"metadata.annotations": _ELASTIC},
        ("spec.podSets[2].minCount: Forbidden: does not go with an elastic job",),
        by_server=False,
    ),
    Case(
        "a class without a priority",
        FULL,
        {"spec.priority": GONE},
        ("spec.priority: Required value: when priorityClassRef is set",),
    ),
    Case(
        "a class in the wrong group",
        FULL,
        {"spec.priorityClassRef.group": "scheduling.k8s.io"},
        ('spec.priorityClassRef.kind: Invalid value: "WorkloadPriorityClass": there is no such kind',),
    ),
    Case(
        "an execution time of nothing",
        FULL,
        {"spec.maximumExecutionTimeSeconds": 0},
        ("spec.maximumExecutionTimeSeconds: Invalid value: 0: must be greater than or equal to 1",),
    ),
    Case(
        "a gate without a domain",
        FULL,
        {"metadata.annotations(kueue.x-k8s.io/admission-gated-by)": "budget"},
        ('metadata.annotations[kueue.x-k8s.io/admission-gated-by]: Invalid value: "budget"',),
        by_server=False,
    ),
    Case(
        "gates that are no names",
        FULL,
        {"metadata.annotations(kueue.x-k8s.io/admission-gated-by)": f"a.io/b c,a.io/{'d' * 59}"},
        ('admission-gated-by]: Invalid value: "a.io/b c"', 'admission-gated-by]: Invalid value: "a.io/dddd'),
        by_server=False,
    ),
    Case(
        "a gate that is there twice",
        FULL,
        {"metadata.annotations(kueue.x-k8s.io/admission-gated-by)": "a.io/b,a.io/b"},
        ("[kueue.x-k8s.io/admission-gated-by]: Duplicate value:",),
        by_server=False,
    ),
]

TOPOLOGY_CASES = [
    Case(
        "a level that is no label",
        FULL,
        {_TOPOLOGY: {"required": "a b"}},
        (f'{_TOPOLOGY}.required: Invalid value: "a b": must be a qualified name',),
        by_server=False,
    ),
    Case(
        "layers in a group",
        FULL,
        {"spec.podSets[0].topologyRequest.podsetSliceRequiredTopologyConstraints": [{"topology": "a/b", "size": 1}]},
        ("podsetSliceRequiredTopologyConstraints: Forbidden: must not be set beside podSetGroupName",),
        by_server=False,
    ),
    Case(
        "two wishes for a topology",
        FULL,
        {f"{_TOPOLOGY}.preferred": "example.com/rack"},
        (f"{_TOPOLOGY}: Invalid value:", "at most one of required, preferred and unconstrained may be set"),
    ),
    Case(
        "a slice without a size",
        FULL,
        {_TOPOLOGY: {"required": "example.com/block", "podSetSliceRequiredTopology": "example.com/rack"}},
        (f"{_TOPOLOGY}.podSetSliceSize: Required value",),
    ),
    Case(
        "a slice larger than the pod set",
        FULL,
        {_TOPOLOGY: {"podSetSliceRequiredTopology": "example.com/rack", "podSetSliceSize": 11}},
        (f"{_TOPOLOGY}.podSetSliceSize: Invalid value: 11: must not exceed the count",),
        by_server=False,
    ),
    Case(
        "slices said in two ways",
        FULL,
        {f"{_TOPOLOGY}.podSetSliceRequiredTopology": "a/b", f"{_TOPOLOGY}.podSetSliceSize": 2},
        (f"{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints: Forbidden:",),
    ),
    Case(
        "layers that do not divide each other",
        FULL,
        {f"{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints[1].size": 3},
        (f"{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints[1].size: Invalid value: 3: must divide",),
        by_server=False,
    ),
    Case(
        "an outermost layer larger than the pod set",
        FULL,
        {f"{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints[0].size": 12},
        (f"{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints[0].size: Invalid value: 12: must not exceed",),
        by_server=False,
    ),
    Case(
        "two layers of one topology",
        FULL,
        {f"{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints[1].topology": "example.com/rack"},
        (f'{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints[1]: Duplicate value: "example.com/rack"',),
        by_server=False,
    ),
    Case(
        "a group of one",
        SMALL,
        {"spec.podSets": _group(a=_RING)},
        ('podSetGroupName: Invalid value: "ring": a group has exactly 2 pod sets, this one has 1',),
        by_server=False,
    ),
    Case(
        "a group without a leader",
        FULL,
        {"spec.podSets[0].count": 2},
        ('podSetGroupName: Invalid value: "ring": one of the pod sets must have a count of 1',),
        by_server=False,
    ),
    Case(
        "a group of two minds",
        SMALL,
        {"spec.podSets": _group(a=_RING, b=_RING | {"required": "example.com/block"})},
        ("both pod sets must ask for the same required or preferred topology",),
        by_server=False,
    ),
    Case(
        "a group without a wish",
        SMALL,
        {"spec.podSets": _group(a={"podSetGroupName": "ring"}, b={"podSetGroupName": "ring"})},
        ("spec.podSets[0].topologyRequest.required: Required value: a group needs required or preferred",),
        by_server=False,
    ),
    Case(
        "a group that is a number",
        SMALL,
        {"spec.podSets": _group(a=_RING | {"podSetGroupName": "7"}, b=_RING | {"podSetGroupName": "7"})},
        ('podSetGroupName: Invalid value: "7": must not be a number',),
        by_server=False,
    ),
    Case(
        "a group with slices",
        SMALL,
        {
            "spec.podSets": _group(
                a=_RING, b=_RING | {"podSetSliceRequiredTopology": "example.com/rack", "podSetSliceSize": 1}
            )
        },
        ("podSetGroupName: Forbidden: a group does not go with slices",),
        by_server=False,
    ),
]

STATUS_CASES = [
    Case(
        "one value for all and one for each",
        RUNNING,
        {f"{_ASSIGNMENT}.topologyAssignment.slices[0].valuesPerLevel[0].universal": "node"},
        (".slices[0].valuesPerLevel[0]: Invalid value: null: exactly one of universal and individual must be set",),
        was=BLANK,
    ),
    Case(
        "updates with labels that are none",
        RUNNING,
        {
            "status.admissionChecks[0].podSetUpdates[0].labels": {"a b": "c"},
            "status.admissionChecks[0].podSetUpdates[0].nodeSelector": {"d e": "f"},
        },
        ('podSetUpdates[0].labels: Invalid value: "a b"', 'podSetUpdates[0].nodeSelector: Invalid value: "d e"'),
        was=BLANK,
        by_server=False,
    ),
    Case(
        "two updates for one pod set",
        RUNNING,
        {"status.admissionChecks[0].podSetUpdates": [{"name": "main"}, {"name": "main"}]},
        ('status.admissionChecks[0].podSetUpdates[1]: Duplicate value: "main"',),
        was=BLANK,
        by_server=False,
    ),
    Case(
        "pods given back of a pod set that is not there",
        RUNNING,
        {"status.reclaimablePods[0].name": "other"},
        ('status.reclaimablePods[0].name: Not found: "other"',),
        was=BLANK,
        by_server=False,
    ),
    Case(
        "quota without an admission",
        RUNNING,
        {"status.admission": GONE},
        ("status.admission: Required value: while quota is reserved",),
        was={},
        by_server=False,
    ),
    Case(
        "an assignment for a pod set that is not there",
        RUNNING,
        {f"{_ASSIGNMENT}.name": "other"},
        ('status.admission.podSetAssignments: Invalid value: ["other"]: must have one entry for each',),
        was=BLANK,
        by_server=False,
    ),
    Case(
        "no assignment at all",
        RUNNING,
        {"status.admission.podSetAssignments": []},
        ("status.admission.podSetAssignments: Invalid value: []",),
        was=BLANK,
    ),
    Case(
        "a usage that pods cannot share",
        RUNNING,
        {f"{_ASSIGNMENT}.resourceUsage.cpu": "4001m"},
        (f'{_ASSIGNMENT}.resourceUsage[cpu]: Invalid value: "4001m": must be a multiple of the count, 4',),
        was=BLANK,
        by_server=False,
    ),
    Case(
        "topology values for another number of levels",
        RUNNING,
        {f"{_ASSIGNMENT}.topologyAssignment.levels": ["a/b", "kubernetes.io/hostname"]},
        (".slices[0].valuesPerLevel: Invalid value: 1: must have one entry for 2 levels",),
        was=BLANK,
    ),
    Case(
        "fewer roots than domains",
        RUNNING,
        {f"{_ASSIGNMENT}.topologyAssignment.slices[0].valuesPerLevel[0].individual.roots": ["1"]},
        (".slices[0].valuesPerLevel[0].individual.roots: Invalid value: 1: must have 2 entries",),
        was=BLANK,
    ),
    Case(
        "more pod counts than domains",
        RUNNING,
        {f"{_ASSIGNMENT}.topologyAssignment.slices[0].podCounts.individual": [1, 1, 1]},
        (".slices[0].podCounts.individual: Invalid value: 3: must have 2 entries",),
        was=BLANK,
    ),
    Case(
        "one count for all and one for each",
        RUNNING,
        {f"{_ASSIGNMENT}.topologyAssignment.slices[0].podCounts.universal": 1},
        (".slices[0].podCounts: Invalid value: null: exactly one of universal and individual must be set",),
        was=BLANK,
    ),
    Case(
        "an update for a pod set that is not there",
        RUNNING,
        {"status.admissionChecks[0].podSetUpdates[0].name": "other"},
        ('status.admissionChecks[0].podSetUpdates[0].name: Not found: "other"',),
        was=BLANK,
        by_server=False,
    ),
    Case(
        "an update with a toleration that is none",
        RUNNING,
        {"status.admissionChecks[0].podSetUpdates[0].tolerations[0].operator": "Exists"},
        ("status.admissionChecks[0].podSetUpdates[0].tolerations[0].value: Invalid value:",),
        was=BLANK,
    ),
    Case(
        "more pods given back than there are",
        RUNNING,
        {"status.reclaimablePods[0].count": 5},
        ("status.reclaimablePods[0].count: Invalid value: 5: must not exceed the count of the pod set, 4",),
        was=BLANK,
        by_server=False,
    ),
    Case(
        "a cluster beside nominated ones",
        RUNNING,
        {"status.nominatedClusterNames": ["east"]},
        ('status.clusterName: Invalid value: "east": must not be set beside nominatedClusterNames',),
        was={},
    ),
    Case(
        "a time that is none",
        RUNNING,
        {"status.requeueState.requeueAt": "tomorrow"},
        ('status.requeueState.requeueAt: Invalid value: "tomorrow": must be a time',),
        was={},
    ),
]

UPDATE_CASES = [
    Case(
        "a gate that is added",
        FULL,
        {"metadata.annotations(kueue.x-k8s.io/admission-gated-by)": "example.com/budget,example.com/new"},
        ("[kueue.x-k8s.io/admission-gated-by]: Forbidden: gates may only be removed", "new: example.com/new"),
        was={},
        by_server=False,
    ),
    Case(
        "another count while quota is reserved",
        RUNNING,
        {"spec.podSets[0].count": 8},
        ("spec.podSets: Invalid value:", "field is immutable while quota is reserved"),
        was={},
        by_server=False,
    ),
    Case(
        "another image while quota is reserved",
        RUNNING,
        {"spec.podSets[0].template.spec.containers[0].image": "other"},
        ("spec.podSets: Invalid value:", "field is immutable while quota is reserved"),
        was={},
        by_server=False,
    ),
    Case(
        "an elastic job that grows in place",
        RUNNING,
        {"spec.podSets[0].count": 5},
        ("spec.podSets: Invalid value:", "field is immutable while quota is reserved"),
        was={"metadata.annotations": _ELASTIC},
        by_server=False,
    ),
    Case(
        "an elastic job that shrinks and changes",
        RUNNING,
        {"spec.podSets[0].count": 3, "spec.podSets[0].template.spec.containers[0].image": "other"},
        ("spec.podSets: Invalid value:", "field is immutable while quota is reserved"),
        was={"metadata.annotations": _ELASTIC},
        by_server=False,
    ),
    Case(
        "another queue while quota is reserved",
        RUNNING,
        {"spec.queueName": "other"},
        ('spec.queueName: Invalid value: "other": field is immutable while quota is reserved',),
        was={},
    ),
    Case(
        "a class that is set while quota is reserved",
        RUNNING,
        {"spec.priorityClassRef": _REF},
        ("spec.priorityClassRef: Invalid value:", "field is immutable while quota is reserved"),
        was={},
    ),
    Case(
        "a class of another kind while quota is reserved",
        RUNNING,
        {"spec.priorityClassRef": _POD_REF},
        ("spec.priorityClassRef.kind: Invalid value:", "field is immutable while quota is reserved"),
        was={"spec.priorityClassRef": _REF},
    ),
    Case(
        "another PriorityClass while quota is reserved",
        RUNNING,
        {"spec.priorityClassRef": _POD_REF | {"name": "low"}},
        ('spec.priorityClassRef.name: Invalid value: "low": field is immutable while quota is reserved',),
        was={"spec.priorityClassRef": _POD_REF},
    ),
    Case(
        "another execution time while admitted",
        RUNNING,
        {"spec.maximumExecutionTimeSeconds": 5},
        ("spec.maximumExecutionTimeSeconds: Invalid value: 5: field is immutable while the workload is admitted",),
        was={},
    ),
    Case(
        "another flavor in an admission",
        RUNNING,
        {f"{_ASSIGNMENT}.flavors.cpu": "plain"},
        ("status.admission: Invalid value:", "field is immutable once it is set"),
        was={},
        by_server=False,
    ),
    Case(
        "another ClusterQueue in an admission",
        RUNNING,
        {"status.admission.clusterQueue": "trial"},
        ('status.admission: Invalid value: "trial": field is immutable once it is set',),
        was={},
    ),
    Case(
        "pods that are taken back",
        RUNNING,
        {"status.reclaimablePods[0].count": 0},
        ("status.reclaimablePods[0].count: Invalid value: 0: must not fall below 1 while quota is reserved",),
        was={},
        by_server=False,
    ),
    Case(
        "a check that changes its mind",
        RUNNING,
        {"status.admissionChecks[0].podSetUpdates": []},
        ("status.admissionChecks[0].podSetUpdates: Invalid value:", "field is immutable while the check is Ready"),
        was={},
        by_server=False,
    ),
    Case(
        "another cluster",
        RUNNING,
        {"status.clusterName": "west"},
        ('status.clusterName: Invalid value: "west": field is immutable once it is set',),
        was={},
    ),
    Case(
        "a cluster that was not nominated",
        RUNNING,
        {"status.clusterName": "west", "status.nominatedClusterNames": GONE},
        ('status.clusterName: Invalid value: "west": must be one of the nominatedClusterNames, east',),
        was={"status.clusterName": GONE, "status.nominatedClusterNames": ["east"]},
        by_server=False,
    ),
]

WORKLOAD_CASES = [*SPEC_CASES, *TOPOLOGY_CASES, *STATUS_CASES, *UPDATE_CASES]

#: Changes that are right, though they look like the ones above.
ALLOWED = [
    Case(
        "an elastic job that shrinks",
        RUNNING,
        {"spec.podSets[0].count": 3},
        (),
        was={"metadata.annotations": _ELASTIC},
    ),
    Case(
        "another WorkloadPriorityClass, and its priority",
        RUNNING,
        {"spec.priorityClassRef": _REF | {"name": "later"}, "spec.priority": 5},
        (),
        was={"spec.priorityClassRef": _REF},
    ),
    Case("an admission that is taken away", RUNNING, {"status": {"clusterName": "east"}}, (), was={}),
    Case(
        "a topology that is found later",
        RUNNING,
        {
            f"{_ASSIGNMENT}.topologyAssignment": {
                "levels": ["kubernetes.io/hostname"],
                "slices": [
                    {
                        "domainCount": 1,
                        "valuesPerLevel": [{"universal": "node-1"}],
                        "podCounts": {"universal": 4},
                    }
                ],
            },
            f"{_ASSIGNMENT}.delayedTopologyRequest": "Ready",
        },
        (),
        was={f"{_ASSIGNMENT}.topologyAssignment": GONE, f"{_ASSIGNMENT}.delayedTopologyRequest": "Pending"},
    ),
    Case("a gate that is removed", FULL, {"metadata.annotations": {}}, (), was={}),
    Case("another queue before quota is reserved", SMALL, {"spec.queueName": "other"}, (), was={}),
    Case("a workload that is switched off while it runs", RUNNING, {"spec.active": False}, (), was={}),
    Case("a cluster that is forgotten", RUNNING, {"status.clusterName": GONE}, (), was={}),
    Case(
        "a nominated cluster that is chosen",
        RUNNING,
        {"status.clusterName": "east", "status.nominatedClusterNames": GONE},
        (),
        was={"status.clusterName": GONE, "status.nominatedClusterNames": ["east", "west"]},
    ),
    Case(
        "sizes that go to the limit",
        FULL,
        {
            "spec.podSets[2].minCount": 10,
            f"{_TOPOLOGY}.podsetSliceRequiredTopologyConstraints[0].size": 10,
            "metadata.annotations(kueue.x-k8s.io/admission-gated-by)": f"a.io/{'d' * 58}",
        },
        (),
    ),
    Case(
        "a slice of all pods",
        FULL,
        {_TOPOLOGY: {"podSetSliceRequiredTopology": "example.com/rack", "podSetSliceSize": 10}},
        (),
    ),
    Case(
        "all pods given back, and more of them than before",
        RUNNING,
        {"status.reclaimablePods[0].count": 4},
        (),
        was={},
    ),
    Case("requests of nothing", SMALL, {f"{_REQUESTS}.cpu": 0}, ()),
    Case("as many pods as an int32 holds", SMALL, {"spec.podSets[0].count": 2**31 - 1}, ()),
    Case(
        "another queue once quota is given back",
        RUNNING,
        {"spec.queueName": "other"},
        (),
        was={"status": {"conditions": []}},
    ),
    Case("a class and a time that stay", RUNNING, {}, (), was={"spec.priorityClassRef": _POD_REF}),
    Case(
        "a check that was not Ready before",
        RUNNING,
        {"status.admissionChecks[0].state": "Ready", "status.admissionChecks[0].podSetUpdates": [{"name": "main"}]},
        (),
        was={"status.admissionChecks[0].state": "Pending", "status.admissionChecks[0].podSetUpdates": []},
    ),
    Case(
        "a replacement slice where the old one ran",
        RUNNING,
        {"status.clusterName": "east"},
        (),
        was={
            "metadata.annotations": {"kueue.x-k8s.io/workload-slice-replacement-for": "default/old"},
            "status.clusterName": GONE,
        },
    ),
]
