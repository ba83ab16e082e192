"""The store alone, on an embedded Postgres with every safety on: how many placements, steps and changes a second."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hub.dispatch.placement import Charge, Placement, State
from hub.kueue.api.meta import ObjectKey
from hub.kueue.wire import Action, Intent
from hub.store import changes, ledger, placements, views
from hub.store.database import Database
from hub.store.embedded import EmbeddedPostgres
from hub.store.placements import Move
from hub.store.views import WorkloadRow

ROWS = 20_000
BATCH = 500
#: About what a submitted Job and its Workload weigh as JSON.
JOB = {"spec": {"template": {"spec": {"containers": [{"name": "main", "env": [{"name": "X", "value": "y" * 1500}]}]}}}}


def make_placement(n: int) -> Placement:
    name = f"train-{n}"
    return Placement(
        id=f"00000000-0000-4000-8000-{n:012}",
        workload=ObjectKey("team-a", name),
        workload_uid=f"uid-{n}",
        cluster=f"cluster-{n % 50}",
        intent=Intent(
            placement=f"p{n}",
            generation=1,
            action=Action.RUN,
            namespace="team-a",
            workload=name,
            job=JOB,
            workload_spec=JOB,
        ),
        charges=tuple(Charge(flavor="h100", resource=r, amount=8) for r in ("cpu", "memory", "nvidia.com/gpu")),
        offered_at=float(n),
    )


def batches(rows: list[Any]) -> Iterator[list[Any]]:
    return (rows[i : i + BATCH] for i in range(0, len(rows), BATCH))


async def save_new(database: Database, rows: list[Placement]) -> None:
    for batch in batches(rows):
        async with database.transaction() as connection:
            assert all(await placements.save_new_many(connection, batch))


async def step(database: Database, moves: list[Move]) -> None:
    for batch in batches(moves):
        async with database.transaction() as connection:
            assert all(await placements.step_many(connection, batch))


async def read_feed(database: Database, start: changes.Cursor, want: int) -> None:
    seen, cursor = 0, start
    while seen < want:
        async with database.transaction() as connection:
            page = await changes.read(connection, cursor)
        assert page, f"{seen} of {want} changes"
        seen, cursor = seen + len(page), page[-1].cursor


async def one_by_one(database: Database, rows: list[Placement], writers: int) -> None:
    async def write(mine: list[Placement]) -> None:
        for placement in mine:
            async with database.transaction() as connection:
                await placements.save_new(connection, placement)

    await asyncio.gather(*(write(rows[n::writers]) for n in range(writers)))


async def upsert_views(database: Database, rows: list[Placement]) -> None:
    views_of = [
        WorkloadRow(namespace="team-a", name=p.workload.name, uid=p.workload_uid, state="Pending") for p in rows
    ]
    for batch in batches(views_of):
        async with database.transaction() as connection:
            await views.upsert_workloads(connection, batch)


async def measured(database: Database) -> AsyncIterator[tuple[str, int, float]]:
    """(what, rows, seconds) one after the other, each on what the one before left."""
    rows = [make_placement(n) for n in range(ROWS)]
    admitted = [msgspec.structs.replace(p, state=State.ADMITTED, confirmed=True, admitted_at=1.0) for p in rows]
    running = [
        msgspec.structs.replace(p, state=State.RUNNING, running_at=2.0, job_status={"active": 1}) for p in admitted
    ]
    async with database.transaction() as connection:
        start = await changes.tail(connection)
    work = [
        (f"save_new_many, {BATCH} a transaction", ROWS, save_new(database, rows)),
        (
            f"step_many to Admitted with ledger, {BATCH} a transaction",
            ROWS,
            step(database, [Move(before=a, after=b) for a, b in zip(rows, admitted, strict=True)]),
        ),
        (
            f"step_many to Running, {BATCH} a transaction",
            ROWS,
            step(database, [Move(before=a, after=b) for a, b in zip(admitted, running, strict=True)]),
        ),
        ("feed, read by one", 3 * ROWS, read_feed(database, start, 3 * ROWS)),
        ("load_live", ROWS, load(database)),
        ("ledger totals over all placements", 3 * ROWS, totals(database)),
        ("save_new, one a transaction, 10 writers", 2000, one_by_one(database, more(2000), 10)),
        (f"upsert_workloads, {BATCH} a transaction", ROWS, upsert_views(database, rows)),
    ]
    for what, count, coroutine in work:
        started = time.perf_counter()
        await coroutine
        yield what, count, time.perf_counter() - started


def more(count: int) -> list[Placement]:
    return [make_placement(ROWS + n) for n in range(count)]


async def load(database: Database) -> None:
    async with database.transaction() as connection:
        assert len(await placements.load_live(connection)) == ROWS


async def totals(database: Database) -> None:
    async with database.transaction() as connection:
        assert await ledger.totals(connection)


async def _run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder) / "data", time.time)
        started = time.perf_counter()
        await server.start()
        found: list[dict[str, Any]] = [
            {"what": "first start of the embedded server", "seconds": round(time.perf_counter() - started, 2)}
        ]
        started = time.perf_counter()
        database = await Database.open(server.url, clock=time.time)
        found.append({"what": "first schema", "seconds": round(time.perf_counter() - started, 2)})
        async for what, count, seconds in measured(database):
            found.append({"what": what, "rows": count, "rows_per_s": round(count / seconds)})
        await database.close()
        await server.stop()
    return found


def figures() -> Iterator[dict[str, Any]]:
    yield from asyncio.run(_run())
