"""The store's own words without a database: errors, JSON parameters, SET clauses, differences between records."""

import asyncpg
import msgspec
import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from hub.dispatch.clusters import Cluster
from hub.dispatch.placement import Placement
from hub.store import clusters, errors, rows, tables
from hub.store.database import encode


@pytest.mark.parametrize(
    ("vendor_error", "want_kind"),
    [
        pytest.param(ConnectionRefusedError(111, "refused"), errors.Unavailable, id="server is down"),
        pytest.param(FileNotFoundError(2, "no socket"), errors.Unavailable, id="socket is gone"),
        pytest.param(TimeoutError(), errors.Unavailable, id="no answer in time"),
        pytest.param(PoolTimeoutError("all busy"), errors.Unavailable, id="every connection is in use"),
        pytest.param(asyncpg.InterfaceError("closed"), errors.Unavailable, id="connection is closed"),
        pytest.param(asyncpg.CannotConnectNowError("starting"), errors.Unavailable, id="server is starting"),
        pytest.param(asyncpg.AdminShutdownError("bye"), errors.Unavailable, id="server shuts down"),
        pytest.param(asyncpg.TooManyConnectionsError("many"), errors.Unavailable, id="too many connections"),
        pytest.param(asyncpg.DeadlockDetectedError("dead"), errors.Unavailable, id="deadlock"),
        pytest.param(asyncpg.LockNotAvailableError("lock"), errors.Unavailable, id="lock not in time"),
        pytest.param(asyncpg.QueryCanceledError("slow"), errors.Unavailable, id="statement timed out"),
        pytest.param(
            asyncpg.ReadOnlySQLTransactionError("standby"), errors.Unavailable, id="a standby after fail-over"
        ),
        pytest.param(asyncpg.UniqueViolationError("twice"), errors.Conflict, id="unique violation"),
        pytest.param(asyncpg.DiskFullError("full"), errors.DiskFull, id="disk full"),
        pytest.param(asyncpg.CheckViolationError("no"), errors.StoreError, id="check violation is a bug of ours"),
        pytest.param(asyncpg.InvalidPasswordError("no"), errors.StoreError, id="wrong password is for people"),
    ],
)
def test_vendor_errors_get_the_stores_words(vendor_error: Exception, want_kind: type[Exception]):
    with pytest.raises(errors.StoreError) as caught, errors.translated():
        raise vendor_error
    assert type(caught.value) is want_kind
    assert caught.value.__cause__ is vendor_error


def test_a_full_disk_is_named_with_its_free_bytes(tmp_path):
    want_words = rf"the disk of {tmp_path} is full: [\d,]+ bytes free.*WAL"
    with pytest.raises(errors.DiskFull, match=want_words), errors.translated(tmp_path):
        raise asyncpg.DiskFullError("could not extend WAL")


def test_an_error_of_the_callers_own_is_left_alone():
    with pytest.raises(KeyError), errors.translated():
        raise KeyError("mine")


@pytest.mark.parametrize(
    ("value", "want_text"),
    [
        pytest.param({"a": "x\0y"}, '{"a":"x\ufffdy"}', id="a character 0 is replaced"),
        pytest.param({"\0": ["\0", {"b": "\0"}]}, '{"\ufffd":["\ufffd",{"b":"\ufffd"}]}', id="wherever it is"),
        pytest.param({"a": "\\u0000"}, '{"a":"\\\\u0000"}', id="six characters that look like it stay"),
    ],
)
def test_what_postgres_cannot_hold_is_replaced(value: object, want_text: str):
    assert encode(value) == want_text


def test_only_what_differs_is_a_change():
    before = Cluster(name="east", address="a")
    assert rows.changed(before, msgspec.structs.replace(before, address="b", cursor=0)) == {"address": "b"}


@pytest.mark.parametrize(
    ("column", "want_value"),
    [
        pytest.param("reason", "i.changes ->> 'reason'", id="text"),
        pytest.param("generation", "CAST(i.changes ->> 'generation' AS bigint)", id="number"),
        pytest.param("ended_at", "CAST(i.changes ->> 'ended_at' AS double precision)", id="instant"),
        pytest.param("released", "CAST(i.changes ->> 'released' AS boolean)", id="flag"),
        pytest.param("job_status", "NULLIF(i.changes -> 'job_status', 'null')", id="document"),
    ],
)
def test_columns_are_read_from_a_document_by_their_type(column: str, want_value: str):
    want = f"{column} = CASE WHEN i.changes ? '{column}' THEN {want_value} ELSE p.{column} END"
    assert rows.assignments(tables.placements, [column], "p", "i.changes") == want


def test_every_field_of_a_record_has_a_column_or_a_reason():
    cluster_columns = {column.name for column in tables.clusters.columns}
    placement_columns = {column.name for column in tables.placements.columns}
    assert set(Cluster.__struct_fields__) - cluster_columns == clusters.IN_MEMORY
    assert cluster_columns - set(Cluster.__struct_fields__) == {"token_hash"}
    assert placement_columns - set(Placement.__struct_fields__) == {"namespace"}
    assert set(Placement.__struct_fields__) <= placement_columns
