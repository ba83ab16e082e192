"""Composition root of the agent: `python -m worker_agent.app`, settings from AGENT_ variables.

Prints one JSON line on standard output when it has joined and serves. Ends on SIGTERM or SIGINT; may be killed at any
instant, since everything that it must remember stands in its cluster.
"""

import asyncio
import gc
import json
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version

from pydantic import ValidationError

from hub.kueue.admission.messages import QueueStatus
from hub.kueue.api import resources
from hub.kueue.api.meta import ObjectKey
from hub.kueue.integrations.reconcile import Policy as JobPolicy
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime import tls
from hub.kueue.runtime.admission import AdmissionLoop
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.errors import KubernetesError
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.jobs import JobLoop
from hub.kueue.runtime.loop import Loop
from hub.kueue.wire import JoinRequest
from worker_agent import mirror
from worker_agent.exchange import Exchange
from worker_agent.join import JoinRefusedError, State, join
from worker_agent.loops import Caches, CapacityLoop, KindsLoop, MirrorLoop, caches_of
from worker_agent.serve import PollServer, serve
from worker_agent.settings import Settings

log = logging.getLogger(__name__)


def agent_version() -> str:
    try:
        return version("multikueue-hub")
    except PackageNotFoundError:
        return "checkout"


async def run(settings: Settings, until: asyncio.Event) -> None:
    """Join if need be, then serve and work until told to stop."""
    async with AsyncExitStack() as stack:
        client = await Client.connect(
            str(settings.kubeconfig) if settings.kubeconfig else None, user_agent="multikueue-hub-agent"
        )
        stack.push_async_callback(client.close)
        state = State(settings.state_dir)
        listener = socket.create_server((settings.host, settings.port))
        address = settings.advertise_address or f"https://{settings.host}:{listener.getsockname()[1]}"
        identity = state.identity(settings.name, [settings.host, "localhost"], time.time())
        if not state.hub_ca_pem:
            await _join(settings, state, identity, address, client)
        exchange = Exchange(settings.name, secrets.token_hex(8), agent_version())
        server = await work(settings, client, exchange, stack)
        context = tls.server_context(identity, client_ca_pem=state.hub_ca_pem)
        stack.push_async_callback(await serve(server.app(), listener, context))
        sys.stdout.write(json.dumps({"ready": True, "cluster": settings.name, "address": address}) + "\n")
        sys.stdout.flush()
        await until.wait()


async def _join(settings: Settings, state: State, identity: tls.Identity, address: str, client: Client) -> None:
    if settings.join_token_file is None:
        raise JoinRefusedError(
            "this agent has not joined yet: AGENT_JOIN_TOKEN_FILE must name the file with its one-time token"
        )
    ca_pem = settings.hub_ca_file.read_text() if settings.hub_ca_file else ""
    request = JoinRequest(
        token=settings.join_token_file.read_text().strip(),
        agent_version=agent_version(),
        address=address,
        certificate_pem=identity.certificate_pem,
        cluster_uid=await _cluster_uid(client),
    )
    state.joined(await join(settings.hub_url, ca_pem, request))
    log.info("cluster %s has joined the hub at %s", settings.name, settings.hub_url)


async def _cluster_uid(client: Client) -> str:
    found = await client.get(resources.NAMESPACES, ObjectKey("", "kube-system"))
    return found["metadata"]["uid"] if found else ""


async def work(settings: Settings, client: Client, exchange: Exchange, stack: AsyncExitStack) -> PollServer:
    """Start informers and loops. What is started last is stopped first."""
    clock = time.time
    policy = mirror.Policy(
        origin=settings.origin,
        create_namespaces=settings.create_namespaces,
        create_local_queues=settings.create_local_queues,
        default_cluster_queue=settings.default_cluster_queue,
        admit_within_s=settings.admit_within_s,
    )
    kinds = KindsLoop(client, clock)
    await kinds.run_once()
    informers = Informers(client, clock)
    served = [i for i in INTEGRATIONS.values() if mirror.kind_text(i.resource) in kinds.kinds]
    caches = caches_of(informers, [i.resource for i in served])
    recorder = EventRecorder(client, clock)
    admission = AdmissionLoop(informers, clock, recorder, watches_nodes=True)
    jobs = JobLoop(informers, clock, recorder, policy=JobPolicy.WORKER, integrations=served)
    server = PollServer(exchange, clock, starting=lambda: not informers.synced)
    mirroring = MirrorLoop(client, caches, exchange, policy, lambda: kinds.kinds, server.announce, clock)
    server.on_intents = mirroring.touch
    capacity = _capacity(admission, client, caches, exchange, policy, kinds, await _version(client), server.announce)
    informers.start()
    stack.push_async_callback(informers.stop)
    for loop in (recorder, kinds, admission, jobs, mirroring, capacity):
        _start(loop, stack)
    return server


def _capacity(
    admission: AdmissionLoop,
    client: Client,
    caches: Caches,
    exchange: Exchange,
    policy: mirror.Policy,
    kinds: KindsLoop,
    kubernetes_version: str,
    announce: Callable[[], Awaitable[None]],
) -> CapacityLoop:
    def status(name: str) -> QueueStatus:
        return admission.state.queue_status("ClusterQueue", ObjectKey("", name))

    return CapacityLoop(caches, exchange, policy, lambda: kinds.kinds, status, kubernetes_version, announce, time.time)


async def _version(client: Client) -> str:
    return (await client.get_raw("/version")).get("gitVersion", "")


def _start(loop: Loop, stack: AsyncExitStack) -> None:
    loop.start()
    stack.push_async_callback(loop.stop)


async def _main(settings: Settings) -> None:
    until = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    await run(settings, until)


def main() -> None:
    try:
        settings = Settings()  # type: ignore[call-arg] - the fields come from the environment
    except ValidationError as error:
        sys.exit("\n".join(f"AGENT_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors()))
    logging.basicConfig(
        level=settings.log_level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # Caches hold many long-lived objects; the default thresholds would walk them over and over.
    gc.set_threshold(100_000, 50, 100)
    try:
        asyncio.run(_main(settings))
    except JoinRefusedError as error:
        sys.exit(f"cluster {settings.name} cannot join the hub at {settings.hub_url}: {error}")
    except (KubernetesError, OSError) as error:
        sys.exit(f"agent of {settings.name}: {error}")


if __name__ == "__main__":
    main()
