"""Workloads and queues as readers see them: copies that the leader writes in batches and any replica's web reads."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hub.dispatch.overview import QueueRow, WorkloadRow
from hub.kueue.api.meta import ObjectKey
from hub.store.database import Connection, encode

__all__ = ["QUEUES", "WORKLOADS", "QueueRow", "WorkloadFilter", "WorkloadRow"]

WORKLOADS, QUEUES = "workloads", "queues"


class WorkloadFilter(Struct, frozen=True, kw_only=True):
    """None or "": no restriction."""

    #: Only these namespaces: what the asker may see.
    namespaces: tuple[str, ...] | None = None
    states: tuple[str, ...] | None = None
    cluster: str = ""
    cluster_queue: str = ""
    local_queue: str = ""
    limit: int = 500
    #: Continue after this workload, in the order of namespace and name.
    after: ObjectKey | None = None


async def upsert_workloads(connection: Connection, rows: Sequence[WorkloadRow]) -> int:
    """Write those that differ from what is stored (updated_at does not count); how many did."""
    return await _upsert(connection, WORKLOADS, ("namespace", "name"), WorkloadRow, rows, "namespace || '/' || name")


async def upsert_queues(connection: Connection, rows: Sequence[QueueRow]) -> int:
    """Likewise."""
    key = "kind || '/' || namespace || '/' || name"
    return await _upsert(connection, QUEUES, ("kind", "namespace", "name"), QueueRow, rows, key)


async def _upsert(
    connection: Connection,
    table: str,
    key: tuple[str, ...],
    kind: type[Struct],
    rows: Sequence[Struct],
    change_key: str,
) -> int:
    columns = ", ".join(kind.__struct_fields__)
    others = [name for name in kind.__struct_fields__ if name not in key]
    compared = [name for name in others if name != "updated_at"]
    written = await connection.rows(
        f"""
        WITH written AS (
            INSERT INTO {table} AS t ({columns})
            SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, CAST(:rows AS jsonb)) ORDER BY {", ".join(key)}
            ON CONFLICT ({", ".join(key)}) DO UPDATE SET {", ".join(f"{n} = excluded.{n}" for n in others)}
            WHERE ({", ".join(f"t.{n}" for n in compared)}) IS DISTINCT FROM ({", ".join(f"excluded.{n}" for n in compared)})
            RETURNING {change_key} AS key
        ), noted AS (
            INSERT INTO changes (topic, key) SELECT '{table}', key FROM written
        )
        SELECT count(*) FROM written
        """,
        rows=encode(list(rows)),
    )
    if written[0][0]:
        connection.tell(table)
    return written[0][0]


async def delete_workloads(connection: Connection, keys: Sequence[ObjectKey]) -> int:
    return await _delete(connection, WORKLOADS, "namespace || '/' || name", [f"{k.namespace}/{k.name}" for k in keys])


async def delete_queues(connection: Connection, kind: str, keys: Sequence[ObjectKey]) -> int:
    wanted = [f"{kind}/{k.namespace}/{k.name}" for k in keys]
    return await _delete(connection, QUEUES, "kind || '/' || namespace || '/' || name", wanted)


async def _delete(connection: Connection, table: str, key: str, wanted: list[str]) -> int:
    parts = key.count("||") // 2 + 1
    columns = key.split(" || '/' || ")
    split = ", ".join(f"split_part(k, '/', {n})" for n in range(1, parts + 1))
    gone = await connection.rows(
        f"""
        WITH gone AS (
            DELETE FROM {table} WHERE ({", ".join(columns)}) IN
                (SELECT {split} FROM jsonb_array_elements_text(CAST(:wanted AS jsonb)) AS k)
            RETURNING {key} AS key
        ), noted AS (
            INSERT INTO changes (topic, key) SELECT '{table}', key FROM gone
        )
        SELECT count(*) FROM gone
        """,
        wanted=encode(wanted),
    )
    if gone[0][0]:
        connection.tell(table)
    return gone[0][0]


async def list_workload_keys(connection: Connection) -> list[ObjectKey]:
    return await connection.fetch(ObjectKey, "SELECT namespace, name FROM workloads")


async def get_workload(connection: Connection, key: ObjectKey) -> WorkloadRow | None:
    """The workload of this name, else the newest one of the job of this name."""
    return await connection.fetch_one(
        WorkloadRow,
        "SELECT * FROM workloads WHERE namespace = :namespace AND (name = :name OR job_name = :name) "
        "ORDER BY name = :name DESC, created_at DESC LIMIT 1",
        namespace=key.namespace,
        name=key.name,
    )


async def list_workloads(connection: Connection, wanted: WorkloadFilter) -> list[WorkloadRow]:
    """One page, in the order of namespace and name."""
    where, given = _where(wanted)
    return await connection.fetch(
        WorkloadRow,
        f"SELECT * FROM workloads WHERE {where} ORDER BY namespace, name LIMIT :limit",
        limit=wanted.limit,
        **given,
    )


async def count_workloads(connection: Connection, wanted: WorkloadFilter) -> dict[str, int]:
    """How many per state, of all that match, whatever `limit` and `after` say."""
    where, given = _where(wanted, paged=False)
    found = await connection.rows(f"SELECT state, count(*) AS n FROM workloads WHERE {where} GROUP BY state", **given)
    return {row.state: row.n for row in found}


def _where(wanted: WorkloadFilter, *, paged: bool = True) -> tuple[str, dict[str, Any]]:
    terms, given = ["true"], {}
    for column, values in (("namespace", wanted.namespaces), ("state", wanted.states)):
        if values is not None:
            terms.append(f"{column} IN (SELECT jsonb_array_elements_text(CAST(:{column}s AS jsonb)))")
            given[f"{column}s"] = encode(list(values))
    for column in ("cluster", "cluster_queue", "local_queue"):
        if value := getattr(wanted, column):
            terms.append(f"{column} = :{column}")
            given[column] = value
    if paged and wanted.after is not None:
        terms.append("(namespace, name) > (:after_namespace, :after_name)")
        given |= {"after_namespace": wanted.after.namespace, "after_name": wanted.after.name}
    return " AND ".join(terms), given


async def list_queues(connection: Connection, namespaces: Sequence[str] | None = None) -> list[QueueRow]:
    """ClusterQueues, and LocalQueues of these namespaces (None: all)."""
    where = (
        "true"
        if namespaces is None
        else ("namespace = '' OR namespace IN (SELECT jsonb_array_elements_text(CAST(:namespaces AS jsonb)))")
    )
    given = {} if namespaces is None else {"namespaces": encode(list(namespaces))}
    return await connection.fetch(
        QueueRow, f"SELECT * FROM queues WHERE {where} ORDER BY kind, namespace, name", **given
    )
