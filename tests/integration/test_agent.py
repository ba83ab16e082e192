"""The agent's loops on a simulated worker cluster: real local admission, real Job controller, a hub played by the test."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import JOBS, NAMESPACES, PODS, WORKLOADS
from hub.kueue.wire import Phase, Refusal
from hub.sandbox.faults import FaultSettings, Mutate
from hub.sandbox.fleet import SandboxCluster
from tests.agent_rig import agent_on, job_on, run_intent, withdraw
from tests.sandbox_cluster import add_queues, eventually, gpu_job, sandbox_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SandboxCluster]:
    async with sandbox_cluster(tmp_path) as running:
        add_queues(running)
        yield running


def lasting(name: str, **spec: Any) -> dict[str, Any]:
    """A job that runs until somebody stops it."""
    job = gpu_job(name, **spec)
    job["spec"]["template"]["metadata"] = {"annotations": {"sandbox.multikueue-hub.io/duration": "1h"}}
    return job


def nothing_left(cluster: SandboxCluster) -> bool:
    return not cluster.api.list(JOBS) and not cluster.api.list(PODS) and not cluster.api.list(WORKLOADS)


def runs(cluster: SandboxCluster) -> list[str]:
    return [run.source.placement for run in cluster.observer.runs]


async def test_a_job_is_admitted_run_told_and_cleaned_up(cluster: SandboxCluster, tmp_path: Path):
    intent = run_intent(gpu_job("train", gpus=4, parallelism=2, completions=2))
    async with agent_on(cluster, tmp_path) as hub:
        done = await hub.until("p1", Phase.FINISHED, intent)
        assert (done.succeeded, done.reason, done.job_status["succeeded"]) == (True, "Succeeded", 2)
        await hub.until("p1", Phase.GONE, withdraw(intent))
    assert nothing_left(cluster)
    assert runs(cluster) == ["p1", "p1"]
    assert {run.source.origin_uid for run in cluster.observer.runs} == {"uid-train"}


async def test_a_running_job_is_withdrawn_and_its_pods_are_gone_before_the_word(
    cluster: SandboxCluster, tmp_path: Path
):
    intent = run_intent(lasting("train", gpus=1))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.RUNNING, intent)
        await hub.until("p1", Phase.GONE, withdraw(intent))
        assert nothing_left(cluster)
    assert all(run.end is not None for run in cluster.observer.runs)


async def test_what_does_not_fit_the_quota_is_refused_with_the_reason_and_leaves_nothing(
    cluster: SandboxCluster, tmp_path: Path
):
    intent = run_intent(gpu_job("huge", gpus=8, parallelism=4, completions=4))
    async with agent_on(cluster, tmp_path) as hub:
        refused = await hub.until("p1", Phase.REFUSED, intent)
        assert refused.reason == Refusal.NO_QUOTA
        assert "32" in refused.message or "quota" in refused.message.lower()
    assert nothing_left(cluster)


async def test_a_killed_agent_goes_on_from_the_objects(cluster: SandboxCluster, tmp_path: Path):
    intent = run_intent(lasting("train", gpus=1))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.RUNNING, intent)
    uid = job_on(cluster, intent)["metadata"]["uid"]
    async with agent_on(cluster, tmp_path) as hub:
        await hub.poll(inventory={"p1": 1})
        await hub.until("p1", Phase.RUNNING)
        assert job_on(cluster, intent)["metadata"]["uid"] == uid
        await hub.until("p1", Phase.GONE, withdraw(intent))
    assert runs(cluster) == ["p1"]


async def test_a_copy_that_the_hub_does_not_name_any_more_goes_after_a_restart(cluster: SandboxCluster, tmp_path: Path):
    intent = run_intent(lasting("train", gpus=1))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.RUNNING, intent)
    async with agent_on(cluster, tmp_path) as hub:
        await hub.poll()
        assert job_on(cluster, intent) is not None, "nothing goes before the hub has said what may run here"
        await hub.poll(inventory={})
        await eventually(cluster, lambda: nothing_left(cluster), "the copy is removed")


async def test_a_job_that_ends_while_the_agent_is_away_is_told_and_not_run_again(
    cluster: SandboxCluster, tmp_path: Path
):
    intent = run_intent(gpu_job("train", gpus=1, ttlSecondsAfterFinished=0))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.ADMITTED, intent)
    await eventually(cluster, lambda: bool(cluster.observer.completions), "the job ends without an agent")
    async with agent_on(cluster, tmp_path) as hub:
        await hub.poll(inventory={"p1": 1})
        done = await hub.until("p1", Phase.FINISHED)
        assert done.succeeded
    assert runs(cluster) == ["p1"]


async def test_a_deleted_job_is_told_as_disappeared_and_its_pods_are_gone(cluster: SandboxCluster, tmp_path: Path):
    intent = run_intent(lasting("train", gpus=1))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.RUNNING, intent)
        cluster.api.delete(JOBS, ObjectKey("team-a", "train"))
        evicted = await hub.until("p1", Phase.EVICTED)
        assert evicted.reason == Refusal.DISAPPEARED
        assert nothing_left(cluster)


async def test_a_job_that_ended_before_its_withdrawal_is_told_as_finished_first(
    cluster: SandboxCluster, tmp_path: Path
):
    intent = run_intent(gpu_job("train", gpus=1))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.poll(intent)
        await eventually(cluster, lambda: bool(cluster.observer.completions), "the job ends before the hub hears of it")
        done = await hub.until("p1", Phase.FINISHED, withdraw(intent))
        while done.generation < 2:  # the word about the offer comes first, and a hub that has withdrawn it drops that
            await hub.poll()
            done = hub.reports["p1"]
        assert (done.phase, done.succeeded) == (Phase.FINISHED, True)
        await hub.until("p1", Phase.GONE)
    assert nothing_left(cluster)


async def test_a_foreign_job_of_the_same_name_is_never_touched(cluster: SandboxCluster, tmp_path: Path):
    foreign = lasting("train", gpus=1)
    del foreign["metadata"]["labels"]
    before = cluster.api.create(JOBS, foreign)
    intent = run_intent(gpu_job("train", gpus=1))
    async with agent_on(cluster, tmp_path) as hub:
        refused = await hub.until("p1", Phase.REFUSED, intent)
        assert refused.reason == Refusal.NAME_TAKEN
        await hub.until("p1", Phase.GONE, withdraw(intent))
    after = job_on(cluster, intent)
    assert (after["metadata"]["uid"], after["metadata"]["generation"]) == (
        before["metadata"]["uid"],
        before["metadata"]["generation"],
    )


async def test_a_missing_namespace_and_queue_are_created_where_allowed(cluster: SandboxCluster, tmp_path: Path):
    job = gpu_job("train", gpus=1, queue="other")
    job["metadata"]["namespace"] = "team-b"
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.FINISHED, run_intent(job))
    assert cluster.api.get(NAMESPACES, ObjectKey("", "team-b")) is not None


async def test_local_preemption_is_an_eviction_told_when_nothing_runs_any_more(cluster: SandboxCluster, tmp_path: Path):
    intent = run_intent(lasting("train", gpus=8))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.RUNNING, intent)
        key = ObjectKey("team-a", intent.workload)
        cluster.api.merge(WORKLOADS, key, {"spec": {"active": False}})
        evicted = await hub.until("p1", Phase.EVICTED)
        assert evicted.reason == "Deactivated"
        assert nothing_left(cluster)


async def test_capacity_is_told_with_holes_and_what_is_counted(cluster: SandboxCluster, tmp_path: Path):
    intent = run_intent(lasting("train", gpus=6))
    async with agent_on(cluster, tmp_path) as hub:
        await hub.until("p1", Phase.RUNNING, intent)
        while hub.capacity is None or "p1" not in hub.capacity.counted:
            await hub.poll()
        flavor = hub.capacity.flavors[0]
        assert [(hole.free["nvidia.com/gpu"], hole.nodes) for hole in flavor.holes] == [(8, 1), (2, 1)]
        room = hub.capacity.queues[0].rooms["h100"]["nvidia.com/gpu"]
        assert (room.available, room.limit, room.ours) == (10, 16, 6)
        assert "batch/v1, Job" in hub.capacity.kinds


async def test_a_policy_engine_that_rewrites_the_image_is_named(cluster: SandboxCluster, tmp_path: Path):
    rewritten = [{"name": "main", "image": "mirror.example/trainer:1"}]
    change = Mutate(kind="Job", path="spec.template.spec.containers", value=rewritten)
    cluster.faults.set(FaultSettings(mutate=[change]))
    async with agent_on(cluster, tmp_path) as hub:
        refused = await hub.until("p1", Phase.REFUSED, run_intent(lasting("train", gpus=1)))
        assert refused.reason == Refusal.CHANGED_BY_POLICY
        assert "image" in refused.message
    assert nothing_left(cluster)
