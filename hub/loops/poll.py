"""Polling the agents: one task per cluster, so that a slow or hung one costs nobody else anything.

    wait for news ────────────────────────────▶ answer ──fold, save, wake──▶ again
        │ intents appear                          ▲
        └──a second request, at once──▶ answer ───┘      the agent answers the one that waits when the second one comes

A poll fails by its own time limit; then the next one waits, longer each time and with jitter. A failed poll is the cluster's
fault, a failed transaction is not: an answer that could not be stored is asked for again with the old cursor.
"""

import asyncio
import logging
import random

import msgspec
from msgspec import Struct

from hub.dispatch.clusters import Cluster, HealthPolicy, PollFailed, step
from hub.dispatch.exchange import ExchangePolicy, Folded, Session, fold, request_of
from hub.fleet.transport import PollError, Target, Transport
from hub.kueue.runtime.loop import Clock, Loop, LoopStatus, Signal, Tasks
from hub.kueue.wire import PollAnswer, PollRequest
from hub.loops.board import Board, Change

log = logging.getLogger(__name__)

Answer = PollAnswer | PollError

#: How long the answer to a request that was superseded may take to arrive.
_SUPERSEDED_S = 0.25


class PollPolicy(Struct, frozen=True, kw_only=True):
    health: HealthPolicy = HealthPolicy()
    exchange: ExchangePolicy = ExchangePolicy()
    #: How long the agent may wait for news: the capacity is at most so old, and a quiet agent costs a request so often.
    wait_s: float = 1.0
    #: How long an answer may take beyond that.
    answer_s: float = 10.0
    backoff_min_s: float = 0.5
    backoff_max_s: float = 15.0
    #: Shortest time from one poll to the next: many intents and reports then share one.
    gap_s: float = 0.02


class ClusterPoll(Loop):
    """The talk with one agent."""

    def __init__(self, board: Board, transport: Transport, cluster: str, clock: Clock, policy: PollPolicy) -> None:
        super().__init__(f"poll {cluster}", clock)
        self.cluster = cluster
        self.session = Session()
        #: Set after every answer that was stored; tests wait for it.
        self.applied = Signal()
        self.failed = Signal()
        self._board = board
        self._transport = transport
        self._policy = policy
        self._intents = asyncio.Event()
        self._tasks = Tasks(f"poll {cluster}")

    def intents_changed(self) -> None:
        """Something is to be sent: do not wait for the answer that is outstanding."""
        self._intents.set()

    async def stop(self, grace_s: float = 5.0) -> None:
        self._intents.set()
        await super().stop(grace_s)
        await self._tasks.stop()

    async def run_once(self) -> None:
        await self._board.ready()
        if self.cluster not in self._board.clusters:
            self.interval_s = self._policy.wait_s
            return
        try:
            await self._exchange()
        except PollError as error:
            await self._count_failure(error)
            self.interval_s = self._back_off_s()
            self.failed.set()
        else:
            self.interval_s = self._policy.gap_s

    # --- one or two requests -----------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        """Send what is due and take the answer in. While the agent waits for news, intents that appear do not wait."""
        self._intents.clear()
        request = self._request()
        task = self._send(request)
        if request.wait_s and not await self._answered_first(task):
            if self.stopping:
                task.cancel()
            else:
                await self._bring_intents(request, task)
        else:
            await self._take(request, await task)

    async def _answered_first(self, task: asyncio.Task[Answer]) -> bool:
        """False: there is something to send, and no answer yet."""
        wake = self._tasks.spawn(self._intents.wait(), "intents")
        await asyncio.wait({task, wake}, return_when=asyncio.FIRST_COMPLETED)
        wake.cancel()
        return task.done()

    async def _bring_intents(self, older_request: PollRequest, older: asyncio.Task[Answer]) -> None:
        """A second request while the first one waits: the agent answers the first one then, empty or with news that the
        second one has as well. Should it not, the first one is given up.
        """
        request = self._request()
        newer = self._send(request)
        await asyncio.wait({newer})
        await asyncio.wait({older}, timeout=_SUPERSEDED_S)
        older.cancel()
        if older.done() and not older.cancelled() and isinstance(older.result(), PollAnswer):
            await self._take(older_request, older.result())
        await self._take(request, newer.result())

    def _request(self) -> PollRequest:
        cluster = self._board.clusters[self.cluster]
        request, self.session = request_of(
            cluster,
            self._board.outbox(self.cluster),
            self._board.on_cluster(self.cluster),
            self.session,
            term=self._board.term,
            wait_s=self._policy.wait_s,
            now=self.clock(),
            health=self._policy.health,
            policy=self._policy.exchange,
        )
        return request

    def _send(self, request: PollRequest) -> asyncio.Task[Answer]:
        cluster = self._board.clusters[self.cluster]
        target = Target(cluster=cluster.name, address=cluster.address, certificate_pem=cluster.certificate_pem)
        return self._tasks.spawn(self._attempt(target, request), f"request {request.sequence}")

    async def _attempt(self, target: Target, request: PollRequest) -> Answer:
        timeout_s = request.wait_s + self._policy.answer_s
        try:
            return await self._transport.poll(target, request, timeout_s=timeout_s)
        except PollError as error:
            return error

    # --- what came of it ---------------------------------------------------------------------------------------------

    async def _take(self, request: PollRequest, answer: Answer) -> None:
        """Store what the answer means; only then does the session advance. Raises PollError, StoreError."""
        if isinstance(answer, PollError):
            raise answer
        await self._board.ready()
        async with self._board.lock(self.cluster):
            before = self._board.clusters.get(self.cluster)
            if before is None:
                return
            folded = fold(
                before,
                self._board.placements,
                self._board.on_cluster(self.cluster),
                request,
                answer,
                self.session,
                now=self.clock(),
                health=self._policy.health,
            )
            if folded.dropped:
                return
            await self._store(before, folded)
            self.session = msgspec.structs.replace(folded.session, sequence=self.session.sequence)
        for problem in folded.problems:
            log.warning("%s: %s", self.cluster, problem)
        self.applied.set()

    async def _store(self, before: Cluster, folded: Folded) -> None:
        changes = [Change(before=c.before, after=c.after, instructions=c.instructions) for c in folded.changes]
        moved = _worth_storing(before, folded.cluster)
        if changes or moved:
            await self._board.save(changes, [(before, folded.cluster)] if moved else [])
        if not moved:
            self._board.put_cluster(folded.cluster)

    async def _count_failure(self, error: PollError) -> None:
        # What was on its way may be lost: it is due again at once.
        self.session = msgspec.structs.replace(self.session, sent={})
        async with self._board.lock(self.cluster):
            before = self._board.clusters.get(self.cluster)
            if before is None:
                return
            event = PollFailed(now=self.clock(), reason=error.reason, message=str(error))
            after = step(before, event, self._policy.health)
            if after.state is not before.state or after.reason != before.reason:
                log.warning("%s is %s: %s: %s", self.cluster, after.state, error.reason, error)
                await self._board.save([], [(before, after)])
            else:
                self._board.put_cluster(after)

    def _back_off_s(self) -> float:
        cluster = self._board.clusters.get(self.cluster)
        streak = cluster.failures_in_row if cluster else 1
        # The first failures come quickly, so that a suspect is known as one soon.
        doubling = max(0, streak - self._policy.health.suspect_after)
        delay_s = min(self._policy.backoff_max_s, self._policy.backoff_min_s * 2.0 ** min(doubling, 16))
        return delay_s * random.uniform(0.7, 1.0)  # noqa: S311 - jitter


_MOVES_WITH_EVERY_POLL = (
    "capacity",
    "capacity_at",
    "last_contact_at",
    "failures_in_row",
    "answers_in_row",
    "cursor",
)


def _worth_storing(before: Cluster, after: Cluster) -> bool:
    """Capacity and contact times are written in batches by upkeep; the cursor matters to this process only."""
    quiet = {name: getattr(before, name) for name in _MOVES_WITH_EVERY_POLL}
    return msgspec.structs.replace(after, **quiet) != before


class PollLoop(Loop):
    """Keeps one task per registered cluster whose agent has joined."""

    interval_s = 5.0

    def __init__(self, board: Board, transport: Transport, clock: Clock, policy: PollPolicy) -> None:
        super().__init__("polling", clock)
        self.polls: dict[str, ClusterPoll] = {}
        self._board = board
        self._transport = transport
        self._policy = policy
        self._addresses: dict[str, tuple[str, str]] = {}
        board.listeners.intents.append(self._intents_changed)
        board.listeners.clusters.append(self.wake)

    @property
    def statuses(self) -> list[LoopStatus]:
        return [poll.status for poll in self.polls.values()]

    def _intents_changed(self, cluster: str) -> None:
        if (poll := self.polls.get(cluster)) is not None:
            poll.intents_changed()

    async def run_once(self) -> None:
        await self._board.ready()
        wanted = {c.name: (c.address, c.certificate_pem) for c in self._board.clusters.values() if c.address}
        for name in [n for n in self.polls if self._addresses[n] != wanted.get(n)]:
            await self._end(name)
        for name in wanted.keys() - self.polls.keys():
            poll = ClusterPoll(self._board, self._transport, name, self.clock, self._policy)
            self.polls[name], self._addresses[name] = poll, wanted[name]
            poll.start()

    async def _end(self, name: str) -> None:
        """The cluster is gone, or its agent joined anew."""
        poll = self.polls.pop(name)
        await poll.stop()
        await self._transport.forget(name)

    async def stop(self, grace_s: float = 5.0) -> None:
        await super().stop(grace_s)
        await asyncio.gather(*(poll.stop(grace_s) for poll in self.polls.values()))
