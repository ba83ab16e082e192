"""Placements in Postgres: guards, one live placement per workload, ledger and history in the same transaction."""

import msgspec
import pytest

from hub.dispatch.placement import LIVE, Charge, Placement, Record, State, holds_room
from hub.kueue.api.meta import ObjectKey
from hub.kueue.wire import Action, Intent
from hub.store import history, ledger, placements
from hub.store.database import Database
from hub.store.errors import Conflict


def make_placement(number: int = 1, **fields: object) -> Placement:
    name = f"train-{number}"
    given = {
        "id": f"p{number}",
        "workload": ObjectKey("team-a", name),
        "workload_uid": f"uid-{number}",
        "cluster": "east",
        "intent": Intent(
            placement=f"p{number}", generation=1, action=Action.RUN, namespace="team-a", workload=name, job={"spec": {}}
        ),
        "charges": (Charge(flavor="h100", resource="nvidia.com/gpu", amount=8),),
        "offered_at": 1_700_000_000.123456,
    }
    return msgspec.structs.replace(Placement(**given), **fields)


async def test_what_is_stored_comes_back_as_it_was(database: Database):
    stored = make_placement(
        job_status={"active": 1, "odd": "a\\u0000b"}, admitted_at=1.1, message="quote ' and : colon"
    )
    async with database.transaction() as connection:
        await placements.save_new(connection, stored)
    async with database.transaction() as connection:
        assert await placements.get(connection, "p1") == stored


async def test_a_workload_has_one_live_placement(database: Database):
    async with database.transaction() as connection:
        await placements.save_new(connection, make_placement(1))
    with pytest.raises(Conflict, match="live placement already"):
        async with database.transaction() as connection:
            await placements.save_new(connection, make_placement(2, workload_uid="uid-1"))


async def test_a_step_is_saved_only_on_the_row_that_the_decision_saw(database: Database):
    before = make_placement()
    admitted = msgspec.structs.replace(before, state=State.ADMITTED, confirmed=True)
    withdrawn = msgspec.structs.replace(before, state=State.WITHDRAWN, generation=2)
    async with database.transaction() as connection:
        await placements.save_new(connection, before)
        assert await placements.save_step(connection, before, admitted)
        assert not await placements.save_step(connection, before, withdrawn)
        assert (await placements.get(connection, "p1")) == admitted


async def test_a_step_on_an_older_generation_is_refused_whatever_the_state(database: Database):
    before = make_placement()
    moved_on = msgspec.structs.replace(before, generation=2)
    async with database.transaction() as connection:
        await placements.save_new(connection, before)
        assert await placements.save_step(connection, before, moved_on)
        late = msgspec.structs.replace(before, state=State.RUNNING, confirmed=True)
        assert not await placements.save_step(connection, before, late)
        assert await placements.get(connection, "p1") == moved_on


async def test_two_who_change_different_fields_keep_each_others_work(database: Database):
    read = make_placement()
    async with database.transaction() as connection:
        await placements.save_new(connection, read)
        assert await placements.save_step(connection, read, msgspec.structs.replace(read, acknowledged=1))
        assert await placements.save_step(connection, read, msgspec.structs.replace(read, job_status={"ready": 1}))
        now = await placements.get(connection, "p1")
    assert now == msgspec.structs.replace(read, acknowledged=1, job_status={"ready": 1})


async def test_history_and_ledger_follow_in_the_same_transaction(database: Database):
    before = make_placement()
    admitted = msgspec.structs.replace(before, state=State.ADMITTED, confirmed=True)
    ended = msgspec.structs.replace(admitted, state=State.EVICTED, generation=2, ended_at=1.0)
    released = msgspec.structs.replace(ended, released=True)
    async with database.transaction() as connection:
        await placements.save_new(connection, before)
        held_when_offered = await ledger.totals(connection)
        record = Record(placement="p1", reason="QuotaReserved", message="the worker said so")
        await placements.save_step(connection, before, admitted, [record])
        held_when_admitted = await ledger.totals(connection)
        await placements.save_step(connection, admitted, ended)
        held_when_evicted = await ledger.totals(connection)
        await placements.save_step(connection, ended, released)
        held_at_last = await ledger.totals(connection)
        told = await history.for_workload(connection, before.workload)
        drift = await ledger.drift(connection)
    assert [(h.assumed, h.confirmed) for h in held_when_offered] == [(8, 0)]
    assert [(h.assumed, h.confirmed) for h in held_when_admitted + held_when_evicted] == [(0, 8), (0, 8)]
    assert held_at_last == drift == []
    assert [(e.event, e.reason) for e in told] == [
        ("Offered", ""),
        ("Admitted", "QuotaReserved"),
        ("Evicted", ""),
        ("Released", ""),
    ]


@pytest.mark.parametrize(
    ("state", "released"),
    [(state, released) for state in State for released in (False, True) if not (released and state in LIVE)],
)
async def test_the_ledger_counts_what_dispatch_says_holds_room(database: Database, state: State, released: bool):
    before = make_placement()
    after = msgspec.structs.replace(before, state=state, released=released, confirmed=True)
    async with database.transaction() as connection:
        await placements.save_new(connection, before)
        await placements.save_step(connection, before, after)
        held = await ledger.totals(connection)
        assert await ledger.drift(connection) == []
    assert bool(held) == holds_room(after)
