import pytest

from hub.sandbox.observer import Completion, Observer, Run, Source, double_runs, gpu_seconds, per_cluster

NOW = 1000.0


def source(cluster="east", *, name="train", uid="", origin="w-1", placement="p-1", kind="Job"):
    return Source(
        cluster=cluster,
        namespace="team-a",
        kind=kind,
        name=name,
        uid=uid or f"{cluster}-{name}",
        origin_uid=origin,
        placement=placement,
    )


def run(start, end, whose=None, *, gpus=1, pod="a"):
    outcome = "" if end is None else "Succeeded"
    return Run(
        source=whose or source(),
        pod=pod,
        pod_uid=f"uid-{pod}",
        node="n",
        gpus=gpus,
        start=start,
        end=end,
        outcome=outcome,
    )


EAST, WEST = source("east", placement="p-1"), source("west", placement="p-2")


@pytest.mark.parametrize(
    ("given_runs", "want_overlap_s"),
    [
        pytest.param([run(0, 10, EAST), run(5, 15, EAST)], None, id="pods of one copy run together"),
        pytest.param([run(0, 10, EAST), run(10, 20, WEST)], None, id="one after the other, touching"),
        pytest.param([run(0, 10, EAST), run(8, 20, WEST)], 2, id="two clusters at once"),
        pytest.param([run(0, None, EAST), run(990, None, WEST)], 10, id="both still running"),
        pytest.param([run(0, 10, EAST), run(2, 4, WEST), run(3, 5, WEST)], 3, id="an overlap is counted once"),
        pytest.param(
            [run(0, 10, source(placement="p-1", uid="j1")), run(5, 15, source(placement="p-2", uid="j2"))],
            5,
            id="two placements on one cluster",
        ),
        pytest.param(
            [run(0, 10, source(uid="j1")), run(5, 15, source(uid="j2"))],
            5,
            id="the same placement, its job made again too early",
        ),
        pytest.param(
            [run(0, 10, source(uid="p1", kind="Pod")), run(5, 15, source(uid="p2", kind="Pod"))],
            None,
            id="bare pods of one placement are one copy",
        ),
        pytest.param(
            [run(0, 10, source("east", origin="")), run(5, 15, source("west", origin=""))],
            5,
            id="without marks the name tells",
        ),
        pytest.param([run(0, 10, EAST), run(5, 15, source("west", origin="w-2"))], None, id="different workloads"),
    ],
)
def test_double_runs(given_runs, want_overlap_s):
    found = double_runs(given_runs, now=NOW)
    assert [d.overlap_s for d in found] == ([] if want_overlap_s is None else [want_overlap_s])


def test_completing_twice_is_a_double_run_even_without_overlap():
    done = [Completion(source=s, at=20, succeeded=True) for s in (EAST, WEST)]
    (found,) = double_runs([run(0, 10, EAST), run(15, 20, WEST)], done, now=NOW)
    assert (found.workload, found.clusters, found.completions, found.overlap_s) == ("w-1", ["east", "west"], 2, 0)


def test_a_failure_and_a_success_elsewhere_are_no_double_run():
    done = [Completion(source=EAST, at=10, succeeded=False), Completion(source=WEST, at=20, succeeded=True)]
    assert double_runs([run(0, 10, EAST), run(15, 20, WEST)], done, now=NOW) == []


def test_gpu_seconds_and_tally_per_cluster():
    runs = [run(0, 10, EAST, gpus=8), run(995, None, EAST, gpus=2, pod="b"), run(0, 5, WEST, gpus=0)]
    done = [Completion(source=EAST, at=10, succeeded=True), Completion(source=WEST, at=5, succeeded=False)]
    assert gpu_seconds(runs, now=NOW) == 90
    tally = per_cluster(runs, done, now=NOW)
    assert (tally["east"].runs, tally["east"].running, tally["east"].workloads) == (2, 1, 1)
    assert (tally["east"].succeeded, tally["west"].succeeded) == (1, 0)
    assert (tally["east"].gpu_s, tally["west"].gpu_s) == (90, 0)


def test_the_observer_keeps_the_first_end_of_a_run():
    observer = Observer()
    observer.started(run(0, None))
    observer.stopped("uid-a", "NodeLost", 3)
    observer.stopped("uid-a", "Deleted", 9)
    observer.stopped("unknown", "Deleted", 9)
    assert [(r.start, r.end, r.outcome) for r in observer.runs] == [(0, 3, "NodeLost")]
