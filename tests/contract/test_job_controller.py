"""The Job controller, status by status: the sandbox's and kube-controller-manager's write the same.

No node is there, so pods do nothing by themselves: the cases write the pods' statuses, as a kubelet would.
"""

import asyncio
import datetime as dt
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest

from tests.api_servers import TIDYING, Api, real_api, real_assets, sandbox_api
from tests.contract.client import WAIT_S, Client

CONTROLLERS = (*TIDYING, "job-controller", "pod-garbage-collector-controller", "ttl-after-finished-controller")
INDEX = "batch.kubernetes.io/job-completion-index"
_namespaces = itertools.count(1)


@pytest.fixture(scope="module", params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def controlled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp(f"jobs-{request.param}")
    if request.param == "sandbox":
        with sandbox_api(folder, controllers=True) as served:
            yield served
        return
    assets = real_assets()
    if assets is None or not (assets / "kube-controller-manager").exists():
        pytest.skip("KUBEBUILDER_ASSETS names no folder with kube-controller-manager")
    with real_api(assets, folder, controllers=CONTROLLERS) as served:
        yield served


@pytest.fixture
async def driver(controlled: Api) -> AsyncIterator["Driver"]:
    async with Client(controlled) as client:
        namespace = f"jobs-{next(_namespaces)}"
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await client.post("/api/v1/namespaces", made)
        yield Driver(client, namespace)


def shown(status):
    """A status in one line: counts that are not 0, indexes, times that are set, conditions."""
    words = [f"{k}={status[k]}" for k in ("active", "ready", "succeeded", "failed", "terminating") if status.get(k)]
    words += [f"uncounted-{k}={len(v)}" for k, v in status.get("uncountedTerminatedPods", {}).items()]
    words += [f"{k}={status[k]}" for k in ("completedIndexes", "failedIndexes") if status.get(k)]
    words += [word for word, field in (("started", "startTime"), ("ended", "completionTime")) if field in status]
    return " ".join(words + [_condition(c) for c in status.get("conditions", ())])


def _condition(condition):
    sign = "" if condition["status"] == "True" else "not-"
    return f"{sign}{condition['type']}({condition['reason']})"


class Driver:
    """Does the steps of a case: `pods 2`, `P0 Running`, `P1 Failed 42`, `delete P0`, `job suspend=true`, `wait LINE`."""

    def __init__(self, client, namespace):
        self.client = client
        self.jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.events = f"/api/v1/namespaces/{namespace}/events"
        self.names = {}
        self.version = ""

    async def create(self, **spec):
        container = {"name": "main", "image": "trainer:1"}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j"},
            "spec": {"template": template, **spec},
        }
        self.version = (await self.client.get(self.jobs))["metadata"]["resourceVersion"]
        return await self.client.post(self.jobs, job)

    async def do(self, step):
        word, _, rest = step.partition(" ")
        if word == "pods":
            await self._await_pods(int(rest))
        elif word == "wait":
            await self.client.until(self.jobs, "j", lambda e: shown(e["object"].get("status") or {}) == rest)
        elif word == "delete":
            await self.client.delete(f"{self.pods}/{self.names[rest]}")
        elif word == "job":
            field, _, value = rest.partition("=")
            await self.client.patch(f"{self.jobs}/j", {"spec": {field: json.loads(value)}})
        else:
            await self._set_pod(self.names[word], *rest.split())

    async def _await_pods(self, count):
        found = await self.client.get(self.pods)
        pods = {p["metadata"]["name"]: p for p in found["items"]}
        if len(pods) != count:
            watch = self.client.watch(f"{self.pods}?watch=1&resourceVersion={found['metadata']['resourceVersion']}")
            async with asyncio.timeout(WAIT_S), aclosing(watch) as events:
                async for event in events:
                    pods[event["object"]["metadata"]["name"]] = event["object"]
                    if event["type"] == "DELETED":
                        del pods[event["object"]["metadata"]["name"]]
                    if len(pods) == count:
                        break
        in_order = sorted(pods.values(), key=lambda p: (p["metadata"].get("annotations") or {}).get(INDEX, ""))
        self.names = {f"P{number}": pod["metadata"]["name"] for number, pod in enumerate(in_order)}

    async def _set_pod(self, name, phase, code="0"):
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = phase == "Running"
        state = {"running": {"startedAt": now}}
        if not ready:
            state = {"terminated": {"exitCode": int(code), "startedAt": now, "finishedAt": now}}
        container = {
            "name": "main",
            "image": "trainer:1",
            "imageID": "",
            "restartCount": 0,
            "ready": ready,
            "state": state,
        }
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": phase, "conditions": conditions, "containerStatuses": [container]}
        await self.client.patch(f"{self.pods}/{name}/status", {"status": status})

    async def statuses(self):
        """Every status that the Job had, in lines; once where it did not change."""
        last = (await self.client.get(f"{self.jobs}/j"))["metadata"]["resourceVersion"]
        lines = []
        watch = self.client.watch(f"{self.jobs}?watch=1&resourceVersion={self.version}")
        async with asyncio.timeout(WAIT_S), aclosing(watch) as events:
            async for event in events:
                lines.append(shown(event["object"].get("status") or {}))
                if event["object"]["metadata"]["resourceVersion"] == last:
                    break
        return [line for line, _ in itertools.groupby(lines)]

    async def reasons(self, count):
        """Reasons of the Job's first `count` events, sorted: they are written beside the rest."""
        reasons = []
        watch = self.client.watch(f"{self.events}?watch=1&fieldSelector=involvedObject.kind%3DJob")
        async with asyncio.timeout(WAIT_S), aclosing(watch) as events:
            async for event in events:
                reasons.append(event["object"]["reason"])
                if len(reasons) == count:
                    break
        return sorted(reasons)


DONE = "SuccessCriteriaMet(CompletionsReached)"
COMPLETE = f"{DONE} Complete(CompletionsReached)"
LIMIT = "FailureTarget(BackoffLimitExceeded)"
OVER_LIMIT = f"{LIMIT} Failed(BackoffLimitExceeded)"
TWO = {"completions": 2, "parallelism": 2}
INDEXED = TWO | {"completionMode": "Indexed"}
FATAL_42 = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}


@pytest.mark.parametrize(
    ("given_spec", "steps", "want_statuses"),
    [
        pytest.param(
            {},
            ["pods 1", "wait active=1 started", "P0 Running", "wait active=1 ready=1 started", "P0 Succeeded"],
            [
                "",
                "active=1 started",
                "active=1 ready=1 started",
                f"uncounted-succeeded=1 started {DONE}",
                f"succeeded=1 started ended {COMPLETE}",
            ],
            id="one pod that succeeds",
        ),
        pytest.param(
            {"backoffLimit": 0},
            ["pods 1", "wait active=1 started", "P0 Failed 1"],
            ["", "active=1 started", f"uncounted-failed=1 started {LIMIT}", f"failed=1 started {OVER_LIMIT}"],
            id="one pod that fails",
        ),
        pytest.param(
            TWO | {"backoffLimit": 0},
            ["pods 2", "wait active=2 started", "P0 Failed 1"],
            [
                "",
                "active=2 started",
                f"terminating=1 uncounted-failed=2 started {LIMIT}",
                f"failed=2 terminating=1 started {LIMIT}",
                f"failed=2 started {LIMIT}",
                f"failed=2 started {OVER_LIMIT}",
            ],
            id="one of two fails: the other is taken down and counts as failed",
        ),
        pytest.param(
            {"suspend": True},
            ["wait Suspended(JobSuspended)", "job suspend=false"],
            ["", "Suspended(JobSuspended)", "active=1 started not-Suspended(JobResumed)"],
            id="created suspended, then resumed",
        ),
        pytest.param(
            INDEXED,
            [
                "pods 2",
                "wait active=2 started",
                "P1 Succeeded",
                "wait active=1 succeeded=1 completedIndexes=1 started",
                "P0 Succeeded",
            ],
            [
                "",
                "active=2 started",
                "active=1 succeeded=1 completedIndexes=1 started",
                f"succeeded=2 completedIndexes=0,1 started {DONE}",
                f"succeeded=2 completedIndexes=0,1 started ended {COMPLETE}",
            ],
            id="indexed",
        ),
        pytest.param(
            {"activeDeadlineSeconds": 1},
            ["pods 1"],
            [
                "",
                "active=1 started",
                "terminating=1 uncounted-failed=1 started FailureTarget(DeadlineExceeded)",
                "failed=1 terminating=1 started FailureTarget(DeadlineExceeded)",
                "failed=1 started FailureTarget(DeadlineExceeded)",
                "failed=1 started FailureTarget(DeadlineExceeded) Failed(DeadlineExceeded)",
            ],
            id="past its deadline",
        ),
        pytest.param(
            TWO,
            ["pods 2", "wait active=2 started", "job parallelism=1"],
            ["", "active=2 started", "active=1 terminating=1 started", "active=1 started"],
            id="less parallelism",
        ),
        pytest.param({"completions": 0}, [], ["", f"started {DONE}", f"started ended {COMPLETE}"], id="nothing to do"),
        pytest.param(
            INDEXED | {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}},
            ["pods 2", "wait active=2 started", "P0 Succeeded"],
            [
                "",
                "active=2 started",
                "succeeded=1 terminating=1 completedIndexes=0 started SuccessCriteriaMet(SuccessPolicy)",
                "succeeded=1 completedIndexes=0 started SuccessCriteriaMet(SuccessPolicy)",
                "succeeded=1 completedIndexes=0 started ended SuccessCriteriaMet(SuccessPolicy) Complete(SuccessPolicy)",
            ],
            id="successPolicy",
        ),
        pytest.param(
            TWO | {"podFailurePolicy": FATAL_42},
            ["pods 2", "wait active=2 started", "P0 Failed 42"],
            [
                "",
                "active=2 started",
                "terminating=1 uncounted-failed=2 started FailureTarget(PodFailurePolicy)",
                "failed=2 terminating=1 started FailureTarget(PodFailurePolicy)",
                "failed=2 started FailureTarget(PodFailurePolicy)",
                "failed=2 started FailureTarget(PodFailurePolicy) Failed(PodFailurePolicy)",
            ],
            id="podFailurePolicy",
        ),
        pytest.param(
            INDEXED | {"backoffLimitPerIndex": 0},
            [
                "pods 2",
                "wait active=2 started",
                "P0 Failed 1",
                "wait active=1 failed=1 failedIndexes=0 started",
                "P1 Succeeded",
            ],
            [
                "",
                "active=2 started",
                "active=1 uncounted-failed=1 failedIndexes=0 started",
                "active=1 failed=1 failedIndexes=0 started",
                "succeeded=1 failed=1 completedIndexes=1 failedIndexes=0 started FailureTarget(FailedIndexes)",
                "succeeded=1 failed=1 completedIndexes=1 failedIndexes=0 started FailureTarget(FailedIndexes) Failed(FailedIndexes)",
            ],
            id="backoffLimitPerIndex",
        ),
        pytest.param(
            {"parallelism": 2},
            ["pods 2", "wait active=2 started", "P0 Succeeded", "wait active=1 succeeded=1 started", "P1 Succeeded"],
            [
                "",
                "active=2 started",
                "active=1 uncounted-succeeded=1 started",
                "active=1 succeeded=1 started",
                f"succeeded=1 uncounted-succeeded=1 started {DONE}",
                f"succeeded=2 started ended {COMPLETE}",
            ],
            id="a work queue",
        ),
        pytest.param({"managedBy": "example.com/somebody"}, [], [""], id="managed by somebody else"),
    ],
)
async def test_the_statuses_of_a_job(driver: Driver, given_spec, steps, want_statuses):
    await driver.create(**given_spec)
    for step in [*steps, f"wait {want_statuses[-1]}"]:
        await driver.do(step)
    assert await driver.statuses() == want_statuses


async def test_a_suspended_job_loses_its_pods_and_its_start_time(driver: Driver):
    await driver.create(**TWO)
    for step in ("pods 2", "wait active=2 started", "P0 Running", "wait active=2 ready=1 started", "job suspend=true"):
        await driver.do(step)
    for step in ("wait Suspended(JobSuspended)", "pods 0", "job suspend=false", "pods 2"):
        await driver.do(step)
    await driver.do("wait active=2 started not-Suspended(JobResumed)")
    lines = await driver.statuses()
    assert lines[3:] == [
        "terminating=2 Suspended(JobSuspended)",
        "Suspended(JobSuspended)",
        "active=2 started not-Suspended(JobResumed)",
    ]


async def test_a_pod_deleted_by_hand_counts_as_failed_and_is_replaced_after_a_back_off(driver: Driver):
    await driver.create()
    for step in (
        "pods 1",
        "wait active=1 started",
        "delete P0",
        "wait failed=1 started",
        "wait active=1 failed=1 started",
    ):
        await driver.do(step)
    assert await driver.statuses() == [
        "",
        "active=1 started",
        "terminating=1 uncounted-failed=1 started",
        "failed=1 terminating=1 started",
        "failed=1 started",
        "active=1 failed=1 started",
    ]


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_deleted_job_takes_its_pods_along(driver: Driver, propagation):
    await driver.create(**TWO)
    await driver.do("pods 2")
    await driver.client.delete(f"{driver.jobs}/j", {"propagationPolicy": propagation})
    await driver.client.gone(driver.jobs, "j")
    await driver.do("pods 0")


async def test_a_finished_job_goes_after_its_time_to_live(driver: Driver):
    await driver.create(ttlSecondsAfterFinished=1)
    for step in ("pods 1", "P0 Succeeded", f"wait succeeded=1 started ended {COMPLETE}"):
        await driver.do(step)
    await driver.client.gone(driver.jobs, "j")
    await driver.do("pods 0")


async def test_the_events_of_a_job(driver: Driver):
    await driver.create(**TWO, backoffLimit=0)
    for step in ("pods 2", "wait active=2 started", "P0 Failed 1", f"wait failed=2 started {OVER_LIMIT}"):
        await driver.do(step)
    want = ["BackoffLimitExceeded", "SuccessfulCreate", "SuccessfulCreate", "SuccessfulDelete"]
    assert await driver.reasons(len(want)) == want


async def test_a_pod_of_an_indexed_job_carries_its_index(driver: Driver):
    job = await driver.create(**INDEXED, backoffLimitPerIndex=1)
    await driver.do("pods 2")
    pod = await driver.client.get(f"{driver.pods}/{driver.names['P1']}")
    meta = pod["metadata"]
    uid = job["metadata"]["uid"]
    assert meta["generateName"] == "j-1-"
    assert meta["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-completion-index": "1",
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
    }
    assert meta["annotations"] == {INDEX: "1", "batch.kubernetes.io/job-index-failure-count": "0"}
    assert meta["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    (owner,) = meta["ownerReferences"]
    assert owner == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "j",
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert pod["spec"]["hostname"] == "j-1"
    source = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}
    assert pod["spec"]["containers"][0]["env"] == [{"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": source}}]
