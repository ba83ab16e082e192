"""Leases: one holder, terms that only rise, and writes of an old term refused, whatever the clocks of the holders say."""

import asyncio

import pytest

from hub.store import history, leases
from hub.store.database import Database
from hub.store.errors import Stale
from hub.store.history import Entry
from hub.store.leases import LEADER, Lease
from tests.conftest import ManualClock
from tests.waiting import until

WAITING = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())
"""


async def acquire(database: Database, holder: str, ttl_s: float = 60) -> Lease | None:
    async with database.transaction() as connection:
        return await leases.acquire(connection, LEADER, holder, ttl_s)


async def taken(database: Database, holder: str, ttl_s: float = 60) -> Lease:
    lease = await acquire(database, holder, ttl_s)
    assert lease is not None
    return lease


async def test_one_holder_at_a_time_and_a_new_term_for_each(database: Database):
    first = await taken(database, "a")
    assert await acquire(database, "b") is None
    async with database.transaction() as connection:
        assert await leases.resign(connection, first)
    second = await taken(database, "b")
    assert (first.term, second.term) == (1, 2)


async def test_many_who_ask_at_once_get_one_leader(database: Database):
    got = await asyncio.gather(*(acquire(database, f"hub-{n}") for n in range(8)))
    assert len([lease for lease in got if lease is not None]) == 1


async def test_a_lease_that_ran_out_can_be_taken_and_then_not_renewed(database: Database):
    first = await taken(database, "a", ttl_s=0)
    second = await taken(database, "b")
    async with database.transaction() as connection:
        assert await leases.renew(connection, first, 60) is None
        assert not await leases.resign(connection, first)
        assert await leases.renew(connection, second, 60) is not None
        assert await leases.get(connection, LEADER) is not None


async def test_a_lease_that_ran_out_and_nobody_took_can_be_renewed(database: Database):
    first = await taken(database, "a", ttl_s=0)
    async with database.transaction() as connection:
        renewed = await leases.renew(connection, first, 60)
    assert renewed is not None
    assert renewed.term == first.term


async def test_the_holders_own_name_gets_a_new_term_after_a_restart(database: Database):
    assert (await taken(database, "a")).term + 1 == (await taken(database, "a")).term


@pytest.mark.parametrize("skew_s", [-86_400, -300, 300, 86_400])
async def test_the_holders_clock_does_not_matter(database: Database, clock: ManualClock, skew_s: float):
    await taken(database, "a")
    clock.advance(skew_s)
    assert await acquire(database, "b") is None


async def write(database: Database, term: int) -> None:
    async with database.transaction(term=term) as connection:
        await history.append(connection, [Entry(event="Written", message=f"in term {term}")])


async def written(database: Database) -> list[str]:
    async with database.transaction() as connection:
        return [entry.message for entry in await history.since(connection, 0)]


async def test_a_write_of_an_older_term_is_refused_and_stores_nothing(database: Database):
    first = await taken(database, "a", ttl_s=0)
    second = await taken(database, "b")
    await write(database, second.term)
    with pytest.raises(Stale, match="led with term 1, the database knows term 2"):
        await write(database, first.term)
    assert await written(database) == ["in term 2"]


async def test_a_leader_whose_lease_ran_out_does_not_write(database: Database):
    lease = await taken(database, "a", ttl_s=0)
    with pytest.raises(Stale, match="which ran out"):
        await write(database, lease.term)
    async with database.transaction() as connection:
        await connection.execute("DELETE FROM leases")
    with pytest.raises(Stale, match="no lease at all"):
        await write(database, lease.term)


async def test_nobody_takes_the_lead_in_the_middle_of_a_leaders_transaction(database: Database):
    lease = await taken(database, "a")

    async def somebody_waits() -> bool:
        async with database.transaction() as connection:
            return await connection.value(WAITING)

    async with asyncio.TaskGroup() as group, database.transaction(term=lease.term) as connection:
        async with database.transaction() as other:
            assert await leases.renew(other, lease, -1) is not None, "a renewal, here into the past, need not wait"
        taking = group.create_task(taken(database, "b"))
        await until(somebody_waits, "the next leader waits for this transaction")
        await history.append(connection, [Entry(event="Written", message="before")])
        assert not taking.done()
    assert taking.result().term == lease.term + 1
    assert await written(database) == ["before"]
