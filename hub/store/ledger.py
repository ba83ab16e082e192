"""What placements hold of their clusters, by flavor and resource. A placement holds it until it is finished or released
(`holds_room` in hub.dispatch.placement; a test compares the two).

Rows are written by `placements`, in the transaction that saves the placement, and by nobody else: the ledger can always be
computed from the placements, and `drift` does so.
"""

from collections.abc import Sequence

from msgspec import Struct

from hub.dispatch.placement import State
from hub.store.database import Connection, encode

ASSUMED, CONFIRMED = "Assumed", "Confirmed"
#: Rows of the placements in the row source `p`, summed: two pod sets may take from one flavor.
ROWS_OF_P = (
    "SELECT p.id, c.flavor, c.resource, p.cluster, sum(c.amount), "
    f"CASE WHEN p.confirmed THEN '{CONFIRMED}' ELSE '{ASSUMED}' END "
    "FROM {source} p, jsonb_to_recordset(p.charges) AS c(flavor text, resource text, amount bigint) "
    f"WHERE NOT p.released AND p.state <> '{State.FINISHED}' GROUP BY p.id, c.flavor, c.resource, p.cluster, p.confirmed"
)


class Held(Struct, frozen=True, kw_only=True):
    """Of one resource of one flavor of one cluster, in engine units."""

    cluster: str
    flavor: str
    resource: str
    assumed: int
    confirmed: int


async def totals(connection: Connection) -> list[Held]:
    return await connection.fetch(
        Held,
        "SELECT cluster, flavor, resource, "
        f"coalesce(sum(amount) FILTER (WHERE state = '{ASSUMED}'), 0) AS assumed, "
        f"coalesce(sum(amount) FILTER (WHERE state = '{CONFIRMED}'), 0) AS confirmed "
        "FROM ledger GROUP BY cluster, flavor, resource ORDER BY cluster, flavor, resource",
    )


async def confirm(connection: Connection, ids: Sequence[str]) -> None:
    """The agent's word came for these placements. For `hub.store.placements`."""
    await connection.execute(
        f"UPDATE ledger SET state = '{CONFIRMED}' "
        "WHERE placement_id IN (SELECT jsonb_array_elements_text(CAST(:ids AS jsonb)))",
        ids=encode(list(ids)),
    )


async def follow(connection: Connection, ids: Sequence[str]) -> None:
    """Make the rows of these placements anew from what the placements' own rows say. For `hub.store.placements`."""
    given = encode(list(ids))
    chosen = "(SELECT * FROM placements WHERE id IN (SELECT jsonb_array_elements_text(CAST(:ids AS jsonb))))"
    await connection.execute(
        "DELETE FROM ledger WHERE placement_id IN (SELECT jsonb_array_elements_text(CAST(:ids AS jsonb)))", ids=given
    )
    await connection.execute(f"INSERT INTO ledger {ROWS_OF_P.format(source=chosen)}", ids=given)


async def drift(connection: Connection) -> list[str]:
    """Ids of placements whose ledger rows are not what the placement says. Always empty; upkeep and tests look."""
    want = ROWS_OF_P.format(source="placements")
    have = "SELECT placement_id, flavor, resource, cluster, amount, state FROM ledger"
    rows = await connection.rows(
        f"SELECT id FROM (({want} EXCEPT {have}) UNION ALL ({have} EXCEPT {want})) AS d(id) GROUP BY id ORDER BY id"
    )
    return [row.id for row in rows]
