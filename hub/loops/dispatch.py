"""Dispatch: every Workload that has quota and no cluster gets one, or a reason why it waits.

    Workloads, placements, room ──wake──▶ 1 withdraw what nobody wants any more
                                          2 who waits for a cluster, by priority and age
                                          3 decide one after the other, each counted at once
                                          4 store all offers of the turn in one transaction
                                          5 tell the polls and the mirror

Workloads of one shape are asked about once: when the first of them finds no room, the others wait with it until a cluster
has more room, so a long queue costs what its shapes cost.
"""

import heapq
import logging
from collections.abc import Callable, Iterable

from msgspec import Struct

from hub.dispatch.decide import DecisionRecord, DispatchPolicy, Memo, Outcome, Plan, decide, for_workload
from hub.dispatch.mirroring import wants_a_cluster, wish_of
from hub.dispatch.offer import offer, payload, withdrawals
from hub.dispatch.placement import LIVE, Event, Placement
from hub.dispatch.request import Request
from hub.kueue.api.errors import ApiError
from hub.kueue.api.meta import Instant, ObjectKey, find_condition, parse_time
from hub.kueue.api.v1beta2 import Workload, names
from hub.kueue.integrations.interface import Integration
from hub.kueue.runtime.loop import Clock, Loop, Signal
from hub.loops.board import Board
from hub.loops.management import Management, Manifest, kind_text

log = logging.getLogger(__name__)

OFFERS_PER_TURN_MAX = 500
IDLE_S = 1.0

#: (priority, when quota was reserved, key): who goes first.
Rank = tuple[int, Instant, ObjectKey]


class Waiting(Struct, frozen=True):
    """A Workload that has quota and looks for a cluster."""

    request: Request
    shape: str
    rank: Rank


class DispatchLoop(Loop):
    interval_s = IDLE_S

    def __init__(
        self,
        board: Board,
        management: Management,
        clock: Clock,
        *,
        new_id: Callable[[], str],
        policy: DispatchPolicy | None = None,
    ) -> None:
        super().__init__("dispatch", clock)
        #: The last decision about every Workload that waits, kept until its gist changes.
        self.records: dict[ObjectKey, DecisionRecord] = {}
        #: Offers stored since the start; for people and benchmarks.
        self.offered = 0
        self.decided = Signal()
        self._board = board
        self._management = management
        self._new_id = new_id
        self._policy = policy or DispatchPolicy()
        self._memo = Memo()
        self._changed: dict[ObjectKey, None] = {}
        self._waiting: dict[ObjectKey, Waiting] = {}
        self._by_shape: dict[str, dict[ObjectKey, None]] = {}
        #: Shapes that found no room, with the plan that said so.
        self._parked: dict[str, Plan] = {}
        self._subscribed = False
        board.listeners.workloads.append(self._touch)
        board.listeners.room.append(self._room)

    # --- what wakes it -----------------------------------------------------------------------------------------------

    def _touch(self, key: ObjectKey) -> None:
        self._changed[key] = None
        self.wake()

    def _room(self) -> None:
        self._parked.clear()
        self.wake()

    def _subscribe(self) -> None:
        self._subscribed = True
        self._management.workloads.on_change(lambda key, old, new: self._touch(key))
        for view in (self._management.checks, self._management.configs, self._management.queues):
            view.on_change(lambda key, old, new: self._all_changed())
        for placement in self._board.placements.values():
            self._changed[placement.workload] = None

    def _all_changed(self) -> None:
        self._changed.update(dict.fromkeys(self._management.workloads.objects))
        self.wake()

    # --- one turn ----------------------------------------------------------------------------------------------------

    async def run_once(self) -> None:
        if not self._management.synced:
            self.interval_s = 0.05
            return
        await self._board.ready()
        if not self._subscribed:
            self._subscribe()
        changed, self._changed = self._changed, {}
        try:
            await self._withdraw(changed)
            for key in changed:
                self._sort_in(key)
            retry_at = await self._dispatch()
        except BaseException:
            self._changed = changed | self._changed
            raise
        now = self.clock()
        self.interval_s = (
            0.0 if retry_at is not None and retry_at <= now else min(IDLE_S, (retry_at or now + 1e9) - now)
        )
        self.decided.set()

    async def _withdraw(self, changed: Iterable[ObjectKey]) -> None:
        """What the management cluster does not want any more."""
        now, events = self.clock(), list[tuple[Placement, Event]]()
        for key in changed:
            live = [p for p in self._board.of_workload(key) if p.state in LIVE]
            workload = self._management.workloads.get(key)
            for placement in live:
                events += withdrawals([placement], wish_of(workload, placement.workload_uid), now)
            if workload is None:
                self._board.forget(key)
        if events:
            await self._board.step(events)

    def _sort_in(self, key: ObjectKey) -> None:
        """Into the line of those that wait for a cluster, or out of it."""
        self._leave(key)
        workload = self._management.workloads.get(key)
        waiting = self._waits(workload) if workload is not None else None
        if waiting is not None:
            self._waiting[key] = waiting
            self._by_shape.setdefault(waiting.shape, {})[key] = None
        elif workload is None or find_condition(workload.status.conditions, names.FINISHED) is not None:
            self.records.pop(key, None)

    def _waits(self, workload: Workload) -> Waiting | None:
        route = self._management.route_of(workload)
        if route is None or route.problem or not wants_a_cluster(workload, route):
            return None
        uid = workload.metadata.uid
        if any(p.state in LIVE for p in self._board.of_workload(workload.metadata.key, uid)):
            return None
        integration, job = self._management.job_of(workload)
        if integration is None or job is None:
            return None
        try:
            request = self._management.request_of(workload, route, kind_text(integration))
        except ApiError as error:
            log.warning("Workload %s cannot be dispatched: %s", workload.metadata.key, error)
            return None
        return Waiting(request, request.shape(), (-request.priority, _reserved_at(workload), workload.metadata.key))

    # --- deciding ----------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> Instant | None:
        """Decide about those who wait. Returns when to look again though nothing happens; None: then is soon enough."""
        heads = self._heads()
        await self._board.remember([w.request.workload for w in heads])
        offers: list[Placement] = []
        records: list[DecisionRecord] = []
        retries: list[Instant] = []
        now, failures = self.clock(), self._board.failures(self.clock())
        for waiting in heads:
            if waiting.shape in self._parked:
                plan = for_workload(self._parked[waiting.shape], waiting.request, now)
            else:
                plan = self._decide(waiting, failures, now)
            offers += self._offers(waiting, plan, now)
            records += self._news(plan.record)
            retries += [plan.retry_at] if plan.retry_at is not None else []
        await self._store(offers, records)
        if len(heads) >= OFFERS_PER_TURN_MAX:
            return now
        return min(retries, default=None)

    def _heads(self) -> list[Waiting]:
        """Those to decide about now: the first of every shape that is not parked, in order, and who has no record yet."""
        lines = [
            heapq.nsmallest(OFFERS_PER_TURN_MAX, (self._waiting[key] for key in keys), key=_rank)
            for shape, keys in self._by_shape.items()
            if shape not in self._parked
        ]
        merged = heapq.merge(*lines, key=_rank)
        heads = [w for w, _ in zip(merged, range(OFFERS_PER_TURN_MAX), strict=False)]
        room = OFFERS_PER_TURN_MAX - len(heads)
        untold = (
            w for w in self._waiting.values() if w.shape in self._parked and w.request.workload not in self.records
        )
        return heads + [w for w, _ in zip(untold, range(room), strict=False)]

    def _decide(self, waiting: Waiting, failures: dict[str, float], now: Instant) -> Plan:
        request = waiting.request
        past = self._board.past_of(request.workload, request.uid)
        plan = decide(request, self._board.fleet, past, failures, now, self._policy, self._memo)
        if not plan.offers and not past and plan.record.outcome is not Outcome.HELD:
            self._parked[waiting.shape] = plan
        return plan

    def _offers(self, waiting: Waiting, plan: Plan, now: Instant) -> list[Placement]:
        """The placements of a plan. They count in the fleet at once: the next decision must not use the same room."""
        workload = self._management.workloads.get(waiting.request.workload)
        integration, job = self._management.job_of(workload) if workload is not None else (None, None)
        if not plan.offers or workload is None or integration is None or job is None:
            return []
        made = [self._placement(waiting.request, plan, workload, integration, job, now)]
        for placement in made:
            self._board.fleet.put(placement)
        return made

    def _placement(
        self, request: Request, plan: Plan, workload: Workload, integration: Integration, job: Manifest, now: Instant
    ) -> Placement:
        counts = {need.name: need.count for need in request.pod_sets}
        what = payload(workload, counts, integration.clean_for_worker(job))
        past = self._board.past_of(request.workload, request.uid)
        return offer(request, plan.offers[0], what, past, placement_id=self._new_id(), now=now)

    def _news(self, record: DecisionRecord) -> list[DecisionRecord]:
        """The record, if it says something else than the last one; figures alone are no news."""
        before = self.records.get(record.workload)
        if before is not None and before.uid == record.uid and _gist(before) == _gist(record):
            return []
        self.records[record.workload] = record
        return [record]

    async def _store(self, offers: list[Placement], records: list[DecisionRecord]) -> None:
        if offers:
            saved = await self._board.offer(offers, records)
            self.offered += len(saved)
            for placement in saved:
                self._leave(placement.workload)
        elif records:
            await self._board.record(records)
        for record in records:
            if record.outcome is not Outcome.OFFERED:
                self._board.listeners.workload_changed(record.workload, but=self._touch)

    def _leave(self, key: ObjectKey) -> None:
        if (waiting := self._waiting.pop(key, None)) is not None:
            self._by_shape[waiting.shape].pop(key, None)
            if not self._by_shape[waiting.shape]:
                del self._by_shape[waiting.shape]


def _rank(waiting: Waiting) -> Rank:
    return waiting.rank


def _reserved_at(workload: Workload) -> Instant:
    reserved = find_condition(workload.status.conditions, names.QUOTA_RESERVED)
    return parse_time(reserved.last_transition_time) if reserved and reserved.last_transition_time else 0.0


def _gist(record: DecisionRecord) -> object:
    return (record.outcome, record.clusters, [(v.cluster, v.rule) for v in record.verdicts])
