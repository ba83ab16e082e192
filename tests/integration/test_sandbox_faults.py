"""Faults at the edge of a sandbox cluster, as a client meets them; and what a watch does when nothing happens."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest

from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import CONFIG_MAPS
from hub.sandbox.access import ADMIN
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.faults import Faults, FaultSettings, Mutate, Reject
from hub.sandbox.http import Serving, make_app, serve
from hub.sandbox.negotiation import Output
from hub.sandbox.reading import ListParameters
from hub.sandbox.rendering import Rendering
from hub.sandbox.watch import Watcher, WatchParameters

CONFIGS = "/api/v1/namespaces/default/configmaps"
#: What a client of these tests sees of a connection that is cut.
CUT = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError)


def config(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {}}


class Cluster:
    def __init__(self) -> None:
        self.api = ApiServer("east", time.time, seed=1)
        self.api.access.tokens["t"] = ADMIN
        self.faults = Faults(self.api, seed=1)
        self.serving: Serving
        self.session: aiohttp.ClientSession

    async def create(self, name: str) -> tuple[int, dict]:
        async with self.session.post(CONFIGS, json=config(name)) as answer:
            return answer.status, await answer.json()

    async def version(self) -> str:
        async with self.session.get(CONFIGS) as answer:
            return (await answer.json())["metadata"]["resourceVersion"]

    def watch(self, version: str) -> aiohttp.client._RequestContextManager:
        return self.session.get(f"{CONFIGS}?watch=1&resourceVersion={version}")

    def stored(self, name: str) -> dict | None:
        return self.api.get(CONFIG_MAPS, ObjectKey("default", name))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    made.serving = await serve(make_app(made.api, made.faults))
    headers = {"Authorization": "Bearer t"}
    async with aiohttp.ClientSession(base_url=made.serving.url, headers=headers) as made.session:
        yield made
        made.faults.set(FaultSettings())
    await made.serving.close()


async def test_a_cut_cluster_answers_nothing_until_it_is_mended(cluster):
    cluster.faults.set(FaultSettings(cut=True))
    with pytest.raises(CUT):
        await cluster.create("a")
    cluster.faults.set(FaultSettings())
    assert (await cluster.create("a"))[0] == 201


async def test_a_cut_ends_watches_that_are_open(cluster):
    async with cluster.watch(await cluster.version()) as events:
        cluster.faults.set(FaultSettings(cut=True))
        async with asyncio.timeout(10):
            with pytest.raises(CUT):
                await events.content.readline()


async def test_a_hung_cluster_answers_when_it_is_let_go(cluster):
    cluster.faults.set(FaultSettings(hang=True))
    waiting = asyncio.ensure_future(cluster.create("a"))
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    assert cluster.stored("a") is None
    cluster.faults.set(FaultSettings())
    assert (await waiting)[0] == 201


async def test_a_hung_watch_is_silent_and_then_catches_up(cluster):
    async with cluster.watch(await cluster.version()) as events:
        cluster.faults.set(FaultSettings(hang=True))
        cluster.api.create(CONFIG_MAPS, config("a"))
        line = asyncio.ensure_future(events.content.readline())
        done, _ = await asyncio.wait({line}, timeout=0.1)
        assert not done
        cluster.faults.set(FaultSettings())
        async with asyncio.timeout(10):
            assert orjson.loads(await line)["object"]["metadata"]["name"] == "a"


async def test_a_slow_cluster_is_late(cluster):
    cluster.faults.set(FaultSettings(slow_s=0.1))
    started = time.monotonic()
    assert (await cluster.create("a"))[0] == 201
    assert time.monotonic() - started >= 0.1


async def test_a_lost_reply_is_a_write_that_happened(cluster):
    cluster.faults.set(FaultSettings(drop=1.0))
    with pytest.raises(CUT):
        await cluster.create("a")
    assert cluster.stored("a") is not None


async def test_a_restart_cuts_watches_and_forgets_the_history(cluster):
    then = await cluster.version()
    await cluster.create("a")
    async with cluster.watch(then) as events:
        await events.content.readline()
        cluster.faults.restart()
        async with asyncio.timeout(10):
            with pytest.raises(CUT):
                await events.content.readline()
    async with cluster.watch(then) as events:
        event = orjson.loads(await events.content.readline())
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert cluster.stored("a") is not None


async def test_an_expired_page_is_410(cluster):
    for name in "ab":
        await cluster.create(name)
    async with cluster.session.get(f"{CONFIGS}?limit=1") as answer:
        token = (await answer.json())["metadata"]["continue"]
    await cluster.create("c")
    cluster.api.storage.compact()
    async with cluster.session.get(f"{CONFIGS}?limit=1&continue={token}") as answer:
        assert (answer.status, (await answer.json())["reason"]) == (410, "Expired")


async def test_the_clock_may_be_off(cluster):
    cluster.faults.set(FaultSettings(skew_s=-3600))
    assert abs(cluster.api.clock() - (time.time() - 3600)) < 60


async def test_writes_are_rejected_by_verb_and_kind(cluster):
    cluster.faults.set(FaultSettings(reject=[Reject(verb="create", kind="ConfigMap", code=503, reason="Unavailable")]))
    code, status = await cluster.create("a")
    assert (code, status["reason"]) == (503, "Unavailable")
    assert await cluster.version()
    async with cluster.session.post(
        "/api/v1/namespaces", json={**config("n"), "kind": "Namespace", "metadata": {"name": "n"}}
    ) as answer:
        assert answer.status == 201


async def test_new_objects_are_changed_on_the_way_in(cluster):
    cluster.faults.set(FaultSettings(mutate=[Mutate(kind="ConfigMap", path="data.injected", value="yes")]))
    assert (await cluster.create("a"))[1]["data"] == {"injected": "yes"}


async def test_protobuf_is_415(cluster):
    headers = {"Content-Type": "application/vnd.kubernetes.protobuf"}
    async with cluster.session.post(CONFIGS, data=b"k8s\0", headers=headers) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (415, "UnsupportedMediaType")


async def test_a_watch_ends_on_the_server_when_its_client_leaves(cluster):
    listeners = cluster.api.storage.collection("configmaps").listeners
    before = len(listeners)
    async with cluster.watch(await cluster.version()):
        assert len(listeners) == before + 1
    async with asyncio.timeout(10):
        while len(listeners) > before:
            await cluster.version()


async def test_a_bookmark_covers_what_came_before_it_and_nothing_after(cluster):
    served = cluster.api.registry.find(CONFIG_MAPS)
    parameters = WatchParameters(selection=ListParameters(resource_version="1"), bookmarks=True, timeout_s=60)
    watcher = Watcher(cluster.api.collection(served), parameters, Rendering(served, Output(), cluster.api.clock))
    watcher.start(cluster.api.storage.version)
    before = cluster.api.create(CONFIG_MAPS, config("a"))
    watcher.bookmark(cluster.api.storage.version)
    after = cluster.api.create(CONFIG_MAPS, config("b"))
    lines = [orjson.loads(line) for line in (await watcher.lines()).splitlines()]
    assert [line["type"] for line in lines] == ["ADDED", "BOOKMARK", "ADDED"]
    first, marked, last = (int(o["metadata"]["resourceVersion"]) for o in (before, lines[1]["object"], after))
    assert first <= marked < last
    watcher.stop()
