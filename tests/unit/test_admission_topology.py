"""Where gangs go in a topology: which domains, when nobody fits, and what happens when a node fails."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.kueue.admission import messages as m
from hub.kueue.admission.topology_encoding import decode
from hub.kueue.api.v1beta2 import AdmissionCheckState, UnhealthyNode
from tests.admission_builders import Cluster, pods

RACK, HOST = "cloud/rack", "kubernetes.io/hostname"
replace = msgspec.structs.replace


def node(name: str, cpu: int, rack: str = "r0", *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": "gpu", RACK: rack, HOST: name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": str(cpu), "pods": "20"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def cluster(*racks: tuple[int, ...], quota: int = 1000, balanced: bool = False, **queue: Any) -> Cluster:
    """One rack per tuple, with nodes r0-n0, r0-n1 ... of so many cores."""
    c = Cluster(rules="hub", TASBalancedPlacement=balanced)
    c.put("Topology", "dc", {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]})
    c.flavor("tas", nodeLabels={"pool": "gpu"}, topologyName="dc")
    for r, cores in enumerate(racks):
        for i, cpu in enumerate(cores):
            c.world.put(node(f"r{r}-n{i}", cpu, f"r{r}"))
    c.queue("q", flavors={"tas": {"cpu": quota}}, **queue)
    return c


def gang(count: int, wish: dict[str, Any] | None = None, name: str = "main", cpu: int = 1) -> dict[str, Any]:
    found = pods(name, count, {"cpu": str(cpu)})
    return found | ({"topologyRequest": wish} if wish is not None else {})


def placed(c: Cluster, workload: str, pod_set: int = 0) -> dict[str, int]:
    """Node -> pods."""
    admission = c.world.workloads[workload].status.admission
    if admission is None:
        return {}
    written = admission.pod_set_assignments[pod_set].topology_assignment
    return {values[-1]: count for values, count in decode(written)} if written is not None else {}


REQUIRED, PREFERRED, ANYWHERE = {"required": RACK}, {"preferred": RACK}, {"unconstrained": True}
IN_TWOS = {"required": RACK, "podSetSliceRequiredTopology": HOST, "podSetSliceSize": 2}
PLACES: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any] | None, int, dict[str, int]]] = {
    "large nodes first, and the last one as full as can be":
        (((4, 4, 2, 1),), REQUIRED, 9, {"r0-n0": 4, "r0-n1": 4, "r0-n3": 1}),
    "the fullest rack that still holds everything":
        (((8,), (5,), (4,)), REQUIRED, 5, {"r1-n0": 5}),
    "small nodes first for pods that do not care":
        (((4, 3, 2),), ANYWHERE, 6, {"r0-n0": 1, "r0-n1": 3, "r0-n2": 2}),
    "pods without a wish, in a queue where everything is placed":
        (((4, 3, 2),), None, 2, {"r0-n2": 2}),
    "one rack must do":
        (((3, 2), (3, 1)), REQUIRED, 6, {}),
    "one rack would be nice, two will do":
        (((3, 2), (3, 1)), PREFERRED, 6, {"r0-n0": 3, "r1-n0": 3}),
    "slices of two stay on one node each":
        (((5, 3, 1),), IN_TWOS, 6, {"r0-n0": 4, "r0-n1": 2}),
    "slices of two do not fit although the pods would":
        (((3, 3, 1),), IN_TWOS, 6, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_places(case: str):
    racks, wish, count, want = PLACES[case]
    c = cluster(*racks)
    c.submit("w", "q", pod_sets=[gang(count, wish)])
    c.cycle()
    assert placed(c, "w") == want


def test_a_gang_that_fits_no_empty_rack_says_so():
    c = cluster((2, 2), (3,))
    c.submit("w", "q", pod_sets=[gang(5, REQUIRED)])
    assert c.cycle() == {"w": "nofit"}
    work = next(iter(c.engine.works.values()))
    assert work.reason == "TopologyPlacementFailed"
    assert 'topology "dc" has room for 4 of 5 pod(s)' in work.message


def test_a_leader_goes_where_its_workers_go():
    c = cluster((4,), (3, 3))
    grouped = {**REQUIRED, "podSetGroupName": "g"}
    c.submit("w", "q", pod_sets=[gang(1, grouped, "leader"), gang(4, grouped, "workers")])
    c.cycle()
    want_rack = {"r1"}
    assert {host[:2] for i in (0, 1) for host in placed(c, "w", i)} == want_rack


def test_a_gang_makes_room_in_one_rack():
    c = cluster((4,), (4,), preemption={"withinClusterQueue": "LowerPriority"})
    for name in ("a", "b"):
        c.submit(name, "q", pod_sets=[gang(2, REQUIRED)])
        c.cycle()
    c.submit("c", "q", pod_sets=[gang(3, {"required": RACK})])
    c.cycle()
    c.submit("big", "q", priority=1, pod_sets=[gang(4, REQUIRED)])
    c.settle()
    assert len(c.preempted) == 1
    assert sum(placed(c, "big").values()) == 4


@pytest.mark.parametrize(
    "before",
    [{"ready": False}, {"unschedulable": True}, {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}],
)
def test_a_node_that_comes_into_service_lets_a_parked_gang_in(before: dict[str, Any]):
    c = cluster((2,))
    c.world.put(node("late", 4, **before))
    c.submit("w", "q", pod_sets=[gang(5, REQUIRED)])
    c.cycle()
    assert placed(c, "w") == {}
    c.world.put(node("late", 4))
    c.cycle()
    assert placed(c, "w") == {"late": 4, "r0-n0": 1}


def test_what_foreign_pods_use_is_not_there():
    c = cluster((4, 4))
    c.world.send(m.ForeignPodUsage(now=c.world.now, node="r0-n0", requests={"cpu": 3000, "pods": 1}))
    c.submit("w", "q", pod_sets=[gang(5, REQUIRED)])
    c.cycle()
    assert placed(c, "w") == {"r0-n0": 1, "r0-n1": 4}


# --- second looks --------------------------------------------------------------------------------------------------------


def fail(c: Cluster, workload: str, host: str) -> None:
    """The node is gone and the workload is marked."""
    c.world.send(m.NodeDeleted(now=c.world.now, name=host))
    obj = c.world.workloads[workload]
    c.world.change(replace(obj, status=replace(obj.status, unhealthy_nodes=[UnhealthyNode(name=host)])))


def test_a_failed_node_is_replaced_in_the_rack_that_was_required():
    c = cluster((2, 2, 2), (2,))  # the second rack would be the tighter fit
    c.submit("w", "q", pod_sets=[gang(3, REQUIRED)])
    c.cycle()
    assert placed(c, "w") == {"r0-n0": 2, "r0-n1": 1}
    fail(c, "w", "r0-n0")
    c.cycle(2)
    assert placed(c, "w") == {"r0-n1": 1, "r0-n2": 2}
    assert c.world.workloads["w"].status.unhealthy_nodes == []


def test_a_node_that_is_gone_is_replaced_unasked_and_one_that_was_never_there_is_not():
    c = cluster((2, 2, 2))
    c.submit("w", "q", pod_sets=[gang(3, REQUIRED)])
    c.cycle()
    c.world.send(m.NodeDeleted(now=c.world.now, name="unheard-of"))
    c.world.send(m.NodeDeleted(now=c.world.now, name="r0-n1"))
    c.cycle(2)
    assert placed(c, "w") == {"r0-n0": 2, "r0-n2": 1}


def test_two_nodes_gone_at_once_are_too_many():
    c = cluster((2, 2, 2, 2))
    c.submit("w", "q", pod_sets=[gang(4, REQUIRED)])
    c.cycle()
    for name in placed(c, "w"):
        c.world.send(m.NodeDeleted(now=c.world.now, name=name))
    c.cycle(2)
    assert [(e.key.name, e.reason) for e in c.world.evictions] == [("w", "NodeFailures")]


def test_a_broken_slice_is_mended_where_the_rest_of_it_is():
    c = cluster((2, 2), (2, 2, 4))
    in_fours = {"preferred": RACK, "podSetSliceRequiredTopology": RACK, "podSetSliceSize": 4}
    c.submit("w", "q", pod_sets=[gang(4, in_fours)])
    c.cycle()
    assert placed(c, "w") == {"r0-n0": 2, "r0-n1": 2}
    c.world.put(node("r0-n9", 2))
    fail(c, "w", "r0-n0")
    c.cycle(2)
    assert placed(c, "w") == {"r0-n1": 2, "r0-n9": 2}


def test_a_workload_whose_node_has_no_replacement_is_evicted():
    c = cluster((2, 2), (9,))
    c.submit(
        "w", "q", pod_sets=[gang(4, {"required": RACK, "podSetSliceRequiredTopology": HOST, "podSetSliceSize": 2})]
    )
    c.world.put(node("r1-n0", 1, "r1"))
    c.cycle()
    assert placed(c, "w") == {"r0-n0": 2, "r0-n1": 2}
    fail(c, "w", "r0-n0")
    c.cycle(2)
    assert [(e.key.name, e.reason) for e in c.world.evictions] == [("w", "NodeFailures")]


def test_a_place_that_waits_for_a_check_is_found_when_the_check_is_ready():
    c = cluster((2,), (2,))
    c.put("AdmissionCheck", "capacity", {"controllerName": "kueue.x-k8s.io/provisioning-request"})
    active = [
        {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "capacity"}}
    c.world.put(
        check | {"spec": {"controllerName": "kueue.x-k8s.io/provisioning-request"}, "status": {"conditions": active}}
    )
    c.queue("q", flavors={"tas": {"cpu": 10}}, admissionChecksStrategy={"admissionChecks": [{"name": "capacity"}]})
    c.submit("w", "q", pod_sets=[gang(2, REQUIRED)])
    assert c.cycle() == {"w": "admitted"}
    admission = c.world.workloads["w"].status.admission
    assert admission is not None
    assert admission.pod_set_assignments[0].delayed_topology_request == "Pending"
    obj = c.world.workloads["w"]
    ready = [
        AdmissionCheckState(name="capacity", state="Ready", message="", last_transition_time="2026-01-01T00:00:01Z")
    ]
    c.world.change(replace(obj, status=replace(obj.status, admission_checks=ready)))
    c.cycle(2)
    assert placed(c, "w") == {"r0-n0": 2}
    work = next(iter(c.engine.works.values()))
    assert work.reservation is not None
    assert work.reservation.admitted


# --- whatever comes ------------------------------------------------------------------------------------------------------

WISHES = [None, ANYWHERE, REQUIRED, PREFERRED, IN_TWOS, {"preferred": HOST}]
GANGS = st.tuples(st.integers(1, 8), st.sampled_from(WISHES), st.integers(1, 3), st.booleans())


@given(
    racks=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple), min_size=1, max_size=3),
    gangs=st.lists(GANGS, min_size=1, max_size=6),
    balanced=st.booleans(),
)
def test_everything_is_placed_whole_and_nothing_is_overfilled(racks, gangs, balanced):
    c = cluster(*racks, balanced=balanced)
    for i, (count, wish, cpu, led) in enumerate(gangs):
        c.submit(f"w{i}", "q", at=i, pod_sets=pod_sets_of(count, wish, cpu, led))
    c.settle()
    used: dict[str, int] = {}
    for i, (count, wish, cpu, led) in enumerate(gangs):
        sets = pod_sets_of(count, wish, cpu, led)
        found = [placed(c, f"w{i}", at) for at in range(len(sets))]
        totals = [sum(hosts.values()) for hosts in found]
        assert totals in ([0] * len(sets), [pod_set["count"] for pod_set in sets])
        if wish is IN_TWOS:
            assert all(pods_there % 2 == 0 for pods_there in found[0].values())
        if wish in (REQUIRED, IN_TWOS):
            assert len({host[:2] for hosts in found for host in hosts}) <= 1
        for hosts in found:
            for host, pods_there in hosts.items():
                used[host] = used.get(host, 0) + pods_there * cpu
    assert all(cores <= racks[int(host[1])][int(host[-1])] for host, cores in used.items())


def pod_sets_of(count: int, wish: dict[str, Any] | None, cpu: int, led: bool) -> list[dict[str, Any]]:
    if wish is IN_TWOS:
        return [gang(2 * count, wish, cpu=cpu)]
    if led and wish in (REQUIRED, PREFERRED):
        grouped = {**wish, "podSetGroupName": "g"}
        return [gang(count, grouped, "workers", cpu), gang(1, grouped, "leader", cpu)]
    return [gang(count, wish, cpu=cpu)]


def test_a_queue_of_a_management_cluster_leaves_places_to_the_workers():
    c = cluster()
    controller = "kueue.x-k8s.io/multikueue"
    active = {"type": "Active", "status": "True", "reason": "Active", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "fleet"}}
    c.world.put(check | {"spec": {"controllerName": controller}, "status": {"conditions": [active]}})
    c.queue("q", flavors={"tas": {"cpu": 10}}, admissionChecksStrategy={"admissionChecks": [{"name": "fleet"}]})
    c.submit("w", "q", pod_sets=[gang(2, REQUIRED)])
    assert c.cycle() == {"w": "admitted"}
    obj = c.world.workloads["w"]
    there = AdmissionCheckState(name="fleet", state="Ready", message="", last_transition_time="2026-01-01T00:00:01Z")
    c.world.change(replace(obj, status=replace(obj.status, admission_checks=[there])))
    work = next(iter(c.engine.works.values()))
    assert placed(c, "w") == {}
    assert work.reservation is not None
    assert work.reservation.admitted
