"""What readers see: workloads, queues, decisions and history, page by page."""

import pytest

from hub.kueue.api.meta import ObjectKey
from hub.store import changes, decisions, history, views
from hub.store.database import Database
from hub.store.decisions import Decision
from hub.store.errors import StoreError
from hub.store.history import Entry
from hub.store.views import QueueRow, WorkloadFilter, WorkloadRow
from tests.feed_horizon import everything_is_readable


def make_row(name: str, namespace: str = "team-a", **fields: object) -> WorkloadRow:
    given = {"uid": f"uid-{name}", "state": "Pending", "requests": {"nvidia.com/gpu": 8}, "updated_at": 1.5}
    return WorkloadRow(namespace=namespace, name=name, **(given | fields))


async def keys_since(database: Database, cursor: changes.Cursor) -> list[str]:
    await everything_is_readable(database)
    async with database.transaction() as connection:
        return [change.key for change in await changes.read(connection, cursor)]


async def test_only_rows_that_differ_are_written_and_told(database: Database):
    async with database.transaction() as connection:
        start = await changes.tail(connection)
    stored = [make_row("a"), make_row("b", position=3, cluster="east")]
    async with database.transaction() as connection:
        assert await views.upsert_workloads(connection, stored) == 2
    now = [make_row("a", updated_at=9.0), make_row("b", state="Running", position=None, running_at=2.25)]
    async with database.transaction() as connection:
        assert await views.upsert_workloads(connection, now) == 1
        assert await views.get_workload(connection, ObjectKey("team-a", "b")) == now[1]
        assert await views.get_workload(connection, ObjectKey("team-a", "a")) == stored[0]
    async with database.transaction() as connection:
        assert await views.delete_workloads(connection, [ObjectKey("team-a", "a"), ObjectKey("team-a", "x")]) == 1
    assert await keys_since(database, start) == ["team-a/a", "team-a/b", "team-a/b", "team-a/a"]


@pytest.mark.parametrize(
    ("wanted", "want_names"),
    [
        pytest.param(WorkloadFilter(), ["a", "b", "c", "d"], id="everything"),
        pytest.param(WorkloadFilter(namespaces=("team-b",)), ["d"], id="by namespace"),
        pytest.param(WorkloadFilter(namespaces=()), [], id="who may see no namespace sees nothing"),
        pytest.param(WorkloadFilter(states=("Running", "Finished")), ["b", "c"], id="by state"),
        pytest.param(WorkloadFilter(cluster="east", cluster_queue="gpu"), ["b"], id="by cluster and queue"),
        pytest.param(WorkloadFilter(local_queue="users"), ["d"], id="by local queue"),
        pytest.param(WorkloadFilter(limit=2, after=ObjectKey("team-a", "a")), ["b", "c"], id="the second page"),
    ],
)
async def test_workloads_are_filtered(database: Database, wanted: WorkloadFilter, want_names: list[str]):
    stored = [
        make_row("a"),
        make_row("b", state="Running", cluster="east", cluster_queue="gpu"),
        make_row("c", state="Finished", cluster="east", cluster_queue="cpu", succeeded=True),
        make_row("d", namespace="team-b", local_queue="users"),
    ]
    async with database.transaction() as connection:
        await views.upsert_workloads(connection, stored)
        found = await views.list_workloads(connection, wanted)
        counts = await views.count_workloads(connection, wanted)
    assert [row.name for row in found] == want_names
    if wanted.after is None:
        assert sum(counts.values()) == len(want_names)


async def test_queues_come_back_as_they_were(database: Database):
    cohort = QueueRow(
        kind="ClusterQueue", name="gpu", cohort="all", active=True, usage={"h100": {"cpu": {"nominal": 8, "used": 2}}}
    )
    ours, theirs = (QueueRow(kind="LocalQueue", namespace=n, name="q", cluster_queue="gpu") for n in ("a", "b"))
    async with database.transaction() as connection:
        assert await views.upsert_queues(connection, [cohort, ours, theirs]) == 3
        assert await views.list_queues(connection) == [cohort, ours, theirs]
        assert await views.list_queues(connection, ["a"]) == [cohort, ours]
        assert await views.delete_queues(connection, "LocalQueue", [ObjectKey("b", "q")]) == 1
        assert await views.delete_queues(connection, "ClusterQueue", [ObjectKey("", "gpu")]) == 1
        assert await views.list_queues(connection) == [ours]


async def test_the_newest_decision_stays(database: Database):
    def decided(at: float) -> Decision:
        return Decision(workload_uid="u", namespace="team-a", workload="train", at=at, record={"tried": [at]})

    key = ObjectKey("team-a", "train")
    async with database.transaction() as connection:
        await decisions.save_many(connection, [decided(2)])
        await decisions.save_many(connection, [decided(3)])
        await decisions.save_many(connection, [decided(1)])
        assert await decisions.latest(connection, key) == decided(3)
        assert await decisions.prune(connection, 4) == 1
        assert await decisions.latest(connection, key) is None


async def test_history_is_ordered_by_the_database_and_never_changed(database: Database):
    entries = [Entry(event="First", workload="w", at=9.0), Entry(event="Second", workload="w", at=3.0)]
    async with database.transaction() as connection:
        await history.append(connection, entries)
        told = await history.since(connection, 0)
        assert [entry.event for entry in told] == ["First", "Second"]
        assert await history.since(connection, told[0].seq) == told[1:]
    for forbidden in ("UPDATE history SET event = 'x'", "DELETE FROM history", "TRUNCATE history"):
        with pytest.raises(StoreError, match="history is append-only"):
            async with database.transaction() as connection:
                await connection.execute(forbidden)


async def test_old_history_goes_by_retention_only(database: Database):
    async with database.transaction() as connection:
        await history.append(connection, [Entry(event="Old", at=1.0), Entry(event="New", at=9.0)])
        assert await history.prune(connection, 5.0) == 1
        assert [entry.event for entry in await history.since(connection, 0)] == ["New"]
    with pytest.raises(StoreError, match="history is append-only"):
        async with database.transaction() as connection:
            await connection.execute("DELETE FROM history")
