"""Nothing that people write may throw the engine: it names what is wrong, on the object, and goes on."""

from typing import Any

import pytest

from hub.kueue.api.meta import ObjectKey
from tests.admission_builders import Cluster, pods


def cluster() -> Cluster:
    c = Cluster()
    c.queue("q", cpu=5)
    return c


@pytest.mark.parametrize(
    ("sets", "want_reason"),
    [
        pytest.param(
            [pods("a", 1, {"cpu": "1"}), pods("a", 1, {"cpu": "1"})], "Misconfigured", id="two pod sets of one name"
        ),
        pytest.param([pods("a", 1, {"cpu": "a lot"})], "Misconfigured", id="a quantity that is none"),
        pytest.param([pods("a", 1, {"cpu": "-1"})], "Misconfigured", id="a negative amount"),
        pytest.param([pods("a", 1, {"pods": "1"})], "Misconfigured", id="containers that ask for pods"),
        pytest.param([pods("a", -1, {"cpu": "1"})], "Misconfigured", id="a negative count"),
        pytest.param([pods("a", 2**31 - 1, {"cpu": "9E"})], "ExceedsMaxQuota", id="an amount beyond all numbers"),
        pytest.param(
            [pods(f"p{i}", 1, {"cpu": "1m"}) for i in range(10_000)], "ExceedsMaxQuota", id="ten thousand pod sets"
        ),
    ],
)
def test_a_bad_workload_says_what_is_wrong_and_harms_nobody(sets: list[dict[str, Any]], want_reason: str) -> None:
    c = cluster()
    c.submit("bad", "q", pod_sets=sets, at=1)
    c.submit("good", "q", 1, at=2)
    c.cycle(2)
    assert (c.reason("bad"), c.admitted()) == (want_reason, {"good"})
    assert c.message("bad")


def test_a_queue_with_an_unknown_flavor_is_inactive_and_says_which() -> None:
    c = Cluster()
    c.put("ClusterQueue", "q", {"namespaceSelector": {}, "resourceGroups": [
        {"coveredResources": ["cpu"], "flavors": [{"name": "nowhere", "resources": [{"name": "cpu", "nominalQuota": "5"}]}]}
    ]})  # fmt: skip
    status = c.engine.queue_status("ClusterQueue", ObjectKey("", "q"))
    assert (status.active, status.reason) == (False, "FlavorNotFound")
    assert "nowhere" in status.message


def test_a_loop_of_cohorts_stops_its_queues_until_somebody_repairs_it() -> None:
    c = Cluster()
    c.cohort("a", "b")
    c.cohort("b", "a")
    c.queue("q", "a", 5)
    c.queue("other", cpu=5)
    c.submit("w", "q", 1)
    c.submit("fine", "other", 1)
    c.cycle(2)
    looped = (c.admitted(), c.engine.queue_status("ClusterQueue", ObjectKey("", "q")).active)
    c.cohort("b", "")
    c.cycle()
    assert (looped, c.admitted()) == (({"fine"}, False), {"w", "fine"})


def test_cohorts_nested_absurdly_deep_are_treated_as_a_loop() -> None:
    c = Cluster()
    for i in range(300):
        c.cohort(f"c{i}", f"c{i + 1}")
    c.queue("q", "c0", 5)
    c.submit("w", "q", 1)
    c.cycle()
    assert c.admitted() == set()


def test_unlimited_quota_stays_unlimited() -> None:
    c = Cluster()
    c.queue("q", flavors={"default": {"memory": 2**63 - 1}})
    for i in range(3):
        c.submit(f"w{i}", "q", requests={"memory": "4E"})
    c.cycle(3)
    assert len(c.admitted()) >= 2
