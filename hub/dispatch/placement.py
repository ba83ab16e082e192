"""One placement: one workload offered to one worker cluster, and what became of it.

            ┌───────────────────────────── Refused      the agent will not run it; nothing is left there
            │
    Offered ──▶ Admitted ──▶ Running ──▶ Finished       a short job may skip any of the steps between
       │           │            │
       ├───────────┼────────────┼──▶ Evicted            the worker took it back, or it disappeared there
       ├───────────┼────────────┼──▶ Withdrawn          the hub wants it gone
       └───────────┴────────────┴──▶ Lost               given up: the cluster may still run it

`generation` rises with every change of intent and is the fencing token: a report of an older generation describes an
intent that is no more, and is dropped here, once, and nowhere else. Offered, Admitted and Running mean "run it"; every
other state but Refused means "withdraw it", until the agent says Gone. Only then is the placement `released`: its charge
leaves the ledger and the workload may be offered elsewhere. A lost placement is the one exception to the last rule, so
the event ClusterLost is sent only when the policy (or the operator) allows a second start.

The whole table, "=" for "stays as it is" and blank for "cannot be", as `diagram()` prints it:

              Pending    Admitted   Running    Finished   Refused    Evicted    Gone       Missing    Withdraw   ClusterLost
    Offered   =          Admitted   Running    Finished   Refused    Evicted    Evicted    Evicted    Withdrawn  Lost
    Admitted  Evicted    =          Running    Finished   Refused    Evicted    Evicted    Evicted    Withdrawn  Lost
    Running   Evicted    =          =          Finished   Refused    Evicted    Evicted    Evicted    Withdrawn  Lost
    Finished  =          =          =          =          =          =          =          =          =          =
    Withdrawn =          =          =          Finished   =          =          =          =          =          Lost
    Refused                                               =                     =          =          =          =
    Evicted   =          =          =          Finished   =          =          =          =          =          Lost
    Lost      =          =          =          Finished   =          =          =          =          =          =
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from hub.kueue.api.meta import Instant, ObjectKey
from hub.kueue.wire import Action, Intent, Phase, PlacementReport, PodSetFlavors, Refusal


class State(StrEnum):
    OFFERED = "Offered"
    ADMITTED = "Admitted"
    RUNNING = "Running"
    FINISHED = "Finished"
    WITHDRAWN = "Withdrawn"  # the hub wants it gone; `released` turns true when the agent says that nothing is left
    REFUSED = "Refused"
    EVICTED = "Evicted"
    LOST = "Lost"


#: A workload has at most one placement in these states; the database enforces it too.
LIVE = frozenset({State.OFFERED, State.ADMITTED, State.RUNNING})
TERMINAL = frozenset({State.FINISHED, State.WITHDRAWN, State.REFUSED, State.EVICTED, State.LOST})


class Charge(Struct, frozen=True, kw_only=True):
    """What one placement takes from one flavor of its cluster, in engine units."""

    flavor: str
    resource: str
    amount: int


class Placement(Struct, frozen=True, kw_only=True):
    id: str
    workload: ObjectKey
    workload_uid: str
    cluster: str
    #: Rises with every change of intent; the fencing token.
    generation: int = 1
    state: State = State.OFFERED
    reason: str = ""
    message: str = ""
    #: What is sent to the agent until it acknowledges it, then without its manifests. Withdraw intents are derived from the
    #: key and generation.
    intent: Intent
    #: Highest generation that the agent has acknowledged.
    acknowledged: int = 0
    #: Ledger: assumed at the offer, confirmed by the agent's word for this generation.
    charges: tuple[Charge, ...] = ()
    confirmed: bool = False
    #: The agent said that nothing of it is left on the cluster (or it was never there).
    released: bool = False
    attempt: int = 1
    previous_cluster: str = ""
    job_status: dict[str, Any] | None = None
    pod_sets: tuple[PodSetFlavors, ...] = ()
    succeeded: bool | None = None
    offered_at: Instant = 0.0
    admitted_at: Instant | None = None
    running_at: Instant | None = None
    ended_at: Instant | None = None


# --- events ----------------------------------------------------------------------------------------------------------


class Event(Struct, frozen=True, kw_only=True):
    """Something happened to the placement's `generation`. `now` is the hub's clock."""

    generation: int
    now: Instant
    reason: str = ""
    message: str = ""


class Reported(Event, frozen=True, kw_only=True):
    """The agent's word. One subclass per wire.Phase, of the same name."""

    job_status: dict[str, Any] | None = None
    pod_sets: tuple[PodSetFlavors, ...] = ()
    succeeded: bool | None = None


class Pending(Reported, frozen=True, kw_only=True): ...


class Admitted(Reported, frozen=True, kw_only=True): ...


class Running(Reported, frozen=True, kw_only=True): ...


class Finished(Reported, frozen=True, kw_only=True): ...


class Refused(Reported, frozen=True, kw_only=True): ...


class Evicted(Reported, frozen=True, kw_only=True): ...


class Gone(Reported, frozen=True, kw_only=True): ...


class Missing(Event, frozen=True, kw_only=True):
    """The agent acknowledged this generation, and its complete inventory does not list the placement any more."""


class Withdraw(Event, frozen=True, kw_only=True):
    """The hub changed its mind: cancelled, evicted, drained. `reason` and `message` say why."""


class ClusterLost(Event, frozen=True, kw_only=True):
    """The cluster is silent, and policy or operator allow the workload to start elsewhere all the same."""


class Acknowledged(Event, frozen=True, kw_only=True):
    """The agent has the intent of this generation. Says nothing about the state, so it is in no row of the table."""


REPORTED: dict[Phase, type[Reported]] = {
    Phase.PENDING: Pending,
    Phase.ADMITTED: Admitted,
    Phase.RUNNING: Running,
    Phase.FINISHED: Finished,
    Phase.REFUSED: Refused,
    Phase.EVICTED: Evicted,
    Phase.GONE: Gone,
}


def event_of(report: PlacementReport, now: Instant) -> Reported:
    """The event that a report stands for. The agent's clock (`seen_at`) is for people and is left out."""
    return REPORTED[report.phase](
        generation=report.generation,
        now=now,
        reason=report.reason,
        message=report.message,
        job_status=report.job_status,
        pod_sets=tuple(report.pod_sets),
        succeeded=report.succeeded,
    )


# --- instructions ----------------------------------------------------------------------------------------------------
# All but Record are wake-ups: what they ask for follows from the placement's state, so losing one costs time only.


class Instruction(Struct, frozen=True, kw_only=True):
    placement: str


class Record(Instruction, frozen=True, kw_only=True):
    """Append to the workload's history, in the transaction that saves the placement."""

    reason: str
    message: str


class Send(Instruction, frozen=True, kw_only=True):
    """The intent changed: poll this cluster now."""

    cluster: str


class Mirror(Instruction, frozen=True, kw_only=True):
    """The management cluster's copy of the workload is out of date."""

    workload: ObjectKey


class DispatchAgain(Instruction, frozen=True, kw_only=True):
    """Nothing of it is left on the cluster: the workload may be offered elsewhere, and the room is free for others."""

    workload: ObjectKey
    cluster: str


Step = tuple[Placement, tuple[Instruction, ...]]


class InvalidTransition(Exception):  # noqa: N818 - the house name of this story
    """The table has no row for this state and event: a bug in hub or agent, not bad luck."""

    def __init__(self, placement: Placement, event: Event) -> None:
        super().__init__(
            f"{type(event).__name__} (generation {event.generation}) while {placement.state}"
            f"{' and released' if placement.released else ''} (generation {placement.generation}): "
            f"placement {placement.id} of workload {placement.workload} on {placement.cluster}, "
            f"attempt {placement.attempt}; last: {placement.reason or 'nothing'} {placement.message!r}; "
            f"event says: {event.reason or 'nothing'} {event.message!r}"
        )
        self.placement, self.event = placement, event


# --- rows ------------------------------------------------------------------------------------------------------------


def _records(before: Placement, after: Placement) -> tuple[Instruction, ...]:
    """What follows from the difference between two versions of one placement."""
    found: list[Instruction] = []
    if after.state != before.state:
        found.append(Record(placement=after.id, reason=after.reason or after.state, message=_story(after)))
    if after.generation != before.generation:
        found.append(Send(placement=after.id, cluster=after.cluster))
    if after != before:
        found.append(Mirror(placement=after.id, workload=after.workload))
    if after.state not in LIVE and (after.released, after.state) != (before.released, before.state):
        found.append(DispatchAgain(placement=after.id, workload=after.workload, cluster=after.cluster))
    return tuple(found)


def _story(after: Placement) -> str:
    said = after.message or f"{after.state} on {after.cluster}"
    return f"{said} (generation {after.generation})"


def _said(p: Placement, event: Event, **changes: Any) -> Placement:
    """The placement with what every report carries: reason, message and, when there is one, the job's status."""
    if isinstance(event, Reported):
        changes.setdefault("job_status", event.job_status if event.job_status is not None else p.job_status)
        changes.setdefault("pod_sets", event.pod_sets or p.pod_sets)
    return msgspec.structs.replace(p, reason=event.reason, message=event.message, **changes)


def _note(p: Placement, event: Event) -> Placement:
    return _said(p, event)


def _admit(p: Placement, event: Event) -> Placement:
    return _said(p, event, state=State.ADMITTED, confirmed=True, admitted_at=event.now)


def _run(p: Placement, event: Event) -> Placement:
    admitted_at = p.admitted_at if p.admitted_at is not None else event.now
    return _said(p, event, state=State.RUNNING, confirmed=True, admitted_at=admitted_at, running_at=event.now)


def _finish(p: Placement, event: Event) -> Placement:
    """The intent turns into "withdraw" unless it is that already."""
    assert isinstance(event, Finished)
    generation = p.generation + 1 if p.state in LIVE else p.generation
    return _said(p, event, state=State.FINISHED, generation=generation, succeeded=event.succeeded, ended_at=event.now)


def _refuse(p: Placement, event: Event) -> Placement:
    return _said(p, event, state=State.REFUSED, released=True, ended_at=event.now)


def _end(p: Placement, event: Event, state: State, *, released: bool = False) -> Placement:
    return _said(p, event, state=state, generation=p.generation + 1, released=released, ended_at=event.now)


def _evict(p: Placement, event: Event) -> Placement:
    return _end(p, event, State.EVICTED)


def _disappear(p: Placement, event: Event) -> Placement:
    """What should run is not there. `released` waits for the agent's word about the withdrawal, except after Gone."""
    reason = event.reason or Refusal.DISAPPEARED
    message = event.message or f"{p.cluster} has no copy of the workload any more"
    told = msgspec.structs.replace(event, reason=reason, message=message)
    return _end(p, told, State.EVICTED, released=isinstance(event, Gone))


def _withdraw(p: Placement, event: Event) -> Placement:
    return _end(p, event, State.WITHDRAWN)


def _lose(p: Placement, event: Event) -> Placement:
    return _end(p, event, State.LOST)


def _give_up(p: Placement, event: Event) -> Placement:
    """Withdrawn or evicted, and now nobody waits for the word Gone any more. The intent stays "withdraw"."""
    return _said(p, event, state=State.LOST)


def _stay(p: Placement, event: Event) -> Placement:
    return p


def _release(p: Placement, event: Event) -> Placement:
    return p if p.released else msgspec.structs.replace(p, released=True)


class Row(NamedTuple):
    to: State
    effect: Callable[[Placement, Event], Placement]


_S = State
_ENDING: dict[type[Event], Callable[[Placement, Event], Placement]] = {
    Pending: _stay,  # still there: the withdrawal is under way
    Admitted: _stay,
    Running: _stay,
    Refused: _release,
    Evicted: _stay,
    Gone: _release,
    Missing: _release,
    Withdraw: _stay,
}

TRANSITIONS: dict[tuple[State, type[Event]], Row] = {
    (_S.OFFERED, Pending): Row(_S.OFFERED, _note),
    (_S.OFFERED, Admitted): Row(_S.ADMITTED, _admit),
    (_S.OFFERED, Running): Row(_S.RUNNING, _run),
    (_S.OFFERED, Finished): Row(_S.FINISHED, _finish),  # the first report we see may be the last
    (_S.OFFERED, Refused): Row(_S.REFUSED, _refuse),
    (_S.OFFERED, Evicted): Row(_S.EVICTED, _evict),
    (_S.OFFERED, Gone): Row(_S.EVICTED, _disappear),
    (_S.OFFERED, Missing): Row(_S.EVICTED, _disappear),
    (_S.OFFERED, Withdraw): Row(_S.WITHDRAWN, _withdraw),
    (_S.OFFERED, ClusterLost): Row(_S.LOST, _lose),
    (_S.ADMITTED, Pending): Row(_S.EVICTED, _evict),  # local admission took it back between two polls
    (_S.ADMITTED, Admitted): Row(_S.ADMITTED, _note),
    (_S.ADMITTED, Running): Row(_S.RUNNING, _run),
    (_S.ADMITTED, Finished): Row(_S.FINISHED, _finish),
    (_S.ADMITTED, Refused): Row(_S.REFUSED, _refuse),
    (_S.ADMITTED, Evicted): Row(_S.EVICTED, _evict),
    (_S.ADMITTED, Gone): Row(_S.EVICTED, _disappear),
    (_S.ADMITTED, Missing): Row(_S.EVICTED, _disappear),
    (_S.ADMITTED, Withdraw): Row(_S.WITHDRAWN, _withdraw),
    (_S.ADMITTED, ClusterLost): Row(_S.LOST, _lose),
    (_S.RUNNING, Pending): Row(_S.EVICTED, _evict),
    (_S.RUNNING, Admitted): Row(_S.RUNNING, _note),  # no pod runs at the moment: the job controller replaces them
    (_S.RUNNING, Running): Row(_S.RUNNING, _note),
    (_S.RUNNING, Finished): Row(_S.FINISHED, _finish),
    (_S.RUNNING, Refused): Row(_S.REFUSED, _refuse),
    (_S.RUNNING, Evicted): Row(_S.EVICTED, _evict),
    (_S.RUNNING, Gone): Row(_S.EVICTED, _disappear),
    (_S.RUNNING, Missing): Row(_S.EVICTED, _disappear),
    (_S.RUNNING, Withdraw): Row(_S.WITHDRAWN, _withdraw),
    (_S.RUNNING, ClusterLost): Row(_S.LOST, _lose),
    # A job that was finished before the withdrawal reached it is finished, and must never run again.
    (_S.WITHDRAWN, Finished): Row(_S.FINISHED, _finish),
    (_S.EVICTED, Finished): Row(_S.FINISHED, _finish),
    (_S.LOST, Finished): Row(_S.FINISHED, _finish),
    (_S.FINISHED, Finished): Row(_S.FINISHED, _stay),
    (_S.WITHDRAWN, ClusterLost): Row(_S.LOST, _give_up),
    (_S.EVICTED, ClusterLost): Row(_S.LOST, _give_up),
    (_S.LOST, ClusterLost): Row(_S.LOST, _stay),
    (_S.FINISHED, ClusterLost): Row(_S.FINISHED, _stay),
    **{(s, e): Row(s, f) for s in (_S.FINISHED, _S.WITHDRAWN, _S.EVICTED, _S.LOST) for e, f in _ENDING.items()},
    # Refused means that nothing is left there, so none of the words for "something is there" can follow.
    **{(_S.REFUSED, e): Row(_S.REFUSED, _stay) for e in (Refused, Gone, Missing, Withdraw, ClusterLost)},
}

#: A released placement has nothing on its cluster: these words about it are a bug somewhere.
_SOMETHING_IS_THERE = (Pending, Admitted, Running, Finished, Evicted)


def step(placement: Placement, event: Event) -> Step:
    """The placement after `event`, and what follows from it. A stale event changes nothing.

    Raises InvalidTransition for an event that cannot be.
    """
    if event.generation < placement.generation:
        return placement, ()
    if event.generation > placement.generation:
        return _from_the_future(placement, event)
    if isinstance(event, Acknowledged):
        return _acknowledged(placement, event), ()
    if placement.released and isinstance(event, _SOMETHING_IS_THERE):
        raise InvalidTransition(placement, event)
    if (row := TRANSITIONS.get((placement.state, type(event)))) is None:
        raise InvalidTransition(placement, event)
    after = row.effect(placement, event)
    return after, _records(placement, after)


def _acknowledged(p: Placement, event: Acknowledged) -> Placement:
    """An acknowledged intent is never sent again: its manifests, which are most of a placement, have served their turn."""
    if event.generation <= p.acknowledged:
        return p
    spent = msgspec.structs.replace(p.intent, workload_spec={}, workload_annotations={}, job={})
    return msgspec.structs.replace(p, acknowledged=event.generation, intent=spent)


def _from_the_future(placement: Placement, event: Event) -> Step:
    """The agent knows a generation that this hub never gave: its database was set back. Out-number it and withdraw."""
    message = (
        f"{placement.cluster} speaks of generation {event.generation}, this hub gave {placement.generation}: "
        "was the database restored from a backup? The copy is withdrawn"
    )
    state = State.EVICTED if placement.state in LIVE else placement.state
    after = msgspec.structs.replace(
        placement,
        state=state,
        generation=event.generation + 1,
        released=False,
        reason="UnknownGeneration",
        message=message,
        ended_at=placement.ended_at if placement.ended_at is not None else event.now,
    )
    return after, _records(placement, after)


# --- what follows from the state ---------------------------------------------------------------------------------------


def intent_of(placement: Placement) -> Intent | None:
    """What the agent is to do about this placement; None when there is nothing left to do."""
    if placement.state in LIVE:
        return placement.intent
    if placement.released:
        return None
    return Intent(
        placement=placement.id,
        generation=placement.generation,
        action=Action.WITHDRAW,
        namespace=placement.workload.namespace,
        workload=placement.workload.name,
        workload_uid=placement.workload_uid,
    )


def holds_room(placement: Placement) -> bool:
    """Do its charges count in the ledger? A finished job holds nothing, anything else until the agent says Gone."""
    return not placement.released and placement.state is not State.FINISHED


def blocks_another_start(placement: Placement) -> bool:
    """Must the workload not be offered anywhere because of this placement? See the package docstring: nothing runs twice."""
    if placement.state in LIVE or placement.state is State.FINISHED:
        return True
    return not placement.released and placement.state is not State.LOST


def diagram() -> str:
    """The transition table as text, one line per state, as in the module docstring."""
    events = (*REPORTED.values(), Missing, Withdraw, ClusterLost)
    lines = ["          " + "".join(f"{e.__name__:<11}" for e in events)]
    for state in State:
        rows = [TRANSITIONS.get((state, e)) for e in events]
        cells = ["" if r is None else "=" if r.to is state else r.to.value for r in rows]
        lines.append(f"{state.value:<10}" + "".join(f"{c:<11}" for c in cells))
    return "\n".join(line.rstrip() for line in lines)
