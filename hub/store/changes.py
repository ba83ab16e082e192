"""What changed, for those who follow: other hub replicas, the web's event stream, loops that wait for work.

Every writer appends its changes in its own transaction and tells the topic, which is the name of a channel to listen to.
Numbers from a sequence do not tell what a reader has seen: a transaction may take a lower one and commit later.
So the order here is (transaction, number), and a reader gets only what lies below the oldest transaction still running:

    transaction 7  ──append──────────────────── commit        read here: nothing of 7 or 8, however often
    transaction 8        ──append── commit                     read here: 7, then 8
                                              ▲            ▲

A transaction that stays open, anywhere on that server, holds every reader back; the store's own may take a minute at most.
A notification is a hint to read: it may be lost with the process that had to send it, so readers also look by themselves
every few seconds. `read` leaves the cursor to the caller, who keeps the new one only
when the changes are dealt with. Changes are kept for a while; whoever comes later is told so and loads everything anew.
"""

from collections.abc import Iterable

from msgspec import Struct

from hub.store.database import Connection, encode
from hub.store.errors import ChangesPruned

_CAST = "CAST(CAST({} AS text) AS xid8)"
_AFTER = f"(xid, id) > ({_CAST.format(':xid')}, :id)"


class Cursor(Struct, frozen=True, order=True):
    """Everything up to here was read."""

    xid: int
    id: int


class Change(Struct, frozen=True, kw_only=True):
    xid: int
    id: int
    topic: str
    #: placements: the id. clusters: the name. workloads: namespace/name. queues: kind/namespace/name.
    key: str

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.xid, self.id)


async def append(connection: Connection, topic: str, keys: Iterable[str]) -> None:
    connection.tell(topic)
    await connection.execute(
        "INSERT INTO changes (topic, key) SELECT :topic, k FROM jsonb_array_elements_text(CAST(:keys AS jsonb)) AS k",
        topic=topic,
        keys=encode(list(keys)),
    )


async def tail(connection: Connection) -> Cursor:
    """A cursor at the present end. Take it first and load afterwards: then nothing falls between."""
    xmin = await connection.value("SELECT CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text)")
    return Cursor(int(xmin), 0)


async def read(connection: Connection, after: Cursor, *, limit: int = 5000) -> list[Change]:
    """The next changes after the cursor that every reader sees alike, oldest first. Raises ChangesPruned."""
    found = await connection.fetch(
        Change,
        f"SELECT CAST(CAST(xid AS text) AS bigint) AS xid, id, topic, key FROM changes WHERE {_AFTER} "
        "AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY changes.xid, changes.id LIMIT :limit",
        xid=str(after.xid),
        id=after.id,
        limit=limit,
    )
    # Asked after reading: what was pruned meanwhile was below this floor.
    if await connection.value(f"SELECT {_AFTER} FROM changes_floor", xid=str(after.xid), id=after.id):
        raise ChangesPruned
    return found


async def prune(connection: Connection, older_than_s: float) -> int:
    """Drop what is older, by the database's clock; how many."""
    return await connection.execute(
        """
        WITH gone AS (
            DELETE FROM changes WHERE at < now() - make_interval(secs => :older_than_s)
                AND xid < pg_snapshot_xmin(pg_current_snapshot())
            RETURNING xid, id
        ), newest AS (
            SELECT xid, id FROM gone ORDER BY xid DESC, id DESC LIMIT 1
        ), raised AS (
            UPDATE changes_floor f SET xid = n.xid, id = n.id FROM newest n WHERE (n.xid, n.id) > (f.xid, f.id)
        )
        SELECT FROM gone
        """,
        older_than_s=older_than_s,
    )
