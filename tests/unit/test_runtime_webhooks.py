"""The admission webhook: AdmissionReview in, verdict out, and the objects that make an API server ask."""

import base64
import json
from typing import cast

import jsonpatch
import pytest
from aiohttp.test_utils import TestClient, TestServer

from hub.kueue.api.resources import LOCAL_QUEUES
from hub.kueue.api.v1beta2 import names
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.watch import PageArrived
from hub.kueue.runtime.webhooks import Target, Webhooks, configurations
from tests.job_builders import make_job
from tests.sandbox_cluster import kueue

MUTATE, VALIDATE = "/mutate-batch-v1-job", "/validate-batch-v1-job"


def queues(*listed: str) -> Informers:
    """Informers that have seen these LocalQueues of team-a, and nothing else; there is no API server behind them."""
    informers = Informers(cast(Client, None), lambda: 0.0)
    items = [kueue("LocalQueue", name, namespace="team-a", spec={"clusterQueue": "cq"}) for name in listed]
    for number, item in enumerate(items):
        item["metadata"] |= {"uid": f"u{number}", "resourceVersion": str(number)}
    informers.of(LOCAL_QUEUES)._tell(PageArrived(items=items, resource_version="9"))
    return informers


@pytest.fixture
async def ask():
    """POST a review of a job or manifest to a webhook of a management cluster with LocalQueue main."""
    hooks = Webhooks(queues("main"), INTEGRATIONS.values(), managed_by=names.MANAGED_BY_MULTIKUEUE)
    async with TestClient(TestServer(hooks.make_app())) as client:

        async def post(path: str, manifest: dict, old: dict | None = None):
            operation = "CREATE" if old is None else "UPDATE"
            request = {"uid": "r1", "operation": operation, "object": manifest, "oldObject": old, "namespace": "team-a"}
            body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
            async with client.post(path, json=body) as response:
                return response.status, json.loads(await response.text()).get("response") if response.ok else None

        yield post


def patched(manifest: dict, response: dict) -> dict:
    return jsonpatch.apply_patch(manifest, json.loads(base64.b64decode(response["patch"])))


async def test_a_queued_job_is_suspended_and_managed(ask):
    job = make_job("j").queue("main").running().obj()
    status, response = await ask(MUTATE, job)
    assert (status, response["uid"], response["allowed"], response["patchType"]) == (200, "r1", True, "JSONPatch")
    after = patched(job, response)
    assert (after["spec"]["suspend"], after["spec"]["managedBy"]) == (True, names.MANAGED_BY_MULTIKUEUE)


async def test_a_job_without_a_queue_is_not_touched(ask):
    assert await ask(MUTATE, make_job("j").running().obj()) == (200, {"uid": "r1", "allowed": True})


async def test_an_invalid_job_is_refused_with_every_field(ask):
    job = make_job("j").queue("Main").label(names.MAX_EXEC_TIME_SECONDS, "x").obj()
    _, response = await ask(VALIDATE, job)
    status = response["status"]
    assert (response["allowed"], status["code"], status["reason"]) == (False, 422, "Invalid")
    assert [cause["field"] for cause in status["details"]["causes"]] == [
        f"metadata.labels[{names.QUEUE_NAME}]",
        f"metadata.labels[{names.MAX_EXEC_TIME_SECONDS}]",
    ]
    assert status["message"].startswith('Job "j" is invalid: metadata.labels[')


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(make_job("j").queue("main").managed(), 0, id="all is well"),
        pytest.param(make_job("j").queue("typo").managed(), 1, id="no such queue"),
        pytest.param(make_job("j").queue("main").spec(managedBy="example.org/x"), 1, id="somebody else runs it"),
    ],
)
async def test_what_will_wait_is_warned_about(ask, job, want):
    _, response = await ask(VALIDATE, job.obj())
    assert response["allowed"]
    assert len(response.get("warnings", [])) == want


async def test_our_kinds_are_checked(ask):
    path = "/validate-kueue-x-k8s-io-v1beta2-localqueue"
    good = kueue("LocalQueue", "main", namespace="team-a", spec={"clusterQueue": "cq"})
    _, allowed = await ask(path, good)
    assert allowed["allowed"]
    moved = kueue("LocalQueue", "main", namespace="team-a", spec={"clusterQueue": "other"})
    _, refused = await ask(path, moved, good)
    assert [cause["field"] for cause in refused["status"]["details"]["causes"]] == ["spec.clusterQueue"]


async def test_an_object_whose_content_stays_may_always_lose_a_finalizer(ask):
    broken = kueue("LocalQueue", "main", namespace="team-a", spec={"clusterQueue": "Not A Name"})
    _, response = await ask("/validate-kueue-x-k8s-io-v1beta2-localqueue", broken, broken)
    assert response["allowed"]


async def test_nonsense_and_unknown_paths_are_answered_as_such(ask):
    assert (await ask("/validate-nothing", {}))[0] == 404
    hooks = Webhooks(queues(), INTEGRATIONS.values())
    async with TestClient(TestServer(hooks.make_app())) as client, client.post(MUTATE, data=b"{}") as response:
        assert response.status == 400
        assert "AdmissionReview" in await response.text()


async def test_before_the_queues_are_read_only_a_job_that_names_one_is_answered():
    hooks = Webhooks(Informers(cast(Client, None), lambda: 0.0), INTEGRATIONS.values())
    async with TestClient(TestServer(hooks.make_app())) as client:
        for job, want in ((make_job("j").queue("main"), 200), (make_job("j"), 503)):
            body = {"request": {"uid": "u", "operation": "CREATE", "object": job.obj(), "namespace": "team-a"}}
            async with client.post(MUTATE, json=body) as response:
                assert response.status == want


def test_the_configurations_fail_closed_and_leave_system_namespaces_alone():
    target = Target(ca_pem="PEM", url="https://hub:9443/")
    found = dict(configurations(target, INTEGRATIONS.values(), excluded_namespaces=["kube-system", "hub"]))
    mutating, validating = (manifest["webhooks"] for manifest in found.values())
    (job,) = mutating
    assert job["clientConfig"] == {
        "url": "https://hub:9443/mutate-batch-v1-job",
        "caBundle": base64.b64encode(b"PEM").decode(),
    }
    assert job["rules"][0]["operations"] == ["CREATE"]
    assert {hook["failurePolicy"] for hook in [*mutating, *validating]} == {"Fail"}
    assert job["namespaceSelector"]["matchExpressions"][0]["values"] == ["hub", "kube-system"]
    resources = [hook["rules"][0]["resources"][0] for hook in validating]
    assert "clusterqueues" in resources
    assert "workloads" not in resources
    assert len({hook["name"] for hook in validating}) == len(validating)
