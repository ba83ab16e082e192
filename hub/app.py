"""Composition root of the hub: `python -m hub.app`, settings from HUB_ variables. The only place that constructs things.

    database, management cluster ─▶ web, webhooks        on every replica
                                 ─▶ leader ─▶ Term       on one: admission, dispatch, polls, mirror

Prints one JSON line on standard output when it serves. Ends on SIGTERM or SIGINT; may be killed at any instant: what it
decided stands in the database, and everything else follows from objects.
"""

import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aiohttp import web
from msgspec import Struct
from pydantic import ValidationError

from hub.dispatch.clusters import HealthPolicy
from hub.fleet.direct import DirectTransport
from hub.kueue.api.v1beta2 import names
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime import tls, webhooks
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.errors import KubernetesError
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.loop import LoopStatus
from hub.kueue.runtime.telemetry import set_up_logging
from hub.loops.leader import LeaderLoop
from hub.loops.poll import PollPolicy
from hub.loops.term import Term, TermPolicy
from hub.settings import Settings
from hub.store import clusters
from hub.store.database import Database
from hub.store.embedded import EmbeddedPostgres
from hub.store.errors import StoreError
from hub.web import sessions
from hub.web.access import Gate
from hub.web.app import make_app
from hub.web.context import WebContext

log = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class SettingsError(Exception):
    """The settings do not fit together."""


def hub_version() -> str:
    try:
        return version("multikueue-hub")
    except PackageNotFoundError:
        return "checkout"


class Identity(Struct, frozen=True, kw_only=True):
    """The hub's own CA, and the certificate that it shows to agents."""

    ca: tls.Identity
    client: tls.Identity


def load_identity(folder: Path, now: float) -> Identity:
    """From `folder`, made at the first start. The keys never leave it."""
    ca = _kept(folder / "ca", lambda: tls.make_ca("multikueue-hub", now))
    client = _kept(folder / "client", lambda: tls.make_certificate("multikueue-hub", now, ca=ca, purpose="client"))
    return Identity(ca=ca, client=client)


def _kept(path: Path, make: Callable[[], tls.Identity]) -> tls.Identity:
    certificate, key = path.with_suffix(".crt"), path.with_suffix(".key")
    if certificate.exists() and key.exists():
        return tls.Identity(certificate_pem=certificate.read_text(), key_pem=key.read_text())
    made = make()
    for target, text in ((key, made.key_pem), (certificate, made.certificate_pem)):
        part = target.with_suffix(target.suffix + ".part")
        part.touch(mode=0o600)
        part.write_text(text)
        part.rename(target)
    return made


async def run(settings: Settings, until: asyncio.Event) -> None:
    """Serve and, when it is this replica's turn, lead, until told to stop."""
    async with AsyncExitStack() as stack:
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
        identity = load_identity(_private(settings.data_dir / "keys"), time.time())
        database = await _database(settings, stack)
        client = await Client.connect(str(settings.management_kubeconfig) if settings.management_kubeconfig else None)
        stack.push_async_callback(client.close)
        transport = DirectTransport(identity.client, identity.ca.certificate_pem)
        stack.push_async_callback(transport.close)
        leader = _leader(settings, database, client, transport)
        url = await _serve_web(settings, database, client, identity, leader, stack)
        webhook_url = await _serve_webhooks(settings, identity, client, stack)
        leader.start()
        stack.push_async_callback(leader.stop)
        sys.stdout.write(json.dumps({"ready": True, "url": url, "webhook_url": webhook_url}) + "\n")
        sys.stdout.flush()
        await until.wait()


def _leader(settings: Settings, database: Database, client: Client, transport: DirectTransport) -> LeaderLoop:
    health = HealthPolicy(suspect_after=settings.suspect_after, lost_timeout_s=settings.lost_timeout_s)
    poll = PollPolicy(health=health, wait_s=settings.poll_wait_s, answer_s=settings.poll_answer_s)

    def lead(term: int) -> Term:
        return Term(
            term,
            database=database,
            management=client,
            transport=transport,
            clock=time.time,
            policy=TermPolicy(poll=poll, lost_policy=settings.lost_policy),
        )

    holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return LeaderLoop(database, time.time, holder=holder, lead=lead, ttl_s=settings.leader_lease_s)


def _private(folder: Path) -> Path:
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


async def _database(settings: Settings, stack: AsyncExitStack) -> Database:
    url, data_dir = settings.database_url.get_secret_value() if settings.database_url else "", None
    if not url:
        data_dir = settings.data_dir / "postgres"
        embedded = EmbeddedPostgres(data_dir, time.time)
        await embedded.start()
        stack.push_async_callback(embedded.stop)
        url = embedded.url
    database = await Database.open(url, clock=time.time, data_dir=data_dir)
    stack.push_async_callback(database.close)
    return database


# --- serving ---------------------------------------------------------------------------------------------------------


async def _serve_web(
    settings: Settings,
    database: Database,
    client: Client,
    identity: Identity,
    leader: LeaderLoop,
    stack: AsyncExitStack,
) -> str:
    context, listener = _tls_of(settings), socket.create_server((settings.host, settings.port))
    scheme = "https" if context else "http"
    url = f"{scheme}://{settings.host}:{listener.getsockname()[1]}"

    def leading() -> Term | None:
        return leader.leading if isinstance(leader.leading, Term) else None

    def loops() -> Sequence[LoopStatus]:
        found = leading()
        return [leader.status, *(found.statuses if found else [])]

    def on_cluster(name: str) -> None:
        if (found := leading()) is not None:
            found.clusters_changed()

    await database.listen(clusters.TOPIC, on_cluster)  # what other replicas were told

    app = make_app(
        WebContext(
            database=database,
            management=client,
            gate=Gate(client, time.time),
            clock=time.time,
            version=hub_version(),
            hub_ca_pem=identity.ca.certificate_pem,
            public_url=settings.public_url or url,
            public_ca_pem=settings.public_ca_file.read_text() if settings.public_ca_file else "",
            session_key=sessions.make_key(secrets.token_bytes(32)),
            loops=loops,
            on_cluster=on_cluster,
            is_leader=lambda: leader.term is not None,
        )
    )
    await _serve(app, listener, context, stack)
    return url


def _tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Raises SettingsError for plain HTTP that others than this machine could reach."""
    if settings.tls_cert_file and settings.tls_key_file:
        pair = tls.Identity(
            certificate_pem=settings.tls_cert_file.read_text(), key_pem=settings.tls_key_file.read_text()
        )
        return tls.server_context(pair)
    if settings.host not in _LOOPBACK:
        raise SettingsError(
            f"HUB_HOST is {settings.host}: bearer tokens need TLS there; set HUB_TLS_CERT_FILE and HUB_TLS_KEY_FILE"
        )
    return None


async def _serve_webhooks(settings: Settings, identity: Identity, client: Client, stack: AsyncExitStack) -> str:
    informers = Informers(client, time.time)
    hooks = webhooks.Webhooks(informers, INTEGRATIONS.values(), managed_by=names.MANAGED_BY_MULTIKUEUE)
    informers.start()
    stack.push_async_callback(informers.stop)
    listener = socket.create_server((settings.webhook_host, settings.webhook_port))
    certificate = tls.make_certificate(
        "webhook", time.time(), ca=identity.ca, hosts=[settings.webhook_host, "localhost"]
    )
    await _serve(hooks.make_app(), listener, tls.server_context(certificate), stack)
    url = f"https://{settings.webhook_host}:{listener.getsockname()[1]}"
    if settings.install_webhooks:
        target = webhooks.Target(ca_pem=identity.ca.certificate_pem, url=url)
        for resource, manifest in webhooks.configurations(target, INTEGRATIONS.values()):
            await client.apply(resource, manifest)
    return url


async def _serve(
    app: web.Application, listener: socket.socket, context: ssl.SSLContext | None, stack: AsyncExitStack
) -> None:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.SockSite(runner, listener, ssl_context=context).start()


async def _main(settings: Settings) -> None:
    until = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    await run(settings, until)


def main() -> None:
    try:
        settings = Settings()
    except ValidationError as error:
        sys.exit("\n".join(f"HUB_{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors()))
    set_up_logging(settings.log_level, as_json=settings.log_json)
    # Caches hold many long-lived objects; the default thresholds would walk them over and over.
    gc.set_threshold(100_000, 50, 100)
    try:
        asyncio.run(_main(settings))
    except (SettingsError, StoreError, KubernetesError, OSError) as error:
        sys.exit(f"hub: {error}")


if __name__ == "__main__":
    main()
