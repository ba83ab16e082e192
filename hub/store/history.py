"""What happened to a workload, a placement or a cluster, in the database's order. Rows are added and never changed.

The order is `seq`, never anybody's clock; `at` is for people. Entries are written in the transaction of what they tell.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import ObjectKey
from hub.store.database import Connection, encode

COLUMNS = "at, namespace, workload, workload_uid, placement_id, cluster, generation, event, reason, message"
#: The same columns of a jsonb array of entries, as jsonb_to_recordset wants them.
TYPED = (
    "n bigint, at float8, namespace text, workload text, workload_uid text, placement_id text, cluster text, "
    "generation bigint, event text, reason text, message text"
)


class Entry(Struct, frozen=True, kw_only=True):
    event: str
    reason: str = ""
    message: str = ""
    namespace: str = ""
    workload: str = ""
    workload_uid: str = ""
    placement_id: str = ""
    cluster: str = ""
    generation: int = 0
    #: Hub's clock; set on the way in when 0.
    at: float = 0.0
    #: Set by the database.
    seq: int = 0


def numbered(entries: Sequence[Entry], now: float) -> str:
    """The entries as JSON that keeps their order."""
    return encode([{"n": n, **_row(entry, now)} for n, entry in enumerate(entries)])


def _row(entry: Entry, now: float) -> dict[str, Any]:
    row = {name: getattr(entry, name) for name in COLUMNS.split(", ")}
    return row | {"at": entry.at or now}


async def append(connection: Connection, entries: Sequence[Entry]) -> None:
    await connection.execute(
        f"INSERT INTO history ({COLUMNS}) SELECT {COLUMNS} "
        f"FROM jsonb_to_recordset(CAST(:entries AS jsonb)) AS e({TYPED}) ORDER BY n",
        entries=numbered(entries, connection.now),
    )


async def for_workload(connection: Connection, key: ObjectKey, *, limit: int = 1000) -> list[Entry]:
    """The newest `limit` entries, oldest first."""
    newest = await connection.fetch(
        Entry,
        "SELECT * FROM history WHERE namespace = :namespace AND workload = :workload ORDER BY seq DESC LIMIT :limit",
        namespace=key.namespace,
        workload=key.name,
        limit=limit,
    )
    return newest[::-1]


async def for_cluster(connection: Connection, name: str, *, limit: int = 1000) -> list[Entry]:
    """What happened to the cluster itself, not to the work on it: the newest `limit` entries, oldest first."""
    newest = await connection.fetch(
        Entry,
        "SELECT * FROM history WHERE cluster = :name AND workload = '' ORDER BY seq DESC LIMIT :limit",
        name=name,
        limit=limit,
    )
    return newest[::-1]


async def since(connection: Connection, seq: int, *, limit: int = 1000) -> list[Entry]:
    """Entries after `seq`, for reading page by page. Not a feed: a slow transaction's entries may turn up behind it.
    `changes` is the feed.
    """
    return await connection.fetch(
        Entry, "SELECT * FROM history WHERE seq > :seq ORDER BY seq LIMIT :limit", seq=seq, limit=limit
    )


async def prune(connection: Connection, before: float) -> int:
    """Drop entries older than `before` (hub's clock) of workloads that have no unreleased placement; how many."""
    await connection.execute("SET LOCAL multikueue_hub.history_retention = 'on'")
    gone = await connection.execute(
        "DELETE FROM history h WHERE at < :before AND NOT EXISTS ("
        "SELECT FROM placements p WHERE p.namespace = h.namespace AND p.workload = h.workload AND NOT p.released)",
        before=before,
    )
    await connection.execute("SET LOCAL multikueue_hub.history_retention = 'off'")
    return gone
