"""The demo's stage: every process started, clusters registered, samples applied; and a look at what goes on there."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from hub.demo.jobs import JobPlan, manifest
from hub.demo.processes import Child
from hub.demo.verdict import Facts
from hub.kueue.api import resources
from hub.kueue.api.meta import Resource
from hub.kueue.api.v1beta2 import KINDS
from hub.kueue.integrations.registry import integration_for
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.errors import AlreadyExists, Invalid, KubernetesError
from hub.kueue.runtime.loop import Tasks
from hub.sandbox.observer import Completion, Run

SAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "samples"
MANAGEMENT = "management"
#: Words of the condition message that says that no cluster could ever hold a workload.
NEVER_FITS = "can never fit"
REGISTER_WITHIN_S = 30.0
SUBMIT_WITHIN_S = 60.0
RETRY_S = 0.3

Say = Callable[[str], None]


@dataclass(slots=True)
class Scene:
    """Everything that is up."""

    folder: Path
    dashboard_url: str
    hub_url: str
    kubeconfig: str
    control_url: str
    control_token: str
    token: str
    management: Client
    children: dict[str, Child]
    http: aiohttp.ClientSession
    submitted_at: dict[str, float] = field(default_factory=dict)


@asynccontextmanager
async def raised(folder: Path, say: Say) -> AsyncIterator[Scene]:
    """Start everything in order, and end it all on the way out. Raises ChildFailed."""
    async with AsyncExitStack() as stack:
        tasks = Tasks("demo")
        stack.push_async_callback(tasks.stop)
        scene = await _first_processes(folder, say, stack)
        workers = [name for name in _kubeconfigs(folder) if name != MANAGEMENT]
        await _apply_samples(folder, workers, say)
        await asyncio.gather(*(_start_agent(scene, name, say, stack) for name in workers))
        await _until_active(scene, workers)
        say(f"registered {', '.join(workers)}: all of them are Active")
        for child in scene.children.values():
            await child.keep_running(tasks, lambda name: say(f"{name} was started again"))
        _write_pids(scene)
        tasks.spawn(_pids_up_to_date(scene), "pids")
        yield scene


async def submit(scene: Scene, plans: Sequence[JobPlan]) -> dict[str, float]:
    """Create the jobs as a user would; when each was accepted, epoch seconds."""
    accepted: dict[str, float] = {}
    for plan in plans:
        await _submit_one(scene, plan)
        accepted[plan.key] = time.time()
    return accepted


async def _submit_one(scene: Scene, plan: JobPlan) -> None:
    """With a user's patience: while the hub is away its webhook is, too, and the API server takes no jobs."""
    async with asyncio.timeout(SUBMIT_WITHIN_S):
        while True:
            try:
                await scene.management.create(resources.JOBS, manifest(plan))
            except AlreadyExists:
                return  # the answer to an earlier try was lost
            except Invalid:
                raise
            except KubernetesError:
                await asyncio.sleep(RETRY_S)
            else:
                return


async def look(scene: Scene, plans: Sequence[JobPlan], *, wall_s: float) -> Facts:
    """What the sandbox clusters saw so far, and what the user's own objects say."""
    async with scene.http.get(f"{scene.control_url}/sandbox/v1/runs") as answer:
        seen = await answer.json()
    jobs, _ = await scene.management.list(resources.JOBS)
    workloads, _ = await scene.management.list(resources.WORKLOADS)
    return Facts(
        plans=plans,
        submitted_at=scene.submitted_at,
        runs=msgspec.convert(seen["runs"], list[Run]),
        completions=msgspec.convert(seen["completions"], list[Completion]),
        complete=frozenset(_key(job) for job in jobs if _succeeded(job)),
        never_fit=frozenset(_owner(w) for w in workloads if _never_fits(w)),
        now=time.time(),
        wall_s=wall_s,
    )


def all_ended(facts: Facts) -> bool:
    """Every job is complete or told that it never fits, and no pod runs any more."""
    known = facts.complete | facts.never_fit
    return all(plan.key in known for plan in facts.plans) and all(run.end is not None for run in facts.runs)


# --- starting --------------------------------------------------------------------------------------------------------


async def _first_processes(folder: Path, say: Say, stack: AsyncExitStack) -> Scene:
    sandbox = Child(
        "sandbox",
        "hub.sandbox",
        env={},
        folder=folder,
        args=("--state", str(folder), str(SAMPLES / "sandbox" / "demo.yaml")),
    )
    stack.push_async_callback(sandbox.stop)
    await sandbox.start()
    say("sandbox: one management cluster and three worker clusters serve")
    fleet = json.loads((folder / "fleet.json").read_text())
    kubeconfig = _kubeconfigs(folder)[MANAGEMENT]
    management = await Client.connect(kubeconfig)
    stack.push_async_callback(management.close)
    token = _token_of(kubeconfig)
    hub = Child("hub", "hub.app", env=_hub_environment(folder, kubeconfig), folder=folder)
    stack.push_async_callback(hub.stop)
    ready = await hub.start()
    say("hub: database migrated, REST, pages and webhooks serve")
    headers = {"Authorization": f"Bearer {fleet['control']['token']}"}
    http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
    return Scene(
        folder=folder,
        dashboard_url=f"{ready['url']}/sign-in?token={token}",
        hub_url=ready["url"],
        kubeconfig=kubeconfig,
        control_url=fleet["control"]["url"],
        control_token=fleet["control"]["token"],
        token=token,
        management=management,
        children={"sandbox": sandbox, "hub": hub},
        http=http,
    )


def _hub_environment(folder: Path, kubeconfig: str) -> dict[str, str]:
    """Ports are fixed here, so that a hub that is started again is found where it was."""
    return {
        "HUB_DATA_DIR": str(folder / "hub"),
        "HUB_MANAGEMENT_KUBECONFIG": kubeconfig,
        "HUB_PORT": str(_free_port()),
        "HUB_WEBHOOK_PORT": str(_free_port()),
        "HUB_INSTALL_WEBHOOKS": "true",
    }


async def _start_agent(scene: Scene, name: str, say: Say, stack: AsyncExitStack) -> None:
    folder = scene.folder / f"agent-{name}"
    folder.mkdir(mode=0o700)
    token_file = folder / "join-token"
    token_file.touch(mode=0o600)
    token_file.write_text(await _invite(scene, name))
    environment = {
        "AGENT_NAME": name,
        "AGENT_HUB_URL": scene.hub_url,
        "AGENT_JOIN_TOKEN_FILE": str(token_file),
        "AGENT_KUBECONFIG": _kubeconfigs(scene.folder)[name],
        "AGENT_STATE_DIR": str(folder),
        "AGENT_PORT": str(_free_port()),
        "AGENT_CREATE_NAMESPACES": "true",
        "AGENT_CREATE_LOCAL_QUEUES": "true",
        "AGENT_DEFAULT_CLUSTER_QUEUE": "from-hub",
    }
    child = Child(f"agent-{name}", "worker_agent.app", env=environment, folder=scene.folder)
    stack.push_async_callback(child.stop)
    await child.start()
    scene.children[child.name] = child
    say(f"agent of {name}: joined")


async def _invite(scene: Scene, name: str) -> str:
    headers = {"Authorization": f"Bearer {scene.token}"}
    url = f"{scene.hub_url}/api/v1/clusters"
    async with scene.http.post(url, json={"name": name}, headers=headers) as answer:
        body = await answer.json(content_type=None)
        if answer.status != 201:
            raise RuntimeError(f"registering {name} failed: {body}")
        return body["joinToken"]


async def _until_active(scene: Scene, workers: Sequence[str]) -> None:
    headers = {"Authorization": f"Bearer {scene.token}"}
    async with asyncio.timeout(REGISTER_WITHIN_S):
        while True:
            async with scene.http.get(f"{scene.hub_url}/api/v1/clusters", headers=headers) as answer:
                clusters = (await answer.json())["items"]
            ready = {c["name"] for c in clusters if c["state"] == "Active" and c["flavors"]}
            if ready.issuperset(workers):
                return
            await asyncio.sleep(0.1)


async def _apply_samples(folder: Path, workers: Sequence[str], say: Say) -> None:
    kubeconfigs = _kubeconfigs(folder)
    await _apply(kubeconfigs[MANAGEMENT], _documents("management.yaml"))
    for name in workers:
        await _apply(kubeconfigs[name], _documents("worker.yaml"))
    say("samples: queues, flavors and priority classes are applied")


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((SAMPLES / name).read_text()))


async def _apply(kubeconfig: str, documents: Sequence[dict[str, Any]]) -> None:
    client = await Client.connect(kubeconfig)
    try:
        for document in documents:
            await client.apply(_resource(document), document)
    finally:
        await client.close()


def _resource(document: dict[str, Any]) -> Resource:
    if document["kind"] == resources.NAMESPACES.kind:
        return resources.NAMESPACES
    if integration := integration_for(document["apiVersion"], document["kind"]):
        return integration.resource
    return KINDS[document["kind"]].resource


# --- small facts -----------------------------------------------------------------------------------------------------


def _kubeconfigs(folder: Path) -> dict[str, str]:
    fleet = json.loads((folder / "fleet.json").read_text())
    return {cluster["name"]: cluster["kubeconfig"] for cluster in fleet["clusters"]}


def _token_of(kubeconfig: str) -> str:
    return yaml.safe_load(Path(kubeconfig).read_text())["users"][0]["user"]["token"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _write_pids(scene: Scene) -> None:
    pids = {name: child.pid for name, child in scene.children.items()}
    pids |= {"postgres": pid} if (pid := _postgres_pid(scene.folder)) else {}
    part = scene.folder / "processes.part"
    part.write_text(json.dumps(pids, indent=2))
    part.rename(scene.folder / "processes.json")


async def _pids_up_to_date(scene: Scene) -> None:
    while True:
        await asyncio.sleep(0.2)
        _write_pids(scene)


def _postgres_pid(folder: Path) -> int | None:
    """First line of the embedded server's pid file; None with a database of the user's own."""
    try:
        return int((folder / "hub" / "postgres" / "postgres" / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def _key(job: dict[str, Any]) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"


def _succeeded(job: dict[str, Any]) -> bool:
    return any(c["type"] == "Complete" and c["status"] == "True" for c in job.get("status", {}).get("conditions", []))


def _owner(workload: dict[str, Any]) -> str:
    owners = workload["metadata"].get("ownerReferences") or [{"name": ""}]
    return f"{workload['metadata']['namespace']}/{owners[0]['name']}"


def _never_fits(workload: dict[str, Any]) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    return any(NEVER_FITS in c.get("message", "") for c in conditions)
