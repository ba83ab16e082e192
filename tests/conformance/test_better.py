"""Scenarios in which Kueue's own decisions go round in circles. With our rules every one of them comes to rest."""

import pytest

from tests.conformance.replay import play
from tests.conformance.vectors import HERE, read
from tests.conformance.world import World

LOOPS = list(read(HERE / "extra" / "never-settles.jsonl.xz"))


@pytest.mark.parametrize("vector", [pytest.param(v, id=v["name"]) for v in LOOPS])
def test_what_never_settles_in_kueue_settles_here(vector):
    world = World(vector, rules="hub")
    for i, step in enumerate(vector["steps"]):
        got = play(world, i, step)
        world.engine.validate()
        assert not got["capped"], got["cycles"][-1]["heads"]


FULL = list(read(HERE / "extra" / "overfilled-nodes.jsonl.xz"))


def overfilled(world: World) -> list[str]:
    """Domains of which more is used than their nodes have."""
    trees = world.engine.config.scene.places.trees()
    return [
        f"{tree.flavor} {values}: {resource} {used} of {leaf.free.get(resource, 0)}"
        for tree in trees
        for values, leaf in tree.leaves.items()
        for resource, used in leaf.room.used.items()
        if used > leaf.free.get(resource, 0)
    ]


@pytest.mark.parametrize(("rules", "want_overfilled"), [("kueue", True), ("hub", False)])
def test_what_kueue_puts_on_a_node_beyond_its_room_does_not_go_there_here(rules: str, want_overfilled: bool):
    found: dict[str, list[str]] = {}
    for vector in FULL:
        world = World(vector, rules=rules)
        for i, step in enumerate(vector["steps"]):
            play(world, i, step)
            if too_full := overfilled(world):
                found.setdefault(vector["name"], too_full)
    assert bool(found) is want_overfilled, found
