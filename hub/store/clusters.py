"""The registry of worker clusters.

The operator (state, cordoned, draining, labels) and the poll task (capacity, contact, health) write the same row. Each
saves only the fields that its decision changed, and only if what the other decides is still as the decision saw it.
"""

from collections.abc import Mapping, Sequence

from hub.dispatch.clusters import Cluster, ClusterState
from hub.store import changes, history, rows, tables
from hub.store.database import Connection, encode
from hub.store.errors import ClusterExists, Conflict, NotFound

TOPIC = "clusters"

#: Fields of the record that live in the poll task's memory only.
IN_MEMORY = frozenset({"failures_in_row", "answers_in_row"})
#: Fields whose change is nobody's news: they move with every poll.
_QUIET = frozenset({"last_contact_at", "capacity_at", "cursor", "boot_id"})
_COLUMNS = ", ".join(name for name in Cluster.__struct_fields__ if name not in IN_MEMORY)


async def list_clusters(connection: Connection) -> list[Cluster]:
    return await connection.fetch(Cluster, f"SELECT {_COLUMNS} FROM clusters ORDER BY name")


async def list_registrations(connection: Connection) -> list[Cluster]:
    """All clusters without what their agents report, which is most of each row."""
    columns = ", ".join(n for n in Cluster.__struct_fields__ if n not in IN_MEMORY | {"capacity"})
    return await connection.fetch(Cluster, f"SELECT {columns} FROM clusters ORDER BY name")


async def get_cluster(connection: Connection, name: str) -> Cluster | None:
    return await connection.fetch_one(Cluster, f"SELECT {_COLUMNS} FROM clusters WHERE name = :name", name=name)


async def invite(
    connection: Connection, name: str, *, token_hash: str, expires_at: float, labels: Mapping[str, str] | None = None
) -> Cluster:
    """Register a cluster that may join once with the token whose SHA-256 this is. Raises ClusterExists."""
    cluster = Cluster(
        name=name,
        state=ClusterState.INVITED,
        reason="Invited",
        message="its agent has not joined yet",
        labels=dict(labels or {}),
        created_at=connection.now,
        join_expires_at=expires_at,
    )
    added = await connection.execute(
        f"INSERT INTO clusters ({_COLUMNS}, token_hash) SELECT {_COLUMNS}, CAST(:token_hash AS text) "
        "FROM jsonb_populate_record(NULL::clusters, CAST(:row AS jsonb)) ON CONFLICT (name) DO NOTHING",
        row=encode(cluster),
        token_hash=token_hash,
    )
    if not added:
        raise ClusterExists(
            f"a cluster named {name} is registered already: take another name, or remove that one first"
        )
    await _tell(connection, [cluster])
    await changes.append(connection, TOPIC, [name])
    return cluster


async def invite_again(connection: Connection, name: str, *, token_hash: str, expires_at: float) -> None:
    """A new one-time token for a registered cluster, e.g. after its agent lost its certificate. Raises NotFound."""
    found = await connection.execute(
        "UPDATE clusters SET token_hash = :token_hash, join_expires_at = :expires_at WHERE name = :name",
        name=name,
        token_hash=token_hash,
        expires_at=expires_at,
    )
    if not found:
        raise NotFound(f"no cluster named {name} is registered")


async def redeem(connection: Connection, *, token_hash: str, certificate_pem: str) -> Cluster:
    """The cluster that this join token belongs to, locked until the transaction ends; save the joined one with it.

    A token works once. The same agent (the same certificate) may use it again, because the answer to its first try may
    have been lost. Raises NotFound for a token that is unknown, used up or expired.
    """
    found = await connection.fetch(
        Cluster,
        f"SELECT {_COLUMNS} FROM clusters WHERE token_hash = :token_hash AND token_hash <> '' AND "
        "(join_expires_at > :now OR (join_expires_at IS NULL AND certificate_pem = :certificate_pem)) FOR UPDATE",
        token_hash=token_hash,
        certificate_pem=certificate_pem,
        now=connection.now,
    )
    if not found:
        raise NotFound("this join token is unknown, was used already or has expired: ask for a new one")
    return found[0]


async def save_cluster(connection: Connection, before: Cluster, after: Cluster) -> bool:
    """False when state, cordon or drain are no longer as in `before`; then nothing was written. Raises Conflict when the
    Kubernetes cluster is registered under another name.
    """
    return (await save_clusters(connection, [(before, after)]))[0]


async def save_clusters(connection: Connection, pairs: Sequence[tuple[Cluster, Cluster]]) -> list[bool]:
    """Save each pair that still holds; which ones were saved. One pair per cluster."""
    differences = [
        {name: value for name, value in rows.changed(before, after).items() if name not in IN_MEMORY}
        for before, after in pairs
    ]
    columns = {name for change in differences for name in change}
    if not columns:
        return [True] * len(pairs)
    steps = [
        {
            "name": before.name,
            "state": before.state,
            "cordoned": before.cordoned,
            "draining": before.draining,
            "changes": change,
            "news": bool(change.keys() - _QUIET),
        }
        for (before, _), change in zip(pairs, differences, strict=True)
    ]
    sets = rows.assignments(tables.clusters, columns, "c", "i.changes")
    try:
        saved = await connection.rows(_SAVE.format(sets), steps=encode(steps))
    except Conflict as error:
        names = ", ".join(after.name for _, after in pairs)
        raise Conflict(
            f"{names}: this Kubernetes cluster is registered under another name already ({error})"
        ) from error
    stored = {row.name for row in saved}
    if any(step["news"] for step in steps):
        connection.tell(TOPIC)
    await _tell(connection, [after for before, after in pairs if after.name in stored and before.state != after.state])
    return [before.name in stored for before, _ in pairs]


_SAVE = f"""
    WITH input AS (
        SELECT * FROM jsonb_to_recordset(CAST(:steps AS jsonb))
            AS i(name text, state text, cordoned boolean, draining boolean, changes jsonb, news boolean)
    ), saved AS (
        UPDATE clusters c SET {{}} FROM input i
        WHERE c.name = i.name AND c.state = i.state AND c.cordoned = i.cordoned AND c.draining = i.draining
        RETURNING c.name, i.news
    ), noted AS (
        INSERT INTO changes (topic, key) SELECT '{TOPIC}', name FROM saved WHERE news
    )
    SELECT name FROM saved
"""


async def delete_cluster(connection: Connection, name: str) -> bool:
    """Forget a Removed cluster on which nothing of ours is left. False when it is not so (or not there)."""
    gone = await connection.execute(
        "DELETE FROM clusters WHERE name = :name AND state = :removed AND NOT EXISTS "
        "(SELECT FROM placements WHERE cluster = :name AND NOT released)",
        name=name,
        removed=ClusterState.REMOVED,
    )
    if gone:
        await history.append(
            connection, [history.Entry(event="Deleted", cluster=name, message="nothing of ours is left there")]
        )
        await changes.append(connection, TOPIC, [name])
    return bool(gone)


async def _tell(connection: Connection, clusters: Sequence[Cluster]) -> None:
    if clusters:
        told = [history.Entry(event=c.state, reason=c.reason, message=c.message, cluster=c.name) for c in clusters]
        await history.append(connection, told)
