"""Pure: what the sandbox clusters saw -> the demo's last line. The hub's own opinion does not enter."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from hub.demo.jobs import JobPlan
from hub.sandbox.observer import Completion, Run, double_runs


class Facts(Struct, frozen=True, kw_only=True):
    """What was submitted and when, what ran where, and what the user's own job objects say in the end."""

    plans: Sequence[JobPlan]
    #: job -> when the management API had accepted it, epoch seconds.
    submitted_at: Mapping[str, float]
    runs: Sequence[Run]
    completions: Sequence[Completion]
    #: Jobs whose object on the management cluster is Complete.
    complete: frozenset[str]
    #: Jobs of which the management cluster says that they can never fit.
    never_fit: frozenset[str]
    now: float
    wall_s: float


class Verdict(Struct, frozen=True, kw_only=True):
    jobs: int
    finished: int
    never_fit: int
    double_runs: int
    lost: int
    per_cluster: dict[str, int]
    p50_place_s: float
    p99_place_s: float
    wall_s: float

    def as_it_should_be(self, plans: Sequence[JobPlan]) -> bool:
        hopeless = sum(plan.never_fits for plan in plans)
        clean = self.double_runs == 0 and self.lost == 0
        return clean and (self.finished, self.never_fit) == (len(plans) - hopeless, hopeless)


def verdict(facts: Facts) -> Verdict:
    """A job is finished when a worker cluster saw it succeed and the user's own object says so; lost when it should be."""
    where = {_key(done): done.source.cluster for done in facts.completions if done.succeeded}
    finished = where.keys() & facts.complete
    began: dict[str, float] = {}
    for run in facts.runs:
        began[_key(run)] = min(run.start, began.get(_key(run), run.start))
    wanted = {plan.key for plan in facts.plans if not plan.never_fits}
    waits = sorted(began[job] - facts.submitted_at[job] for job in wanted & began.keys() & facts.submitted_at.keys())
    return Verdict(
        jobs=len(facts.plans),
        finished=len(finished),
        never_fit=len(facts.never_fit - began.keys()),
        double_runs=len(double_runs(facts.runs, facts.completions, now=facts.now)),
        lost=len(wanted - finished),
        per_cluster=dict(sorted(Counter(where[job] for job in finished).items())),
        p50_place_s=_quantile(waits, 0.50),
        p99_place_s=_quantile(waits, 0.99),
        wall_s=round(facts.wall_s, 1),
    )


def complaints(facts: Facts) -> list[str]:
    """What is not as it should be, job by job, in words."""
    twice = [
        f"{double.name} ran twice: on {' and '.join(double.clusters)}, {double.overlap_s:.1f} s at the same time, "
        f"{double.completions} times to its end"
        for double in double_runs(facts.runs, facts.completions, now=facts.now)
    ]
    where = {_key(done) for done in facts.completions if done.succeeded}
    lost = [
        f"{plan.key} is lost: {'no cluster saw it end' if plan.key not in where else 'its end is not on the management cluster'}"
        for plan in facts.plans
        if not plan.never_fits and not (plan.key in where and plan.key in facts.complete)
    ]
    untold = [
        f"{plan.key} was never told that it cannot fit"
        for plan in facts.plans
        if plan.never_fits and plan.key not in facts.never_fit
    ]
    return [*twice, *lost, *untold]


def _key(seen: Run | Completion) -> str:
    return f"{seen.source.namespace}/{seen.source.name}"


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)], 3)
