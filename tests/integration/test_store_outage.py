"""Postgres stopped, killed and started under load: what was accepted is there, and the store comes back by itself."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from hub.store import placements
from hub.store.database import Database
from hub.store.embedded import EmbeddedPostgres
from hub.store.errors import Unavailable
from tests.integration.test_store_placements import make_placement
from tests.waiting import until

WRITERS = 8


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "data", time.time)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def own_database(own_server: EmbeddedPostgres) -> AsyncIterator[Database]:
    database = await Database.open(own_server.url, clock=time.time, data_dir=own_server.data_dir)
    yield database
    await database.close()


class Load:
    """Writers that save one placement after another and try again whenever the database is unavailable."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.accepted: set[str] = set()
        self.refusals = 0
        self.enough = False

    async def write(self, writer: int) -> None:
        number = 0
        while not self.enough:
            number += 1
            await self._save_until_it_is_in(f"{writer}-{number}")

    async def _save_until_it_is_in(self, name: str) -> None:
        placement = make_placement(0, id=name, workload_uid=name)
        while True:
            try:
                async with self.database.transaction() as connection:
                    await placements.save_new_many(connection, [placement])
            except Unavailable:
                self.refusals += 1
                await asyncio.sleep(0)
            else:
                self.accepted.add(name)
                return

    async def accepted_more(self, than: int) -> None:
        async def enough() -> bool:
            return len(self.accepted) >= than + 50

        await until(enough, "50 more placements are stored", 60)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGINT, id="shut down in the middle of transactions"),
        pytest.param(signal.SIGQUIT, id="stopped at once"),
    ],
)
async def test_what_was_accepted_survives_a_server_that_stops_under_load(
    own_server: EmbeddedPostgres, own_database: Database, number: signal.Signals
):
    load = Load(own_database)
    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(load.write(writer))
        await load.accepted_more(0)
        for _ in range(2):
            assert own_server.pid is not None
            os.kill(own_server.pid, number)
            await load.accepted_more(len(load.accepted))
        load.enough = True
    async with own_database.transaction() as connection:
        stored = {p.id for p in await placements.load_live(connection)}
    assert stored == load.accepted
    assert load.refusals > 0


async def test_a_reader_is_told_that_the_server_is_down_and_reads_again_when_it_is_back(
    own_server: EmbeddedPostgres, own_database: Database, tmp_path: Path
):
    async with own_database.transaction() as connection:
        await placements.save_new(connection, make_placement())
    await own_server.stop()
    with pytest.raises(Unavailable):
        async with own_database.transaction():
            pass
    again = EmbeddedPostgres(tmp_path / "data", time.time)
    await again.start()
    reopened = await Database.open(again.url, clock=time.time)
    async with reopened.transaction() as connection:
        assert await placements.get(connection, "p1") == make_placement()
    await reopened.close()
    await again.stop()


async def test_a_cancelled_transaction_leaves_a_usable_pool(database: Database):
    entered = asyncio.Event()

    async def hang() -> None:
        async with database.transaction() as connection:
            await placements.save_new(connection, make_placement())
            entered.set()
            await connection.execute("SELECT pg_sleep(60)")

    for _ in range(12):  # more than the pool has connections
        entered.clear()
        task = asyncio.ensure_future(hang())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with database.transaction() as connection:
        assert await placements.load_live(connection) == []


async def test_idle_connections_that_broke_cost_nothing(database: Database, database_url: str):
    async def use() -> None:
        async with database.transaction() as connection:
            await connection.value("SELECT pg_sleep(0.05)")  # long enough for all to be in use at once

    await asyncio.gather(*(use() for _ in range(5)))
    admin = await asyncpg.connect(database_url)
    killed = await admin.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    await admin.close()
    assert killed >= 5
    await asyncio.gather(*(use() for _ in range(5)))


async def test_a_terminated_backend_costs_one_transaction(database: Database, database_url: str):
    async def lose_the_connection_half_way() -> None:
        async with database.transaction() as connection:
            await placements.save_new(connection, make_placement())
            backend = await connection.value("SELECT pg_backend_pid()")
            await admin.execute("SELECT pg_terminate_backend($1)", backend)
            await placements.load_live(connection)

    admin = await asyncpg.connect(database_url)
    with pytest.raises(Unavailable):
        await lose_the_connection_half_way()
    await admin.close()
    async with database.transaction() as connection:
        assert await placements.load_live(connection) == []
