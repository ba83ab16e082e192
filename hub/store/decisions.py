"""The newest decision record of each workload: why it is where it is, or why it waits."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import ObjectKey
from hub.store.database import Connection, encode


class Decision(Struct, frozen=True, kw_only=True):
    workload_uid: str
    namespace: str
    workload: str
    #: Hub's clock.
    at: float
    #: The record as dispatch made it; any type that msgspec can write.
    record: Any


async def save_many(connection: Connection, decisions: Sequence[Decision]) -> None:
    """Each replaces the workload's older one. At most one per workload."""
    await connection.execute(
        """
        INSERT INTO decisions AS d (workload_uid, namespace, workload, at, record)
        SELECT workload_uid, namespace, workload, at, record
        FROM jsonb_populate_recordset(NULL::decisions, CAST(:rows AS jsonb)) ORDER BY workload_uid
        ON CONFLICT (workload_uid) DO UPDATE SET at = excluded.at, record = excluded.record WHERE d.at <= excluded.at
        """,
        rows=encode(list(decisions)),
    )


async def latest(connection: Connection, key: ObjectKey) -> Decision | None:
    """Of the newest workload of this name."""
    return await connection.fetch_one(
        Decision,
        "SELECT * FROM decisions WHERE namespace = :namespace AND workload = :workload ORDER BY at DESC LIMIT 1",
        namespace=key.namespace,
        workload=key.name,
    )


async def prune(connection: Connection, before: float) -> int:
    """Drop records older than `before` (hub's clock) of workloads that readers do not see any more; how many."""
    return await connection.execute(
        "DELETE FROM decisions d WHERE at < :before AND NOT EXISTS "
        "(SELECT FROM workloads w WHERE w.uid = d.workload_uid)",
        before=before,
    )
