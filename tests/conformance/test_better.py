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
