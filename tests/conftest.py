"""Fixtures that every kind of test may use."""

import fcntl
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from hub.store.database import Database
from tests.postgres_server import TEMPLATE, with_database

ROOT = Path(__file__).resolve().parents[1]


class ManualClock:
    """A hub's clock that stands still until the test moves it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# --- Postgres --------------------------------------------------------------------------------------------------------

_database_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that all workers of this run share. The first who asks starts it; it stops when the last one is gone."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "postgres"
    folder.mkdir(exist_ok=True)
    with (folder / "users").open("w") as users:
        with (folder / "turn").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            url_file = folder / "url"
            if not url_file.exists():
                url_file.write_text(_start_server(folder))
        yield url_file.read_text()


def _start_server(folder: Path) -> str:
    with (folder / "messages").open("w") as messages:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.postgres_server", folder],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            start_new_session=True,
        )
    server.returncode = 0  # it outlives this worker when others still use it: nobody here waits for it
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    server.stdout.close()
    assert url, f"no Postgres for the tests:\n{(folder / 'messages').read_text()}"
    return url


@pytest.fixture
async def database_url(postgres_url: str) -> AsyncIterator[str]:
    """A database of this test's own, with the newest schema and no rows."""
    name = f"test_{os.getpid()}_{next(_database_numbers)}"
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} STRATEGY FILE_COPY")
    yield with_database(postgres_url, name)
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


@pytest.fixture
async def database(database_url: str, clock: ManualClock) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, clock=clock)
    yield opened
    await opened.close()
