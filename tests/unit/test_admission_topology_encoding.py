"""Topology assignments, written compactly and read back."""

import msgspec
import pytest

from hub.kueue.admission.topology_encoding import decode, encode

HOST = ["kubernetes.io/hostname"]
CASES = {
    "one node": (HOST, [(("n1",), 3)]),
    "nodes of one pool": (HOST, [(("pool-1",), 2), (("pool-2",), 2), (("pool-13",), 2)]),
    "nodes that differ in counts": (HOST, [(("a-1-x",), 2), (("a-2-x",), 1)]),
    "values where start and end overlap": (HOST, [(("aba",), 1), (("ababa",), 1)]),
    "two pools of nodes": (HOST, [((f"{pool}-node-{i}",), 1) for pool in ("east", "west") for i in range(20)]),
    "racks in blocks": (["block", "rack"], [(("b1", "r1"), 1), (("b1", "r2"), 2), (("b2", "r1"), 2)]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read_back(name: str) -> None:
    levels, domains = CASES[name]
    written = encode(levels, domains)
    assert written.levels == levels
    assert decode(written) == domains


def test_what_is_alike_is_written_once() -> None:
    levels, domains = CASES["nodes of one pool"]
    want = {
        "domainCount": 3,
        "valuesPerLevel": [{"individual": {"prefix": "pool-", "roots": ["1", "2", "13"]}}],
        "podCounts": {"universal": 2},
    }
    assert msgspec.to_builtins(encode(levels, domains).slices) == [want]


def test_pools_of_nodes_are_written_by_pool_where_that_is_shorter() -> None:
    levels, domains = CASES["two pools of nodes"]
    prefixes = [part.values_per_level[0].individual.prefix for part in encode(levels, domains).slices]
    assert prefixes == ["east-node-", "west-node-"]
