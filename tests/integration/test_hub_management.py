"""A leader's whole term on a simulated management cluster, with agents that answer from memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hub.dispatch.decide import DispatchPolicy
from hub.dispatch.filters import RetryPolicy
from hub.dispatch.placement import State
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    CORE_EVENTS,
    JOBS,
    MULTI_KUEUE_CLUSTERS,
    MULTI_KUEUE_CONFIGS,
    WORKLOADS,
)
from hub.kueue.api.v1beta2 import names
from hub.kueue.runtime.client import Client
from hub.loops.term import Term, TermPolicy
from hub.store import clusters, history, leases, ledger, views
from hub.store.database import LEADER, Database
from hub.store.errors import Unavailable
from tests.fake_agent import FakeAgent, FakeTransport, overlapping
from tests.hub_rig import POLICY, joined
from tests.sandbox_cluster import add_queues, client_of, gpu_job, kueue, sandbox_cluster
from tests.waiting import until


class Hub:
    """A hub in this process; `restart` is what a crash and a new start do."""

    def __init__(self, database: Database, client: Client, clock, cluster, agents: list[FakeAgent]) -> None:
        self.database, self.client, self.clock, self.cluster = database, client, clock, cluster
        self.agents = {agent.name: agent for agent in agents}
        self.transport = FakeTransport(self.agents)
        self.term: Term = None  # type: ignore[assignment] - set by start

    async def start(self) -> None:
        async with self.database.transaction() as connection:
            lease = await leases.acquire(connection, LEADER, "test", 3600)
        assert lease is not None
        policy = TermPolicy(poll=POLICY, dispatch=DispatchPolicy(retry=RetryPolicy(base_s=0.3, max_s=0.5)))
        self.term = Term(
            lease.term,
            database=self.database,
            management=self.client,
            transport=self.transport,
            clock=self.clock,
            policy=policy,
        )
        await self.term.start()

    async def restart(self) -> None:
        await self.term.stop()
        await self.start()

    # --- what a user sees --------------------------------------------------------------------------------------------

    def submit(self, name: str, *, gpus: int = 1, **spec: Any) -> None:
        job = gpu_job(name, gpus=gpus, managedBy=names.MANAGED_BY_MULTIKUEUE, **spec)
        self.cluster.api.create(JOBS, job)

    def job(self, name: str) -> dict[str, Any] | None:
        return self.cluster.api.get(JOBS, ObjectKey("team-a", name))

    def workload(self, name: str) -> dict[str, Any] | None:
        found = self.cluster.api.list(WORKLOADS, "team-a")
        return next((w for w in found if w["metadata"]["ownerReferences"][0]["name"] == name), None)

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = ((self.workload(name) or {}).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    def is_true(self, name: str, kind: str) -> bool:
        return self.condition(name, kind).get("status") == "True"

    def runs_on(self, name: str) -> list[str]:
        workload = self.workload(name)
        key = workload["metadata"]["name"] if workload is not None else ""
        return [a.name for a in self.agents.values() for c in a.copies.values() if c.intent.workload == key]

    def finish(self, name: str) -> None:
        key = self.workload(name)["metadata"]["name"]
        for agent in self.agents.values():
            for placement, copy in list(agent.copies.items()):
                if copy.intent.workload == key and not copy.withdrawing:
                    agent.finish(placement)

    def events(self) -> list[str]:
        return [e["message"] for e in self.cluster.api.list(CORE_EVENTS, "team-a") if e["reason"] == "MultiKueue"]

    async def until(self, condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
        changed = asyncio.Event()
        stops = [self.cluster.api.subscribe(r, lambda *_: changed.set()) for r in (WORKLOADS, JOBS, ADMISSION_CHECKS)]
        stops.append(self.cluster.api.subscribe(MULTI_KUEUE_CLUSTERS, lambda *_: changed.set()))
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    changed.clear()
                    try:
                        await asyncio.wait_for(changed.wait(), 0.05)
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}; {self.story()}") from None
        finally:
            for stop in stops:
                stop()

    def story(self) -> str:
        return str([(p.id, p.cluster, p.state.value, p.reason) for p in self.term.board.placements.values()])


@pytest.fixture
async def hub(database_url: str, tmp_path: Path) -> AsyncIterator[Hub]:
    clock = time.time
    database = await Database.open(database_url, clock=clock)
    async with sandbox_cluster(tmp_path, "management") as cluster, client_of(tmp_path, "management") as client:
        add_queues(cluster, quota=32)
        made = Hub(database, client, clock, cluster, [FakeAgent("east", clock), FakeAgent("west", clock)])
        await joined(database, made.agents, clock)
        await made.start()
        yield made
        await made.term.stop()
    async with database.transaction() as connection:
        assert await ledger.drift(connection) == []
    await database.close()
    assert overlapping([run for agent in made.agents.values() for run in agent.runs]) == []


async def test_a_job_is_placed_mirrored_finished_and_cleaned_up(hub):
    hub.submit("train", gpus=4)
    await hub.until(lambda: hub.is_true("train", names.ADMITTED), "admitted")
    (cluster,) = hub.runs_on("train")
    status = hub.workload("train")["status"]
    assert status["clusterName"] == cluster
    assert [(c["name"], c["state"]) for c in status["admissionChecks"]] == [("multikueue-hub", "Ready")]
    await hub.until(lambda: (hub.job("train").get("status") or {}).get("active") == 1, "live status")
    assert hub.job("train")["spec"]["suspend"] is False
    hub.finish("train")
    await hub.until(lambda: hub.is_true("train", names.FINISHED), "finished")
    assert hub.condition("train", names.FINISHED)["reason"] == "Succeeded"
    assert hub.job("train")["status"]["succeeded"] == 1
    await hub.until(lambda: hub.runs_on("train") == [], "cleaned up")
    await hub.until(lambda: any("got reservation" in e for e in hub.events()), "an event")
    await hub.until(lambda: all(p.released for p in hub.term.board.placements.values()), "released")


async def test_refused_by_one_cluster_it_goes_to_the_next_at_once(hub):
    hub.agents["east"].refuse = lambda intent: "HoleTooSmall"
    for index in range(4):
        hub.submit(f"train-{index}")
    await hub.until(lambda: all(hub.is_true(f"train-{i}", names.ADMITTED) for i in range(4)), "all admitted")
    assert {hub.workload(f"train-{i}")["status"]["clusterName"] for i in range(4)} == {"west"}


async def test_what_is_deleted_is_withdrawn_and_keeps_its_quota_until_the_agent_says_gone(hub):
    for agent in hub.agents.values():
        agent.slow_to_stop = True
    hub.submit("train", gpus=8)
    await hub.until(lambda: hub.is_true("train", names.ADMITTED), "admitted")
    (name,) = hub.runs_on("train")
    agent = hub.agents[name]
    hub.cluster.api.delete(JOBS, ObjectKey("team-a", "train"))
    await hub.until(lambda: any(c.withdrawing for c in agent.copies.values()), "withdrawn")
    assert hub.workload("train") is not None, "its finalizer holds it while pods may run"
    for placement in list(agent.copies):
        agent.settle(placement)
    await hub.until(lambda: hub.workload("train") is None, "gone")


async def test_evicted_on_the_worker_it_is_placed_again(hub):
    hub.submit("train", gpus=8)
    await hub.until(lambda: hub.is_true("train", names.ADMITTED), "admitted")
    (first,) = hub.runs_on("train")
    agent = hub.agents[first]
    agent.evict(next(iter(agent.copies)))
    agent.refuse = lambda intent: "NoQuota"
    other = next(name for name in hub.agents if name != first)
    await hub.until(lambda: hub.runs_on("train") == [other], "placed on the other cluster")
    await hub.until(lambda: hub.workload("train")["status"].get("clusterName") == other, "and said so")
    async with hub.database.transaction() as connection:
        key = ObjectKey("team-a", hub.workload("train")["metadata"]["name"])
        story = [(e.event, e.cluster) for e in await history.for_workload(connection, key) if e.event != "Admitted"]
    assert story[:5] == [
        ("Offered", first),
        ("Running", first),
        ("Evicted", first),
        ("Released", first),
        ("Offered", other),
    ]


async def test_switched_off_it_stops_and_switched_on_it_runs_again(hub):
    hub.submit("train")
    await hub.until(lambda: hub.is_true("train", names.ADMITTED), "admitted")
    key = ObjectKey("team-a", hub.workload("train")["metadata"]["name"])
    hub.cluster.api.merge(WORKLOADS, key, {"spec": {"active": False}})
    await hub.until(lambda: hub.runs_on("train") == [] and not hub.is_true("train", names.QUOTA_RESERVED), "stopped")
    hub.cluster.api.merge(WORKLOADS, key, {"spec": {"active": True}})
    await hub.until(lambda: hub.is_true("train", names.ADMITTED) and len(hub.runs_on("train")) == 1, "runs again")


async def test_one_that_can_never_fit_is_told_so_and_holds_no_quota(hub):
    hub.submit("huge", gpus=9)
    await hub.until(lambda: "can never fit" in hub.condition("huge", names.QUOTA_RESERVED).get("message", ""), "told")
    assert hub.condition("huge", names.QUOTA_RESERVED)["reason"] == "OnHold"
    hub.submit("small")
    await hub.until(lambda: hub.is_true("small", names.ADMITTED), "others go on")
    hub.agents["east"].gpus = 16
    hub.agents["east"].news.set()
    await hub.until(lambda: hub.is_true("huge", names.ADMITTED), "it runs when the fleet has grown (kueue#6732)")


async def test_one_that_finds_no_room_waits_with_a_reason_and_does_not_block_smaller_ones(hub):
    for name in ("one", "two"):
        hub.submit(name, gpus=5)
    hub.submit("three", gpus=5)
    hub.submit("four", gpus=5)
    await hub.until(lambda: all(hub.is_true(n, names.ADMITTED) for n in ("one", "two", "three", "four")), "four nodes")
    hub.submit("five", gpus=5)
    hub.submit("small", gpus=3)
    await hub.until(lambda: hub.is_true("small", names.ADMITTED), "the small one runs")

    def said() -> str:
        checks = ((hub.workload("five") or {}).get("status") or {}).get("admissionChecks") or [{}]
        return checks[0].get("message", "")

    await hub.until(lambda: "no cluster has room now" in said(), "the reason")
    hub.finish("one")
    await hub.until(lambda: hub.is_true("five", names.ADMITTED), "it runs as soon as there is room")


async def test_a_hub_that_is_killed_and_started_again_goes_on_where_it_was(hub):
    for index in range(6):
        hub.submit(f"train-{index}", gpus=2)
    await hub.until(lambda: hub.is_true("train-0", names.ADMITTED), "the first one")
    await hub.restart()
    await hub.until(lambda: all(hub.is_true(f"train-{i}", names.ADMITTED) for i in range(6)), "all of them")
    assert sum(agent.created for agent in hub.agents.values()) == 6
    for index in range(6):
        hub.finish(f"train-{index}")
    await hub.restart()
    await hub.until(lambda: all(hub.is_true(f"train-{i}", names.FINISHED) for i in range(6)), "all finished")
    assert sum(agent.created for agent in hub.agents.values()) == 6


async def test_a_multikueue_config_names_the_clusters_and_their_order(hub):
    config = kueue("MultiKueueConfig", "gpus", spec={"clusters": ["west", "nowhere"]})
    hub.cluster.api.create(MULTI_KUEUE_CONFIGS, config)
    source = {"clusterSource": {"kubeConfig": {"location": "secret", "locationType": "Secret"}}}
    for name in ("west", "nowhere"):
        hub.cluster.api.create(MULTI_KUEUE_CLUSTERS, kueue("MultiKueueCluster", name, spec=source))
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "gpus"}
    check = {"controllerName": names.CONTROLLER_MULTIKUEUE, "parameters": parameters}
    hub.cluster.api.create(ADMISSION_CHECKS, kueue("AdmissionCheck", "workers", spec=check))
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": "workers"}]}}
    hub.cluster.api.merge(CLUSTER_QUEUES, ObjectKey("", "cq"), {"spec": strategy})

    def active(resource, name) -> dict[str, Any]:
        conditions = (hub.cluster.api.get(resource, ObjectKey("", name)).get("status") or {}).get("conditions") or [{}]
        return conditions[0]

    await hub.until(lambda: active(ADMISSION_CHECKS, "workers").get("reason") == "SomeActiveClusters", "check active")
    assert active(ADMISSION_CHECKS, "workers")["message"] == "Missing clusters: nowhere"
    assert active(MULTI_KUEUE_CLUSTERS, "west")["status"] == "True"
    assert active(MULTI_KUEUE_CLUSTERS, "nowhere")["reason"] == "NotRegistered"
    hub.submit("train")
    await hub.until(lambda: hub.is_true("train", names.ADMITTED), "admitted")
    assert hub.workload("train")["status"]["clusterName"] == "west"
    assert [c["name"] for c in hub.workload("train")["status"]["admissionChecks"]] == ["workers"]


async def test_readers_find_workloads_and_queues_in_the_database(hub):
    hub.submit("train", gpus=2)
    await hub.until(lambda: hub.is_true("train", names.ADMITTED), "admitted")

    key = ObjectKey("team-a", hub.workload("train")["metadata"]["name"])

    async def shown() -> bool:
        async with hub.database.transaction() as connection:
            row = await views.get_workload(connection, key)
            queues = {(q.kind, q.name): q for q in await views.list_queues(connection)}
        found.update(row=row, queue=queues.get(("ClusterQueue", "cq")))
        return row is not None and row.state == "Running" and bool(found["queue"]) and found["queue"].admitted == 1

    found: dict[str, Any] = {}
    await until(shown, "rows for readers")
    row = found["row"]
    assert (row.gpus, row.job_name, row.cluster_queue, row.cluster) == (2, "train", "cq", hub.runs_on("train")[0])
    assert found["queue"].usage["h100"]["nvidia.com/gpu"]["reserved"] == 2


async def test_while_postgres_does_not_answer_nothing_is_lost(hub):
    working = hub.database.transaction

    def broken(**_: Any) -> Any:
        raise Unavailable

    hub.submit("before")
    await hub.until(lambda: hub.is_true("before", names.ADMITTED), "admitted")
    hub.database.transaction = broken
    hub.submit("during")
    await hub.until(lambda: hub.is_true("during", names.QUOTA_RESERVED), "global admission goes on")
    hub.finish("before")
    hub.database.transaction = working
    await hub.until(
        lambda: hub.is_true("during", names.ADMITTED) and hub.is_true("before", names.FINISHED), "all is made up for"
    )
    states = {p.state for p in hub.term.board.placements.values()}
    assert states <= {State.RUNNING, State.FINISHED, State.ADMITTED}
    async with hub.database.transaction() as connection:
        assert [c.state for c in await clusters.list_clusters(connection)] == ["Active", "Active"]
