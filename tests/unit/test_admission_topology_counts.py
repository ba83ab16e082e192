"""Counts kept up to date while things change are what counting from scratch gives."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hub.kueue.admission.policy import Policy
from hub.kueue.admission.requests import PodSetNeed, Shapes
from hub.kueue.admission.topology import Domain, Rooms, Tree, node_facts
from hub.kueue.admission.topology_counts import Gang, fill
from hub.kueue.admission.topology_usage import Placement
from hub.kueue.admission.topology_wishes import Wish
from hub.kueue.api.core import node as read_node
from hub.kueue.api.v1beta2 import Topology, Workload, decode, decode_as
from tests.admission_builders import API, pods

LEVELS = ["cloud/block", "cloud/rack", "kubernetes.io/hostname"]
HOSTS = 12
WISHES = [
    Wish(1, required=True, slice_level=2),
    Wish(0, slice_level=1, slice_size=2),
    Wish(0, slice_level=1, slice_size=4, inner={2: 2}),
]


def host(i: int, cpu: int) -> dict[str, Any]:
    labels = dict(zip(LEVELS, (f"b{i // 6}", f"r{i // 3}", f"h{i}"), strict=True))
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": f"h{i}", "labels": labels},
        "status": {"allocatable": {"cpu": str(cpu), "pods": "9"}, "conditions": ready},
    }


def planted() -> Tree:
    topology = decode(
        {
            "apiVersion": API,
            "kind": "Topology",
            "metadata": {"name": "dc"},
            "spec": {"levels": [{"nodeLabel": label} for label in LEVELS]},
        }
    )
    assert isinstance(topology, Topology)
    tree = Tree("tas", topology, {}, (), Rooms(shared=True))
    for i in range(HOSTS):
        tree.put(node_facts(read_node(host(i, 2 + i % 4))), {})
    return tree


def need(cpu: int) -> PodSetNeed:
    manifest = {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "n"},
        "spec": {"queueName": "q", "podSets": [pods("main", 4, {"cpu": str(cpu)})]},
    }
    return Shapes(Policy()).of(decode_as(Workload, manifest).spec.pod_sets, {}, (), None).pod_sets[0]


ONE, TWO = need(1), need(2)


def notes(tree: Tree) -> list[tuple[int, ...]]:
    def of(domain: Domain) -> tuple[int, ...]:
        return (domain.pods, domain.pods_led, domain.slices, domain.slices_led, domain.leader)

    return [of(domain) for level in tree.domains for _, domain in sorted(level.items())]


CHANGES = st.one_of(
    st.tuples(st.just("occupy"), st.integers(0, HOSTS - 1)),
    st.tuples(st.just("release"), st.integers(0, HOSTS - 1)),
    st.tuples(st.just("node"), st.integers(0, HOSTS - 1)),
    st.tuples(st.just("gone"), st.integers(0, HOSTS - 1)),
    st.tuples(st.just("foreign"), st.integers(0, HOSTS - 1)),
    st.tuples(st.just("look"), st.integers(0, len(WISHES) - 1)),
)


@given(changes=st.lists(CHANGES, max_size=25), wish=st.sampled_from(WISHES), led=st.booleans(), empty=st.booleans())
def test_counts_kept_up_to_date_are_counts_from_scratch(changes, wish, led, empty):
    tree = planted()
    gang = Gang(TWO, 4, ONE if led else None)
    foreign: dict[str, dict[str, int]] = {}
    taken: list[Placement] = []
    for what, i in changes:
        name = f"h{i}"
        leaf = next((leaf for leaf in tree.leaves.values() if leaf.values[-1] == name), None)
        if what == "occupy" and leaf is not None:
            taken.append(Placement(tree, ONE.raw_per_pod, [(leaf, 1 + i % 2)]))
            taken[-1].occupied.occupy()
        elif what == "release" and taken:
            taken.pop().occupied.release()
        elif what == "node":
            tree.put(node_facts(read_node(host(i, 5))), foreign.get(name, {}))
        elif what == "gone":
            tree.drop(name, foreign.get(name, {}))
        elif what == "foreign" and leaf is not None:
            after = {"cpu": 1000 * (i % 3), "pods": 1}
            tree.shift_foreign(name, foreign.get(name, {}), after)
            foreign[name] = after
        elif what == "look":
            fill(tree, gang, WISHES[i], empty=empty)
        fill(tree, gang, wish, empty=empty)
    fill(tree, gang, wish, empty=empty)
    kept = notes(tree)
    tree.counted = None
    fill(tree, gang, wish, empty=empty)
    assert kept == notes(tree)
