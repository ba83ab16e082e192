"""The core of the hub: dispatch, board, polls and an embedded Postgres for real; agents answer from memory, messages as JSON.

What is left out is the management cluster: Workloads that have quota are handed over as objects, as the informers would.
"""

import asyncio
import itertools
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hub.dispatch.placement import State
from hub.dispatch.request import PodSetNeed, Request
from hub.dispatch.routes import BUILT_IN, Route
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import Workload, decode_as, names
from hub.kueue.integrations.batch_job import BATCH_JOB
from hub.loops.board import Board
from hub.loops.dispatch import DispatchLoop
from hub.loops.poll import PollLoop, PollPolicy
from hub.store import leases
from hub.store.database import LEADER, Database
from hub.store.embedded import EmbeddedPostgres
from tests.fake_agent import GPU, FakeAgent, FakeTransport
from tests.hub_rig import joined

CLUSTERS = 10
JOBS = 10_000
NODES = 250
GPUS = 8
#: About what a submitted Job weighs.
ENV = [{"name": "X", "value": "y" * 1500}]


class View:
    """As much of a typed view as the dispatch loop looks at."""

    def __init__(self) -> None:
        self.objects: dict[ObjectKey, Any] = {}
        self._handlers: list[Callable[..., None]] = []

    def get(self, key: ObjectKey) -> Any:
        return self.objects.get(key)

    def on_change(self, handler: Callable[..., None]) -> None:
        self._handlers.append(handler)

    def put(self, key: ObjectKey, obj: Any) -> None:
        old, self.objects[key] = self.objects.get(key), obj
        for handler in self._handlers:
            handler(key, old, obj)


class Objects:
    """The management cluster in memory: every Workload has quota and waits for its check."""

    synced = True

    def __init__(self) -> None:
        self.workloads, self.checks, self.configs, self.queues = View(), View(), View(), View()
        self._jobs: dict[ObjectKey, dict[str, Any]] = {}

    def submit(self, number: int) -> None:
        key = ObjectKey("team-a", f"train-{number}")
        self._jobs[key] = _job(key)
        self.workloads.put(key, _workload(key))

    def route_of(self, workload: Workload) -> Route:
        return Route(check=BUILT_IN)

    def job_of(self, workload: Workload) -> Any:
        return BATCH_JOB, self._jobs[workload.metadata.key]

    def request_of(self, workload: Workload, route: Route, kind: str) -> Request:
        need = PodSetNeed(
            name="main",
            count=1,
            per_pod={GPU: 1, "cpu": 1000},
            total={GPU: 1, "cpu": 1000},
            flavors={GPU: "h100", "cpu": "h100"},
        )
        return Request(
            workload=workload.metadata.key,
            uid=workload.metadata.uid,
            kind=kind,
            local_queue="main",
            cluster_queue="cq",
            pod_sets=(need,),
        )


def _job(key: ObjectKey) -> dict[str, Any]:
    container = {"name": "main", "image": "train:1", "env": ENV, "resources": {"requests": {"cpu": "1", GPU: "1"}}}
    meta = {"name": key.name, "namespace": key.namespace, "uid": f"job-{key.name}"}
    spec = {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def _workload(key: ObjectKey) -> Workload:
    template = {"spec": {"containers": [{"name": "main", "env": ENV}]}}
    when = "2027-01-01T00:00:00Z"
    reserved = {"type": names.QUOTA_RESERVED, "status": "True", "reason": "QuotaReserved", "lastTransitionTime": when}
    check = {"name": BUILT_IN, "state": "Pending", "message": "", "lastTransitionTime": when}
    manifest = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": f"uid-{key.name}"},
        "spec": {"queueName": "main", "podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": {
            "conditions": [reserved | {"message": ""}],
            "admission": {"clusterQueue": "cq"},
            "admissionChecks": [check],
        },
    }
    return decode_as(Workload, manifest)


class Progress:
    """Who runs, as far as the hub has stored it."""

    def __init__(self, board: Board) -> None:
        self.running: set[ObjectKey] = set()
        self._board = board
        self._changed = asyncio.Event()
        board.listeners.workloads.append(self._workload)
        board.listeners.room.append(self._changed.set)

    def _workload(self, key: ObjectKey) -> None:
        if any(p.state is State.RUNNING for p in self._board.of_workload(key)):
            self.running.add(key)
            self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


async def _run(folder: Path, jobs: int) -> dict[str, Any]:
    postgres = EmbeddedPostgres(folder, time.time)
    await postgres.start()
    database = await Database.open(postgres.url, clock=time.time)
    agents = {f"c{n}": FakeAgent(f"c{n}", time.time, nodes=NODES, gpus=GPUS) for n in range(CLUSTERS)}
    transport = FakeTransport(agents)
    transport.recording, transport.as_json = False, True
    await joined(database, agents, time.time)
    async with database.transaction() as connection:
        lease = await leases.acquire(connection, LEADER, "bench", 3600)
    assert lease is not None
    board, objects = Board(database, time.time, lease.term), Objects()
    await board.ready()
    numbers = itertools.count()
    dispatch = DispatchLoop(board, objects, time.time, new_id=lambda: f"p{next(numbers)}")  # type: ignore[arg-type]
    polling = PollLoop(board, transport, time.time, PollPolicy())
    seen = Progress(board)
    polling.start()
    dispatch.start()
    await seen.until(lambda: all(c.capacity for c in board.clusters.values()))
    started, cpu = time.perf_counter(), _cpu_s()
    for number in range(jobs):
        objects.submit(number)
    await seen.until(lambda: len(seen.running) == jobs)
    took, cpu_used = time.perf_counter() - started, _cpu_s() - cpu
    created = sum(agent.created for agent in agents.values())
    await dispatch.stop()
    await polling.stop()
    await database.close()
    await postgres.stop()
    return {
        "jobs": jobs,
        "clusters": CLUSTERS,
        "placements_per_s": round(jobs / took),
        "confirmed_s": round(took, 2),
        "hub_cpu_s": round(cpu_used, 2),
        "remote_objects_per_placement": round(created / jobs, 3),
    }


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def figures() -> Iterator[dict[str, Any]]:
    """Submitted at once, until the hub has stored that the last one runs."""
    for jobs in (1_000, JOBS):
        with tempfile.TemporaryDirectory(prefix="placements-") as folder:
            yield asyncio.run(_run(Path(folder), jobs))
