"""Every table, its constraints and its indexes. What the database can refuse by itself, it refuses.

Columns bear the names of the record's fields, so that rows turn into records by name. Instants are seconds since the epoch
by the hub's clock, as in the records; leases use the database's clock and its types. `migrations/` makes what is drawn
here, and a test compares the two; triggers live in the migrations only.

    clusters      one row per registered worker cluster
    placements ─┬ one row per offer of a workload to a cluster; at most one live one per workload
    ledger ─────┘ what each placement holds of its cluster, row by flavor and resource, as long as it holds it
    history       what happened, in the database's order; only ever appended to
    decisions     the newest decision record of each workload
    workloads, queues      copies for readers, written in batches by the leader
    leases        who leads, with a term that only rises
    changes       what changed, for those who follow; changes_floor says how far back it goes
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import UserDefinedType

from hub.dispatch.clusters import ClusterState
from hub.dispatch.placement import LIVE, State

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ix": "%(table_name)s_%(column_0_N_name)s",
    }
)


class Xid8(UserDefinedType[int]):
    """Postgres' 64-bit transaction number: in order of start, never reused."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


ischema_names["xid8"] = Xid8


def _words(name: str, *, default: bool = True) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=text("''") if default else None)


def _number(name: str, start: int = 0) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text(str(start)))


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=text("false"))


def _instant(name: str) -> Column[float]:
    return Column(name, Double, nullable=True)


def _instant_set(name: str) -> Column[float]:
    return Column(name, Double, nullable=False, server_default=text("0"))


def _json(name: str, default: str) -> Column[Any]:
    return Column(name, JSONB, nullable=False, server_default=text(f"'{default}'"))


def one_of(column: str, words: list[str]) -> str:
    """The condition of a check constraint: `column` has one of these words."""
    return f"{column} IN ({', '.join(repr(str(w)) for w in sorted(words))})"


clusters = Table(
    "clusters",
    metadata,
    Column("name", Text, primary_key=True),
    _words("state", default=False),
    _words("reason"),
    _words("message"),
    _flag("cordoned"),
    _flag("draining"),
    _json("labels", "{}"),
    _json("taints", "[]"),
    _words("address"),
    _words("certificate_pem"),
    _words("cluster_uid"),
    _words("agent_version"),
    _number("wire_version"),
    _words("boot_id"),
    _number("cursor"),
    Column("capacity", JSONB),
    _instant("capacity_at"),
    _instant("last_contact_at"),
    _instant("failing_since"),
    _instant("grace_since"),
    _instant_set("created_at"),
    _instant("join_expires_at"),
    #: SHA-256 of the one-time join token, hex; empty once it was used.
    _words("token_hash"),
    CheckConstraint(one_of("state", list(ClusterState)), name="state_known"),
    # One Kubernetes cluster under two names would be counted, and filled, twice.
    Index("clusters_one_registration", "cluster_uid", unique=True, postgresql_where=text("cluster_uid <> ''")),
)

placements = Table(
    "placements",
    metadata,
    Column("id", Text, primary_key=True),
    _words("namespace", default=False),
    _words("workload", default=False),
    _words("workload_uid", default=False),
    _words("cluster", default=False),
    _number("generation", 1),
    _words("state", default=False),
    _words("reason"),
    _words("message"),
    Column("intent", JSONB, nullable=False),
    _number("acknowledged"),
    _json("charges", "[]"),
    _flag("confirmed"),
    _flag("released"),
    _number("attempt", 1),
    _words("previous_cluster"),
    Column("job_status", JSONB),
    _json("pod_sets", "[]"),
    Column("succeeded", Boolean),
    _instant_set("offered_at"),
    _instant("admitted_at"),
    _instant("running_at"),
    _instant("ended_at"),
    CheckConstraint(one_of("state", list(State)), name="state_known"),
    CheckConstraint("generation >= 1", name="generation_positive"),
    CheckConstraint("acknowledged BETWEEN 0 AND generation", name="acknowledged_known_generation"),
    CheckConstraint(f"NOT (released AND {one_of('state', list(LIVE))})", name="live_is_not_released"),
    Index("placements_one_live", "workload_uid", unique=True, postgresql_where=text(one_of("state", list(LIVE)))),
    Index("placements_unreleased", "cluster", postgresql_where=text("NOT released")),
    Index(None, "namespace", "workload"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("placement_id", Text, ForeignKey("placements.id", ondelete="CASCADE"), primary_key=True),
    Column("flavor", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    _words("cluster", default=False),
    Column("amount", BigInteger, nullable=False),
    #: Assumed at the offer; Confirmed by the agent's word for that generation.
    _words("state", default=False),
    CheckConstraint("amount >= 0", name="amount_not_negative"),
    CheckConstraint(one_of("state", ["Assumed", "Confirmed"]), name="state_known"),
    Index(None, "cluster"),
)

history = Table(
    "history",
    metadata,
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Double, nullable=False),
    _words("namespace"),
    _words("workload"),
    _words("workload_uid"),
    _words("placement_id"),
    _words("cluster"),
    _number("generation"),
    _words("event", default=False),
    _words("reason"),
    _words("message"),
    Index(None, "namespace", "workload"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("workload_uid", Text, primary_key=True),
    _words("namespace", default=False),
    _words("workload", default=False),
    Column("at", Double, nullable=False),
    Column("record", JSONB, nullable=False),
    Index(None, "namespace", "workload"),
)

workloads = Table(
    "workloads",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    _words("uid", default=False),
    _words("job_kind"),
    _words("job_name"),
    _words("local_queue"),
    _words("cluster_queue"),
    _number("priority"),
    _words("state", default=False),
    _words("reason"),
    _words("message"),
    _words("cluster"),
    _words("placement_id"),
    Column("position", BigInteger),
    _number("gpus"),
    _json("requests", "{}"),
    _instant_set("created_at"),
    _instant("placed_at"),
    _instant("running_at"),
    _instant("finished_at"),
    _instant_set("updated_at"),
    Column("succeeded", Boolean),
    Index(None, "state"),
    Index(None, "uid"),
)

queues = Table(
    "queues",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("namespace", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    #: The cohort of a ClusterQueue.
    _words("cohort"),
    #: The ClusterQueue of a LocalQueue.
    _words("cluster_queue"),
    _number("pending"),
    _number("reserving"),
    _number("admitted"),
    _json("usage", "{}"),
    _flag("active"),
    _words("reason"),
    _instant_set("updated_at"),
    CheckConstraint(one_of("kind", ["ClusterQueue", "LocalQueue"]), name="kind_known"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    _words("holder", default=False),
    _number("term", 1),
    Column("expires_at", TIMESTAMP(timezone=True), nullable=False),
    # Makes `term` part of a key: a new term waits for those who hold the row FOR KEY SHARE, a renewal does not.
    UniqueConstraint("name", "term"),
)

changes = Table(
    "changes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("xid", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("at", TIMESTAMP(timezone=True), nullable=False, server_default=text("now()")),
    _words("topic", default=False),
    _words("key", default=False),
    Index(None, "xid", "id"),
    Index(None, "at"),
)

changes_floor = Table(
    "changes_floor",
    metadata,
    Column("one", Boolean, primary_key=True, server_default=text("true")),
    Column("xid", Xid8, nullable=False),
    Column("id", BigInteger, nullable=False),
    CheckConstraint("one", name="one_row"),
)
