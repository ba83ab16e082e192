"""A management cluster: quota and suspension by us, while the test plays the hub that places and reports."""

import time

import pytest
from msgspec import structs

from hub.kueue.api.decoding import document
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import ADMISSION_CHECKS, JOBS, PODS, WORKLOAD_PRIORITY_CLASSES, WORKLOADS
from hub.kueue.api.v1beta2 import Workload, WorkloadStatus, decode_as, names
from hub.kueue.integrations.reconcile import Policy
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime.admission import AdmissionLoop
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.jobs import JobLoop
from hub.kueue.workloads import lifecycle
from hub.kueue.workloads.lifecycle import State, state_of
from tests.job_builders import conditions_of
from tests.sandbox_cluster import add_queues, client_of, eventually, gpu_job, kueue, sandbox_cluster

CHECK = "multikueue"


class Hub:
    """What the hub does on its management cluster besides admission: place, report, withdraw."""

    def __init__(self, cluster, jobs: JobLoop, placed: set[ObjectKey]) -> None:
        self.cluster, self.jobs, self._placed = cluster, jobs, placed

    def workload(self, job: str) -> Workload | None:
        for manifest in self.cluster.api.list(WORKLOADS, "team-a"):
            if manifest["metadata"]["name"].startswith(f"job-{job}-"):
                return decode_as(Workload, manifest)
        return None

    def state(self, job: str) -> State | None:
        found = self.workload(job)
        return state_of(found) if found else None

    def job(self, name: str) -> dict:
        return self.cluster.api.get(JOBS, ObjectKey("team-a", name))

    def place(self, job: str) -> None:
        """A cluster admitted its copy."""
        workload = self.workload(job)
        assert workload is not None
        self._placed.add(workload.metadata.key)
        ready = lifecycle.set_check(workload, CHECK, "Ready", "admitted by east", time.time())
        self._write(workload, structs.replace(ready, cluster_name="east"))

    def report(self, job: str, **status) -> None:
        """The copy's status, as it is."""
        self.cluster.api.merge(JOBS, ObjectKey("team-a", job), {"status": status}, subresource="status")

    def withdrawn(self, job: str) -> None:
        """Nothing of the copy is left."""
        workload = self.workload(job)
        assert workload is not None
        self._placed.discard(workload.metadata.key)
        self.jobs.touch(workload.metadata.key)

    def _write(self, workload: Workload, status: WorkloadStatus) -> None:
        body = {"status": document(status)}
        self.cluster.api.merge(WORKLOADS, workload.metadata.key, body, subresource="status")


@pytest.fixture
async def hub(tmp_path):
    async with sandbox_cluster(tmp_path) as cluster, client_of(tmp_path) as client:
        add_queues(cluster, quota=8, checks=[CHECK], preemption={"withinClusterQueue": "LowerPriority"})
        check = kueue("AdmissionCheck", CHECK, spec={"controllerName": names.CONTROLLER_MULTIKUEUE})
        cluster.api.create(ADMISSION_CHECKS, check)
        active = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "so",
            "lastTransitionTime": "2027-01-15T08:00:00Z",
        }
        cluster.api.merge(
            ADMISSION_CHECKS, ObjectKey("", CHECK), {"status": {"conditions": [active]}}, subresource="status"
        )
        placed: set[ObjectKey] = set()
        informers = Informers(client, time.time)
        recorder = EventRecorder(client, time.time)
        admission = AdmissionLoop(informers, time.time, recorder)
        jobs = JobLoop(
            informers,
            time.time,
            recorder,
            policy=Policy.MANAGER,
            integrations=INTEGRATIONS.values(),
            placed=placed.__contains__,
        )
        informers.start()
        for loop in (recorder, admission, jobs):
            loop.start()
        yield Hub(cluster, jobs, placed)
        for loop in (jobs, admission, recorder):
            await loop.stop()
        await informers.stop()
        admission.state.validate()


def managed_job(name: str, **fields) -> dict:
    job = gpu_job(name, **fields)
    job["spec"]["managedBy"] = names.MANAGED_BY_MULTIKUEUE
    return job


async def running(hub: Hub, name: str, **fields) -> None:
    """A job that is placed and runs on a worker."""
    hub.cluster.api.create(JOBS, managed_job(name, **fields))
    await eventually(hub.cluster, lambda: hub.state(name) is State.QUOTA_RESERVED, "quota is reserved")
    hub.place(name)
    await eventually(hub.cluster, lambda: hub.job(name)["spec"]["suspend"] is False, "the job is released")
    hub.report(name, active=1, ready=1, startTime="2027-01-15T08:00:00Z")


async def test_a_job_waits_for_its_placement_runs_elsewhere_and_finishes_here(hub):
    hub.cluster.api.create(JOBS, managed_job("train", gpus=8))
    await eventually(hub.cluster, lambda: hub.state("train") is State.QUOTA_RESERVED, "quota is reserved")
    assert [(c.name, c.state) for c in hub.workload("train").status.admission_checks] == [(CHECK, "Pending")]
    assert hub.job("train")["spec"]["suspend"] is True
    hub.place("train")
    await eventually(hub.cluster, lambda: hub.job("train")["spec"]["suspend"] is False, "the job is released")
    assert hub.state("train") is State.ADMITTED
    assert "nodeSelector" not in hub.job("train")["spec"]["template"]["spec"]
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "CompletionsReached",
            "message": "done",
            "lastTransitionTime": "2027-01-15T08:01:00Z",
        }
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    hub.report(
        "train",
        active=None,
        ready=0,
        succeeded=1,
        startTime="2027-01-15T08:00:00Z",
        completionTime="2027-01-15T08:01:00Z",
        conditions=conditions,
    )
    await eventually(hub.cluster, lambda: hub.state("train") is State.FINISHED, "the workload is finished")
    assert conditions_of(hub.workload("train").status)["Finished"] == "True/Succeeded"
    assert hub.cluster.api.list(PODS, "team-a") == []


async def test_a_victim_keeps_its_quota_until_its_copy_is_gone(hub):
    await running(hub, "low", gpus=8)
    hub.cluster.api.create(WORKLOAD_PRIORITY_CLASSES, kueue("WorkloadPriorityClass", "high", value=100))
    urgent = managed_job("urgent", gpus=8)
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    hub.cluster.api.create(JOBS, urgent)
    await eventually(hub.cluster, lambda: hub.job("low")["spec"]["suspend"] is True, "the victim is suspended")
    await eventually(hub.cluster, lambda: "startTime" not in hub.job("low")["status"], "its stop is complete")
    assert (hub.state("low"), hub.state("urgent")) == (State.EVICTED, State.PENDING)
    hub.withdrawn("low")
    await eventually(hub.cluster, lambda: hub.state("urgent") is State.QUOTA_RESERVED, "the urgent one has its quota")
    await eventually(hub.cluster, lambda: "active" not in hub.job("low")["status"], "no pods of it are shown any more")
    low = hub.workload("low")
    assert (hub.state("low"), low.status.cluster_name, low.status.admission_checks[0].state) == (
        State.PENDING,
        None,
        "Pending",
    )


async def test_a_deleted_job_holds_its_quota_until_its_copy_is_gone(hub):
    await running(hub, "train", gpus=8)
    hub.cluster.api.create(JOBS, managed_job("next", gpus=8))
    hub.cluster.api.delete(JOBS, ObjectKey("team-a", "train"))
    await eventually(
        hub.cluster, lambda: hub.workload("train").metadata.deletion_timestamp is not None, "its workload is going"
    )
    assert hub.state("next") in (None, State.PENDING)
    hub.withdrawn("train")
    await eventually(hub.cluster, lambda: hub.workload("train") is None, "its workload is gone")
    await eventually(hub.cluster, lambda: hub.state("next") is State.QUOTA_RESERVED, "the next one has the quota")


async def test_a_rejected_check_switches_the_workload_off(hub):
    hub.cluster.api.create(JOBS, managed_job("train", gpus=8))
    await eventually(hub.cluster, lambda: hub.state("train") is State.QUOTA_RESERVED, "quota is reserved")
    workload = hub.workload("train")
    hub._write(workload, lifecycle.set_check(workload, CHECK, "Rejected", "no cluster can run it", time.time()))
    await eventually(hub.cluster, lambda: hub.state("train") is State.PENDING, "its quota is free")
    found = hub.workload("train")
    assert found.spec.active is False
    assert conditions_of(found.status)["Evicted"] == "True/DeactivatedDueToAdmissionCheck"


async def test_a_check_that_asks_for_another_try_gets_one(hub):
    hub.cluster.api.create(JOBS, managed_job("train", gpus=8))
    await eventually(hub.cluster, lambda: hub.state("train") is State.QUOTA_RESERVED, "quota is reserved")
    workload = hub.workload("train")
    hub._write(workload, lifecycle.set_check(workload, CHECK, "Retry", "east went away", time.time()))

    def again() -> bool:
        found = hub.workload("train")
        return state_of(found) is State.QUOTA_RESERVED and found.status.admission_checks[0].retry_count == 1

    await eventually(hub.cluster, again, "quota is reserved again")
