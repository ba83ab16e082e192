"""The change feed and the notifications: nothing is lost, whatever the order of commits and whoever dies in between."""

import asyncio
import random
from collections import Counter

import asyncpg
import pytest

from hub.store import changes
from hub.store.changes import Change, Cursor
from hub.store.database import Database
from hub.store.errors import ChangesPruned
from tests.conftest import ManualClock
from tests.feed_horizon import everything_is_readable

WRITERS = 16
POLLERS = 3
TRANSACTIONS = 60
PER_TRANSACTION = 5


async def write(database: Database, writer: int, rng: random.Random) -> list[str]:
    """Many transactions with pauses between their appends and the commit; returns what was committed."""
    written = []
    for transaction in range(TRANSACTIONS):
        keys = [f"{writer}/{transaction}/{n}" for n in range(PER_TRANSACTION)]
        async with database.transaction() as connection:
            for key in keys:
                await changes.append(connection, "test", [key])
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
        written += keys
    return written


async def die_inside(database_url: str, turns: int) -> None:
    """Transactions that append and then lose their connection."""
    for _ in range(turns):
        connection = await asyncpg.connect(database_url)
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO changes (topic, key) VALUES ('test', 'never committed')")
        connection.terminate()
        await asyncio.sleep(0)


async def follow(database: Database, cursor: Cursor, want: int) -> list[Change]:
    """Read page by page until so many have come, and once more for those too many."""
    seen: list[Change] = []
    while True:
        async with database.transaction() as connection:
            page = await changes.read(connection, cursor, limit=97)
        seen += page
        if page:
            cursor = page[-1].cursor
        elif len(seen) >= want:
            return seen
        await asyncio.sleep(0)


async def test_every_poller_sees_every_committed_change_once_in_one_order(database: Database, database_url: str, clock):
    rng = random.Random(14)
    writers = await Database.open(database_url, clock=clock, pool_size=WRITERS)
    async with database.transaction() as connection:
        start = await changes.tail(connection)
    want_count = WRITERS * TRANSACTIONS * PER_TRANSACTION
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        writing = [group.create_task(write(writers, n, rng)) for n in range(WRITERS)]
        group.create_task(die_inside(database_url, 20))
        reading = [group.create_task(follow(database, start, want_count)) for _ in range(POLLERS)]
    await writers.close()
    want_keys = Counter(key for task in writing for key in task.result())
    for task in reading:
        assert Counter(change.key for change in task.result()) == want_keys
    assert reading[0].result() == reading[1].result() == reading[2].result()


async def test_a_slow_transaction_with_a_lower_number_holds_back_the_later_ones(database: Database):
    async with database.transaction() as connection:
        start = await changes.tail(connection)
    async with database.transaction() as slow:
        await changes.append(slow, "test", ["first"])
        async with database.transaction() as fast:
            await changes.append(fast, "test", ["second"])
        async with database.transaction() as connection:
            assert await changes.read(connection, start) == []
    await everything_is_readable(database)
    async with database.transaction() as connection:
        assert [c.key for c in await changes.read(connection, start)] == ["first", "second"]


async def append(database: Database, *keys: str) -> None:
    async with database.transaction() as connection:
        await changes.append(connection, "test", keys)
    await everything_is_readable(database)


async def test_who_comes_after_pruning_is_told_and_who_was_in_time_is_not(database: Database):
    async with database.transaction() as connection:
        early = await changes.tail(connection)
    await append(database, "old")
    async with database.transaction() as connection:
        in_time = (await changes.read(connection, early))[-1].cursor
    async with database.transaction() as connection:
        assert await changes.prune(connection, -1) == 1
    await append(database, "new")
    async with database.transaction() as connection:
        assert [c.key for c in await changes.read(connection, in_time)] == ["new"]
        with pytest.raises(ChangesPruned):
            await changes.read(connection, early)


async def test_a_restored_dump_does_not_hold_up_readers(database: Database, database_url: str, clock):
    async with database.transaction() as connection:
        await connection.execute(
            "INSERT INTO changes (xid, topic, key) VALUES ('4000000000', 'test', 'of another server')"
        )
        await connection.execute("UPDATE changes_floor SET xid = '4000000000'")
    restarted = await Database.open(database_url, clock=clock)
    await restarted.close()
    async with database.transaction() as connection:
        start = await changes.tail(connection)
    await append(database, "new")
    async with database.transaction() as connection:
        assert [c.key for c in await changes.read(connection, start)] == ["new"]


async def test_a_topic_is_notified_once_after_the_commit(database: Database):
    heard: asyncio.Queue[str] = asyncio.Queue()
    for topic in ("test", "other"):
        await database.listen(topic, lambda _, topic=topic: heard.put_nowait(topic))
    assert sorted([await heard.get(), await heard.get()]) == ["other", "test"], "listening now, something may be missed"
    async with database.transaction() as connection:
        await changes.append(connection, "test", ["a", "b"])
        await changes.append(connection, "test", ["c"])
        async with database.transaction() as faster:
            await changes.append(faster, "other", ["d"])
        assert await heard.get() == "other"
        assert heard.empty(), "nobody hears of what is not committed"
    assert await heard.get() == "test"
    async with database.transaction() as connection:
        await connection.value("SELECT 1")
    assert heard.empty(), "no news, no notification"


async def test_what_was_told_last_is_sent_before_closing(database: Database, database_url: str, clock: ManualClock):
    heard = asyncio.Event()
    await database.listen("test", lambda _: heard.set())
    await heard.wait()
    heard.clear()
    short_lived = await Database.open(database_url, clock=clock)
    await append(short_lived, "a")
    await short_lived.close()
    async with asyncio.timeout(30):
        await heard.wait()


async def test_a_listener_that_lost_its_connection_says_that_it_may_have_missed_something(
    database: Database, database_url: str
):
    heard: asyncio.Queue[str] = asyncio.Queue()
    await database.listen("test", heard.put_nowait)
    await heard.get()
    admin = await asyncpg.connect(database_url)
    killed = await admin.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE '%listener' "
        "AND datname = current_database()"
    )
    await admin.close()
    async with asyncio.timeout(30):
        await heard.get()
        await append(database, "a")
        await heard.get()
    assert killed == 1
