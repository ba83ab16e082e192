"""A leader's board and its poll loops on a real database, with agents that answer from memory."""

import asyncio
import itertools
from collections.abc import Callable, Iterable

from hub.dispatch.capacity import Fleet
from hub.dispatch.clusters import HealthPolicy, Joined, step
from hub.dispatch.decide import DispatchPolicy, Memo, Plan, decide
from hub.dispatch.exchange import ExchangePolicy
from hub.dispatch.placement import Placement, State, Withdraw
from hub.loops.board import Board
from hub.loops.poll import PollLoop, PollPolicy
from hub.store import clusters, leases, placements
from hub.store.database import LEADER, Database
from tests.fake_agent import FakeAgent, FakeTransport
from tests.fleet_builders import make_offer, make_request

POLICY = PollPolicy(
    health=HealthPolicy(suspect_after=3, recover_after=2, lost_timeout_s=30),
    exchange=ExchangePolicy(resend_after_s=0.2),
    wait_s=0.5,
    answer_s=0.3,
    backoff_min_s=0.02,
    backoff_max_s=0.1,
    gap_s=0.001,
)
_numbers = itertools.count(1)


class Rig:
    """Offers go straight to the board: what the dispatch loop does is tested elsewhere."""

    def __init__(self, database: Database, clock, agents: Iterable[FakeAgent]) -> None:
        self.database = database
        self.clock = clock
        self.agents = {agent.name: agent for agent in agents}
        self.transport = FakeTransport(self.agents)
        #: Workloads whose owner chose MoveNow.
        self.may_run_twice: set[str] = set()
        self.board: Board = None  # type: ignore[assignment] - set by start
        self.polling: PollLoop = None  # type: ignore[assignment]

    async def register(self) -> None:
        await joined(self.database, self.agents, self.clock)

    async def start(self) -> None:
        """Take the lead with a new term and begin to poll; as after a crash when it is called again."""
        async with self.database.transaction() as connection:
            lease = await leases.acquire(connection, LEADER, "rig", 3600)
        assert lease is not None
        self.board = Board(self.database, self.clock, lease.term)
        await self.board.ready()
        self.polling = PollLoop(self.board, self.transport, self.clock, POLICY)
        self.polling.start()

    async def crash(self) -> None:
        """Whatever was under way is cut off."""
        for poll in self.polling.polls.values():
            poll._task.cancel()
            await poll._tasks.stop()
            await asyncio.wait({poll._task})
        await self.polling.stop(0)

    async def stop(self) -> None:
        await self.polling.stop()

    async def offer(self, name: str, *, cluster: str | None = None, gpus: int = 1, **fields) -> Placement | None:
        """Decide as the dispatch loop would, and store; None when no cluster takes it now."""
        request = make_request(name, gpus=gpus, configured=(cluster,) if cluster else None, **fields)
        await self.board.remember([request.workload])
        plan = self.decide(request)
        offers = [
            make_offer(
                request,
                choice,
                past=self.board.of_workload(request.workload),
                placement_id=f"p{next(_numbers)}",
                now=self.clock(),
            )
            for choice in plan.offers
        ]
        saved = await self.board.offer(offers, [plan.record])
        return saved[0] if saved else None

    def decide(self, request) -> Plan:
        past = self.board.of_workload(request.workload, request.uid)
        return decide(request, self.board.fleet, past, {}, self.clock(), DispatchPolicy(), Memo())

    async def withdraw(self, placement: Placement) -> None:
        now = self.board.placements[placement.id]
        await self.board.step([(now, Withdraw(generation=now.generation, now=self.clock(), reason="Cancelled"))])

    def state(self, placement: Placement) -> State:
        return self.board.placements[placement.id].state

    async def stored(self, placement: Placement) -> Placement:
        async with self.database.transaction() as connection:
            found = await placements.get(connection, placement.id)
        assert found is not None
        return found

    async def until(self, condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
        """Wait for the polls to bring it about."""
        async with asyncio.timeout(within_s):
            while not condition():
                polls = list(self.polling.polls.values())
                waits = [asyncio.ensure_future(s.wait()) for p in polls for s in (p.applied, p.failed, p.done_once)]
                waits.append(asyncio.ensure_future(self.polling.done_once.wait()))
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)
                for wait in waits:
                    wait.cancel()

    @property
    def fleet(self) -> Fleet:
        return self.board.fleet


async def joined(database: Database, names: Iterable[str], clock) -> None:
    """Clusters of these names whose agents have joined, and were not polled yet."""
    async with database.transaction() as connection:
        for name in names:
            invited = await clusters.invite(connection, name, token_hash=name, expires_at=clock() + 60)
            event = Joined(now=clock(), address=f"https://{name}:8443", certificate_pem=f"certificate of {name}")
            await clusters.save_cluster(connection, invited, step(invited, event, HealthPolicy()))
