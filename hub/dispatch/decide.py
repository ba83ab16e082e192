"""One workload, the whole fleet, one decision with its reasons.

    1. hold      an older placement may still run: nothing is offered before the agent's word
    2. filter    which clusters could take it now (filters.py)
    3. score     which of them is best (scores.py)
    4. nominate  who gets an offer (nominate.py)
    5. else      wait, and for whom; or say that no cluster could ever take it

`decide` is a pure function; `Memo` only remembers answers that a shape of workload got from one version of a cluster, so
that a thousand equal jobs cost one question per cluster and one more per placement.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from hub.dispatch.capacity import ClusterView, Fleet, emptied
from hub.dispatch.clusters import ClusterState
from hub.dispatch.filters import (
    ROOM_RULES,
    SETUP_RULES,
    SHAPE_RULES,
    Candidate,
    Rebuff,
    RetryPolicy,
    ShapeRule,
    not_refused_lately,
    rebuffs_of,
    retry_at,
)
from hub.dispatch.nominate import CAPACITY, STRATEGIES, Choice
from hub.dispatch.placement import Charge, Placement, blocks_another_start
from hub.dispatch.request import Request
from hub.dispatch.scores import SCORES, Score, ScorePolicy, few_recent_failures, total
from hub.kueue.api.meta import Instant, ObjectKey


class Outcome(StrEnum):
    OFFERED = "Offered"
    HELD = "Held"  # an older placement must be gone first
    WAITING = "WaitingForRoom"
    NEVER_FITS = "NeverFits"  # too large for every cluster, even an empty one
    NO_CLUSTER = "NoClusterQualifies"  # no cluster is set up for it


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one cluster was found to be worth, in words."""

    cluster: str
    fits: bool
    #: The rule that objected, and why; empty when none did: then the scores have the words.
    rule: str = ""
    why: str = ""
    score: float = 0.0
    scores: tuple[Score, ...] = ()


class DecisionRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Kept with the workload, and shown by `why`: every cluster considered, with its verdict."""

    workload: ObjectKey
    uid: str
    at: Instant
    outcome: Outcome
    message: str
    #: Clusters that got an offer.
    clusters: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    #: In a large fleet: how many more clusters each rule kept out.
    others: dict[str, int] = {}


class Plan(Struct, frozen=True, kw_only=True):
    record: DecisionRecord
    #: Empty: it waits.
    offers: tuple[Choice, ...] = ()
    #: Ask again at this time even if nothing changes. None: only a change of the fleet can help.
    retry_at: Instant | None = None


class DispatchPolicy(Struct, frozen=True, kw_only=True):
    retry: RetryPolicy = RetryPolicy()
    score: ScorePolicy = ScorePolicy()
    strategy: str = CAPACITY
    #: Longest list of verdicts in a record.
    verdicts_max: int = 50


class Answer(Struct, frozen=True, kw_only=True):
    """What one version of a cluster says to one shape."""

    verdict: Verdict
    choice: Choice | None = None


class Memo:
    """Answers by shape and version of the cluster. Dropped as a whole when it gets large."""

    def __init__(self, size_max: int = 50_000) -> None:
        self._size_max = size_max
        self._answers: dict[tuple[str, str], tuple[int, Answer]] = {}
        self._never: dict[str, tuple[int, Plan | None]] = {}

    def answer(self, request: Request, shape: str, view: ClusterView, policy: DispatchPolicy) -> Answer:
        key = (shape, view.name)
        found = self._answers.get(key)
        if found is not None and found[0] == view.version:
            return found[1]
        if len(self._answers) >= self._size_max:
            self._answers.clear()
        answer = ask(request, view, policy)
        self._answers[key] = (view.version, answer)
        return answer

    def never(self, request: Request, shape: str, fleet: Fleet, now: Instant) -> Plan | None:
        found = self._never.get(shape)
        if found is None or found[0] != fleet.setup_version:
            if len(self._never) >= self._size_max:
                self._never.clear()
            found = self._never[shape] = (fleet.setup_version, never_fits(request, _considered(request, fleet), now))
        return found[1]


def decide(
    request: Request,
    fleet: Fleet,
    past: Sequence[Placement],
    failures: Mapping[str, float],
    now: Instant,
    policy: DispatchPolicy,
    memo: Memo,
) -> Plan:
    """Where the workload is offered now, or why it waits.

    `past` are its placements that are known, newest last; `failures` the faded count of failures by cluster.
    """
    if (held := _held(request, past, now)) is not None:
        return held
    shape = request.shape()
    rebuffs = rebuffs_of(past)
    answers = [
        _with_past(memo.answer(request, shape, view, policy), rebuffs, failures, now, policy)
        for view in _considered(request, fleet)
    ]
    fitting = sorted((a for a in answers if a.choice), key=lambda a: (-a.verdict.score, a.verdict.cluster))
    offers = STRATEGIES[policy.strategy]([a.choice for a in fitting if a.choice])
    if not offers and (never := memo.never(request, shape, fleet, now)) is not None:
        return for_workload(never, request, now)
    verdicts = [a.verdict for a in fitting] + [a.verdict for a in answers if not a.choice]
    return _plan(request, offers, verdicts + _unregistered(request, fleet), rebuffs, now, policy)


def ask(request: Request, view: ClusterView, policy: DispatchPolicy) -> Answer:
    """All rules of a shape to one cluster: the first objection, or the scores and what an offer would consist of."""
    candidate = Candidate(request, view)
    if (refusal := objection(candidate, SHAPE_RULES)) is not None:
        return Answer(verdict=refusal)
    scores = tuple(score(candidate, policy.score) for score in SCORES)
    verdict = Verdict(
        cluster=view.name,
        fits=True,
        score=total(scores, policy.score.weights),
        scores=scores,
    )
    return Answer(verdict=verdict, choice=_choice(candidate))


def objection(candidate: Candidate, rules: Iterable[ShapeRule]) -> Verdict | None:
    """The verdict of the first rule that objects."""
    for rule in rules:
        if (why := rule(candidate)) is not None:
            return Verdict(cluster=candidate.view.name, fits=False, rule=rule.__name__, why=why)
    return None


def _choice(c: Candidate) -> Choice:
    assert c.queue_name is not None
    charges = [Charge(flavor=f, resource=r, amount=n) for (f, r), n in sorted(c.charges.items())]
    return Choice(cluster=c.view.name, queue=c.queue_name, pod_sets=c.pod_sets(), charges=tuple(charges))


def _with_past(
    answer: Answer, rebuffs: Mapping[str, Rebuff], failures: Mapping[str, float], now: Instant, policy: DispatchPolicy
) -> Answer:
    """The shape's answer, with what is known about this workload and about the cluster's recent luck."""
    verdict = answer.verdict
    if answer.choice is None:
        return answer
    why = not_refused_lately(rebuffs.get(verdict.cluster), policy.retry, now)
    if why is not None:
        return Answer(verdict=Verdict(cluster=verdict.cluster, fits=False, rule="not_refused_lately", why=why))
    if verdict.cluster not in failures:
        return answer
    luck = few_recent_failures(failures[verdict.cluster])
    scored = Verdict(
        cluster=verdict.cluster,
        fits=True,
        score=round(verdict.score + total((luck,), policy.score.weights), 4),
        scores=(*verdict.scores, luck),
    )
    return Answer(verdict=scored, choice=answer.choice)


def _considered(request: Request, fleet: Fleet) -> list[ClusterView]:
    """The clusters of the config, or all. Others would only fill the record with one and the same reason."""
    if request.configured is None:
        return list(fleet.views())
    return [fleet.view(name) for name in request.configured if name in fleet.clusters]


def _unregistered(request: Request, fleet: Fleet) -> list[Verdict]:
    missing = [name for name in request.configured or () if name not in fleet.clusters]
    return [Verdict(cluster=n, fits=False, rule="registered", why="in the config, but not registered") for n in missing]


def _held(request: Request, past: Sequence[Placement], now: Instant) -> Plan | None:
    blocker = next((p for p in past if blocks_another_start(p)), None)
    if blocker is None:
        return None
    message = f"placement {blocker.id} on {blocker.cluster} is {blocker.state}" + (
        " and not confirmed gone yet: nothing is started elsewhere before" if not blocker.released else ""
    )
    record = DecisionRecord(workload=request.workload, uid=request.uid, at=now, outcome=Outcome.HELD, message=message)
    return Plan(record=record)


def _plan(
    request: Request,
    offers: tuple[Choice, ...],
    verdicts: list[Verdict],
    rebuffs: Mapping[str, Rebuff],
    now: Instant,
    policy: DispatchPolicy,
) -> Plan:
    names = tuple(o.cluster for o in offers)
    shown, rest = verdicts[: policy.verdicts_max], verdicts[policy.verdicts_max :]
    others: dict[str, int] = {}
    for verdict in rest:
        others[verdict.rule or "fits"] = others.get(verdict.rule or "fits", 0) + 1
    record = DecisionRecord(
        workload=request.workload,
        uid=request.uid,
        at=now,
        outcome=Outcome.OFFERED if offers else Outcome.WAITING,
        message=_message(names, verdicts),
        clusters=names,
        verdicts=tuple(shown),
        others=others,
    )
    asked_again = [retry_at(r, policy.retry) for r in rebuffs.values()]
    later = [at for at in asked_again if at > now]
    return Plan(record=record, offers=offers, retry_at=min(later) if later and not offers else None)


def _message(offered: tuple[str, ...], verdicts: Sequence[Verdict]) -> str:
    if offered:
        words = "; ".join(score.why for score in verdicts[0].scores)
        return f"offered to {', '.join(offered)}: {words}"
    if not verdicts:
        return "no cluster is registered"
    return "no cluster has room now: " + listed(verdicts)


#: Clusters named in a sentence; the record has them all.
_NAMED_MAX = 5


def listed(verdicts: Sequence[Verdict]) -> str:
    """Verdicts as one sentence, the first few by name."""
    named = "; ".join(f"{v.cluster}: {v.why}" for v in verdicts[:_NAMED_MAX])
    more = len(verdicts) - _NAMED_MAX
    return named + (f"; and {more} more" if more > 0 else "")


# --- never -------------------------------------------------------------------------------------------------------------


def never_fits(request: Request, views: Iterable[ClusterView], now: Instant) -> Plan | None:
    """A plan that says so, when no registered cluster could take the workload even if it were empty; else None.

    What is cordoned, not ready, suspect or lost counts as possible. Only clusters that have never reported do not.
    """
    known = [v for v in views if v.cluster.capacity is not None and v.cluster.state is not ClusterState.REMOVED]
    verdicts: list[Verdict] = []
    for view in known:
        verdict = objection(Candidate(request, emptied(view)), (*SETUP_RULES, *ROOM_RULES))
        if verdict is None:
            return None
        verdicts.append(verdict)
    if not verdicts:
        return None
    room = {rule.__name__ for rule in ROOM_RULES}
    too_large = [v for v in verdicts if v.rule in room]
    outcome = Outcome.NEVER_FITS if too_large else Outcome.NO_CLUSTER
    message = (
        f"can never fit, not even on an empty cluster: {listed(too_large)}"
        if too_large
        else f"no cluster is set up for it: {listed(verdicts)}"
    )
    record = DecisionRecord(
        workload=request.workload, uid=request.uid, at=now, outcome=outcome, message=message, verdicts=tuple(verdicts)
    )
    return Plan(record=record)


def for_workload(plan: Plan, request: Request, now: Instant) -> Plan:
    """A shape's plan, told to one workload of that shape."""
    r = plan.record
    record = DecisionRecord(
        workload=request.workload,
        uid=request.uid,
        at=now,
        outcome=r.outcome,
        message=r.message,
        verdicts=r.verdicts,
        others=r.others,
    )
    return Plan(record=record)
