"""A real agent on a simulated worker cluster, and a hub that is played by the test: it sends polls and keeps the answers."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp.test_utils import TestClient, TestServer

from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import JOBS
from hub.kueue.runtime.client import Client
from hub.kueue.wire import (
    Action,
    CapacityReport,
    Intent,
    Phase,
    PlacementReport,
    PodSetFlavors,
    PollAnswer,
    PollRequest,
)
from hub.sandbox.fleet import SandboxCluster
from worker_agent.app import work
from worker_agent.exchange import Exchange
from worker_agent.settings import Settings

GPU = "nvidia.com/gpu"


class PlayedHub:
    """One agent process, seen from outside. `reports` holds the newest word on every placement."""

    _sequence = itertools.count(1)
    _boots = itertools.count(1)

    def __init__(self, client: TestClient, boot: str) -> None:
        self._client = client
        self._boot = boot
        self._cursor = 0
        self._known_boot = ""
        self.reports: dict[str, PlacementReport] = {}
        self.capacity: CapacityReport | None = None

    async def poll(self, *intents: Intent, inventory: dict[str, int] | None = None, wait_s: float = 0.5) -> PollAnswer:
        request = PollRequest(
            cluster="east",
            term=1,
            lease_s=60,
            wait_s=wait_s,
            boot_id=self._known_boot,
            cursor=self._cursor,
            intents=list(intents),
            inventory=inventory,
            sequence=next(self._sequence),
        )
        response = await self._client.post("/v1/poll", data=msgspec.json.encode(request))
        body = await response.read()
        assert response.status == 200, body
        answer = msgspec.json.decode(body, type=PollAnswer)
        self._known_boot, self._cursor = answer.boot_id, answer.cursor
        self.reports |= {report.placement: report for report in answer.placements}
        self.capacity = answer.capacity or self.capacity
        return answer

    async def until(self, placement: str, phase: Phase, *intents: Intent, polls: int = 60) -> PlacementReport:
        """Poll until the agent says so. The intents go with every poll, as to an agent that has not acknowledged them."""
        for _ in range(polls):
            await self.poll(*intents)
            found = self.reports.get(placement)
            if found is not None and found.phase is phase:
                return found
        raise AssertionError(f"{placement} is not {phase} but {self.reports.get(placement)}")


@asynccontextmanager
async def agent_on(cluster: SandboxCluster, folder: Path, **settings: Any) -> AsyncIterator[PlayedHub]:
    """The agent's loops and its poll API, without the join and without TLS; killed without goodbye at the end."""
    given = Settings(
        name="east",
        hub_url="http://unused.example",
        state_dir=folder / "state",
        **{"default_cluster_queue": "cq", "create_namespaces": True, "create_local_queues": True} | settings,
    )
    boot = f"boot-{next(PlayedHub._boots)}"
    async with AsyncExitStack() as stack:
        client = await Client.connect(str(folder / f"{cluster.name}.kubeconfig"))
        stack.push_async_callback(client.close)
        server = await work(given, client, Exchange("east", boot), stack)
        http = TestClient(TestServer(server.app()))
        await http.start_server()
        stack.push_async_callback(http.close)
        yield PlayedHub(http, boot)


def run_intent(job: dict[str, Any], placement: str = "p1", generation: int = 1, **fields: Any) -> Intent:
    """The offer of a Job of `gpu_job`: its Workload is called like it."""
    pods = job["spec"].get("parallelism", 1)
    template = job["spec"]["template"]
    return Intent(
        placement=placement,
        generation=generation,
        action=Action.RUN,
        namespace=job["metadata"]["namespace"],
        workload=f"job-{job['metadata']['name']}",
        workload_uid=f"uid-{job['metadata']['name']}",
        local_queue=job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"],
        workload_spec={"podSets": [{"name": "main", "count": pods, "template": template}], "priority": 0},
        job=job,
        pod_sets=[PodSetFlavors(name="main", count=pods, flavors={"cpu": "h100", GPU: "h100"})],
        **fields,
    )


def withdraw(intent: Intent) -> Intent:
    return msgspec.structs.replace(intent, action=Action.WITHDRAW, generation=intent.generation + 1)


def job_on(cluster: SandboxCluster, intent: Intent) -> dict[str, Any] | None:
    return cluster.api.get(JOBS, ObjectKey(intent.namespace, intent.job["metadata"]["name"]))
