"""An agent that answers from memory: wire version 1, a cluster of nodes, local admission by first fit, and faults.

`FakeAgent` is the agent and its cluster without any I/O; `FakeTransport` carries polls to many of them, as the hub's poll
loop asks for, and can lose, hold or refuse them. What ran is kept apart from what the agent says, in `runs`.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from hub.fleet.transport import Refused, Target, Unreachable
from hub.kueue.api.meta import format_time
from hub.kueue.wire import (
    Acknowledgement,
    Action,
    Amount,
    CapacityReport,
    FlavorCapacity,
    Hole,
    Intent,
    LocalQueueReport,
    Phase,
    PlacementReport,
    PollAnswer,
    PollRequest,
    QueueCapacity,
    QuotaRoom,
)

GPU = "nvidia.com/gpu"
_boots = itertools.count(1)


@dataclass
class Copy:
    """The remote objects of one placement: they survive the agent."""

    intent: Intent
    generation: int
    phase: Phase
    reason: str = ""
    message: str = ""
    node: int | None = None
    withdrawing: bool = False
    started_at: float | None = None


@dataclass
class Run:
    """Pods of one placement that really ran."""

    workload: str
    placement: str
    cluster: str
    started_at: float
    ended_at: float | None = None


@dataclass
class FakeAgent:
    name: str
    clock: Callable[[], float]
    nodes: int = 2
    gpus: int = 8
    flavor: str = "h100"
    #: How long a job runs; None: until told otherwise.
    run_s: float | None = None
    #: Called for a new intent: a reason to refuse it, or "".
    refuse: Callable[[Intent], str] = lambda intent: ""
    #: Withdrawn copies go away only when `settle` is called.
    slow_to_stop: bool = False
    #: Admitted copies stay Admitted until `start` is called.
    starts_pods: bool = True
    namespaces: tuple[str, ...] = ("team-a",)
    others: int = 0
    copies: dict[str, Copy] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    created: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        #: node -> GPUs that our copies use there.
        self._used: dict[int, int] = {}
        self._running: dict[str, Run] = {}
        self.restart()

    # --- what the agent keeps in memory only -------------------------------------------------------------------------

    def restart(self) -> None:
        self.boot_id = f"boot-{next(_boots)}"
        self.cursor = 0
        self._seen = (0, 0)
        self._changed: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        #: placement -> cursor, oldest first, and what was acknowledged.
        self._acknowledged: dict[str, int] = {}
        self._generations: dict[str, int] = {}
        self._capacity_at = 0
        self._capacity: CapacityReport | None = None
        for placement in self.copies:
            self._touch(placement)

    def _touch(self, placement: str) -> None:
        self.cursor += 1
        self._changed.pop(placement, None)
        self._changed[placement] = self.cursor
        self.news.set()

    # --- the poll ----------------------------------------------------------------------------------------------------

    def take(self, request: PollRequest) -> None:
        """Act on a request. Raises Refused for one that is older than another that was here already."""
        if (request.term, request.sequence) <= self._seen:
            raise Refused(f"HTTP 409: sequence {request.sequence} of term {request.term} is older than {self._seen}")
        self._seen = (request.term, request.sequence)
        if request.inventory is not None:
            for placement, copy in list(self.copies.items()):
                if placement not in request.inventory and not any(i.placement == placement for i in request.intents):
                    self._withdraw(placement, copy.generation)
        for intent in request.intents:
            self._obey(intent)
        self.tick()

    def _obey(self, intent: Intent) -> None:
        copy = self.copies.get(intent.placement)
        if copy is not None and copy.generation > intent.generation:
            return
        self.cursor += 1
        self._acknowledged.pop(intent.placement, None)
        self._acknowledged[intent.placement] = self.cursor
        self._generations[intent.placement] = intent.generation
        if intent.action is Action.WITHDRAW:
            self._withdraw(intent.placement, intent.generation)
        elif copy is None and self._gone.get(intent.placement, 0) >= intent.generation:
            self._touch(intent.placement)
        elif copy is None:
            self.created += 1
            self._create(intent)

    def _create(self, intent: Intent) -> None:
        reason = self.refuse(intent)
        node = None if reason else self._node_for(intent)
        if reason or node is None:
            self.refused(intent, reason or "NoQuota")
            return
        copy = self.copies[intent.placement] = Copy(intent, intent.generation, Phase.ADMITTED, node=node)
        self._take(copy, 1)
        self._touch(intent.placement)
        if self.starts_pods:
            self.start(intent.placement)

    def refused(self, intent: Intent, reason: str) -> None:
        self.copies.pop(intent.placement, None)
        self._gone[intent.placement] = intent.generation
        self._reasons[intent.placement] = reason
        self._touch(intent.placement)

    def _withdraw(self, placement: str, generation: int) -> None:
        copy = self.copies.get(placement)
        if copy is None:
            self._gone[placement] = max(generation, self._gone.get(placement, 0))
            self._reasons.pop(placement, None)
            self._touch(placement)
            return
        copy.withdrawing, copy.generation = True, max(generation, copy.generation)
        self._touch(placement)
        if not self.slow_to_stop:
            self.settle(placement)

    def settle(self, placement: str) -> None:
        """A withdrawn copy is gone now, with all its pods."""
        copy = self.copies.pop(placement)
        self._take(copy, -1)
        self._end_run(placement)
        self._gone[placement] = copy.generation
        self._touch(placement)

    def answer(self, request: PollRequest) -> PollAnswer:
        full = request.boot_id != self.boot_id
        since = 0 if full else request.cursor
        capacity = self.capacity()
        if capacity != self._capacity:
            self.cursor += 1
            self._capacity, self._capacity_at = capacity, self.cursor
        return PollAnswer(
            boot_id=self.boot_id,
            cursor=self.cursor,
            full=full,
            placements=[self.report(p) for p in newer(self._changed, since)],
            acknowledged=[
                Acknowledgement(placement=p, generation=self._generations[p]) for p in newer(self._acknowledged, since)
            ],
            capacity=capacity if self._capacity_at > since else None,
            clock=self.clock(),
        )

    def has_news(self, request: PollRequest) -> bool:
        return request.boot_id != self.boot_id or self.cursor > request.cursor

    def report(self, placement: str) -> PlacementReport:
        copy = self.copies.get(placement)
        if copy is None:
            reason = self._reasons.get(placement, "")
            phase = Phase.REFUSED if reason else Phase.GONE
            return PlacementReport(
                placement=placement, generation=self._gone[placement], phase=phase, reason=reason, message=reason
            )
        succeeded = True if copy.phase is Phase.FINISHED else None
        status = {"active": 1, "startTime": self._time(copy)} if copy.phase is Phase.RUNNING else {}
        if succeeded:
            status = _complete(self._time(copy), format_time(self.clock()))
        return PlacementReport(
            placement=placement,
            generation=copy.generation,
            phase=copy.phase,
            reason=copy.reason,
            message=copy.message,
            succeeded=succeeded,
            job_status=status,
        )

    def _time(self, copy: Copy) -> str:
        return format_time(copy.started_at if copy.started_at is not None else self.clock())

    # --- the cluster -------------------------------------------------------------------------------------------------

    def start(self, placement: str) -> None:
        copy = self.copies[placement]
        copy.phase, copy.started_at = Phase.RUNNING, self.clock()
        run = self._running[placement] = Run(copy.intent.workload, placement, self.name, self.clock())
        self.runs.append(run)
        self._touch(placement)

    def finish(self, placement: str) -> None:
        self._end_run(placement)
        copy = self.copies[placement]
        self._take(copy, -1)
        copy.phase, copy.reason, copy.message = Phase.FINISHED, "Succeeded", "Job finished successfully"
        self._touch(placement)

    def evict(self, placement: str, reason: str = "Preempted") -> None:
        self._end_run(placement)
        copy = self.copies[placement]
        self._take(copy, -1)
        copy.phase, copy.reason, copy.message = Phase.EVICTED, reason, "preempted by a local workload"
        self._touch(placement)

    def lose(self, placement: str) -> None:
        """Somebody deletes our objects."""
        self._end_run(placement)
        self._take(self.copies.pop(placement), -1)
        self._changed.pop(placement, None)

    def _end_run(self, placement: str) -> None:
        if (run := self._running.pop(placement, None)) is not None:
            run.ended_at = self.clock()

    def tick(self) -> None:
        """Jobs whose time is over finish."""
        if self.run_s is None:
            return
        for placement, copy in list(self.copies.items()):
            if copy.phase is Phase.RUNNING and self.clock() - (copy.started_at or 0.0) >= self.run_s:
                self.finish(placement)

    def _free(self) -> list[int]:
        """By node, without what others use."""
        return [self.gpus - self._used.get(index, 0) for index in range(self.nodes)]

    def _node_for(self, intent: Intent) -> int | None:
        """Pods of one pod set share a node here; first fit after what others use."""
        need = gpus_of(intent)
        for index in range(self.nodes):
            others_here = max(0, self.others - index * self.gpus)
            if self.gpus - self._used.get(index, 0) - others_here >= need:
                return index
        return None

    def _take(self, copy: Copy, sign: int) -> None:
        if copy.node is not None:
            self._used[copy.node] = self._used.get(copy.node, 0) + sign * gpus_of(copy.intent)
            if sign < 0:
                copy.node = None

    def capacity(self) -> CapacityReport:
        using = [p for p, c in self.copies.items() if c.node is not None]
        ours = sum(self._used.values())
        whole, cpu = self.nodes * self.gpus, 64_000
        holes: dict[int, int] = {}
        for index, free in enumerate(self._free()):
            left = max(0, free - max(0, self.others - index * self.gpus))
            holes[left] = holes.get(left, 0) + 1
        flavor = FlavorCapacity(
            name=self.flavor,
            resources={
                GPU: Amount(capacity=whole, ours=ours, others=self.others),
                "cpu": Amount(capacity=self.nodes * cpu),
            },
            holes=[Hole(free={GPU: free, "cpu": cpu}, nodes=n) for free, n in sorted(holes.items(), reverse=True)],
            shapes=[Hole(free={GPU: self.gpus, "cpu": cpu}, nodes=self.nodes)],
            nodes=self.nodes,
            nodes_ready=self.nodes,
        )
        room = {
            GPU: QuotaRoom(available=max(0, whole - ours - self.others), limit=whole, ours=ours),
            "cpu": QuotaRoom(available=1 << 40, limit=1 << 40),
        }
        return CapacityReport(
            flavors=[flavor],
            queues=[QueueCapacity(name="cq", rooms={self.flavor: room})],
            local_queues=[LocalQueueReport(namespace=n, name="main", cluster_queue="cq") for n in self.namespaces],
            namespaces=list(self.namespaces),
            kinds=["batch/v1, Job"],
            counted=using,
            creates_local_queues=True,
            default_cluster_queue="cq",
        )


def newer(cursors: dict[str, int], since: int) -> list[str]:
    """Keys whose cursor is above `since`, oldest first; the dict is in the order of its cursors."""
    found = list(itertools.takewhile(lambda key: cursors[key] > since, reversed(cursors)))
    return found[::-1]


def _complete(start: str, end: str) -> dict:
    """Status of a Job that succeeded, as API servers accept it."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": end, "lastProbeTime": end}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    return {"succeeded": 1, "startTime": start, "completionTime": end, "conditions": conditions}


def gpus_of(intent: Intent) -> int:
    return sum(p.count * p.per_pod.get(GPU, 0) for p in intent.pod_sets)


@dataclass
class Faults:
    #: Nothing goes through.
    cut: bool = False
    #: The request is never answered (nor acted on).
    hang: bool = False
    #: So many answers are lost after the agent has acted.
    drop_replies: int = 0


class FakeTransport:
    """Implements hub.fleet.transport.Transport."""

    def __init__(self, agents: dict[str, FakeAgent]) -> None:
        self.agents = agents
        self.faults: dict[str, Faults] = {name: Faults() for name in agents}
        self.requests: dict[str, list[PollRequest]] = {name: [] for name in agents}
        #: Keep requests for tests to look at; a benchmark switches it off.
        self.recording = True
        #: Let every message become JSON and back, as on a real connection.
        self.as_json = False

    async def poll(self, target: Target, request: PollRequest, *, timeout_s: float) -> PollAnswer:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._poll(self.agents[target.cluster], request)
        except TimeoutError:
            raise Unreachable(f"{target.cluster} did not answer within {timeout_s:.0f} s") from None

    async def _poll(self, agent: FakeAgent, request: PollRequest) -> PollAnswer:
        faults = self.faults[agent.name]
        if self.as_json:
            request = msgspec.json.decode(msgspec.json.encode(request), type=PollRequest)
        if self.recording:
            self.requests[agent.name].append(request)
        if faults.cut:
            raise Unreachable(f"{agent.name}: connection refused")
        if faults.hang:
            await asyncio.Event().wait()
        boot = agent.boot_id
        agent.take(request)
        agent.news.set()  # an older request that waits is answered now
        await self._wait_for_news(agent, request)
        if boot != agent.boot_id:
            raise Unreachable(f"{agent.name}: connection reset")
        answer = agent.answer(request)
        if faults.drop_replies or faults.cut:
            faults.drop_replies -= bool(faults.drop_replies)
            raise Unreachable(f"{agent.name}: connection reset")
        return msgspec.json.decode(msgspec.json.encode(answer), type=PollAnswer) if self.as_json else answer

    async def _wait_for_news(self, agent: FakeAgent, request: PollRequest) -> None:
        agent.news.clear()
        try:
            async with asyncio.timeout(request.wait_s):
                while not agent.has_news(request) and agent._seen == (request.term, request.sequence):
                    await agent.news.wait()
                    agent.news.clear()
        except TimeoutError:
            pass

    async def forget(self, cluster: str) -> None:
        pass

    async def close(self) -> None:
        pass


def overlapping(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Runs of one workload that were there at the same time: each is a broken promise."""
    found = []
    by_workload: dict[str, list[Run]] = {}
    for run in runs:
        by_workload.setdefault(run.workload, []).append(run)
    for group in by_workload.values():
        for one, two in itertools.combinations(group, 2):
            first, second = sorted((one, two), key=lambda r: r.started_at)
            if first.ended_at is None or first.ended_at > second.started_at:
                found.append((first, second))
    return found
