"""Who leads: one at a time, never longer than it can be sure of, and again after every outage."""

from collections.abc import AsyncIterator

import pytest

from hub.loops.leader import LeaderLoop
from hub.store.errors import Stale, Unavailable


class Term:
    """What a leader runs: remembers when it was started and stopped."""

    def __init__(self, log: list[str], term: int) -> None:
        self.log, self.term = log, term

    async def start(self) -> None:
        self.log.append(f"start {self.term}")

    async def stop(self) -> None:
        self.log.append(f"stop {self.term}")


class Elapsed:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
async def hub(database, clock, log) -> AsyncIterator[LeaderLoop]:
    made = make_leader(database, clock, log, "hub-1")
    yield made
    await made.stop(0.1)


def make_leader(database, clock, log, holder, *, elapsed=None, ttl_s=15.0) -> LeaderLoop:
    return LeaderLoop(
        database, clock, holder=holder, lead=lambda term: Term(log, term), ttl_s=ttl_s, monotonic=elapsed or Elapsed()
    )


async def test_the_first_leads_and_the_second_waits(hub, database, clock, log):
    other = make_leader(database, clock, log, "hub-2")
    await hub.run_once()
    await other.run_once()
    assert (hub.term, other.term, log) == (1, None, ["start 1"])
    await hub.run_once()
    assert (hub.term, log) == (1, ["start 1"])


async def test_who_stops_hands_over_at_once(hub, database, clock, log):
    other = make_leader(database, clock, log, "hub-2")
    await hub.run_once()
    await hub.stop()
    await other.run_once()
    assert (other.term, log) == (2, ["start 1", "stop 1", "start 2"])
    await other.stop()


async def test_trust_ends_before_the_lease_does_and_work_stops_with_it(database, clock, log):
    elapsed = Elapsed()
    hub = make_leader(database, clock, log, "hub-1", elapsed=elapsed)
    await hub.run_once()
    elapsed.now += 11.9
    assert hub.term == 1
    elapsed.now += 0.2
    assert hub.term is None
    await hub.run_once()
    assert (hub.term, log) == (1, ["start 1"]), "nobody took it meanwhile"
    await hub.stop()


async def test_without_a_database_the_leader_steps_down_in_time(database, clock, log):
    elapsed = Elapsed()
    hub = make_leader(database, clock, log, "hub-1", elapsed=elapsed)
    await hub.run_once()
    working = database.transaction

    def broken(**_):
        raise Unavailable

    database.transaction = broken
    for after_s, want_log in ((6.0, ["start 1"]), (6.1, ["start 1", "stop 1"])):
        elapsed.now += after_s
        with pytest.raises(Unavailable):
            await hub.run_once()
        assert log == want_log
    database.transaction = working
    await hub.run_once()
    assert (hub.term, log[-1]) == (2, "start 2")
    await hub.stop()


async def test_a_leader_that_was_overtaken_cannot_write(hub, database, clock, log):
    await hub.run_once()
    async with database.transaction() as connection:
        await connection.execute("UPDATE leases SET expires_at = clock_timestamp()")
    other = make_leader(database, clock, log, "hub-2")
    await other.run_once()
    assert other.term == 2
    with pytest.raises(Stale, match="led with term 1, the database knows term 2"):
        async with database.transaction(term=1):
            pass
    await hub.run_once()
    assert (hub.term, log) == (None, ["start 1", "start 2", "stop 1"])
    await other.stop()


async def test_a_leader_that_cannot_start_gives_up_the_lead(database, clock, log):
    class Broken(Term):
        async def start(self) -> None:
            raise RuntimeError("no")

    hub = LeaderLoop(database, clock, holder="hub-1", lead=lambda term: Broken(log, term), monotonic=Elapsed())
    with pytest.raises(RuntimeError):
        await hub.run_once()
    assert (hub.term, log) == (None, ["stop 1"])
