"""What a worker cluster tells the hub of its room."""

from collections.abc import Sequence
from typing import Any

import pytest

from hub.kueue.admission.messages import QueueStatus
from hub.kueue.api import resources
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import ResourceFlavor, decode_as, names
from hub.kueue.wire import CapacityReport, FlavorCapacity
from worker_agent import report

GPU = "nvidia.com/gpu"


def node(
    name: str,
    gpus: int = 8,
    *,
    product: str = "H100",
    ready: bool = True,
    taints: list | None = None,
    cordoned: bool = False,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"gpu": product}},
        "spec": {"taints": taints or [], "unschedulable": cordoned},
        "status": {
            "allocatable": {"cpu": "64", GPU: str(gpus), "pods": "110"},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def pod(on: str, gpus: int, *, placement: str = "", phase: str = "Running") -> dict[str, Any]:
    labels = {names.PLACEMENT: placement} if placement else {}
    container = {"name": "m", "resources": {"requests": {GPU: str(gpus)}}}
    return {
        "metadata": {"labels": labels},
        "spec": {"nodeName": on, "containers": [container]},
        "status": {"phase": phase},
    }


def flavor(name: str = "h100", product: str = "H100", **spec: Any) -> ResourceFlavor:
    manifest = {"apiVersion": resources.KUEUE_API_VERSION, "kind": "ResourceFlavor", "metadata": {"name": name}}
    return decode_as(ResourceFlavor, {**manifest, "spec": {"nodeLabels": {"gpu": product}, **spec}})


def told(
    nodes: list[dict], pods: Sequence[dict] = (), flavors: list[ResourceFlavor] | None = None, **more: Any
) -> CapacityReport:
    uses = [use for p in pods if (use := report.pod_use(p)) is not None]
    cluster = report.Cluster(
        nodes=[report.node_room(n) for n in nodes],
        pods=uses,
        unbound=frozenset(use.placement for use in uses if not use.node),
        flavors=flavors or [flavor()],
        queues=more.get("queues", {}),
        ours=more.get("ours", {}),
        local_queues=more.get("local_queues", {}),
        namespaces=["ns"],
        kinds=["batch/v1, Job"],
    )
    return report.capacity(cluster, creates=(True, False, "from-hub"), version="v1.35.0", now=5.0)


def only(answer: CapacityReport) -> FlavorCapacity:
    assert len(answer.flavors) == 1
    return answer.flavors[0]


def test_room_is_counted_node_by_node_and_equal_nodes_are_folded():
    found = only(told([node("a"), node("b"), node("c")], [pod("a", 4)]))
    assert [(hole.free[GPU], hole.nodes) for hole in found.holes] == [(8, 2), (4, 1)]
    assert (found.resources[GPU].capacity, found.resources[GPU].free) == (24, 20)


def test_ours_and_others_are_told_apart():
    amount = only(told([node("a")], [pod("a", 2, placement="p1"), pod("a", 3)])).resources[GPU]
    assert (amount.ours, amount.others, amount.free) == (2, 3, 3)


@pytest.mark.parametrize(
    ("broken", "want_capacity"),
    [
        pytest.param(node("b", ready=False), 8, id="a node that is not ready"),
        pytest.param(node("b", cordoned=True), 8, id="a cordoned node"),
        pytest.param(
            node("b", taints=[{"key": "broken", "effect": "NoSchedule"}]), 8, id="a taint that the flavor does not know"
        ),
        pytest.param(node("b", product="A100"), 8, id="another GPU"),
        pytest.param(node("b"), 16, id="none of these"),
    ],
)
def test_only_nodes_that_can_take_pods_of_the_flavor_count(broken: dict, want_capacity: int):
    assert only(told([node("a"), broken])).resources[GPU].capacity == want_capacity


def test_a_taint_of_the_flavor_is_asked_of_the_pods_and_does_not_hide_the_node():
    dedicated = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
    found = only(told([node("a", taints=[dedicated])], flavors=[flavor(nodeTaints=[dedicated])]))
    assert found.nodes_ready == 1


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_ended_takes_no_room(phase: str):
    assert only(told([node("a")], [pod("a", 8, phase=phase)])).resources[GPU].free == 8


def test_a_placement_counts_only_when_all_its_pods_are_bound():
    answer = told([node("a")], [pod("a", 1, placement="p1"), pod("a", 1, placement="p2"), pod("", 1, placement="p2")])
    assert answer.counted == ["p1"]


def test_queues_and_what_the_agent_may_create():
    status = QueueStatus(pending=3, room={"h100": {GPU: (5, 64)}})
    ours = {"from-hub": {("h100", GPU): 7}}
    answer = told(
        [node("a")], queues={"from-hub": status}, ours=ours, local_queues={ObjectKey("ns", "gpus"): "from-hub"}
    )
    room = answer.queues[0].rooms["h100"][GPU]
    assert (answer.queues[0].pending, room.available, room.limit, room.ours) == (3, 5, 64, 7)
    assert (answer.local_queues[0].cluster_queue, answer.creates_namespaces, answer.creates_local_queues) == (
        "from-hub",
        True,
        False,
    )


def test_shapes_tell_what_every_node_would_hold_when_empty():
    found = only(told([node("a"), node("b", ready=False), node("c", cordoned=True)], [pod("a", 8)]))
    assert [(shape.free[GPU], shape.nodes) for shape in found.shapes] == [(8, 3)]
