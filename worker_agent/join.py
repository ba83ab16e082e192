"""How an agent becomes one: it shows a one-time token and its certificate, and learns whom it may trust.

    state_dir/agent.crt, agent.key    made when missing; the hub pins the certificate at the join
    state_dir/hub-ca.crt              from the join answer; its presence means that the join is done

The token is worth nothing after its first use, and nothing of it is kept.
"""

import asyncio
import ssl
from pathlib import Path

import aiohttp
import msgspec

from hub.kueue.runtime import tls
from hub.kueue.wire import JoinAnswer, JoinRequest, WireProblem

TIMEOUT_S = 10.0
RETRY_S = 1.0


class JoinRefusedError(Exception):
    """The hub does not take this agent. Trying again will not help: a person has to act."""


class State:
    """The files that make this agent the one that joined. All of them are readable by its own user only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def hub_ca_pem(self) -> str:
        path = self.folder / "hub-ca.crt"
        return path.read_text() if path.exists() else ""

    def identity(self, name: str, hosts: list[str], now: float) -> tls.Identity:
        """Key and certificate; made once, because the hub knows the agent by them."""
        certificate, key = self.folder / "agent.crt", self.folder / "agent.key"
        if certificate.exists() and key.exists():
            return tls.Identity(certificate_pem=certificate.read_text(), key_pem=key.read_text())
        made = tls.make_certificate(f"agent:{name}", now, hosts=hosts)
        _write(key, made.key_pem)
        _write(certificate, made.certificate_pem)
        return made

    def joined(self, answer: JoinAnswer) -> None:
        _write(self.folder / "hub-ca.crt", answer.hub_ca_pem)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a process that dies in mid-write must not leave half a key behind."""
    part = path.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.rename(path)


async def join(hub_url: str, hub_ca_pem: str, request: JoinRequest) -> JoinAnswer:
    """Ask until the hub answers. Raises JoinRefusedError with the hub's words when it says no."""
    context: ssl.SSLContext | bool = ssl.create_default_context(cadata=hub_ca_pem) if hub_ca_pem else True
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=context)) as session:
        while True:
            try:
                async with session.post(
                    f"{hub_url.rstrip('/')}/agent/v1/join", data=msgspec.json.encode(request)
                ) as answer:
                    body = await answer.read()
                    if answer.status == 200:
                        return msgspec.json.decode(body, type=JoinAnswer)
                    if answer.status < 500:
                        raise JoinRefusedError(_words(body, answer.status))
            except (aiohttp.ClientConnectionError, TimeoutError):
                pass
            await asyncio.sleep(RETRY_S)


def _words(body: bytes, status: int) -> str:
    try:
        problem = msgspec.json.decode(body, type=WireProblem)
    except msgspec.DecodeError:
        return f"the hub answered {status}"
    return f"{problem.title}: {problem.detail}" if problem.detail else problem.title
