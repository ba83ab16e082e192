"""Our own rules against Kueue's on the same case: who waits for ever there, and does not here."""

import pytest

from hub.kueue.admission.better import PATIENCE_S
from tests.admission_builders import PREEMPT_LOWER, Cluster


def hopeless_neighbour(rules: str) -> Cluster:
    """A strict head hopes for its quota and can take nobody's. A neighbour that would fit borrows that quota."""
    c = Cluster(rules=rules)
    c.queue("strict", "co", 2, queueingStrategy="StrictFIFO")
    c.queue("borrower", "co", 0)
    c.submit("runs-long", "strict", 1)
    c.cycle()
    c.submit("hopes", "strict", 2, at=1)
    c.submit("would-fit", "borrower", 1, at=2)
    return c


@pytest.mark.parametrize(("rules", "want_admitted"), [("kueue", False), ("hub", True)])
def test_a_best_effort_head_waits_for_ever_behind_a_hopeless_one_only_under_kueue(
    rules: str, want_admitted: bool
) -> None:
    c = hopeless_neighbour(rules)
    for _ in range(int(PATIENCE_S) + 5):
        c.cycle()
    assert ("would-fit" in c.admitted()) is want_admitted


def test_until_patience_ends_the_hopeless_head_keeps_its_room() -> None:
    c = hopeless_neighbour("hub")
    c.cycle(int(PATIENCE_S) - 5)
    assert c.admitted() == {"runs-long"}


def test_the_engine_asks_to_be_called_when_patience_ends() -> None:
    c = hopeless_neighbour("hub")
    c.cycle(3)
    assert not c.engine.needs_cycle
    c.world.now += PATIENCE_S
    assert c.cycle()["would-fit"] == "admitted"


@pytest.mark.parametrize(("rules", "want_woken"), [("kueue", False), ("hub", True)])
def test_room_freed_by_a_workload_of_a_stopped_local_queue_wakes_others_only_here(rules: str, want_woken: bool) -> None:
    c = Cluster(rules=rules)
    c.queue("q", cpu=2)
    c.put("LocalQueue", "side", {"clusterQueue": "q"}, namespace="team")
    c.submit("runs", "q", 2, local_queue="side")
    c.cycle()
    c.submit("waits", "q", 2)
    c.cycle()
    c.put("LocalQueue", "side", {"clusterQueue": "q", "stopPolicy": "Hold"}, namespace="team")
    c.finish("runs")
    c.cycle()
    assert ("waits" in c.admitted()) is want_woken


def test_two_teams_with_weights_60_and_40_get_60_and_40_percent() -> None:
    c = Cluster(fair=[], rules="hub")
    c.cohort("company", cpu=100)
    c.queue("research", "company", 0, fairSharing={"weight": "60"}, **PREEMPT_LOWER)
    c.queue("product", "company", 0, fairSharing={"weight": "40"}, **PREEMPT_LOWER)
    for i in range(100):
        c.submit(f"r{i:03d}", "research", 1, at=i)
        c.submit(f"p{i:03d}", "product", 1, at=i)
    c.settle(limit=400)
    running = c.admitted()
    assert (sum(n.startswith("r") for n in running), sum(n.startswith("p") for n in running)) == (60, 40)
