"""A management cluster that asks us about every job: what users see when they create one, over HTTPS all the way."""

import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import CLUSTER_QUEUES, JOBS
from hub.kueue.api.v1beta2 import names
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime import tls
from hub.kueue.runtime.errors import Invalid, KubernetesError
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.webhooks import Target, Webhooks, configurations
from tests.sandbox_cluster import add_queues, client_of, gpu_job, kueue, sandbox_cluster

KEY = ObjectKey("team-a", "train")


@asynccontextmanager
async def webhook_server(informers: Informers):
    """The webhook at a free port; gives its Target."""
    ca = tls.make_ca("hub", time.time())
    identity = tls.make_certificate("webhook", time.time(), ca=ca, hosts=["127.0.0.1"])
    hooks = Webhooks(informers, INTEGRATIONS.values(), managed_by=names.MANAGED_BY_MULTIKUEUE)
    runner = web.AppRunner(hooks.make_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls.server_context(identity)).start()
    try:
        yield Target(ca_pem=ca.certificate_pem, url=f"https://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


@pytest.fixture
async def cluster(tmp_path):
    async with sandbox_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster, tmp_path):
    """A client of a cluster with queues whose API server asks the webhook."""
    async with client_of(tmp_path) as made:
        add_queues(cluster)
        informers = Informers(made, time.time)
        async with webhook_server(informers) as target:
            informers.start()
            await informers.wait_synced()
            for resource, manifest in configurations(target, INTEGRATIONS.values()):
                await made.apply(resource, manifest)
            yield made
        await informers.stop()


def plain_job(**labels: str) -> dict:
    job = gpu_job("train")
    job["metadata"]["labels"] |= labels
    del job["spec"]["suspend"]
    return job


async def test_a_job_with_a_queue_is_created_suspended_and_managed(client):
    made = await client.create(JOBS, plain_job())
    assert (made["spec"]["suspend"], made["spec"]["managedBy"]) == (True, names.MANAGED_BY_MULTIKUEUE)


async def test_a_job_without_a_queue_is_created_as_it_is(client):
    job = plain_job()
    del job["metadata"]["labels"]
    made = await client.create(JOBS, job)
    assert (made["spec"]["suspend"], "managedBy" in made["spec"]) == (False, False)


async def test_an_invalid_job_is_refused_with_the_field_named(client):
    with pytest.raises(Invalid, match=r"max-exec-time-seconds\]: Invalid value: \"soon\"") as refused:
        await client.create(JOBS, plain_job(**{names.MAX_EXEC_TIME_SECONDS: "soon"}))
    assert [field for field, _ in refused.value.causes] == [f"metadata.labels[{names.MAX_EXEC_TIME_SECONDS}]"]
    assert await client.get(JOBS, KEY) is None


async def test_an_invalid_queue_is_refused(client):
    group = {
        "coveredResources": ["cpu"],
        "flavors": [{"name": "h100", "resources": [{"name": "cpu", "nominalQuota": -1}]}],
    }
    with pytest.raises(Invalid, match="nominalQuota"):
        await client.create(CLUSTER_QUEUES, kueue("ClusterQueue", "bad", spec={"resourceGroups": [group]}))


async def test_without_the_webhook_nothing_slips_past_it(cluster, tmp_path):
    async with client_of(tmp_path) as client:
        nowhere = Target(ca_pem=tls.make_ca("hub", time.time()).certificate_pem, url="https://127.0.0.1:1")
        for resource, manifest in configurations(nowhere, INTEGRATIONS.values()):
            await client.apply(resource, manifest)
        with pytest.raises(KubernetesError, match="webhook"):
            await client.create(JOBS, plain_job())
        in_system = plain_job()
        in_system["metadata"]["namespace"] = "kube-system"
        assert (await client.create(JOBS, in_system))["metadata"]["namespace"] == "kube-system"
