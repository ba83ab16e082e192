"""The hub as a process: ready when it serves, gone when it is told to, back with what it was after a kill."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from hub.kueue.api.resources import MUTATING_WEBHOOKS
from tests.sandbox_cluster import sandbox_cluster

ROOT = Path(__file__).resolve().parents[2]
STARTS_WITHIN_S = 90


class Hub:
    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "HUB_DATA_DIR": str(folder / "hub"),
            "HUB_MANAGEMENT_KUBECONFIG": str(folder / "management.kubeconfig"),
            "HUB_PORT": "0",
            "HUB_WEBHOOK_PORT": "0",
            "HUB_INSTALL_WEBHOOKS": "true",
        } | settings
        self.process: asyncio.subprocess.Process = None  # type: ignore[assignment] - set by start

    async def start(self) -> dict[str, str]:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hub.app",
            cwd=ROOT,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(STARTS_WITHIN_S):
            line = await self.process.stdout.readline()
        if not line:
            _, messages = await self.process.communicate()
            raise AssertionError(messages.decode())
        return json.loads(line)

    async def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        async with asyncio.timeout(30):
            await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    async with sandbox_cluster(tmp_path, "management") as cluster:
        made = Hub(tmp_path)
        made.cluster = cluster  # type: ignore[attr-defined]
        yield made
        if made.process is not None and made.process.returncode is None:
            await made.end(signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def postgres_pid(folder: Path) -> int:
    (found,) = folder.glob("hub/**/postmaster.pid")
    return int(found.read_text().splitlines()[0])


async def test_it_serves_is_killed_comes_back_and_ends(hub, tmp_path):
    ready = await hub.start()
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{ready['url']}/healthz") as answer:
            assert answer.status == 200
        async with session.get(f"{ready['url']}/api/v1/clusters") as answer:
            assert answer.status == 401, "nothing is open by default except health"
    (webhook,) = hub.cluster.api.list(MUTATING_WEBHOOKS)
    assert webhook["webhooks"][0]["clientConfig"]["url"].startswith(ready["webhook_url"])
    keys = {path.name: path.read_text() for path in (tmp_path / "hub" / "keys").iterdir()}
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "hub" / "keys").iterdir()} == {"0o600"}

    assert await hub.end(signal.SIGKILL) == -signal.SIGKILL
    await hub.start()
    assert {path.name: path.read_text() for path in (tmp_path / "hub" / "keys").iterdir()} == keys, (
        "agents pinned its CA"
    )
    pid = postgres_pid(tmp_path)
    assert await hub.end(signal.SIGTERM) == 0
    assert not is_running(pid)


async def test_a_management_cluster_that_cannot_be_reached_is_named(tmp_path):
    hub = Hub(tmp_path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hub.app", cwd=ROOT, env=hub._environment, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(STARTS_WITHIN_S):
        _, messages = await process.communicate()
    assert process.returncode == 1
    assert "management.kubeconfig" in messages.decode()
    assert "Traceback" not in messages.decode()
