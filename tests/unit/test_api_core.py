import pytest

from hub.kueue.api import core
from hub.kueue.api.core import (
    Container,
    LabelSelector,
    NodeSelector,
    NodeSelectorTerm,
    PodSpec,
    ResourceRequirements,
    SelectorRequirement,
    Taint,
    Toleration,
)
from hub.kueue.api.errors import DecodeError, QuantityError


def requirement(key, operator, *values):
    return SelectorRequirement(key=key, operator=operator, values=list(values))


LABELS = {"gpu": "h100", "gen": "4", "spot": ""}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param(requirement("gpu", "In", "a100", "h100"), True, id="a value that is listed"),
        pytest.param(requirement("gpu", "In", "a100"), False, id="a value that is not listed"),
        pytest.param(requirement("zone", "In", "a"), False, id="a label that is absent is in no list"),
        pytest.param(requirement("gpu", "NotIn", "h100"), False, id="a value that is ruled out"),
        pytest.param(requirement("zone", "NotIn", "a"), True, id="a label that is absent is ruled out by nothing"),
        pytest.param(requirement("spot", "Exists"), True, id="an empty value exists"),
        pytest.param(requirement("zone", "Exists"), False, id="an absent label does not exist"),
        pytest.param(requirement("zone", "DoesNotExist"), True, id="an absent label is absent"),
        pytest.param(requirement("gen", "Gt", "3"), True, id="4 is more than 3"),
        pytest.param(requirement("gen", "Gt", "4"), False, id="4 is not more than 4"),
        pytest.param(requirement("gen", "Lt", "10"), True, id="numbers are compared as numbers"),
        pytest.param(requirement("gpu", "Gt", "3"), False, id="a label that is no number compares with nothing"),
        pytest.param(requirement("gen", "Gt", "3", "5"), False, id="two bounds are none"),
        pytest.param(requirement("zone", "Lt", "3"), False, id="an absent label is not less"),
        pytest.param(requirement("gpu", "Like", "h100"), False, id="an operator of a later version matches nothing"),
    ],
)
def test_requirements(given, want):
    assert core.satisfies(given, LABELS) is want


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param(None, False, id="an absent selector selects nothing"),
        pytest.param(LabelSelector(), True, id="an empty one selects everything"),
        pytest.param(LabelSelector(match_labels={"gpu": "h100"}), True, id="a label that is there"),
        pytest.param(LabelSelector(match_labels={"gpu": "h100", "gen": "5"}), False, id="labels must all be there"),
        pytest.param(
            LabelSelector(match_labels={"gpu": "h100"}, match_expressions=[requirement("gen", "In", "5")]),
            False,
            id="labels and expressions must both hold",
        ),
    ],
)
def test_label_selectors(given, want):
    assert core.selects(given, LABELS) is want


@pytest.mark.parametrize(
    ("terms", "want"),
    [
        pytest.param([], False, id="no term matches no node"),
        pytest.param([NodeSelectorTerm()], False, id="an empty term matches no node"),
        pytest.param(
            [NodeSelectorTerm(match_expressions=[requirement("gpu", "In", "a100")]), NodeSelectorTerm()],
            False,
            id="an empty term does not rescue the others",
        ),
        pytest.param(
            [
                NodeSelectorTerm(match_expressions=[requirement("gpu", "In", "a100")]),
                NodeSelectorTerm(match_expressions=[requirement("gpu", "In", "h100")]),
            ],
            True,
            id="terms are alternatives",
        ),
        pytest.param(
            [NodeSelectorTerm(match_expressions=[requirement("gpu", "Exists"), requirement("gen", "In", "5")])],
            False,
            id="expressions of a term must all hold",
        ),
        pytest.param(
            [NodeSelectorTerm(match_fields=[requirement("metadata.name", "In", "node-1")])], True, id="by node name"
        ),
        pytest.param(
            [NodeSelectorTerm(match_fields=[requirement("metadata.name", "In", "node-2")])], False, id="another node"
        ),
    ],
)
def test_node_selectors(terms, want):
    assert core.node_selector_matches(NodeSelector(node_selector_terms=terms), LABELS, "node-1") is want


TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param(Toleration(operator="Exists"), True, id="everything is tolerated"),
        pytest.param(Toleration(key="gpu", operator="Exists"), True, id="whatever its value"),
        pytest.param(Toleration(key="gpu", value="yes"), True, id="equality is the default"),
        pytest.param(Toleration(key="gpu", operator="Equal", value="no"), False, id="another value"),
        pytest.param(Toleration(key="cpu", operator="Exists"), False, id="another key"),
        pytest.param(Toleration(key="gpu", operator="Exists", effect="NoExecute"), False, id="another effect"),
        pytest.param(Toleration(key="gpu", operator="Exists", effect="NoSchedule"), True, id="this effect"),
        pytest.param(Toleration(key="gpu", operator="Gt", value="0"), False, id="an operator of a later version"),
    ],
)
def test_tolerations(given, want):
    assert core.tolerates(given, TAINT) is want
    assert (core.untolerated([TAINT], [given]) is None) is want


def test_advice_repels_nobody():
    assert core.untolerated([Taint(key="gpu", effect="PreferNoSchedule")], []) is None


def container(*, sidecar=False, limits=None, **requests):
    resources = ResourceRequirements(requests=requests, limits=limits or {})
    return Container(resources=resources, restart_policy="Always" if sidecar else "")


@pytest.mark.parametrize(
    ("given", "want"),
    [
        pytest.param(PodSpec(), {}, id="nothing"),
        pytest.param(PodSpec(containers=[container(cpu="1"), container(cpu="500m")]), {"cpu": 1500}, id="a sum"),
        pytest.param(
            PodSpec(containers=[container(cpu="0.3m"), container(cpu="0.3m")]), {"cpu": 1}, id="rounded after the sum"
        ),
        pytest.param(
            PodSpec(containers=[container(limits={"gpu": 2, "cpu": 4}, cpu=1)]), {"gpu": 2, "cpu": 1000}, id="by limit"
        ),
        pytest.param(
            PodSpec(containers=[container(cpu=1)], init_containers=[container(cpu=3), container(cpu=2)]),
            {"cpu": 3000},
            id="init containers run one after the other",
        ),
        pytest.param(
            PodSpec(
                containers=[container(cpu=1)],
                init_containers=[container(cpu=3), container(cpu=1, sidecar=True), container(cpu=1)],
            ),
            {"cpu": 3000},
            id="a sidecar starts after the init container before it",
        ),
        pytest.param(
            PodSpec(
                containers=[container(cpu=1)],
                init_containers=[container(cpu=1, sidecar=True), container(cpu=3), container(cpu=5, sidecar=True)],
            ),
            {"cpu": 7000},
            id="sidecars run beside the containers",
        ),
        pytest.param(
            PodSpec(
                containers=[container(cpu=1, gpu=1)],
                resources=ResourceRequirements(requests={"cpu": 4, "gpu": 9}, limits={"memory": "1Ki"}),
            ),
            {"cpu": 4000, "gpu": 1, "memory": 1024},
            id="the pod's own amounts replace those of its containers, of cpu and memory",
        ),
        pytest.param(
            PodSpec(containers=[container(cpu=1)], overhead={"cpu": "250m", "memory": 1}),
            {"cpu": 1250, "memory": 1},
            id="overhead comes on top",
        ),
    ],
)
def test_pod_requests(given, want):
    assert core.pod_requests(given) == want


def test_a_request_that_is_no_quantity_is_named():
    with pytest.raises(QuantityError, match="'much' is not a quantity"):
        core.pod_requests(PodSpec(containers=[container(cpu="much")]))


def test_a_template_of_a_wrong_shape_names_the_field():
    with pytest.raises(DecodeError, match=r"spec\.podSets\[2\]\.template\.spec\.containers\[0\]\.name: Expected str"):
        core.pod_template({"spec": {"containers": [{"name": 5}]}}, at="spec.podSets[2].template")


def test_nodes_and_limit_ranges_are_read():
    node = core.node(
        {
            "metadata": {"name": "n", "labels": LABELS, "managedFields": [{}]},
            "spec": {"unschedulable": True, "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )
    assert node.is_ready
    assert node.spec.unschedulable
    assert not core.Node(metadata=node.metadata).is_ready
    [item] = core.limit_range({"limits": [{"type": "Container", "defaultRequest": {"cpu": "1"}}]}).limits
    assert item.default_request == {"cpu": "1"}
