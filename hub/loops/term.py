"""What a leader runs in one term: everything that decides or writes, made anew each time and stopped when the term is over.

admission ──QuotaReserved──▶ dispatch ──offers──▶ polling ──reports──▶ mirror ──Admitted, Finished──▶ management cluster
jobs: Workloads of jobs        health, registry, upkeep, views: everything else
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence

from msgspec import Struct

from hub.dispatch.clusters import HealthPolicy
from hub.dispatch.decide import DispatchPolicy
from hub.dispatch.request import LostPolicy
from hub.dispatch.routes import BuiltInCheck
from hub.fleet.transport import Transport
from hub.kueue.integrations.reconcile import Policy as JobPolicy
from hub.kueue.integrations.registry import INTEGRATIONS
from hub.kueue.runtime.admission import AdmissionLoop
from hub.kueue.runtime.client import Client
from hub.kueue.runtime.events import EventRecorder
from hub.kueue.runtime.informers import Informers
from hub.kueue.runtime.jobs import JobLoop
from hub.kueue.runtime.loop import Clock, Loop, LoopStatus
from hub.loops.board import Board
from hub.loops.dispatch import DispatchLoop
from hub.loops.management import Management
from hub.loops.mirror import ConfigLoop, MirrorLoop, ViewsLoop
from hub.loops.poll import PollLoop, PollPolicy
from hub.loops.upkeep import HealthLoop, RegistryLoop, Retention, UpkeepLoop
from hub.store.database import Database

log = logging.getLogger(__name__)


class TermPolicy(Struct, frozen=True, kw_only=True):
    """Everything that administrators may set about what a leader does."""

    poll: PollPolicy = PollPolicy()
    dispatch: DispatchPolicy = DispatchPolicy()
    lost_policy: LostPolicy = "Wait"
    retention: Retention = Retention()

    @property
    def health(self) -> HealthPolicy:
        return self.poll.health


class Term:
    def __init__(
        self,
        term: int,
        *,
        database: Database,
        management: Client,
        transport: Transport,
        clock: Clock,
        policy: TermPolicy,
    ) -> None:
        self.board = Board(database, clock, term)
        self._database = database
        self._informers = Informers(management, clock)
        self.management = Management(self._informers, INTEGRATIONS.values(), lost_policy=policy.lost_policy)
        recorder = EventRecorder(management, clock)
        self.admission = AdmissionLoop(self._informers, clock, recorder, built_in_check=BuiltInCheck())
        self.jobs = JobLoop(
            self._informers,
            clock,
            recorder,
            policy=JobPolicy.MANAGER,
            integrations=INTEGRATIONS.values(),
            placed=self.board.is_placed,
        )
        self.dispatch = DispatchLoop(
            self.board, self.management, clock, new_id=lambda: uuid.uuid4().hex[:20], policy=policy.dispatch
        )
        self.mirror = MirrorLoop(self.board, self.management, self.dispatch, recorder, clock)
        self.polling = PollLoop(self.board, transport, clock, policy.poll)
        self.health = HealthLoop(self.board, clock, policy.health)
        self.registry = RegistryLoop(self.board, database, clock)
        views = ViewsLoop(self.board, self.management, self.admission.state, database, clock)
        self._loops: list[Loop] = [
            recorder,
            self.admission,
            self.jobs,
            self.dispatch,
            self.mirror,
            self.polling,
            self.health,
            self.registry,
            ConfigLoop(self.board, self.management, clock),
            views,
            UpkeepLoop(self.board, database, clock, policy.retention),
        ]
        self.board.listeners.workloads.append(self.jobs.touch)

    @property
    def statuses(self) -> Sequence[LoopStatus]:
        loops: list[Loop] = [*self._loops, *self.polling.polls.values(), *self._informers.all]
        return [loop.status for loop in loops]

    async def start(self) -> None:
        """Placements first: what is known to run must be known before anybody looks at a job."""
        await self.board.ready()
        self.management.follow_owners()
        self._informers.start()
        for loop in self._loops:
            loop.start()

    def clusters_changed(self) -> None:
        """People registered, cordoned or removed a cluster, or an agent joined."""
        self.registry.wake()

    async def stop(self) -> None:
        await asyncio.gather(*(loop.stop() for loop in reversed(self._loops)))
        await self._informers.stop()
