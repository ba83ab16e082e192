"""A worker cluster on its own: jobs from the queue through admission to their pods and back, with everything for real."""

import time

import pytest

from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import (
    CLUSTER_QUEUES,
    CORE_EVENTS,
    JOBS,
    LOCAL_QUEUES,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
)
from hub.kueue.api.v1beta2 import Workload, decode_as
from hub.kueue.integrations.reconcile import Policy
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime.admission import AdmissionLoop
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.jobs import JobLoop
from hub.sandbox.faults import FaultSettings
from tests.job_builders import conditions_of
from tests.sandbox_cluster import GPU, add_queues, client_of, eventually, gpu_job, kueue, sandbox_cluster

CQ, MAIN = ObjectKey("", "cq"), ObjectKey("team-a", "main")
FOREVER = {"sandbox.multikueue-hub.io/duration": "forever"}


@pytest.fixture
async def cluster(tmp_path):
    async with sandbox_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster, tmp_path):
    async with client_of(tmp_path) as made:
        yield made


@pytest.fixture
async def admission(cluster, client):
    """Admission and jobs, as an agent runs them."""
    informers = Informers(client, time.time)
    recorder = EventRecorder(client, time.time)
    admission = AdmissionLoop(informers, time.time, recorder, watches_nodes=True)
    jobs = JobLoop(informers, time.time, recorder, policy=Policy.WORKER, integrations=INTEGRATIONS.values())
    informers.start()
    for loop in (recorder, admission, jobs):
        loop.start()
    yield admission
    for loop in (jobs, admission, recorder):
        await loop.stop()
    await informers.stop()
    admission.state.validate()


def job_workloads(cluster) -> dict[str, Workload]:
    """By the name of their job."""
    found = [decode_as(Workload, w) for w in cluster.api.list(WORKLOADS, "team-a")]
    return {w.metadata.owner_references[0].name: w for w in found}


def state(cluster, job: str) -> dict[str, str]:
    workload = job_workloads(cluster).get(job)
    return conditions_of(workload.status) if workload else {}


def is_over(workload: Workload) -> bool:
    return "Finished" in conditions_of(workload.status) and not workload.metadata.finalizers


def all_over(cluster, count: int) -> bool:
    workloads = job_workloads(cluster)
    return len(workloads) == count and all(is_over(w) for w in workloads.values())


def used_gpus(cluster) -> int:
    return sum(run.gpus for run in cluster.observer.runs if run.end is None)


def endless(name: str, **fields) -> dict:
    job = gpu_job(name, **fields)
    job["spec"]["template"]["metadata"] = {"annotations": FOREVER}
    return job


async def test_jobs_run_within_quota_to_their_end(cluster, admission):
    add_queues(cluster, quota=8)
    for number in range(5):
        cluster.api.create(JOBS, gpu_job(f"j{number}", gpus=4))
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, used_gpus(cluster))
        return all_over(cluster, 5)

    await eventually(cluster, over, "five jobs finished")
    assert 0 < most <= 8
    assert [run.outcome for run in cluster.observer.runs] == ["Succeeded"] * 5
    for workload in job_workloads(cluster).values():
        want = {"QuotaReserved": "True/QuotaReserved", "Admitted": "True/Admitted", "Finished": "True/Succeeded"}
        assert conditions_of(workload.status).items() >= want.items()


async def test_a_higher_priority_takes_over_only_when_the_victim_has_stopped(cluster, admission):
    add_queues(cluster, quota=8, preemption={"withinClusterQueue": "LowerPriority"})
    for name, value in (("low", 1), ("high", 100)):
        cluster.api.create(WORKLOAD_PRIORITY_CLASSES, kueue("WorkloadPriorityClass", name, value=value))
    low = endless("low", gpus=8)
    low["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "low"
    cluster.api.create(JOBS, low)
    await eventually(cluster, lambda: used_gpus(cluster) == 8, "the low one runs")
    high = gpu_job("high", gpus=8)
    high["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    cluster.api.create(JOBS, high)
    await eventually(cluster, lambda: "Finished" in state(cluster, "high"), "the high one ran")
    await eventually(cluster, lambda: used_gpus(cluster) == 8, "the low one runs again")
    first, second, third = sorted(cluster.observer.runs, key=lambda run: run.start)
    assert [run.source.name for run in (first, second, third)] == ["low", "high", "low"]
    assert first.end <= second.start
    assert second.end <= third.start
    assert state(cluster, "low")["Evicted"] == "False/QuotaReserved"


async def test_queues_show_their_figures_and_then_nothing_is_written_any_more(cluster, client, admission):
    add_queues(cluster, quota=8)
    for name in ("a", "b"):
        cluster.api.create(JOBS, endless(name, gpus=8))

    def figures(resource, key) -> tuple:
        status = cluster.api.get(resource, key).get("status") or {}
        return tuple(status.get(f) for f in ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads"))

    def shown() -> bool:
        return figures(CLUSTER_QUEUES, CQ) == figures(LOCAL_QUEUES, MAIN) == (1, 1, 1)

    await eventually(cluster, shown, "one admitted, one pending")
    status = cluster.api.get(CLUSTER_QUEUES, CQ)["status"]
    (active,) = status["conditions"]
    assert (active["type"], active["status"], active["reason"]) == ("Active", "True", "Ready")
    usage = {r["name"]: r["total"] for r in status["flavorsReservation"][0]["resources"]}
    assert usage == {"cpu": "1", GPU: "8"}
    waiting = next(w for w in job_workloads(cluster).values() if w.status.admission is None)
    assert conditions_of(waiting.status) == {"QuotaReserved": "False/WaitingForQuota"}
    before = admission.writer.written
    for _ in range(3):
        admission.done_once.set()
        await admission.status_writer.idle.wait()
        admission.status_writer.mark_all()
    assert admission.writer.written == before


@pytest.mark.parametrize(
    ("change", "want"),
    [
        pytest.param(
            {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "typo"}}}, "Misconfigured", id="unknown queue"
        ),
        pytest.param({}, "ExceedsMaxQuota", id="more than the queue will ever have"),
    ],
)
async def test_a_job_that_cannot_run_says_why(cluster, admission, change, want):
    add_queues(cluster, quota=8)
    job = gpu_job("big", gpus=9)
    job["metadata"]["labels"] |= change.get("metadata", {}).get("labels", {})
    cluster.api.create(JOBS, job)

    def told() -> bool:
        events = [e["reason"] for e in cluster.api.list(CORE_EVENTS, "team-a")]
        return state(cluster, "big").get("QuotaReserved") == f"False/{want}" and want in events

    await eventually(cluster, told, "the reason is on the workload and in an event")


async def test_a_stopped_queue_drains_and_a_restarted_one_goes_on(cluster, admission):
    add_queues(cluster, quota=8)
    cluster.api.create(JOBS, endless("a", gpus=8))
    await eventually(cluster, lambda: used_gpus(cluster) == 8, "it runs")
    cluster.api.merge(CLUSTER_QUEUES, CQ, {"spec": {"stopPolicy": "HoldAndDrain"}})
    await eventually(
        cluster, lambda: state(cluster, "a").get("Requeued") == "False/ClusterQueueStopped", "it was drained"
    )
    assert used_gpus(cluster) == 0
    cluster.api.merge(CLUSTER_QUEUES, CQ, {"spec": {"stopPolicy": "None"}})
    await eventually(cluster, lambda: used_gpus(cluster) == 8, "it runs again")


async def test_a_deactivated_workload_stops_and_a_reactivated_one_starts(cluster, admission):
    add_queues(cluster, quota=8)
    cluster.api.create(JOBS, endless("a", gpus=8))
    await eventually(cluster, lambda: used_gpus(cluster) == 8, "it runs")
    key = job_workloads(cluster)["a"].metadata.key
    cluster.api.merge(WORKLOADS, key, {"spec": {"active": False}})
    await eventually(
        cluster, lambda: state(cluster, "a").get("Admitted") == "False/NoReservation", "it gave its quota back"
    )
    assert used_gpus(cluster) == 0
    cluster.api.merge(WORKLOADS, key, {"spec": {"active": True}})
    await eventually(cluster, lambda: used_gpus(cluster) == 8, "it runs again")


async def test_a_deleted_job_gives_its_quota_to_the_next(cluster, admission):
    add_queues(cluster, quota=8)
    cluster.api.create(JOBS, endless("a", gpus=8))
    await eventually(cluster, lambda: used_gpus(cluster) == 8, "it runs")
    cluster.api.create(JOBS, gpu_job("b", gpus=8))
    cluster.api.delete(JOBS, ObjectKey("team-a", "a"))
    await eventually(cluster, lambda: set(job_workloads(cluster)) == {"b"} and all_over(cluster, 1), "b ran, a is gone")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(FaultSettings(drop=0.2), id="every fifth answer is lost"),
        pytest.param(FaultSettings(slow_s=0.02), id="every answer is late"),
    ],
)
async def test_in_trouble_each_job_still_runs_exactly_once(cluster, admission, faults):
    add_queues(cluster, quota=8)
    cluster.faults.set(faults)
    for number in range(6):
        cluster.api.create(JOBS, gpu_job(f"j{number}", gpus=4))
    await eventually(cluster, lambda: all_over(cluster, 6), "six jobs finished")
    assert sorted(run.source.name for run in cluster.observer.runs) == [f"j{n}" for n in range(6)]


async def test_a_restarted_server_loses_nothing(cluster, admission):
    add_queues(cluster, quota=4)
    for number in range(6):
        cluster.api.create(JOBS, gpu_job(f"j{number}", gpus=4))
        await eventually(cluster, lambda n=number: len(cluster.observer.runs) > n // 2, "some have started")
        cluster.faults.restart()
    await eventually(cluster, lambda: all_over(cluster, 6), "six jobs finished")
    assert len(cluster.observer.runs) == 6
