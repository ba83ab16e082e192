"""Which processes are the Postgres server of one data directory, and how they are ended.

A pid in `postmaster.pid` proves nothing: after a restart of a container with a kept volume it may belong to any process.
What is believed here is what the operating system says: a process that runs a program named postgres and works in this
very directory (the server changes into its data directory first thing).
"""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

log = logging.getLogger(__name__)

LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if LINUX else None

#: Time for an orphaned backend to notice by itself, and after SIGQUIT, before the next, harder step.
_ORPHAN_GRACE_S = 2.0
_POLL_S = 0.02
_PROGRESS_S = 5.0


class PidFile(Struct, frozen=True, kw_only=True):
    """Lines 1 and 8 of postmaster.pid. `status` is one of starting, ready, standby, stopping, or empty."""

    pid: int
    status: str


def read_pid_file(pg_data: Path) -> PidFile | None:
    """None when there is no file, or when it is being written right now."""
    try:
        lines = (pg_data / "postmaster.pid").read_text().splitlines()
        return PidFile(pid=int(lines[0]), status=lines[7].strip() if len(lines) > 7 else "")
    except (OSError, ValueError, IndexError):
        return None


def server_processes(pg_data: Path) -> list[int]:
    """Every live process of the server on this directory: the postmaster and its children, even orphaned ones."""
    if LINUX:
        wanted = str(pg_data.resolve())
        return [pid for pid in _pids() if _works_as_postgres_in(pid, wanted)]
    listing = subprocess.run(["ps", "-axo", "pid=,command="], capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 1) for line in listing.splitlines()]
    return [int(pid) for pid, command in lines if "postgres" in command and f"-D {pg_data}" in command]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names only, thousands of them


def _works_as_postgres_in(pid: int, pg_data: str) -> bool:
    try:
        program = Path(f"/proc/{pid}/exe").readlink().name.removesuffix(" (deleted)")
        return program == "postgres" and str(Path(f"/proc/{pid}/cwd").readlink()) == pg_data and _alive(pid)
    except OSError:  # gone meanwhile, or another user's: a server on our directory runs as the directory's owner
        return False


def _alive(pid: int) -> bool:
    """False for a zombie: it holds nothing any more."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def end_leftovers(pg_data: Path) -> None:
    """End what an earlier hub or a killed postmaster left running on this directory; returns when nothing runs there.

    A live postmaster is asked to shut down properly and gets all the time it needs. Orphaned backends hold the shared
    memory block, so that no new server could start; they notice their parent's death sooner or later and are then ended.
    """
    recorded = read_pid_file(pg_data)
    found = server_processes(pg_data)
    if recorded is not None and recorded.pid in found:
        log.warning("a Postgres of an earlier hub still runs on %s (pid %d): shutting it down", pg_data, recorded.pid)
        _signal([recorded.pid], signal.SIGINT)
        await _gone(lambda: [p for p in server_processes(pg_data) if p == recorded.pid], None, pg_data)
    for step in (None, signal.SIGQUIT, signal.SIGKILL):
        found = server_processes(pg_data)
        if step is not None and found:
            log.warning("ending orphaned backends on %s with %s: %s", pg_data, step.name, found)
            _signal(found, step)
        if await _gone(lambda: server_processes(pg_data), _ORPHAN_GRACE_S, pg_data):
            return


async def _gone(processes: Callable[[], list[int]], limit_s: float | None, pg_data: Path) -> bool:
    waited_s = 0.0
    while found := processes():
        if limit_s is not None and waited_s >= limit_s:
            return False
        await asyncio.sleep(_POLL_S)
        before, waited_s = waited_s, waited_s + _POLL_S
        if waited_s // _PROGRESS_S > before // _PROGRESS_S:
            log.info("waiting for processes %s on %s to end, %.0f s so far", found, pg_data, waited_s)
    return True


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def die_with_parent() -> Callable[[], None] | None:
    """For Popen's preexec_fn on Linux: the kernel shuts the server down when the thread that started it ends, however it
    ends. It runs after the change of user, which would clear the setting. None elsewhere: see `watchdog`.
    """
    if _LIBC is None:
        return None
    prctl, parent = _LIBC.prctl, os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return in_child


async def watchdog(pid: int) -> asyncio.subprocess.Process:
    """Where the kernel does not tell: a shell that waits for its pipe to this process to break, then shuts `pid` down."""
    script = f"trap '' INT TERM HUP; read -r _; kill -INT {pid}"
    return await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", script, stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
