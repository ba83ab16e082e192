"""What a poll says and what its answer means: the hub's side of wire version 1, without the wire.

    request_of ──▶ PollRequest ──▶ (agent) ──▶ PollAnswer ──▶ fold ──▶ moves of placements, capacity, strays

Four rules make lost, late and repeated messages harmless:

1. An intent is sent until it is acknowledged, and a Run intent never again after that, not even to an agent that restarted:
   what it has lost meanwhile shows in its full answer (`Missing`), and a job that finished unseen does not run twice.
2. The cursor advances only with an answer that was stored, so an answer that was lost is given again.
3. Two polls may be under way at once (one waits for news, one brings intents). An answer to an older request than the last
   one applied, or with an older cursor, is dropped: what it says is in the newer one too.
4. What the agent reports and the hub does not know (or has released) is a stray: it gets a Withdraw intent of its own.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from hub.dispatch import placement as placements
from hub.dispatch.clusters import Answered, Cluster, HealthPolicy, lease_to_grant, step
from hub.dispatch.placement import (
    LIVE,
    Acknowledged,
    Event,
    Instruction,
    InvalidTransition,
    Missing,
    Placement,
    event_of,
    intent_of,
)
from hub.kueue.api.meta import Instant
from hub.kueue.wire import (
    INTENTS_PER_POLL_MAX,
    Action,
    Intent,
    Phase,
    PlacementReport,
    PollAnswer,
    PollRequest,
)


class ExchangePolicy(Struct, frozen=True, kw_only=True):
    #: An intent that was sent and not acknowledged is sent again after this.
    resend_after_s: float = 2.0
    #: The inventory goes along this often, beside the times when it must.
    inventory_every_s: float = 300.0
    intents_max: int = INTENTS_PER_POLL_MAX


class Session(Struct, frozen=True, kw_only=True):
    """Where the talk with one agent stands. In memory; a new hub begins a new one, which costs one inventory."""

    boot_id: str = ""
    cursor: int = 0
    #: Of the last request sent, and of the newest one whose answer was applied.
    sequence: int = 0
    applied: int = 0
    #: The next request must carry the inventory.
    resync: bool = True
    inventory_at: Instant = 0.0
    #: placement -> (generation, when): intents sent and not acknowledged yet.
    sent: dict[str, tuple[int, Instant]] = {}
    #: Copies that the agent has and must not have, by placement id.
    strays: dict[str, Intent] = {}


def request_of(
    cluster: Cluster,
    outbox: Iterable[Placement],
    everything: Iterable[Placement],
    session: Session,
    *,
    term: int,
    wait_s: float,
    now: Instant,
    health: HealthPolicy,
    policy: ExchangePolicy,
) -> tuple[PollRequest, Session]:
    """The next request. `outbox`: placements with an unacknowledged intent; `everything` on the cluster is only looked at
    when the inventory is due. With intents on board the agent is not asked to wait.
    """
    inventory_due = session.resync or now - session.inventory_at >= policy.inventory_every_s
    whole = list(everything) if inventory_due else []
    intents = [*session.strays.values(), *_due(outbox, whole if session.resync else [], session, now, policy)]
    intents = intents[: policy.intents_max]
    sequence = session.sequence + 1
    request = PollRequest(
        cluster=cluster.name,
        term=term,
        sequence=sequence,
        lease_s=lease_to_grant(cluster, health, now),
        wait_s=0.0 if intents or inventory_due else wait_s,
        boot_id=session.boot_id,
        cursor=session.cursor,
        intents=intents,
        inventory={p.id: p.generation for p in whole if p.state in LIVE} if inventory_due else None,
    )
    sent = session.sent | {i.placement: (i.generation, now) for i in intents}
    return request, msgspec.structs.replace(session, sequence=sequence, sent=sent)


def _due(
    outbox: Iterable[Placement], resent: Iterable[Placement], session: Session, now: Instant, policy: ExchangePolicy
) -> list[Intent]:
    """Withdrawals first, since they make room. `resent`: after a restart, withdrawals are repeated though acknowledged."""
    runs: list[Intent] = []
    stops: dict[str, Intent] = {}
    for p in outbox:
        generation, at = session.sent.get(p.id, (0, 0.0))
        waits_for_ack = generation == p.generation and now - at < policy.resend_after_s
        intent = None if waits_for_ack and not session.resync else intent_of(p)
        if intent is not None and intent.action is Action.RUN:
            runs.append(intent)
        elif intent is not None:
            stops[p.id] = intent
    for p in resent:
        intent = intent_of(p)
        if intent is not None and intent.action is Action.WITHDRAW:
            stops[p.id] = intent
    return [*stops.values(), *runs]


class Change(Struct, frozen=True, kw_only=True):
    """One placement before and after the events that an answer held about it, and what follows."""

    before: Placement
    after: Placement
    instructions: tuple[Instruction, ...]


class Folded(Struct, frozen=True, kw_only=True):
    """What an answer means. Nothing of it counts before it is stored."""

    session: Session
    cluster: Cluster
    changes: tuple[Change, ...] = ()
    #: Things that cannot be, in words, for the log.
    problems: tuple[str, ...] = ()
    #: Too old: the answer to a newer request was there first.
    dropped: bool = False


def fold(
    cluster: Cluster,
    known: Mapping[str, Placement],
    unreleased: Iterable[Placement],
    request: PollRequest,
    answer: PollAnswer,
    session: Session,
    *,
    now: Instant,
    health: HealthPolicy,
) -> Folded:
    """Fold an answer into what is known. `known`: all placements by id; `unreleased`: those on this cluster, looked at when
    the answer is full.
    """
    same_boot = answer.boot_id == session.boot_id
    if request.sequence <= session.applied or (same_boot and answer.cursor < session.cursor):
        return Folded(session=session, cluster=cluster, dropped=True)
    after_cluster = _heard(cluster, answer, now, health)
    if answer.starting:
        return Folded(session=msgspec.structs.replace(session, applied=request.sequence), cluster=after_cluster)
    gathering = _Gathering(cluster.name, known, dict(session.strays))
    if answer.full:
        reported = {r.placement for r in answer.placements}
        for p in unreleased:
            if p.acknowledged >= p.generation and p.id not in reported:
                gathering.take(p.id, Missing(generation=p.generation, now=now))
    for ack in answer.acknowledged:
        gathering.acknowledge(ack.placement, ack.generation, now)
    for report in answer.placements:
        gathering.report(report, now)
    changes = gathering.changes()
    acknowledged = {a.placement: a.generation for a in answer.acknowledged}
    sent = {k: v for k, v in session.sent.items() if v[0] > acknowledged.get(k, 0) and _still_to_send(k, known)}
    after = msgspec.structs.replace(
        session,
        boot_id=answer.boot_id,
        cursor=answer.cursor,
        applied=request.sequence,
        resync=not same_boot or (session.resync and request.inventory is None),
        inventory_at=now if request.inventory is not None else session.inventory_at,
        sent=sent if same_boot else {},
        strays=gathering.strays,
    )
    return Folded(session=after, cluster=after_cluster, changes=changes, problems=tuple(gathering.problems))


def _still_to_send(placement_id: str, known: Mapping[str, Placement]) -> bool:
    p = known.get(placement_id)
    return p is not None and p.acknowledged < p.generation


def _heard(cluster: Cluster, answer: PollAnswer, now: Instant, health: HealthPolicy) -> Cluster:
    """Health, and the capacity: as reported, or confirmed to be as it was."""
    heard = step(cluster, Answered(now=now), health)
    capacity = cluster.capacity if answer.capacity is None or answer.capacity == cluster.capacity else answer.capacity
    return msgspec.structs.replace(
        heard,
        capacity=capacity,
        capacity_at=now if capacity is not None and not answer.starting else heard.capacity_at,
        boot_id=heard.boot_id if answer.starting else answer.boot_id,
        cursor=heard.cursor if answer.starting else answer.cursor,
        agent_version=answer.agent_version or heard.agent_version,
        wire_version=answer.wire_version,
    )


class _Gathering:
    """The placements of one answer while its events are taken in, one after the other."""

    def __init__(self, cluster: str, known: Mapping[str, Placement], strays: dict[str, Intent]) -> None:
        self.cluster = cluster
        self.known = known
        self.strays = strays
        self.problems: list[str] = []
        self._now: dict[str, Placement] = {}
        self._instructions: dict[str, list[Instruction]] = {}

    def take(self, placement_id: str, event: Event) -> None:
        current = self._now.get(placement_id) or self.known[placement_id]
        after, instructions = placements.step(current, event)
        if after is not current:
            self._now[placement_id] = after
        self._instructions.setdefault(placement_id, []).extend(instructions)

    def acknowledge(self, placement_id: str, generation: int, now: Instant) -> None:
        if self._ours(placement_id) is not None:
            self.take(placement_id, Acknowledged(generation=generation, now=now))

    def report(self, report: PlacementReport, now: Instant) -> None:
        left = report.phase not in (Phase.GONE, Phase.REFUSED)
        if not left:
            self.strays.pop(report.placement, None)
        if self._ours(report.placement) is None:
            if left:
                self._withdraw_stray(report, None)
            return
        try:
            self.take(report.placement, event_of(report, now))
        except InvalidTransition as error:
            self.problems.append(str(error))
            if left:
                self._withdraw_stray(report, error.placement)

    def _ours(self, placement_id: str) -> Placement | None:
        found = self.known.get(placement_id)
        return found if found is not None and found.cluster == self.cluster else None

    def _withdraw_stray(self, report: PlacementReport, known: Placement | None) -> None:
        self.strays[report.placement] = Intent(
            placement=report.placement,
            generation=report.generation + 1,
            action=Action.WITHDRAW,
            namespace=known.workload.namespace if known else "",
            workload=known.workload.name if known else "",
            workload_uid=known.workload_uid if known else "",
        )
        if known is None:
            self.problems.append(
                f"{self.cluster} runs placement {report.placement} ({report.phase}), which this hub does not know: withdrawn"
            )

    def changes(self) -> tuple[Change, ...]:
        return tuple(
            Change(
                before=self.known[placement_id],
                after=after,
                instructions=tuple(self._instructions.get(placement_id, ())),
            )
            for placement_id, after in self._now.items()
            if after != self.known[placement_id]
        )
