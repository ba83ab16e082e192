"""The first schema.

Why: there is nothing yet. What each table is for stands in hub/store/tables.py; what that file cannot say is here: history
may only grow, and a trigger refuses the rest.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.types import UserDefinedType

revision = "0001"
down_revision = None


class Xid8(UserDefinedType[int]):
    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


def words(*names: str, default: bool = True) -> list[sa.Column[Any]]:
    start = sa.text("''") if default else None
    return [sa.Column(name, sa.Text, nullable=False, server_default=start) for name in names]


def numbers(*names: str, start: int = 0) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text(str(start))) for name in names]


def flags(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Boolean, nullable=False, server_default=sa.text("false")) for name in names]


def instants(*names: str, required: bool = False) -> list[sa.Column[Any]]:
    start = sa.text("0") if required else None
    return [sa.Column(name, sa.Double, nullable=not required, server_default=start) for name in names]


def documents(default: str | None, *names: str) -> list[sa.Column[Any]]:
    start = sa.text(f"'{default}'") if default else None
    return [sa.Column(name, JSONB, nullable=default is None, server_default=start) for name in names]


def key(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, primary_key=True) for name in names]


CLUSTER_STATES = "state IN ('Active', 'Cordoned', 'Draining', 'Invited', 'Lost', 'Removed', 'Suspect')"
PLACEMENT_STATES = "state IN ('Admitted', 'Evicted', 'Finished', 'Lost', 'Offered', 'Refused', 'Running', 'Withdrawn')"
LIVE = "state IN ('Admitted', 'Offered', 'Running')"


def upgrade() -> None:
    create_clusters()
    create_placements()
    create_history()
    create_views()
    create_leases_and_changes()
    op.execute(HISTORY_ONLY_GROWS)
    op.execute(HISTORY_TRIGGER)
    op.execute(HISTORY_TRUNCATE_TRIGGER)


def create_clusters() -> None:
    op.create_table(
        "clusters",
        *key("name"),
        *words("state", default=False),
        *words("reason", "message"),
        *flags("cordoned", "draining"),
        *documents("{}", "labels"),
        *documents("[]", "taints"),
        *words("address", "certificate_pem", "cluster_uid", "agent_version"),
        *numbers("wire_version"),
        *words("boot_id"),
        *numbers("cursor"),
        *documents(None, "capacity"),
        *instants("capacity_at", "last_contact_at", "failing_since", "grace_since"),
        *instants("created_at", required=True),
        *instants("join_expires_at"),
        *words("token_hash"),
        sa.CheckConstraint(CLUSTER_STATES, name=op.f("clusters_state_known")),
    )
    op.create_index(
        "clusters_one_registration", "clusters", ["cluster_uid"], unique=True, postgresql_where="cluster_uid <> ''"
    )


def create_placements() -> None:
    op.create_table(
        "placements",
        *key("id"),
        *words("namespace", "workload", "workload_uid", "cluster", default=False),
        *numbers("generation", start=1),
        *words("state", default=False),
        *words("reason", "message"),
        sa.Column("intent", JSONB, nullable=False),
        *numbers("acknowledged"),
        *documents("[]", "charges"),
        *flags("confirmed", "released"),
        *numbers("attempt", start=1),
        *words("previous_cluster"),
        *documents(None, "job_status"),
        *documents("[]", "pod_sets"),
        sa.Column("succeeded", sa.Boolean),
        *instants("offered_at", required=True),
        *instants("admitted_at", "running_at", "ended_at"),
        sa.CheckConstraint(PLACEMENT_STATES, name=op.f("placements_state_known")),
        sa.CheckConstraint("generation >= 1", name=op.f("placements_generation_positive")),
        sa.CheckConstraint(
            "acknowledged BETWEEN 0 AND generation", name=op.f("placements_acknowledged_known_generation")
        ),
        sa.CheckConstraint(f"NOT (released AND {LIVE})", name=op.f("placements_live_is_not_released")),
    )
    op.create_index("placements_one_live", "placements", ["workload_uid"], unique=True, postgresql_where=LIVE)
    op.create_index("placements_unreleased", "placements", ["cluster"], postgresql_where="NOT released")
    op.create_index("placements_namespace_workload", "placements", ["namespace", "workload"])
    op.create_table(
        "ledger",
        *key("placement_id", "flavor", "resource"),
        *words("cluster", default=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        *words("state", default=False),
        sa.ForeignKeyConstraint(
            ["placement_id"], ["placements.id"], ondelete="CASCADE", name=op.f("ledger_placement_id_fkey")
        ),
        sa.CheckConstraint("amount >= 0", name=op.f("ledger_amount_not_negative")),
        sa.CheckConstraint("state IN ('Assumed', 'Confirmed')", name=op.f("ledger_state_known")),
    )
    op.create_index("ledger_cluster", "ledger", ["cluster"])


def create_history() -> None:
    op.create_table(
        "history",
        sa.Column("seq", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("at", sa.Double, nullable=False),
        *words("namespace", "workload", "workload_uid", "placement_id", "cluster"),
        *numbers("generation"),
        *words("event", default=False),
        *words("reason", "message"),
    )
    op.create_index("history_namespace_workload", "history", ["namespace", "workload"])


def create_views() -> None:
    op.create_table(
        "decisions",
        *key("workload_uid"),
        *words("namespace", "workload", default=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("record", JSONB, nullable=False),
    )
    op.create_index("decisions_namespace_workload", "decisions", ["namespace", "workload"])
    op.create_table(
        "workloads",
        *key("namespace", "name"),
        *words("uid", default=False),
        *words("job_kind", "job_name", "local_queue", "cluster_queue"),
        *numbers("priority"),
        *words("state", default=False),
        *words("reason", "message", "cluster", "placement_id"),
        sa.Column("position", sa.BigInteger),
        *numbers("gpus"),
        *documents("{}", "requests"),
        *instants("created_at", required=True),
        *instants("placed_at", "running_at", "finished_at"),
        *instants("updated_at", required=True),
        sa.Column("succeeded", sa.Boolean),
    )
    op.create_index("workloads_state", "workloads", ["state"])
    op.create_index("workloads_uid", "workloads", ["uid"])
    op.create_table(
        "queues",
        *key("kind", "namespace", "name"),
        *words("cohort", "cluster_queue"),
        *numbers("pending", "reserving", "admitted"),
        *documents("{}", "usage"),
        *flags("active"),
        *words("reason"),
        *instants("updated_at", required=True),
        sa.CheckConstraint("kind IN ('ClusterQueue', 'LocalQueue')", name=op.f("queues_kind_known")),
    )


def create_leases_and_changes() -> None:
    op.create_table(
        "leases",
        *key("name"),
        *words("holder", default=False),
        *numbers("term", start=1),
        sa.Column("expires_at", TIMESTAMP(timezone=True), nullable=False),
        sa.UniqueConstraint("name", "term", name=op.f("leases_name_term_key")),
    )
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("xid", Xid8, nullable=False, server_default=sa.text("pg_current_xact_id()")),
        sa.Column("at", TIMESTAMP(timezone=True), nullable=False, server_default=sa.text("now()")),
        *words("topic", default=False),
        *words("key", default=False),
    )
    op.create_index("changes_xid_id", "changes", ["xid", "id"])
    op.create_index("changes_at", "changes", ["at"])
    op.create_table(
        "changes_floor",
        sa.Column("one", sa.Boolean, primary_key=True, server_default=sa.text("true")),
        sa.Column("xid", Xid8, nullable=False),
        sa.Column("id", sa.BigInteger, nullable=False),
        sa.CheckConstraint("one", name=op.f("changes_floor_one_row")),
    )
    op.execute("INSERT INTO changes_floor (xid, id) VALUES ('0', 0)")


HISTORY_ONLY_GROWS = """
CREATE FUNCTION history_only_grows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('multikueue_hub.history_retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'history is append-only: % refused', TG_OP USING ERRCODE = 'restrict_violation';
END
$$
"""
HISTORY_TRIGGER = """
CREATE TRIGGER history_only_grows BEFORE UPDATE OR DELETE ON history
FOR EACH ROW EXECUTE FUNCTION history_only_grows()
"""
HISTORY_TRUNCATE_TRIGGER = """
CREATE TRIGGER history_is_not_truncated BEFORE TRUNCATE ON history
FOR EACH STATEMENT EXECUTE FUNCTION history_only_grows()
"""
