"""What has to be looked after from time to time: silent clusters, operators' commands, contact times, old rows.

HealthLoop      who is silent for too long, or suspects the hub itself; what a lost or removed cluster's work does
RegistryLoop    clusters that people registered, cordoned or removed through any replica -> the board
UpkeepLoop      contact times in batches, rows that nobody needs any more
"""

import logging

import msgspec
from msgspec import Struct

from hub.dispatch.clusters import Cluster, ClusterState, HealthPolicy, grace_over, hold_back, look_for_silence, step
from hub.dispatch.losing import given_up, removed
from hub.kueue.runtime.loop import Clock, Loop
from hub.loops.board import Board
from hub.store import changes, decisions, history, placements
from hub.store import clusters as cluster_store
from hub.store.database import Database

log = logging.getLogger(__name__)

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


class HealthLoop(Loop):
    interval_s = 1.0

    def __init__(self, board: Board, clock: Clock, policy: HealthPolicy) -> None:
        super().__init__("health", clock)
        #: Why the hub suspects itself; empty when it does not.
        self.alarm = ""
        self._board = board
        self._policy = policy

    async def run_once(self) -> None:
        await self._board.ready()
        now = self.clock()
        silence = look_for_silence(self._board.clusters.values(), self._policy, now)
        self._raise_alarm(silence.alarm)
        if silence.alarm:
            for cluster in list(self._board.clusters.values()):
                self._board.put_cluster(hold_back(cluster, now))
        for name in silence.overdue:
            await self._declare_lost(name)
        for cluster in list(self._board.clusters.values()):
            on_it = self._board.on_cluster(cluster.name)
            events = [*given_up(cluster, on_it, self._policy, now), *removed(cluster, on_it, now)]
            if events:
                await self._board.step(events)

    def _raise_alarm(self, alarm: str) -> None:
        if bool(alarm) != bool(self.alarm):
            log.warning("%s", alarm or "most clusters answer again")
        self.alarm = alarm

    async def _declare_lost(self, name: str) -> None:
        async with self._board.lock(name):
            before = self._board.clusters[name]
            after = step(before, grace_over(before, self.clock()), self._policy)
            log.warning("%s is lost: %s", name, after.message)
            await self._board.save([], [(before, after)])


class RegistryLoop(Loop):
    interval_s = 5.0

    def __init__(self, board: Board, database: Database, clock: Clock) -> None:
        super().__init__("registry", clock)
        self._board = board
        self._database = database

    async def run_once(self) -> None:
        await self._board.ready()
        async with self._database.transaction() as connection:
            stored = {c.name: c for c in await cluster_store.list_registrations(connection)}
        for name in self._board.clusters.keys() - stored.keys():
            self._board.drop_cluster(name)
        for name, registration in stored.items():
            known = self._board.clusters.get(name)
            if known is None or _wishes(known) != _wishes(registration):
                await self._take_in(name)
        for cluster in [c for c in self._board.clusters.values() if c.state is ClusterState.REMOVED]:
            await self._forget_when_empty(cluster)

    async def _take_in(self, name: str) -> None:
        """Read it again under the lock: what the poll task saves meanwhile must not be undone."""
        async with self._board.lock(name):
            async with self._database.transaction() as connection:
                stored = await cluster_store.get_cluster(connection, name)
            known = self._board.clusters.get(name)
            if stored is not None:
                self._board.put_cluster(_merged(stored, known) if known else stored)

    async def _forget_when_empty(self, cluster: Cluster) -> None:
        if self._board.on_cluster(cluster.name):
            return
        async with self._database.transaction(term=self._board.term) as connection:
            gone = await cluster_store.delete_cluster(connection, cluster.name)
        if gone:
            log.info("%s is removed: nothing of ours is left there", cluster.name)
            self._board.drop_cluster(cluster.name)


_POLLED = (
    "capacity",
    "capacity_at",
    "last_contact_at",
    "failing_since",
    "grace_since",
    "failures_in_row",
    "answers_in_row",
    "boot_id",
    "cursor",
)


def _wishes(cluster: Cluster) -> Cluster:
    """What others than the poll task decide about."""
    bare = Cluster(name=cluster.name)
    return msgspec.structs.replace(
        cluster,
        reason="",
        message="",
        agent_version="",
        wire_version=0,
        **{name: getattr(bare, name) for name in _POLLED},
    )


def _merged(stored: Cluster, known: Cluster) -> Cluster:
    return msgspec.structs.replace(stored, **{name: getattr(known, name) for name in _POLLED})


class Retention(Struct, frozen=True, kw_only=True):
    """How long what is over is kept, in seconds."""

    placements_s: float = 7 * DAY_S
    history_s: float = 30 * DAY_S
    decisions_s: float = DAY_S
    changes_s: float = HOUR_S


#: What changes with the polls and is read by people: written in batches.
_BATCHED = ("capacity", "capacity_at", "last_contact_at", "failing_since", "grace_since")


class UpkeepLoop(Loop):
    interval_s = 1.0

    def __init__(self, board: Board, database: Database, clock: Clock, retention: Retention) -> None:
        super().__init__("upkeep", clock)
        self._board = board
        self._database = database
        self._retention = retention
        self._written: dict[str, Cluster] = {}
        self._pruned_at = 0.0

    async def run_once(self) -> None:
        await self._board.ready()
        await self._write_polled()
        if self.clock() - self._pruned_at >= HOUR_S:
            await self._prune()
            self._pruned_at = self.clock()

    async def _write_polled(self) -> None:
        pairs = [(self._before(c), c) for c in self._board.clusters.values()]
        pairs = [(before, after) for before, after in pairs if _differ(before, after)]
        if not pairs:
            return
        async with self._database.transaction(term=self._board.term) as connection:
            await cluster_store.save_clusters(connection, pairs)
        self._written.update({after.name: after for _, after in pairs})

    def _before(self, cluster: Cluster) -> Cluster:
        """The cluster as it is, but for what was written last of what the polls bring."""
        written = self._written.get(cluster.name)
        values = {name: getattr(written, name) if written else None for name in _BATCHED}
        return msgspec.structs.replace(cluster, **values)

    async def _prune(self) -> None:
        now, keep = self.clock(), self._retention
        async with self._database.transaction(term=self._board.term) as connection:
            gone = {
                "placements": await placements.prune(connection, now - keep.placements_s),
                "history entries": await history.prune(connection, now - keep.history_s),
                "decisions": await decisions.prune(connection, now - keep.decisions_s),
                "changes": await changes.prune(connection, keep.changes_s),
            }
        if any(gone.values()):
            log.info("pruned %s", ", ".join(f"{count} {what}" for what, count in gone.items() if count))


def _differ(before: Cluster, after: Cluster) -> bool:
    """Seen at a glance: a report that did not change is the same object."""
    return before.capacity is not after.capacity or any(getattr(before, n) != getattr(after, n) for n in _BATCHED[1:])
