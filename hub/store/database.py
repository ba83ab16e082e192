"""The door to Postgres: an engine, transactions, and news from other processes.

    async with database.transaction() as connection:               every query function takes a Connection
        placement = await placements.get(connection, id)
        ...
    async with database.transaction(term=lease.term) as connection:    a leader's write: Stale when somebody else leads

Nothing that a vendor raises leaves this package (see `errors`). A connection that broke is dropped together with all that
are as old, so that one stop of the server costs one error per transaction under way and no more.
"""

import asyncio
import functools
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import msgspec
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from hub.kueue.runtime.loop import Clock, Loop, LoopStatus
from hub.store import schema
from hub.store.errors import Stale, StoreError, translated

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The lease whose term fences the leader's writes.
LEADER = "leader"
#: A statement, or a transaction that does nothing, may take so long; the driver gives up a little later by itself.
_SERVER_SETTINGS = {
    "application_name": "multikueue-hub",
    "timezone": "UTC",
    "statement_timeout": "60s",
    "lock_timeout": "20s",
    "idle_in_transaction_session_timeout": "60s",
}
_COMMAND_TIMEOUT_S = 75
_CONNECT_TIMEOUT_S = 10
_LISTEN_CHECK_S = 10.0
#: A notification is worth no wait for the disk: it is gone with a crash anyway.
_NOTIFY = text(
    "SELECT set_config('synchronous_commit', 'off', true), "
    "(SELECT count(pg_notify(topic, '')) FROM jsonb_array_elements_text(CAST(:topics AS jsonb)) AS topic)"
)
_DECODE_TOGETHER = 2000


@functools.lru_cache(maxsize=512)
def _statement(sql: str) -> TextClause:
    return text(sql)


@functools.lru_cache(maxsize=64)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def encode(value: Any) -> str:
    """JSON for a jsonb parameter. Postgres has no character 0; it becomes U+FFFD, so that one tenant's job status with
    such a character in it cannot hold up the batch it is in.
    """
    plain = msgspec.json.encode(value)
    if b"\\u0000" in plain:
        plain = msgspec.json.encode(_without_nul(msgspec.json.decode(plain)))
    return plain.decode()


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [_without_nul(item) for item in value]
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(item) for key, item in value.items()}
    return value


@contextmanager
def _no_collection() -> Iterator[None]:
    """Records hold no cycles, but thousands of new ones make the collector walk all that came before, again and again:
    two thirds of the time that reading many takes.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class Connection:
    """One transaction. `now` is the hub's clock when it began; rows that it writes carry that."""

    def __init__(self, sql: AsyncConnection, now: float, data_dir: Path | None) -> None:
        self.now = now
        self.told: set[str] = set()
        self._sql = sql
        self._data_dir = data_dir

    def tell(self, topic: str) -> None:
        """Notify the channel of this name as soon as the transaction is committed."""
        self.told.add(topic)

    async def execute(self, sql: str, **parameters: Any) -> int:
        """Run a statement; how many rows it touched."""
        with translated(self._data_dir):
            return (await self._sql.execute(_statement(sql), parameters)).rowcount

    async def rows(self, sql: str, **parameters: Any) -> list[Any]:
        """The rows, as tuples with names."""
        with translated(self._data_dir):
            return list((await self._sql.execute(_statement(sql), parameters)).all())

    async def value(self, sql: str, **parameters: Any) -> Any:
        """The first column of the first row, or None."""
        with translated(self._data_dir):
            return (await self._sql.execute(_statement(sql), parameters)).scalar()

    async def fetch(self, kind: type[T], sql: str, **parameters: Any) -> list[T]:
        """The rows as records of `kind`, by name. The server writes them as JSON, which msgspec reads straight."""
        wrapped = f"WITH q AS ({sql}) SELECT CAST(row_to_json(q) AS text) FROM q"
        texts = await self.rows(wrapped, **parameters)
        found: list[T] = []
        for start in range(0, len(texts), _DECODE_TOGETHER):
            with _no_collection():
                found += [_decoder(kind).decode(row[0]) for row in texts[start : start + _DECODE_TOGETHER]]
            await asyncio.sleep(0)  # a hundred thousand records take a second: heartbeats go out in between
        return found

    async def fetch_one(self, kind: type[T], sql: str, **parameters: Any) -> T | None:
        found = await self.fetch(kind, sql, **parameters)
        return found[0] if found else None


def make_engine(url: str, *, pool_size: int = 10) -> AsyncEngine:
    """An engine on a libpq-style URL (sslmode, several hosts and the like work as asyncpg documents them)."""
    dsn = url.replace("postgresql+asyncpg://", "postgresql://", 1)

    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(
            dsn, timeout=_CONNECT_TIMEOUT_S, command_timeout=_COMMAND_TIMEOUT_S, server_settings=_SERVER_SETTINGS
        )

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        pool_pre_ping=True,
    )


class Database:
    def __init__(self, url: str, clock: Clock, engine: AsyncEngine, data_dir: Path | None) -> None:
        self.url = url
        self.clock = clock
        self._engine = engine
        self._data_dir = data_dir
        self._listener = _Listener(url, clock)
        self._notifier = _Notifier(engine, clock)

    @classmethod
    async def open(cls, url: str, *, clock: Clock, pool_size: int = 10, data_dir: Path | None = None) -> "Database":
        """Connect, and bring the schema up to this release. `data_dir`: where an embedded server keeps its files.

        Raises Unavailable (try again) or SchemaTooNew.
        """
        engine = make_engine(url, pool_size=pool_size)
        try:
            await schema.prepare(engine)
        except BaseException:
            await engine.dispose()
            raise
        return cls(url, clock, engine, data_dir)

    @asynccontextmanager
    async def transaction(self, *, term: int | None = None) -> AsyncIterator[Connection]:
        """Commit at the end of the block, roll back when it raises. With `term` the block is a leader's: it raises
        Stale, and nobody can take the lead before it is over, unless the term still is the newest and not run out.

        Unavailable at the commit leaves open whether it happened: writes are guarded, so doing them again is safe.
        """
        with translated(self._data_dir):
            sql = await self._engine.connect()
        try:
            connection = Connection(sql, self.clock(), self._data_dir)
            if term is not None:
                await _check_term(connection, term)
            yield connection
            with translated(self._data_dir):
                await sql.commit()
            self._notifier.send(connection.told)
        finally:
            with translated(self._data_dir):
                await sql.close()

    async def listen(self, channel: str, callback: Callable[[str], None]) -> None:
        """Call back with the payload of every notification, and once with "" whenever some may have been missed (after
        the connection was made, for the first time or again). Callbacks must not await.
        """
        await self._listener.add(channel, callback)

    @property
    def listener_status(self) -> LoopStatus:
        return self._listener.status

    async def close(self) -> None:
        await self._listener.stop()
        await self._notifier.stop()
        await self._engine.dispose()


async def _check_term(connection: Connection, term: int) -> None:
    """KEY SHARE lets renewals through (they change no key) and makes a new term wait for this transaction's end."""
    newest = await connection.rows(
        "SELECT term, expires_at > clock_timestamp() AS valid FROM leases WHERE name = :name FOR KEY SHARE", name=LEADER
    )
    if not newest or newest[0].term != term or not newest[0].valid:
        known = f"term {newest[0].term}{'' if newest[0].valid else ', which ran out'}" if newest else "no lease at all"
        raise Stale(f"this process led with term {term}, the database knows {known}: nothing of this was stored")


class _Notifier(Loop):
    """Sends notifications, those of many transactions together.

    Not from within the transactions: Postgres lets those that notify commit only one after the other, each waiting for
    the disk. Here that costs nobody's commit anything.
    """

    interval_s = 3600.0

    def __init__(self, engine: AsyncEngine, clock: Clock) -> None:
        super().__init__("database notifier", clock)
        self._engine = engine
        self._due: set[str] = set()
        self._started = False

    def send(self, topics: set[str]) -> None:
        if not topics:
            return
        self._due |= topics
        if not self._started:
            self._started = True
            self.start()
        self.wake()

    async def run_once(self) -> None:
        topics, self._due = self._due, set()
        if not topics:
            return
        try:
            with translated():
                async with self._engine.begin() as connection:
                    await connection.execute(_NOTIFY, {"topics": encode(sorted(topics))})
        except BaseException:
            self._due |= topics
            raise

    async def stop(self, grace_s: float = 5.0) -> None:
        await super().stop(grace_s)
        with suppress(StoreError):
            await self.run_once()


class _Listener(Loop):
    """Holds the one connection that listens, makes it again when it breaks, and notices when the peer is silently gone."""

    interval_s = _LISTEN_CHECK_S

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__("database listener", clock)
        self._dsn = url.replace("postgresql+asyncpg://", "postgresql://", 1)
        self._callbacks: dict[str, list[Callable[[str], None]]] = {}
        self._connection: asyncpg.Connection | None = None
        self._listening: set[str] = set()
        self._task_started = False

    async def add(self, channel: str, callback: Callable[[str], None]) -> None:
        self._callbacks.setdefault(channel, []).append(callback)
        if not self._task_started:
            self._task_started = True
            self.start()
        else:
            self.wake()

    async def run_once(self) -> None:
        with translated():
            connection = await self._connected()
            try:
                for channel in self._callbacks.keys() - self._listening:
                    await connection.add_listener(channel, self._notified)
                    self._listening.add(channel)
                    self._call(channel, "")
                await connection.execute("SELECT 1")
            except BaseException:
                connection.terminate()  # whatever it was, a new connection is the way out
                raise

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        self._listening.clear()
        made = await asyncpg.connect(
            self._dsn,
            timeout=_CONNECT_TIMEOUT_S,
            command_timeout=_CONNECT_TIMEOUT_S,
            server_settings={"application_name": "multikueue-hub listener"},
        )
        made.add_termination_listener(lambda _: self.wake())
        self._connection = made
        return made

    def _notified(self, _connection: Any, _pid: int, channel: str, payload: Any) -> None:
        self._call(channel, str(payload))

    def _call(self, channel: str, payload: str) -> None:
        for callback in self._callbacks[channel]:
            callback(payload)

    async def stop(self, grace_s: float = 5.0) -> None:
        await super().stop(grace_s)
        if self._connection is not None:
            with translated():
                await asyncio.wait_for(self._connection.close(), grace_s)
