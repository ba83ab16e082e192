import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.sandbox.scheduling import Bind, Scheduler, Unschedulable, needs, node_info

GPU = "nvidia.com/gpu"
MASTER = {"key": "dedicated", "value": "system", "effect": "NoSchedule"}


def node(name, *, gpus=8, cpu="16", pods="110", labels=None, taints=(), unschedulable=False):
    room = {"cpu": cpu, "memory": "64Gi", "pods": pods, GPU: str(gpus)}
    spec = {"taints": list(taints), "unschedulable": unschedulable}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": {"allocatable": room}}


def pod(*, cpu="1", gpus=0, **spec):
    requests = {"cpu": cpu} | ({GPU: str(gpus)} if gpus else {})
    return {"containers": [{"name": "main", "resources": {"requests": requests}}], **spec}


def affinity(key, operator, *values, field=False):
    requirement = {"key": key, "operator": operator, "values": list(values)}
    term = {"matchFields" if field else "matchExpressions": [requirement]}
    selector = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def scheduler(*nodes):
    made = Scheduler()
    for manifest in nodes:
        made.set_node(node_info(manifest))
    return made


def place(made, **pods):
    for uid, spec in pods.items():
        made.add(uid, needs(spec))
    return made.turn()


@pytest.mark.parametrize(
    ("given_pod", "given_node", "want_reason"),
    [
        pytest.param(pod(gpus=1), node("n", gpus=0), "Insufficient nvidia.com/gpu", id="no device"),
        pytest.param(pod(cpu="17"), node("n"), "Insufficient cpu", id="not enough of one resource"),
        pytest.param(pod(cpu="17", gpus=9), node("n"), "Insufficient cpu, 1 Insufficient nvidia.com/gpu", id="of two"),
        pytest.param(pod(), node("n", pods="0"), "Too many pods", id="the node's pod limit"),
        pytest.param(pod(), node("n", unschedulable=True), "node(s) were unschedulable", id="cordoned"),
        pytest.param(pod(), node("n", taints=[MASTER]), "node(s) had untolerated taint(s)", id="tainted"),
        pytest.param(
            pod(tolerations=[{"key": "dedicated", "operator": "Exists"}]),
            node("n", taints=[MASTER]),
            "",
            id="tolerated",
        ),
        pytest.param(
            pod(tolerations=[{"operator": "Exists"}]), node("n", unschedulable=True), "", id="a cordon can be tolerated"
        ),
        pytest.param(pod(), node("n", taints=[MASTER | {"effect": "PreferNoSchedule"}]), "", id="advice is no refusal"),
        pytest.param(
            pod(nodeSelector={"gpu": "h100"}),
            node("n", labels={"gpu": "a100"}),
            "node(s) didn't match Pod's node affinity/selector",
            id="another label value",
        ),
        pytest.param(pod(nodeSelector={"gpu": "h100"}), node("n", labels={"gpu": "h100"}), "", id="the label value"),
        pytest.param(pod(affinity=affinity("mem", "Gt", "100")), node("n", labels={"mem": "128"}), "", id="greater"),
        pytest.param(
            pod(affinity=affinity("mem", "Lt", "100")),
            node("n", labels={"mem": "128"}),
            "node(s) didn't match Pod's node affinity/selector",
            id="not less",
        ),
        pytest.param(pod(affinity=affinity("gpu", "NotIn", "a100")), node("n"), "", id="NotIn holds without the label"),
        pytest.param(
            pod(affinity=affinity("metadata.name", "In", "n", field=True)), node("n"), "", id="a node by name"
        ),
        pytest.param(
            pod(
                cpu="9",
                initContainers=[{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "8"}}}],
            ),
            node("n"),
            "Insufficient cpu",
            id="sidecars add to the containers",
        ),
        pytest.param(
            pod(cpu="9", initContainers=[{"name": "i", "resources": {"requests": {"cpu": "8"}}}]),
            node("n"),
            "",
            id="init containers run before them",
        ),
        pytest.param(pod(cpu="15", overhead={"cpu": "2"}), node("n"), "Insufficient cpu", id="overhead counts"),
    ],
)
def test_why_a_node_does_not_suit(given_pod, given_node, want_reason):
    decisions = place(scheduler(given_node), p=given_pod)
    if want_reason:
        assert decisions == [Unschedulable("p", f"0/1 nodes are available: 1 {want_reason}.")]
    else:
        assert decisions == [Bind("p", "n")]


def test_reasons_are_counted_over_the_nodes():
    nodes = [node("a", gpus=1), node("b", gpus=1), node("c", taints=[MASTER]), node("d", unschedulable=True)]
    assert place(scheduler(*nodes), p=pod(gpus=8)) == [
        Unschedulable(
            "p",
            "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, "
            "2 Insufficient nvidia.com/gpu.",
        )
    ]


def test_without_nodes_the_reason_is_that():
    assert place(Scheduler(), p=pod()) == [Unschedulable("p", "no nodes available to schedule pods")]


def test_the_fullest_node_that_fits_is_taken():
    made = scheduler(node("a"), node("b"))
    assert place(made, p=pod(gpus=6)) == [Bind("p", "a")]
    assert place(made, q=pod(gpus=4)) == [Bind("q", "b")]
    assert place(made, r=pod(gpus=2)) == [Bind("r", "a")]
    assert place(made, s=pod(gpus=2)) == [Bind("s", "b")]


def test_who_waits_is_placed_when_something_is_freed():
    made = scheduler(node("a"))
    assert place(made, p=pod(gpus=8)) == [Bind("p", "a")]
    assert [type(d) for d in place(made, q=pod(gpus=8), r=pod(gpus=1))] == [Unschedulable, Unschedulable]
    made.release("p")
    assert made.turn() == [Bind("q", "a")]
    made.release("q")
    assert made.turn() == [Bind("r", "a")]


def test_priority_comes_before_the_longer_wait():
    made = scheduler(node("a"))
    place(made, first=pod(gpus=8))
    place(made, low=pod(gpus=8, priority=1), high=pod(gpus=8, priority=9))
    made.release("first")
    assert made.turn() == [Bind("high", "a")]


def test_a_pod_is_told_once_unless_the_nodes_change():
    made = scheduler(node("a", gpus=1))
    assert len(place(made, p=pod(gpus=8))) == 1
    assert made.turn() == []
    made.set_node(node_info(node("b", gpus=2)))
    assert made.turn() == [Unschedulable("p", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")]
    made.set_node(node_info(node("c", gpus=8)))
    assert made.turn() == [Bind("p", "c")]


def test_a_gated_pod_waits_for_its_gates():
    made = scheduler(node("a"))
    assert place(made, p=pod(schedulingGates=[{"name": "kueue.x-k8s.io/topology"}])) == []
    assert place(made, p=pod()) == [Bind("p", "a")]


def test_a_pod_put_on_a_node_by_hand_is_charged_there():
    made = scheduler(node("a"))
    assert made.bind("p", needs(pod(gpus=6)), "a") == []
    assert made.bind("q", needs(pod(gpus=6)), "a") == [GPU]
    assert made.free("a")[GPU] == 2


def test_pods_of_a_node_that_comes_back_still_count():
    made = scheduler(node("a"))
    place(made, p=pod(gpus=6))
    made.remove_node("a")
    made.set_node(node_info(node("a")))
    assert made.free("a")[GPU] == 2
    assert place(made, q=pod(gpus=4)) == [Unschedulable("q", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 30), st.integers(0, 5), st.integers(1, 6)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("node"), st.integers(0, 4), st.integers(0, 8)),
        st.tuples(st.just("lose"), st.integers(0, 4)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_node_is_ever_over_its_allocatable_and_nobody_waits_beside_free_room(steps):
    made, bound, waiting, nodes, sizes = Scheduler(), {}, {}, {}, {}
    for step, number, *more in steps:
        if step == "add" and str(number) not in bound:
            waiting.setdefault(str(number), needs(pod(cpu=str(more[1]), gpus=more[0])))
            made.add(str(number), waiting[str(number)])
        elif step == "release":
            made.release(str(number))
            bound.pop(str(number), None)
            waiting.pop(str(number), None)
        elif step == "node":  # one that shrinks under its pods is over, and nobody's fault
            sizes[number] = max(more[0], sizes.get(number, 0))
            nodes[f"n{number}"] = node_info(node(f"n{number}", gpus=sizes[number]))
            made.set_node(nodes[f"n{number}"])
        elif step == "lose":
            made.remove_node(f"n{number}")
            nodes.pop(f"n{number}", None)
        for decision in made.turn():
            if isinstance(decision, Bind):
                bound[decision.pod] = waiting.pop(decision.pod)
        for name in nodes:
            free = made.free(name)
            assert all(amount >= 0 for amount in free.values()), (name, free)
            for wanted in waiting.values():
                assert any(n > free.get(r, 0) for r, n in wanted.requests.items()), f"{wanted} waits, {name} has {free}"
