"""One worker cluster as the hub knows it, and when the hub stops trusting it.

    Invited ──first answer──▶ Active ◀──uncordon / cordon──▶ Cordoned        Draining: cordoned, and its work moves away
                               │  ▲          (home: where the operator wants it)
           failed polls in row │  │ answers in row
                               ▼  │
                              Suspect ──grace over──▶ Lost ──an answer──▶ Suspect
    any of them ──remove──▶ Removed ──nothing of ours is left──▶ (forgotten)

One failed poll changes nothing, and one good answer does not bring a suspect back: both ways need several in a row
(HealthPolicy). The grace for Lost runs from the first failed poll of the present streak, never from an older moment such
as the time of an admission. When most of the fleet is silent together the hub itself is the likelier culprit: then nobody
is lost, and all grace clocks start again when the silence ends (`hold_back`).

The operator's wish (`cordoned`, `draining`) is kept beside the state, so a cordoned cluster that was lost returns cordoned.

The whole table, "=" for "stays as it is", blank for "cannot be", several where counters decide, "home" for the state that
the operator wants (Active, Cordoned or Draining):

              Joined    Answered      PollFailed    GraceOver DeclareLost Cordon    Uncordon  Drain     Remove
    Invited   =         home          =                                   =         =         =         Removed
    Active    =         =             = Suspect               Lost        Cordoned  =         Draining  Removed
    Suspect   =         = home        =             Lost      Lost        =         =         =         Removed
    Lost      =         Suspect       =             =         =           =         =         =         Removed
    Cordoned  =         =             = Suspect               Lost        =         Active    Draining  Removed
    Draining  =         =             = Suspect               Lost        Cordoned  Active    =         Removed
    Removed             =             =             =         =                                         =
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from hub.kueue.api.meta import Instant
from hub.kueue.wire import CapacityReport


class ClusterState(StrEnum):
    INVITED = "Invited"  # registered; its agent has not joined yet
    ACTIVE = "Active"
    SUSPECT = "Suspect"  # polls fail: no new offers, nothing moves yet
    LOST = "Lost"  # silent for longer than the lost time-out
    CORDONED = "Cordoned"  # by the operator: no new offers
    DRAINING = "Draining"  # by the operator: no new offers and the work moves away
    REMOVED = "Removed"  # by the operator: gone as soon as nothing of ours is left there


class ClusterTaint(Struct, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Cluster(Struct, frozen=True, kw_only=True):
    name: str
    state: ClusterState = ClusterState.INVITED
    #: Why it is in this state, in a word and in a sentence.
    reason: str = ""
    message: str = ""
    #: Set by the operator, and kept beside `state` so that a cordoned cluster that is lost comes back cordoned.
    cordoned: bool = False
    #: Likewise. A draining cluster gets no new offers either.
    draining: bool = False
    labels: dict[str, str] = {}
    taints: tuple[ClusterTaint, ...] = ()
    address: str = ""
    certificate_pem: str = ""
    cluster_uid: str = ""
    agent_version: str = ""
    wire_version: int = 0
    boot_id: str = ""
    cursor: int = 0
    capacity: CapacityReport | None = None
    #: Hub's clock when the answer that carried this capacity, or confirmed that it still holds, was stored.
    capacity_at: Instant | None = None
    last_contact_at: Instant | None = None
    #: Hub's clock at the first failed poll of the present streak.
    failing_since: Instant | None = None
    #: The grace for Lost runs from here: `failing_since`, moved forward while the hub suspects itself.
    grace_since: Instant | None = None
    #: Polls of one kind in a row. Kept in memory by whoever polls; a restart counts afresh.
    failures_in_row: int = 0
    answers_in_row: int = 0
    created_at: Instant = 0.0
    join_expires_at: Instant | None = None


#: Reason of a cluster that the operator has declared lost: whatever ran there does not run any more.
DECLARED_LOST = "DeclaredLost"

#: New work may be offered in this state only.
OFFERS_TO = frozenset({ClusterState.ACTIVE})


class HealthPolicy(Struct, frozen=True, kw_only=True):
    """When the hub stops trusting a cluster, and when it trusts it again."""

    suspect_after: int = 3
    recover_after: int = 2
    #: Kueue's multiKueue.workerLostTimeout, counted from the first failed poll of a streak.
    lost_timeout_s: float = 900.0
    #: More than this share of the fleet silent at once: the hub suspects itself.
    brake_share: float = 0.5
    #: How long an agent may run FenceThenMove work without being polled, and how much longer the hub waits before it
    #: starts such work elsewhere. The margin covers a request that arrives late, so it is at least the poll's time limit.
    lease_s: float = 60.0
    lease_margin_s: float = 30.0


# --- events ----------------------------------------------------------------------------------------------------------


class ClusterEvent(Struct, frozen=True, kw_only=True):
    now: Instant
    reason: str = ""
    message: str = ""


class Joined(ClusterEvent, frozen=True, kw_only=True):
    """An agent presented a valid token; address and certificate are stored with it."""

    address: str
    certificate_pem: str
    cluster_uid: str = ""
    agent_version: str = ""
    wire_version: int = 0


class Answered(ClusterEvent, frozen=True, kw_only=True):
    """A poll was answered by the right agent in a version that both speak."""


class PollFailed(ClusterEvent, frozen=True, kw_only=True):
    """No answer in time, or not one that counts. `reason` is the transport error's name."""


class GraceOver(ClusterEvent, frozen=True, kw_only=True):
    """The cluster was silent for `lost_timeout_s`, and `overdue` found no reason to hold back."""


class DeclareLost(ClusterEvent, frozen=True, kw_only=True):
    """By the operator, who knows that nothing runs there any more."""


class Cordon(ClusterEvent, frozen=True, kw_only=True): ...


class Uncordon(ClusterEvent, frozen=True, kw_only=True):
    """Takes back Cordon and Drain."""


class Drain(ClusterEvent, frozen=True, kw_only=True): ...


class Remove(ClusterEvent, frozen=True, kw_only=True): ...


class InvalidClusterTransition(Exception):  # noqa: N818 - named like placement.InvalidTransition
    """No row for this state and event. After an operator's command the message is the answer to it."""

    def __init__(self, cluster: Cluster, event: ClusterEvent) -> None:
        super().__init__(
            f"cluster {cluster.name} is {cluster.state} ({cluster.reason or 'no reason'}: "
            f"{cluster.message or 'nothing was said'}): {type(event).__name__} is not possible"
        )
        self.cluster, self.event = cluster, event


# --- rows ------------------------------------------------------------------------------------------------------------


def home(cluster: Cluster) -> ClusterState:
    """Where a healthy cluster belongs: where the operator wants it."""
    if cluster.draining:
        return ClusterState.DRAINING
    return ClusterState.CORDONED if cluster.cordoned else ClusterState.ACTIVE


def _joined(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    """A known cluster may join again (new certificate, moved address); its state and its work stay."""
    assert isinstance(event, Joined)
    return msgspec.structs.replace(
        c,
        address=event.address,
        certificate_pem=event.certificate_pem,
        cluster_uid=event.cluster_uid,
        agent_version=event.agent_version,
        wire_version=event.wire_version,
        boot_id="",
        cursor=0,
        join_expires_at=None,
    )


def _to(c: Cluster, event: ClusterEvent, state: ClusterState, **changes: Any) -> Cluster:
    return msgspec.structs.replace(c, state=state, reason=event.reason, message=event.message, **changes)


def _heard(c: Cluster, event: ClusterEvent) -> Cluster:
    return msgspec.structs.replace(
        c,
        last_contact_at=event.now,
        failing_since=None,
        grace_since=None,
        failures_in_row=0,
        answers_in_row=c.answers_in_row + 1,
    )


def _answered(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return _heard(c, event)


def _came_home(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    message = event.message or "the agent answers"
    return msgspec.structs.replace(_heard(c, event), state=home(c), reason=home(c).value, message=message)


def _recovering(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return _came_home(c, event, policy) if c.answers_in_row + 1 >= policy.recover_after else _heard(c, event)


def _returned(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    message = f"answers again, {policy.recover_after} answers in a row make it {home(c)}"
    return msgspec.structs.replace(_heard(c, event), state=ClusterState.SUSPECT, reason="Returned", message=message)


def _unheard(c: Cluster, event: ClusterEvent) -> Cluster:
    since = c.failing_since if c.failing_since is not None else event.now
    grace = c.grace_since if c.grace_since is not None else event.now
    return msgspec.structs.replace(
        c,
        failing_since=since,
        grace_since=grace,
        failures_in_row=c.failures_in_row + 1,
        answers_in_row=0,
    )


def _failed(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return _unheard(c, event)


def _failed_while_silent(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    """The newest failure is the one worth showing."""
    return msgspec.structs.replace(_unheard(c, event), reason=event.reason, message=event.message)


def _doubtful(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    after = _unheard(c, event)
    return after if after.failures_in_row < policy.suspect_after else _to(after, event, ClusterState.SUSPECT)


def _lost(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return _to(c, event, ClusterState.LOST, answers_in_row=0)


def _declared(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return msgspec.structs.replace(_lost(c, event, policy), reason=DECLARED_LOST)


def _cordon(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return msgspec.structs.replace(c, cordoned=True, draining=False)


def _uncordon(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return msgspec.structs.replace(c, cordoned=False, draining=False)


def _drain(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return msgspec.structs.replace(c, draining=True)


_Effect = Callable[[Cluster, ClusterEvent, HealthPolicy], Cluster]


def _and_home(wish: _Effect) -> _Effect:
    """The operator's wish about a healthy cluster takes effect at once; about a silent one when it returns."""

    def effect(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
        after = wish(c, event, policy)
        return _to(after, event, home(after)) if home(after) is not c.state else after

    return effect


def _remove(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return _to(c, event, ClusterState.REMOVED)


def _stay(c: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    return c


class Row(NamedTuple):
    to: tuple[ClusterState, ...]
    effect: _Effect


_C = ClusterState
_HOME = (_C.ACTIVE, _C.CORDONED, _C.DRAINING)
_ANY = (_C.INVITED, _C.ACTIVE, _C.SUSPECT, _C.LOST, _C.CORDONED, _C.DRAINING)

TRANSITIONS: dict[tuple[ClusterState, type[ClusterEvent]], Row] = {
    **{(s, Joined): Row((s,), _joined) for s in _ANY},
    (_C.INVITED, Answered): Row(_HOME, _came_home),
    (_C.ACTIVE, Answered): Row((_C.ACTIVE,), _answered),
    (_C.CORDONED, Answered): Row((_C.CORDONED,), _answered),
    (_C.DRAINING, Answered): Row((_C.DRAINING,), _answered),
    (_C.SUSPECT, Answered): Row((_C.SUSPECT, *_HOME), _recovering),
    (_C.LOST, Answered): Row((_C.SUSPECT,), _returned),
    (_C.REMOVED, Answered): Row((_C.REMOVED,), _answered),
    (_C.INVITED, PollFailed): Row((_C.INVITED,), _failed_while_silent),
    (_C.ACTIVE, PollFailed): Row((_C.ACTIVE, _C.SUSPECT), _doubtful),
    (_C.CORDONED, PollFailed): Row((_C.CORDONED, _C.SUSPECT), _doubtful),
    (_C.DRAINING, PollFailed): Row((_C.DRAINING, _C.SUSPECT), _doubtful),
    (_C.SUSPECT, PollFailed): Row((_C.SUSPECT,), _failed_while_silent),
    (_C.LOST, PollFailed): Row((_C.LOST,), _failed),
    (_C.REMOVED, PollFailed): Row((_C.REMOVED,), _failed),
    (_C.SUSPECT, GraceOver): Row((_C.LOST,), _lost),
    (_C.LOST, GraceOver): Row((_C.LOST,), _stay),
    (_C.REMOVED, GraceOver): Row((_C.REMOVED,), _stay),
    **{(s, DeclareLost): Row((_C.LOST,), _declared) for s in (_C.ACTIVE, _C.SUSPECT, _C.CORDONED, _C.DRAINING)},
    (_C.LOST, DeclareLost): Row((_C.LOST,), _declared),
    (_C.REMOVED, DeclareLost): Row((_C.REMOVED,), _stay),
    **{(s, Cordon): Row((s,), _cordon) for s in (_C.INVITED, _C.SUSPECT, _C.LOST)},
    **{(s, Cordon): Row((_C.CORDONED,), _and_home(_cordon)) for s in _HOME},
    **{(s, Uncordon): Row((s,), _uncordon) for s in (_C.INVITED, _C.SUSPECT, _C.LOST)},
    **{(s, Uncordon): Row((_C.ACTIVE,), _and_home(_uncordon)) for s in _HOME},
    **{(s, Drain): Row((s,), _drain) for s in (_C.INVITED, _C.SUSPECT, _C.LOST)},
    **{(s, Drain): Row((_C.DRAINING,), _and_home(_drain)) for s in _HOME},
    **{(s, Remove): Row((_C.REMOVED,), _remove) for s in _ANY},
    (_C.REMOVED, Remove): Row((_C.REMOVED,), _stay),
}


def step(cluster: Cluster, event: ClusterEvent, policy: HealthPolicy) -> Cluster:
    """The cluster after `event`. Raises InvalidClusterTransition for an event that cannot be in this state."""
    if (row := TRANSITIONS.get((cluster.state, type(event)))) is None:
        raise InvalidClusterTransition(cluster, event)
    after = row.effect(cluster, event, policy)
    assert after.state in row.to, f"{cluster.name}: {cluster.state} -> {after.state} is not in the table: {row.to}"
    return after


# --- who is lost, and when nobody is -----------------------------------------------------------------------------------


class Silence(Struct, frozen=True, kw_only=True):
    """One look at the whole fleet."""

    #: Their grace is over: send GraceOver.
    overdue: tuple[str, ...] = ()
    #: Most of the fleet is silent: the hub suspects itself. In words; empty when all is well.
    alarm: str = ""


def _silent(cluster: Cluster, policy: HealthPolicy) -> bool:
    return cluster.failing_since is not None and cluster.failures_in_row >= policy.suspect_after


def look_for_silence(clusters: Iterable[Cluster], policy: HealthPolicy, now: Instant) -> Silence:
    """Who has been silent for too long. Nobody, when more than `brake_share` of those not lost already are silent."""
    watched = [c for c in clusters if c.state not in (_C.INVITED, _C.LOST, _C.REMOVED)]
    silent = [c for c in watched if _silent(c, policy)]
    if silent and len(silent) > policy.brake_share * len(watched):
        alarm = (
            f"{len(silent)} of {len(watched)} clusters are silent at once: more likely the hub's own network than theirs. "
            "No cluster is declared lost until fewer are silent; declare one lost yourself if you know better"
        )
        return Silence(alarm=alarm)
    overdue = [c.name for c in silent if c.grace_since is not None and now - c.grace_since >= policy.lost_timeout_s]
    return Silence(overdue=tuple(overdue))


def hold_back(cluster: Cluster, now: Instant) -> Cluster:
    """While the hub suspects itself, a silent cluster's grace starts again at every look."""
    return cluster if cluster.grace_since is None else msgspec.structs.replace(cluster, grace_since=now)


def grace_over(cluster: Cluster, now: Instant) -> GraceOver:
    silent_s = now - (cluster.failing_since or now)
    return GraceOver(
        now=now,
        reason="SilentTooLong",
        message=f"no answer for {silent_s:.0f} s; last error: {cluster.message or cluster.reason or 'none'}",
    )


def lease_to_grant(cluster: Cluster, policy: HealthPolicy, now: Instant) -> float:
    """Seconds of lease that a poll sent at `now` carries.

    While polls fail, the agent may still receive them and only its answers be lost. So from the first failure on, no
    poll extends the lease beyond what was granted before it: `fenced_at` is then a bound that holds for both sides.
    """
    if cluster.failing_since is None:
        return policy.lease_s
    return max(0.0, cluster.failing_since + policy.lease_s - now)


def fenced_at(cluster: Cluster, policy: HealthPolicy) -> Instant | None:
    """From when on an agent that obeys its fence runs no FenceThenMove work any more; None while it answers."""
    if cluster.failing_since is None:
        return None
    return cluster.failing_since + policy.lease_s + policy.lease_margin_s


def diagram() -> str:
    """The transition table as text, one line per state, as in the module docstring."""
    events = (Joined, Answered, PollFailed, GraceOver, DeclareLost, Cordon, Uncordon, Drain, Remove)
    widths = (10, 14, 14, 10, 12, 10, 10, 10, 10)
    lines = ["          " + "".join(f"{e.__name__:<{w}}" for e, w in zip(events, widths, strict=True))]
    for state in ClusterState:
        rows = [TRANSITIONS.get((state, e)) for e in events]
        cells = ["" if r is None else _targets(state, r.to) for r in rows]
        lines.append(f"{state.value:<10}" + "".join(f"{c:<{w}}" for c, w in zip(cells, widths, strict=True)))
    return "\n".join(line.rstrip() for line in lines)


def _targets(state: ClusterState, to: tuple[ClusterState, ...]) -> str:
    named = ["=" if s is state else s.value for s in to if s not in _HOME or len(to) < len(_HOME)]
    return " ".join([*named, "home"] if len(to) >= len(_HOME) else named)
