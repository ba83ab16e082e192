"""A worker cluster on its own: jobs from the queue through admission to their pods and back, with everything for real."""

import time

import pytest

from hub.kueue.api.resources import JOBS, WORKLOADS
from hub.kueue.api.v1beta2 import Workload, decode_as
from hub.kueue.integrations.reconcile import Policy
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime.admission import AdmissionLoop
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.jobs import JobLoop
from tests.job_builders import conditions_of
from tests.sandbox_cluster import add_queues, client_of, gpu_job, sandbox_cluster
from tests.waiting import until


@pytest.fixture
async def cluster(tmp_path):
    async with sandbox_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster, tmp_path):
    async with client_of(tmp_path) as made:
        yield made


@pytest.fixture
async def loops(cluster, client):
    """Admission and jobs, as an agent runs them."""
    informers = Informers(client, time.time)
    recorder = EventRecorder(client, time.time)
    admission = AdmissionLoop(informers, time.time, recorder, watches_nodes=True)
    jobs = JobLoop(informers, time.time, recorder, policy=Policy.WORKER, integrations=INTEGRATIONS.values())
    everything = [recorder, admission, jobs]
    informers.start()
    for loop in everything:
        loop.start()
    yield admission, jobs
    for loop in reversed(everything):
        await loop.stop()
    await informers.stop()
    admission.state.validate()


def workloads(cluster) -> list[Workload]:
    return [decode_as(Workload, w) for w in cluster.api.list(WORKLOADS, "team-a")]


def finished(cluster) -> list[str]:
    return sorted(
        w.metadata.owner_references[0].name for w in workloads(cluster) if "Finished" in conditions_of(w.status)
    )


async def test_jobs_run_within_quota_to_their_end(cluster, loops):
    add_queues(cluster, quota=8)
    for number in range(5):
        cluster.api.create(JOBS, gpu_job(f"j{number}", gpus=4))
    most = 0

    async def all_done() -> bool:
        nonlocal most
        most = max(most, sum(r.gpus for r in cluster.observer.runs if r.end is None))
        return len(finished(cluster)) == 5

    await until(all_done, "five jobs finished")
    assert most <= 8
    assert len(cluster.observer.runs) == 5
    for workload in workloads(cluster):
        want = {"QuotaReserved": "True/QuotaReserved", "Admitted": "True/Admitted", "Finished": "True/Succeeded"}
        assert conditions_of(workload.status).items() >= want.items()
        assert workload.metadata.finalizers == []
