"""Several who decide on the same placements from old snapshots: whatever the order, no stored state is wrong or a trap."""

import random

import msgspec
import pytest

from hub.dispatch import placement as machine
from hub.dispatch.placement import LIVE, Placement
from hub.store import history, ledger, placements
from hub.store.database import Connection, Database
from hub.store.placements import Move
from tests.integration.test_store_placements import make_placement

PLACEMENTS = 6
STEPS = 150
EVENTS = (
    machine.Pending,
    machine.Admitted,
    machine.Running,
    machine.Finished,
    machine.Evicted,
    machine.Refused,
    machine.Gone,
    machine.Withdraw,
    machine.Acknowledged,
    machine.ClusterLost,
)


class Actor:
    """A poll task, a dispatcher or a user: reads now and then, decides on what it read last."""

    def __init__(self, rng: random.Random, read: list[Placement]) -> None:
        self.rng = rng
        self.read = {p.id: p for p in read}

    def decide(self) -> list[Move]:
        """A batch of steps on some of the placements that it knows."""
        chosen = self.rng.sample(sorted(self.read), k=self.rng.randint(1, 3))
        return [move for name in chosen if (move := self._step(self.read[name])) is not None]

    def _step(self, before: Placement) -> Move | None:
        event = self.rng.choice(EVENTS)(generation=before.generation, now=2_000_000_000.0, reason="Tried")
        try:
            after, instructions = machine.step(before, event)
        except machine.InvalidTransition:
            return None
        records = tuple(i for i in instructions if isinstance(i, machine.Record))
        return Move(before=before, after=after, records=records)


async def stored(connection: Connection) -> dict[str, Placement]:
    return {p.id: p for p in await placements.get_many(connection, [f"p{n}" for n in range(PLACEMENTS)])}


def check(before: Placement, after: Placement) -> None:
    assert after.generation >= before.generation
    assert before.state in LIVE or after.state not in LIVE, f"{before.state} came back to life as {after.state}"
    assert not (before.released and not after.released)


@pytest.mark.parametrize("seed", range(6))
async def test_stale_decisions_never_undo_newer_ones(database: Database, seed: int):
    rng = random.Random(seed)
    first = [make_placement(n) for n in range(PLACEMENTS)]
    async with database.transaction() as connection:
        assert await placements.save_new_many(connection, first) == [True] * PLACEMENTS
    actors = [Actor(rng, first) for _ in range(4)]
    refused = 0
    for _ in range(STEPS):
        actor = rng.choice(actors)
        async with database.transaction() as connection:
            before = await stored(connection)
            moves = actor.decide()
            saved = await placements.step_many(connection, moves)
            after = await stored(connection)
            for name, placement in after.items():
                check(before[name], placement)
            for move, done in zip(moves, saved, strict=True):
                if not done:
                    refused += 1
                    assert after[move.before.id] == before[move.before.id]
            if rng.random() < 0.3:
                actor.read = after
    assert refused > 0, "nothing was ever stale: this run tried nothing"
    await every_placement_has_a_way_out(database)


async def every_placement_has_a_way_out(database: Database) -> None:
    async with database.transaction() as connection:
        assert await ledger.drift(connection) == []
        for event in (machine.Withdraw, machine.Gone):
            for before in (await stored(connection)).values():
                after, _ = machine.step(before, event(generation=before.generation, now=2_000_000_001.0))
                assert await placements.save_step(connection, before, after)
        assert all(p.released for p in (await stored(connection)).values())
        assert await ledger.totals(connection) == []
        told = await history.since(connection, 0)
        assert [e.seq for e in told] == sorted(e.seq for e in told)


async def test_a_slow_planner_does_not_undo_what_others_wrote_meanwhile(database: Database):
    read = make_placement(1)
    acknowledged = msgspec.structs.replace(read, acknowledged=1)
    planned = msgspec.structs.replace(read, state=machine.State.ADMITTED, confirmed=True)
    async with database.transaction() as connection:
        await placements.save_new(connection, read)
    async with database.transaction() as connection:
        assert await placements.save_step(connection, read, acknowledged)
    async with database.transaction() as connection:
        assert await placements.save_step(connection, read, planned)
        now = await placements.get(connection, "p1")
    assert now == msgspec.structs.replace(planned, acknowledged=1)
