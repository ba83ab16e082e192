"""What the leader knows: clusters, placements and ledger in memory, in step with the database.

    loops ──decide on memory──▶ Board.save (one transaction, under the leader's term) ──▶ memory ──▶ wake-ups

The database comes first: memory changes only after the commit, so it never knows more than what would survive a crash. After
a commit whose outcome is unknown the board is loaded anew before anybody decides again. Only the leader writes placements,
and only one loop at a time works on those of one cluster (`lock`), so what it decided on is what it saves over.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from hub.dispatch.capacity import Fleet
from hub.dispatch.clusters import Cluster, ClusterState
from hub.dispatch.decide import DecisionRecord
from hub.dispatch.placement import (
    DispatchAgain,
    Event,
    Instruction,
    Mirror,
    Placement,
    Record,
    Send,
    State,
    intent_of,
    step,
)
from hub.dispatch.scores import faded
from hub.kueue.api.meta import Instant, ObjectKey
from hub.kueue.runtime.loop import Clock
from hub.store import clusters as cluster_store
from hub.store import decisions, placements
from hub.store.database import Database
from hub.store.decisions import Decision
from hub.store.errors import StoreError
from hub.store.placements import Move

log = logging.getLogger(__name__)

_FAILURES = frozenset({State.REFUSED, State.EVICTED, State.LOST})


class Change(Struct, frozen=True, kw_only=True):
    """One placement before and after a decision, and what follows from it."""

    before: Placement
    after: Placement
    instructions: tuple[Instruction, ...] = ()


class Listeners:
    """Whom to wake. Callbacks must not await; each is a hint, the truth is on the board."""

    def __init__(self) -> None:
        self.intents: list[Callable[[str], None]] = []
        self.workloads: list[Callable[[ObjectKey], None]] = []
        self.room: list[Callable[[], None]] = []
        self.clusters: list[Callable[[], None]] = []

    def workload_changed(self, key: ObjectKey, *, but: Callable[[ObjectKey], None] | None = None) -> None:
        """What is known about the workload changed. `but`: whoever found out need not be told."""
        _call([callback for callback in self.workloads if callback != but], key)

    def tell(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send():
                    _call(self.intents, instruction.cluster)
                case Mirror():
                    _call(self.workloads, instruction.workload)
                case DispatchAgain():
                    for callback in self.room:
                        callback()
                case _:
                    pass


def _call(callbacks: Iterable[Callable[..., None]], *arguments: object) -> None:
    for callback in callbacks:
        callback(*arguments)


class Board:
    """One leader's term. Made anew for every term."""

    def __init__(self, database: Database, clock: Clock, term: int) -> None:
        self.clock = clock
        self.term = term
        self.listeners = Listeners()
        self.fleet = Fleet()
        #: Every placement of a workload that matters still: all unreleased ones, and what `remember` has brought.
        self.placements: dict[str, Placement] = {}
        self._database = database
        self._by_workload: dict[ObjectKey, list[str]] = {}
        self._unreleased: dict[str, dict[str, None]] = {}
        self._outbox: dict[str, dict[str, None]] = {}
        #: Workloads that the database has placements of and that were not asked for yet. What comes later is known.
        self._stored: set[ObjectKey] = set()
        self._failures: dict[str, tuple[float, Instant]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._doubt = True
        self._loading = asyncio.Lock()

    # --- load --------------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Return when memory is what the database says; loads it when there is doubt. Raises StoreError."""
        async with self._loading:
            if self._doubt:
                await self._load()
                self._doubt = False

    async def _load(self) -> None:
        async with self._database.transaction(term=self.term) as connection:
            known = await cluster_store.list_clusters(connection)
            unreleased = await placements.load_unreleased(connection)
            self._stored = set(await placements.list_workloads(connection))
        self.fleet = Fleet([_afresh(c, self.fleet.clusters.get(c.name)) for c in known])
        self.placements, self._by_workload, self._unreleased, self._outbox = {}, {}, {}, {}
        for placement in unreleased:
            self._put(placement)
        log.info("loaded %d clusters and %d placements for term %d", len(known), len(unreleased), self.term)

    async def remember(self, workloads: Sequence[ObjectKey]) -> None:
        """Load all placements that these workloads ever had, as far as they are not known. Needed before an offer: what
        finished must never be started again, whoever led then.
        """
        missing = [key for key in workloads if key in self._stored]
        if not missing:
            return
        async with self._database.transaction() as connection:
            found = await placements.for_workloads(connection, missing)
        for placement in found:
            if placement.id not in self.placements:
                self._put(placement)
        for key in missing:
            self._sort(key)
        self._stored.difference_update(missing)

    def forget(self, workload: ObjectKey) -> None:
        """The workload is gone: keep only what is still on a cluster."""
        for placement_id in list(self._by_workload.get(workload, ())):
            if self.placements[placement_id].released:
                self._drop(self.placements[placement_id])

    # --- look --------------------------------------------------------------------------------------------------------

    @property
    def clusters(self) -> dict[str, Cluster]:
        return self.fleet.clusters

    def of_workload(self, workload: ObjectKey, uid: str | None = None) -> list[Placement]:
        """Its known placements, newest last; with `uid` without those of earlier workloads of this name."""
        found = (self.placements[placement_id] for placement_id in self._by_workload.get(workload, ()))
        return [p for p in found if uid is None or p.workload_uid == uid]

    def past_of(self, workload: ObjectKey, uid: str) -> list[Placement]:
        """What counts for its next offer: its own placements, and whatever of an earlier namesake may still run."""
        found = self.of_workload(workload)
        over = (State.LOST, State.FINISHED)
        return [p for p in found if p.workload_uid == uid or not (p.released or p.state in over)]

    def on_cluster(self, cluster: str) -> list[Placement]:
        """Everything there that is not released, oldest first."""
        return [self.placements[placement_id] for placement_id in self._unreleased.get(cluster, ())]

    def outbox(self, cluster: str) -> list[Placement]:
        """Those whose intent the agent has not acknowledged."""
        return [self.placements[placement_id] for placement_id in self._outbox.get(cluster, ())]

    def is_placed(self, workload: ObjectKey) -> bool:
        """May anything of it still run, as far as anybody waits for the agent's word?"""
        return any(not p.released and p.state not in (State.LOST, State.FINISHED) for p in self.of_workload(workload))

    def failures(self, now: Instant) -> dict[str, float]:
        """Recent refusals, evictions and losses by cluster, faded with time."""
        left = {cluster: faded(count, now - at) for cluster, (count, at) in self._failures.items()}
        return {cluster: count for cluster, count in left.items() if count}

    def lock(self, cluster: str) -> asyncio.Lock:
        """Hold it from decision to save when stepping placements of this cluster."""
        return self._locks.setdefault(cluster, asyncio.Lock())

    # --- save --------------------------------------------------------------------------------------------------------

    async def offer(self, offers: Sequence[Placement], records: Sequence[DecisionRecord] = ()) -> list[Placement]:
        """Store new placements with the decisions that led to them; those that were stored. A workload that has a live
        placement already (the board would be out of date) gets none.
        """
        stored: list[bool] = []
        try:
            async with self._database.transaction(term=self.term) as connection:
                stored = await placements.save_new_many(connection, offers)
                await decisions.save_many(connection, [_decision(r) for r in records])
        except StoreError:
            self._in_doubt()
            raise
        saved = [p for p, ok in zip(offers, stored, strict=True) if ok]
        if len(saved) < len(offers):
            self._in_doubt()
        for placement in saved:
            self._put(placement)
        for cluster in dict.fromkeys(p.cluster for p in saved):
            _call(self.listeners.intents, cluster)
        for placement in saved:
            _call(self.listeners.workloads, placement.workload)
        return saved

    async def record(self, records: Sequence[DecisionRecord]) -> None:
        """Store decisions that offered nothing."""
        async with self._database.transaction(term=self.term) as connection:
            await decisions.save_many(connection, [_decision(r) for r in records])

    async def save(
        self, changes: Sequence[Change], clusters: Sequence[tuple[Cluster, Cluster]] = ()
    ) -> list[Placement]:
        """Store steps of placements and changes of clusters in one transaction; the placements that were stored.

        Hold the cluster's lock from the decision on. Raises StoreError; then nothing of it counts.
        """
        moves = [Move(before=c.before, after=c.after, records=_records(c.instructions)) for c in changes]
        try:
            async with self._database.transaction(term=self.term) as connection:
                moved = await placements.step_many(connection, moves) if moves else []
                kept = await cluster_store.save_clusters(connection, clusters) if clusters else []
        except StoreError:
            self._in_doubt()
            raise
        if not (all(moved) and all(kept)):
            self._in_doubt()
        for (_, after), ok in zip(clusters, kept, strict=True):
            if ok:
                self.put_cluster(after)
        done = [c for c, ok in zip(changes, moved, strict=True) if ok]
        for change in done:
            self._put(change.after)
        for change in done:
            self.listeners.tell(change.instructions)
        return [c.after for c in done]

    async def step(self, pairs: Sequence[tuple[Placement, Event]]) -> list[Placement]:
        """Step placements of any clusters with events that the hub itself makes; those that were stored."""
        by_cluster: dict[str, list[tuple[str, Event]]] = {}
        for placement, event in pairs:
            by_cluster.setdefault(placement.cluster, []).append((placement.id, event))
        saved: list[Placement] = []
        for cluster, events in by_cluster.items():
            async with self.lock(cluster):
                saved += await self.save([c for c in (self._stepped(*e) for e in events) if c is not None])
        return saved

    def _stepped(self, placement_id: str, event: Event) -> Change | None:
        """A step on what the placement is by now; an event for an older generation falls flat."""
        before = self.placements.get(placement_id)
        if before is None:
            return None
        after, instructions = step(before, event)
        return Change(before=before, after=after, instructions=instructions) if after != before else None

    def put_cluster(self, cluster: Cluster) -> None:
        """Take in a cluster as it is stored, or with what lives in memory only (contact, counters)."""
        known = self.fleet.clusters.get(cluster.name)
        if self.fleet.update(cluster):
            for callback in self.listeners.room:
                callback()
        if known is None or (known.state, known.address) != (cluster.state, cluster.address):
            _call(self.listeners.clusters)

    def drop_cluster(self, name: str) -> None:
        self.fleet.forget(name)
        _call(self.listeners.clusters)

    def _in_doubt(self) -> None:
        """Nobody knows what was stored: load before the next decision."""
        self._doubt = True

    def _put(self, placement: Placement) -> None:
        before = self.placements.get(placement.id)
        self.placements[placement.id] = placement
        if before is None:
            self._by_workload.setdefault(placement.workload, []).append(placement.id)
        _mark(self._unreleased, placement, holds=not placement.released)
        unacknowledged = placement.acknowledged < placement.generation and intent_of(placement) is not None
        _mark(self._outbox, placement, holds=unacknowledged)
        self.fleet.put(placement)
        if placement.state in _FAILURES and before is not None and before.state is not placement.state:
            self._count_failure(placement)

    def _count_failure(self, placement: Placement) -> None:
        now = placement.ended_at or self.clock()
        count, at = self._failures.get(placement.cluster, (0.0, now))
        self._failures[placement.cluster] = (faded(count, now - at) + 1.0, now)

    def _drop(self, placement: Placement) -> None:
        del self.placements[placement.id]
        ids = self._by_workload[placement.workload]
        ids.remove(placement.id)
        if not ids:
            del self._by_workload[placement.workload]

    def _sort(self, workload: ObjectKey) -> None:
        ids = self._by_workload.get(workload, [])
        ids.sort(key=lambda i: (self.placements[i].offered_at, self.placements[i].attempt))


def _mark(index: dict[str, dict[str, None]], placement: Placement, *, holds: bool) -> None:
    on_cluster = index.setdefault(placement.cluster, {})
    if holds:
        on_cluster[placement.id] = None
    else:
        on_cluster.pop(placement.id, None)


def _records(instructions: Iterable[Instruction]) -> tuple[Record, ...]:
    return tuple(i for i in instructions if isinstance(i, Record))


def _decision(record: DecisionRecord) -> Decision:
    return Decision(
        workload_uid=record.uid,
        namespace=record.workload.namespace,
        workload=record.workload.name,
        at=record.at,
        record=record,
    )


def _afresh(stored: Cluster, known: Cluster | None) -> Cluster:
    """What a new term begins with. A silence before it may have been the hub's own, so every grace starts again; within a
    term what is known in memory goes on.
    """
    if known is not None:
        return msgspec.structs.replace(
            stored,
            failing_since=known.failing_since,
            grace_since=known.grace_since,
            failures_in_row=known.failures_in_row,
            answers_in_row=known.answers_in_row,
            last_contact_at=known.last_contact_at,
            capacity_at=known.capacity_at,
        )
    if stored.state is ClusterState.LOST:
        return stored
    return msgspec.structs.replace(stored, failing_since=None, grace_since=None)
