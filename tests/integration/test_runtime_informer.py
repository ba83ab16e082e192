"""Client and informer against a simulated API server, with every fault that it has."""

import asyncio
import time

import pytest

from hub.kueue.api.meta import ObjectKey, Resource
from hub.kueue.api.resources import (
    CONFIG_MAPS,
    CORE_EVENTS,
    CUSTOM_RESOURCE_DEFINITIONS,
    JOBS,
    NAMESPACES,
    WORKLOADS,
)
from hub.kueue.operations import Create, Delete, EmitEvent, Patch
from hub.kueue.runtime import client as client_module
from hub.kueue.runtime.client import Client, UserInfo
from hub.kueue.runtime.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotServed,
    Unauthorized,
    Unreachable,
)
from hub.kueue.runtime.informer import Informer
from hub.sandbox.access import User
from hub.sandbox.faults import FaultSettings, Reject
from tests.sandbox_cluster import client_of, gpu_job, sandbox_cluster

KEY = ObjectKey("team-a", "x")


@pytest.fixture
async def cluster(tmp_path):
    async with sandbox_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def client(cluster, tmp_path):
    async with client_of(tmp_path) as made:
        yield made


def config(name: str = "x", **data: str) -> dict:
    meta = {"namespace": "team-a", "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data or {"a": "1"}}


# --- client ----------------------------------------------------------------------------------------------------------------


async def test_an_object_from_creation_to_deletion(client):
    made = await client.create(CONFIG_MAPS, config())
    assert await client.get(CONFIG_MAPS, KEY) == made
    replaced = await client.replace(CONFIG_MAPS, {**made, "data": {"a": "2"}})
    assert (await client.patch(CONFIG_MAPS, KEY, {"data": {"a": None, "b": "3"}}))["data"] == {"b": "3"}
    with pytest.raises(Conflict, match="replace configmaps team-a/x"):
        await client.replace(CONFIG_MAPS, replaced)
    applied = await client.apply(CONFIG_MAPS, config(c="4"))
    assert applied["data"] == {"b": "3", "c": "4"}
    assert await client.delete(CONFIG_MAPS, KEY, uid="another") is False
    assert await client.delete(CONFIG_MAPS, KEY, uid=made["metadata"]["uid"]) is True
    assert await client.delete(CONFIG_MAPS, KEY) is False
    assert await client.get(CONFIG_MAPS, KEY) is None


async def test_lists_come_in_pages_with_the_version_to_watch_from(cluster, client):
    for number in range(7):
        cluster.api.create(CONFIG_MAPS, config(f"c{number}"))
    items, version = await client.list(CONFIG_MAPS, "team-a", page=3)
    assert [item["metadata"]["name"] for item in items] == [f"c{n}" for n in range(7)]
    assert {item["kind"] for item in items} == {"ConfigMap"}
    assert version


@pytest.mark.parametrize(
    ("call", "want"),
    [
        pytest.param(lambda c: c.create(CONFIG_MAPS, config()), AlreadyExists, id="a name that is taken"),
        pytest.param(lambda c: c.create(JOBS, {**gpu_job("Bad_Name")}), Invalid, id="content that is refused"),
        pytest.param(lambda c: c.patch(CONFIG_MAPS, KEY, {}, resource_version="1"), Conflict, id="another version"),
        pytest.param(
            lambda c: c.patch(CONFIG_MAPS, KEY, {}, uid="another"), Conflict, id="another object of that name"
        ),
        pytest.param(
            lambda c: c.get(Resource("no.such", "v1", "things", "Thing"), KEY), NotServed, id="an unknown kind"
        ),
    ],
)
async def test_refusals(client, call, want):
    await client.create(CONFIG_MAPS, config())
    with pytest.raises(want):
        await call(client)


async def test_operations_do_no_harm_when_they_are_carried_out_twice(client):
    create = Create(resource=CONFIG_MAPS, key=KEY, manifest=config())
    made = await client.run(create)
    assert await client.run(create) is None
    patch = Patch(resource=CONFIG_MAPS, key=KEY, body={"data": {"b": "2"}}, uid=made["metadata"]["uid"])
    assert (await client.run(patch))["data"] == (await client.run(patch))["data"] == {"a": "1", "b": "2"}
    delete = Delete(resource=CONFIG_MAPS, key=KEY, uid=made["metadata"]["uid"])
    assert (await client.run(delete), await client.run(delete)) == (None, None)
    assert await client.run(patch) is None


async def test_an_event_that_is_said_again_is_counted(cluster, client):
    event = EmitEvent(resource=JOBS, key=KEY, uid="u", type="Normal", reason="Started", message="on its way")
    await client.run(event)
    await client.run(event)
    (found,) = cluster.api.list(CORE_EVENTS, "team-a")
    assert (found["reason"], found["count"], found["involvedObject"]["name"]) == ("Started", 2, "x")
    cluster.faults.set(FaultSettings(reject=[Reject(kind="Event")]))
    assert await client.run(event) is None, "a lost event is nobody's error"


async def test_who_may_do_what(cluster, client):
    cluster.api.access.tokens["secret"] = User(name="ann", groups=("team-a",))
    assert await client.authenticate("wrong") is None
    ann = await client.authenticate("secret")
    assert (ann.username, "team-a" in ann.groups) == ("ann", True)
    assert await client.may(ann, "create", JOBS, "team-a") is False
    assert await client.may(UserInfo(username="root", groups=["system:masters"]), "create", JOBS, "team-a") is True
    as_ann = client.with_token("secret")
    with pytest.raises(Forbidden):
        await as_ann.list(JOBS, "team-a")
    assert (await as_ann.who_am_i()).username == "ann"
    await as_ann.close()
    nobody = client.with_token("wrong")
    with pytest.raises(Unauthorized):
        await nobody.list(JOBS)
    await nobody.close()


async def test_what_is_served(client):
    kinds = await client.served_kinds()
    assert {"batch/v1, Job", "v1, Pod", "kueue.x-k8s.io/v1beta2, Workload"} <= set(kinds)


async def test_a_server_that_does_not_answer_is_unreachable_and_said_so(cluster, client, tmp_path):
    cluster.faults.set(FaultSettings(cut=True))
    with pytest.raises(Unreachable, match="it may have been done all the same"):
        await client.create(CONFIG_MAPS, config())
    with pytest.raises(Unreachable, match="no such file"):
        await Client.connect(str(tmp_path / "missing"))


# --- informer --------------------------------------------------------------------------------------------------------------


class Seen:
    """An informer and everything that it told."""

    def __init__(self, client: Client) -> None:
        self.informer = Informer(client, CONFIG_MAPS, time.time, namespace="team-a")
        self.told: list[tuple[str, str]] = []
        self.informer.on_change(self._tell)

    def _tell(self, key, old, new) -> None:
        self.told.append((key.name, "gone" if new is None else "new" if old is None else "changed"))

    async def until(self, names: set[str], limit_s: float = 40.0) -> None:
        """Until it knows exactly these objects."""
        try:
            async with asyncio.timeout(limit_s):
                while {key.name for key in self.informer.objects} != names or not self.informer.synced:
                    await self.informer.changed.wait()
        except TimeoutError:
            raise AssertionError(
                f"knows {sorted(k.name for k in self.informer.objects)}, not {sorted(names)}"
            ) from None


@pytest.fixture
async def seen(cluster, client):
    for name in ("a", "b"):
        cluster.api.create(CONFIG_MAPS, config(name))
    made = Seen(client)
    made.informer.start()
    await made.until({"a", "b"})
    yield made
    await made.informer.stop()


async def test_changes_arrive_one_by_one(cluster, seen):
    cluster.api.create(CONFIG_MAPS, config("c"))
    cluster.api.merge(CONFIG_MAPS, ObjectKey("team-a", "a"), {"data": {"z": "1"}})
    cluster.api.delete(CONFIG_MAPS, ObjectKey("team-a", "b"))
    await seen.until({"a", "c"})
    assert seen.told == [("a", "new"), ("b", "new"), ("c", "new"), ("a", "changed"), ("b", "gone")]
    assert "managedFields" not in seen.informer.objects[ObjectKey("team-a", "c")]["metadata"]


async def test_who_comes_late_is_told_what_is_there_and_who_leaves_is_told_no_more(cluster, seen):
    late: list[str] = []
    leave = seen.informer.on_change(lambda key, old, new: late.append(key.name))
    assert late == ["a", "b"]
    leave()
    cluster.api.create(CONFIG_MAPS, config("c"))
    await seen.until({"a", "b", "c"})
    assert late == ["a", "b"]


async def test_after_a_restart_that_forgot_its_history_everything_is_listed_again(cluster, seen):
    cluster.faults.set(FaultSettings(cut=True))
    cluster.api.delete(CONFIG_MAPS, ObjectKey("team-a", "a"))
    cluster.api.create(CONFIG_MAPS, config("c"))
    cluster.faults.set(FaultSettings())
    cluster.faults.restart()
    await seen.until({"b", "c"})
    assert ("b", "gone") not in seen.told
    assert ("b", "changed") not in seen.told, "what has not changed is not told again"


async def test_an_object_that_was_replaced_by_a_namesake_is_gone_first(cluster, seen):
    cluster.faults.set(FaultSettings(cut=True))
    cluster.api.delete(CONFIG_MAPS, ObjectKey("team-a", "a"))
    cluster.api.create(CONFIG_MAPS, config("a", other="1"))
    cluster.api.create(CONFIG_MAPS, config("c"))
    cluster.faults.set(FaultSettings())
    cluster.faults.restart()
    await seen.until({"a", "b", "c"})
    assert [what for name, what in seen.told if name == "a"] == ["new", "gone", "new"]


async def test_failing_lists_never_make_anything_look_gone(cluster, seen):
    """Half of all answers are lost while the server forgets its history again and again."""
    cluster.faults.set(FaultSettings(drop=0.5))
    for number in range(10):
        cluster.faults.restart()
        cluster.api.create(CONFIG_MAPS, config(f"n{number}"))
    await seen.until({"a", "b", *(f"n{number}" for number in range(10))})
    assert not [name for name, what in seen.told if what == "gone"]


async def test_a_connection_that_fell_silent_is_noticed_and_replaced(cluster, client, monkeypatch):
    """The server hangs in mid-watch: nothing is closed and nothing comes, as when a middlebox forgot the connection."""
    monkeypatch.setattr(client_module, "WATCH_S", (0.2, 0.3))
    monkeypatch.setattr(client_module, "WATCH_GRACE_S", 0.2)
    cluster.api.create(CONFIG_MAPS, config("a"))
    watcher = Seen(client)
    watcher.informer.start()
    await watcher.until({"a"})
    cluster.faults.set(FaultSettings(hang=True))
    cluster.api.create(CONFIG_MAPS, config("b"))
    async with asyncio.timeout(30):
        while watcher.informer.status.failures_in_row == 0:
            await watcher.informer.done_once.wait()
    assert "no answer" in watcher.informer.status.last_error
    cluster.faults.set(FaultSettings())
    await watcher.until({"a", "b"})
    await watcher.informer.stop()


async def test_a_watch_from_a_forgotten_version_is_refused_as_such(cluster, client):
    cluster.api.create(CONFIG_MAPS, config("a"))
    cluster.faults.restart()
    with pytest.raises(Expired):
        async for _ in client.watch(CONFIG_MAPS, "1"):
            pass


async def test_a_kind_that_is_not_served_yet_is_waited_for(cluster, client):
    """The CRDs may be applied after us."""
    crd = ObjectKey("", "workloads.kueue.x-k8s.io")
    manifest = cluster.api.get(CUSTOM_RESOURCE_DEFINITIONS, crd)
    cluster.api.delete(CUSTOM_RESOURCE_DEFINITIONS, crd)
    informer = Informer(client, WORKLOADS, time.time)
    informer.start()
    async with asyncio.timeout(20):
        while "404" not in informer.status.last_error:
            await informer.done_once.wait()
    assert not informer.synced
    cluster.api.create(CUSTOM_RESOURCE_DEFINITIONS, {**manifest, "metadata": {"name": crd.name}})
    async with asyncio.timeout(20):
        await informer.synced_event.wait()
    await informer.stop()


async def test_namespaces_have_none(client):
    assert (await client.get(NAMESPACES, ObjectKey("", "team-a")))["kind"] == "Namespace"
