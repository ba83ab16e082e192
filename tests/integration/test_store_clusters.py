"""The registry of worker clusters in Postgres."""

import msgspec
import pytest

from hub.dispatch.clusters import Cluster, ClusterState
from hub.kueue.wire import CapacityReport
from hub.store import clusters, history
from hub.store.database import Database
from hub.store.errors import ClusterExists, Conflict, NotFound
from tests.conftest import ManualClock

replace = msgspec.structs.replace


async def invited(database: Database, name: str = "east", token_hash: str = "t1") -> Cluster:
    async with database.transaction() as connection:
        return await clusters.invite(
            connection, name, token_hash=token_hash, expires_at=database.clock() + 600, labels={"zone": "a"}
        )


async def test_an_invited_cluster_is_listed(database: Database):
    want_cluster = await invited(database)
    async with database.transaction() as connection:
        assert await clusters.list_clusters(connection) == [want_cluster]
        assert await clusters.get_cluster(connection, "west") is None


async def test_a_name_is_registered_once(database: Database):
    await invited(database)
    with pytest.raises(ClusterExists, match="east is registered already"):
        await invited(database, token_hash="t2")


async def test_a_token_works_once_and_again_for_the_same_certificate(database: Database):
    await invited(database)
    async with database.transaction() as connection:
        before = await clusters.redeem(connection, token_hash="t1", certificate_pem="mine")
        joined = replace(before, certificate_pem="mine", address="https://east:8443", join_expires_at=None)
        assert await clusters.save_cluster(connection, before, joined)
    async with database.transaction() as connection:
        assert await clusters.redeem(connection, token_hash="t1", certificate_pem="mine") == joined
        with pytest.raises(NotFound, match="used already"):
            await clusters.redeem(connection, token_hash="t1", certificate_pem="another")


async def test_an_expired_token_is_refused(database: Database, clock: ManualClock):
    await invited(database)
    clock.advance(601)
    with pytest.raises(NotFound, match="expired"):
        async with database.transaction() as connection:
            await clusters.redeem(connection, token_hash="t1", certificate_pem="mine")


async def test_poll_and_operator_do_not_undo_each_other(database: Database):
    read = await invited(database)
    cordoned = replace(read, cordoned=True)
    heard = replace(read, capacity=CapacityReport(namespaces=["team-a"]), last_contact_at=7.5)
    async with database.transaction() as connection:
        assert await clusters.save_cluster(connection, read, cordoned)
        assert not await clusters.save_cluster(connection, read, heard), "decided before the cordon"
        again = replace(cordoned, capacity=heard.capacity, last_contact_at=7.5)
        assert await clusters.save_cluster(connection, cordoned, again)
        assert await clusters.get_cluster(connection, "east") == again


async def test_one_kubernetes_cluster_is_not_registered_twice(database: Database):
    east, west = await invited(database), await invited(database, "west", "t2")
    async with database.transaction() as connection:
        assert await clusters.save_cluster(connection, east, replace(east, cluster_uid="kube-system-1"))
    with pytest.raises(Conflict, match="registered under another name"):
        async with database.transaction() as connection:
            await clusters.save_cluster(connection, west, replace(west, cluster_uid="kube-system-1"))


async def test_state_changes_are_told_and_a_removed_cluster_can_be_forgotten(database: Database):
    east = await invited(database)
    removed = replace(east, state=ClusterState.REMOVED, reason="Removed", message="by alice")
    async with database.transaction() as connection:
        assert not await clusters.delete_cluster(connection, "east")
        assert await clusters.save_cluster(connection, east, removed)
        assert await clusters.delete_cluster(connection, "east")
        told = await history.for_cluster(connection, "east")
    assert [(e.event, e.message) for e in told] == [
        ("Invited", "its agent has not joined yet"),
        ("Removed", "by alice"),
        ("Deleted", "nothing of ours is left there"),
    ]
