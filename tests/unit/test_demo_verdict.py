"""The demo's last line, from what the sandbox clusters saw."""

import pytest
from msgspec import structs

from hub.demo.jobs import JobPlan, manifest, plans
from hub.demo.verdict import Facts, complaints, verdict
from hub.sandbox.observer import Completion, Run, Source

PLANS = [
    JobPlan(name="a", namespace="ns", pods=1, gpus_per_pod=1),
    JobPlan(name="huge", namespace="ns", pods=1, gpus_per_pod=64, never_fits=True),
]


def source(cluster: str = "east", name: str = "a", placement: str = "p1") -> Source:
    uid = f"{cluster}/{name}/{placement}"
    return Source(
        cluster=cluster, namespace="ns", kind="Job", name=name, uid=uid, origin_uid=f"uid-{name}", placement=placement
    )


def run(start: float, end: float | None, **of: str) -> Run:
    of_source = source(**of)
    return Run(
        source=of_source, pod="pod", pod_uid=f"{of_source.uid}/{start}", node="n", start=start, end=end, outcome=""
    )


def done(at: float, **of: str) -> Completion:
    return Completion(source=source(**of), at=at, succeeded=True)


GOOD = Facts(
    plans=PLANS,
    submitted_at={"ns/a": 100.0, "ns/huge": 100.0},
    runs=[run(100.5, 103.0)],
    completions=[done(103.0)],
    complete=frozenset({"ns/a"}),
    never_fit=frozenset({"ns/huge"}),
    now=110.0,
    wall_s=10.0,
)


def test_all_as_it_should_be():
    found = verdict(GOOD)
    assert (found.finished, found.never_fit, found.lost, found.double_runs) == (1, 1, 0, 0)
    assert (found.per_cluster, found.p50_place_s) == ({"east": 1}, 0.5)
    assert found.as_it_should_be(PLANS)


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param(
            {"completions": [], "complete": frozenset()}, {"lost": 1}, id="a job that ran and never ended is lost"
        ),
        pytest.param({"complete": frozenset()}, {"lost": 1}, id="a job whose end the user cannot see is lost"),
        pytest.param({"completions": []}, {"lost": 1}, id="a job that only the hub calls complete is lost"),
        pytest.param(
            {"runs": [run(100.5, 103.0), run(102.0, 104.0, cluster="west", placement="p2")]},
            {"double_runs": 1},
            id="two copies at the same time are a double run",
        ),
        pytest.param(
            {"completions": [done(103.0), done(106.0, cluster="west", placement="p2")]},
            {"double_runs": 1},
            id="two successes of one job are a double run",
        ),
        pytest.param({"never_fit": frozenset()}, {"never_fit": 0}, id="a hopeless job that nobody told so"),
    ],
)
def test_what_is_wrong_shows_and_fails(changes: dict, want: dict):
    found = verdict(structs.replace(GOOD, **changes))
    assert {name: getattr(found, name) for name in want} == want
    assert not found.as_it_should_be(PLANS)
    assert complaints(structs.replace(GOOD, **changes))


def test_a_move_after_the_first_copy_stopped_is_no_double_run():
    moved = [run(100.5, 101.0), run(102.0, 104.0, cluster="west", placement="p2")]
    assert verdict(structs.replace(GOOD, runs=moved)).double_runs == 0


def test_the_mix_has_one_job_for_one_cluster_only_and_one_that_never_fits():
    mix = plans()
    assert len({plan.key for plan in mix}) == len(mix) >= 40
    assert [plan.name for plan in mix if plan.never_fits] == ["too-large-1"]
    assert max(plan.pods * plan.gpus_per_pod for plan in mix if not plan.never_fits) == 32
    assert all(manifest(plan)["spec"]["parallelism"] == plan.pods for plan in mix)
