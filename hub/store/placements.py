"""Placements, and with them their ledger rows, history and change notices: all in one statement or one transaction.

A step is saved only when the row still has the generation and state that the decision saw. False is an answer, not an
error: load again, decide again. Only the fields that the step changed are written.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hub.dispatch.placement import LIVE, Placement, Record, State
from hub.kueue.api.meta import ObjectKey
from hub.store import history, ledger, rows, tables
from hub.store.database import Connection, encode
from hub.store.errors import Conflict
from hub.store.history import Entry

TOPIC = "placements"

_COLUMNS = ["namespace", *(name for name in Placement.__struct_fields__)]
_OWN = ", ".join(name for name in Placement.__struct_fields__ if name != "workload")
_RECORD = f"{_OWN}, json_build_object('namespace', namespace, 'name', workload) AS workload"
_LIVE = tables.one_of("state", list(LIVE))
_STORY = "namespace, workload, workload_uid, id, cluster, generation"


class Move(Struct, frozen=True, kw_only=True):
    """One step of one placement, as `dispatch.placement.step` took it. `records` go to the history."""

    before: Placement
    after: Placement
    records: tuple[Record, ...] = ()


# --- read ------------------------------------------------------------------------------------------------------------


async def get(connection: Connection, placement_id: str) -> Placement | None:
    return await connection.fetch_one(Placement, f"SELECT {_RECORD} FROM placements WHERE id = :id", id=placement_id)


async def get_many(connection: Connection, ids: Sequence[str]) -> list[Placement]:
    """Those that exist, in the order of their ids."""
    return await connection.fetch(
        Placement,
        f"SELECT {_RECORD} FROM placements "
        "WHERE id IN (SELECT jsonb_array_elements_text(CAST(:ids AS jsonb))) ORDER BY id",
        ids=encode(list(ids)),
    )


async def load_live(connection: Connection) -> list[Placement]:
    """Offered, Admitted and Running ones, oldest offer first."""
    return await connection.fetch(Placement, f"SELECT {_RECORD} FROM placements WHERE {_LIVE} ORDER BY offered_at, id")


async def load_unreleased(connection: Connection, cluster: str | None = None) -> list[Placement]:
    """Everything of which something may be left on the cluster, or on any; oldest offer first."""
    where = "NOT released" if cluster is None else "NOT released AND cluster = :cluster"
    given = {} if cluster is None else {"cluster": cluster}
    return await connection.fetch(
        Placement, f"SELECT {_RECORD} FROM placements WHERE {where} ORDER BY offered_at, id", **given
    )


async def for_workload(connection: Connection, key: ObjectKey, uid: str | None = None) -> list[Placement]:
    """Every placement that the workload (of this uid, or any of this name) ever had, newest last."""
    where = "" if uid is None else " AND workload_uid = :uid"
    given = {} if uid is None else {"uid": uid}
    return await connection.fetch(
        Placement,
        f"SELECT {_RECORD} FROM placements WHERE namespace = :namespace AND workload = :workload{where} "
        "ORDER BY offered_at, attempt, id",
        namespace=key.namespace,
        workload=key.name,
        **given,
    )


async def list_workloads(connection: Connection) -> list[ObjectKey]:
    """Workloads that have, or had, a placement."""
    return await connection.fetch(ObjectKey, "SELECT DISTINCT namespace, workload AS name FROM placements")


async def for_workloads(connection: Connection, keys: Sequence[ObjectKey]) -> list[Placement]:
    """Every placement that workloads of these names ever had, oldest first."""
    return await connection.fetch(
        Placement,
        f"SELECT {_RECORD} FROM placements WHERE (namespace, workload) IN (SELECT w.namespace, w.name "
        "FROM jsonb_to_recordset(CAST(:keys AS jsonb)) AS w(namespace text, name text)) ORDER BY offered_at, attempt, id",
        keys=encode([{"namespace": key.namespace, "name": key.name} for key in keys]),
    )


# --- write -----------------------------------------------------------------------------------------------------------


async def save_new(connection: Connection, placement: Placement) -> None:
    """Raises Conflict when the workload has a live placement already, or the id is taken."""
    if not (await save_new_many(connection, [placement]))[0]:
        raise Conflict(
            f"placement {placement.id}: workload {placement.workload} (uid {placement.workload_uid}) has a live placement "
            "already, or this id is taken: load it and decide again"
        )


async def save_new_many(connection: Connection, placements: Sequence[Placement]) -> list[bool]:
    """Store those whose workload has no live placement; which ones were stored."""
    if not placements:
        return []
    columns = ", ".join(_COLUMNS)
    added = await connection.rows(
        f"""
        WITH added AS (
            INSERT INTO placements ({columns})
            SELECT {columns} FROM jsonb_populate_recordset(NULL::placements, CAST(:rows AS jsonb))
            ON CONFLICT DO NOTHING RETURNING *
        ), held AS (
            INSERT INTO ledger {ledger.ROWS_OF_P.format(source="added")}
        ), told AS (
            INSERT INTO history (at, namespace, workload, workload_uid, placement_id, cluster, generation, event,
                reason, message)
            SELECT CAST(:now AS float8), {_STORY}, state, reason, message FROM added
        ), noted AS (
            INSERT INTO changes (topic, key) SELECT '{TOPIC}', id FROM added
        )
        SELECT id FROM added
        """,
        rows=encode([_row(p) for p in placements]),
        now=connection.now,
    )
    stored = {row.id for row in added}
    if stored:
        connection.tell(TOPIC)
    return [p.id in stored for p in placements]


def _row(placement: Placement) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(placement, name) for name in Placement.__struct_fields__}
    return row | {"namespace": placement.workload.namespace, "workload": placement.workload.name}


async def save_step(
    connection: Connection, before: Placement, after: Placement, records: Sequence[Record] = ()
) -> bool:
    """False when the stored row is no longer at the generation and state of `before`; then nothing was written."""
    return (await step_many(connection, [Move(before=before, after=after, records=tuple(records))]))[0]


async def step_many(connection: Connection, moves: Sequence[Move]) -> list[bool]:
    """Save each step whose row is still as its decision saw it; which ones were saved. One move per placement."""
    changes = [rows.changed(move.before, move.after) for move in moves]
    columns = sorted({name for change in changes for name in change})
    if not columns:
        return [True] * len(moves)
    entries = [entry for move in moves for entry in _entries(move)]
    steps = [
        {"id": m.before.id, "generation": m.before.generation, "state": m.before.state, "changes": change}
        for m, change in zip(moves, changes, strict=True)
    ]
    moved = await connection.rows(
        f"""
        WITH input AS (
            SELECT * FROM jsonb_to_recordset(CAST(:steps AS jsonb))
                AS i(id text, generation bigint, state text, changes jsonb)
        ), moved AS (
            UPDATE placements p SET {rows.assignments(tables.placements, columns, "p", "i.changes")}
            FROM input i WHERE p.id = i.id AND p.generation = i.generation AND p.state = i.state
            RETURNING p.id
        ), told AS (
            INSERT INTO history ({history.COLUMNS}) SELECT {history.COLUMNS}
            FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS e({history.TYPED})
            WHERE placement_id IN (SELECT id FROM moved) ORDER BY n
        ), noted AS (
            INSERT INTO changes (topic, key) SELECT '{TOPIC}', id FROM moved
        )
        SELECT id FROM moved
        """,
        steps=encode(steps),
        entries=history.numbered(entries, connection.now),
    )
    stored = {row.id for row in moved}
    if stored:
        connection.tell(TOPIC)
    await _update_ledger(
        connection, {m.after.id: c for m, c in zip(moves, changes, strict=True) if m.after.id in stored}
    )
    return [move.before.id in stored for move in moves]


async def _update_ledger(connection: Connection, changes: dict[str, dict[str, Any]]) -> None:
    """By the changes of each placement that was saved. The usual one, the agent's confirmation, only turns a word."""
    touched = {name: c.keys() & {"charges", "confirmed", "released"} for name, c in changes.items()}
    for name in (name for name, c in changes.items() if c.get("state") is State.FINISHED):
        touched[name].add("state")
    confirmed = [name for name, what in touched.items() if what == {"confirmed"} and changes[name]["confirmed"]]
    if confirmed:
        await ledger.confirm(connection, confirmed)
    known = set(confirmed)
    anew = [name for name, what in touched.items() if what and name not in known]
    if anew:
        await ledger.follow(connection, anew)


def _entries(move: Move) -> list[Entry]:
    """A change of state or intent, and a release, are always told, whether the step recorded words for it or not."""
    before, after = move.before, move.after
    words = [(after.state.value, r.reason, r.message) for r in move.records]
    if not words and (after.state, after.generation) != (before.state, before.generation):
        words = [(after.state.value, after.reason, after.message)]
    if after.released and not before.released:
        words.append(("Released", after.reason, f"nothing of it is left on {after.cluster}"))
    return [
        Entry(
            event=event,
            reason=reason,
            message=message,
            namespace=after.workload.namespace,
            workload=after.workload.name,
            workload_uid=after.workload_uid,
            placement_id=after.id,
            cluster=after.cluster,
            generation=after.generation,
        )
        for event, reason, message in words
    ]


async def prune(connection: Connection, before: float) -> int:
    """Drop placements that are over and released and ended before `before` (hub's clock); how many.

    Not those of a workload that is still there and not finished: they say that it must not be started again.
    """
    return await connection.execute(
        f"DELETE FROM placements p WHERE released AND NOT {_LIVE} AND ended_at < :before AND NOT EXISTS "
        "(SELECT FROM workloads w WHERE w.uid = p.workload_uid AND w.state <> 'Finished')",
        before=before,
    )
