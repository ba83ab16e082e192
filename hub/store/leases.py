"""Who leads. One row per name; the term rises with every change of holder and never falls.

    holder A ──acquire──▶ term 4 ──renew──renew── (silent) ── runs out
    holder B ─────────────── acquire: None ─────────────────── acquire ──▶ term 5
    holder A, back                                                 renew: None; writes with term 4: Stale

Only the database's clock counts here. The holder, whose clock may be wrong in any way, compares nothing with `expires_at`;
it measures `ttl_s` by its own elapsed time from before it asked, and stops leading in time by itself.
"""

from msgspec import Struct

from hub.store.database import LEADER, Connection

__all__ = ["LEADER", "Lease", "acquire", "get", "renew", "resign"]

_LEASE = "name, holder, term, CAST(extract(epoch FROM expires_at) AS float8) AS expires_at"


class Lease(Struct, frozen=True, kw_only=True):
    name: str
    holder: str
    term: int
    #: The database's clock. For people.
    expires_at: float


async def acquire(connection: Connection, name: str, holder: str, ttl_s: float) -> Lease | None:
    """Take a lease that nobody has or that ran out, with a new term. None while somebody has it.

    Waits for transactions that write under the old term. A holder that asks for its own lease gets a new term too: it may
    be a new process under an old name.
    """
    return await connection.fetch_one(
        Lease,
        f"""
        INSERT INTO leases AS l (name, holder, term, expires_at)
        VALUES (:name, :holder, 1, clock_timestamp() + make_interval(secs => :ttl_s))
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, term = l.term + 1, expires_at = excluded.expires_at
        WHERE l.holder = excluded.holder OR l.holder = '' OR l.expires_at <= clock_timestamp()
        RETURNING {_LEASE}
        """,
        name=name,
        holder=holder,
        ttl_s=float(ttl_s),
    )


async def renew(connection: Connection, lease: Lease, ttl_s: float) -> Lease | None:
    """The same lease with a later end. None when somebody else took it. One that ran out and that nobody took is still
    its holder's: nobody else has led meanwhile.
    """
    return await connection.fetch_one(
        Lease,
        f"UPDATE leases SET expires_at = clock_timestamp() + make_interval(secs => :ttl_s) "
        f"WHERE name = :name AND holder = :holder AND term = :term RETURNING {_LEASE}",
        name=lease.name,
        holder=lease.holder,
        term=lease.term,
        ttl_s=float(ttl_s),
    )


async def resign(connection: Connection, lease: Lease) -> bool:
    """Give the lease back, so that the next one need not wait. False when it was somebody else's already."""
    given = await connection.execute(
        "UPDATE leases SET holder = '', expires_at = clock_timestamp() "
        "WHERE name = :name AND holder = :holder AND term = :term",
        name=lease.name,
        holder=lease.holder,
        term=lease.term,
    )
    return bool(given)


async def get(connection: Connection, name: str) -> Lease | None:
    return await connection.fetch_one(Lease, f"SELECT {_LEASE} FROM leases WHERE name = :name", name=name)
