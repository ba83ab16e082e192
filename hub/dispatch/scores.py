"""Which of several possible clusters is best: one function per rule, worth 0 to 1 (failures: -1 to 0), with a reason.

The scores are weighted and added. Default weights keep the order "no preemption, then free capacity, then order in the
config, then recent failures": each one outweighs all that follow it, except where two clusters are nearly equal in it.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct, field

from hub.dispatch.filters import Candidate
from hub.kueue.api import quantity


class Score(Struct, frozen=True, kw_only=True):
    rule: str
    #: Before the weight.
    value: float
    why: str


class ScorePolicy(Struct, frozen=True, kw_only=True):
    #: True: fill clusters up, so that large holes stay for large workloads. False: spread.
    pack: bool = True
    weights: dict[str, float] = field(
        default_factory=lambda: {
            "needs_no_preemption": 1000.0,
            "free_capacity": 100.0,
            "order_in_config": 10.0,
            "few_recent_failures": 1.0,
        }
    )


def needs_no_preemption(c: Candidate, policy: ScorePolicy) -> Score:
    """Room without anybody's leaving; with others waiting in the same queue, the offer may have to wait or to preempt."""
    queue = c.queue
    waiting = queue.pending if queue else 0
    why = f"{waiting} wait in ClusterQueue {c.queue_name} already" if waiting else "nobody waits there"
    return Score(rule="needs_no_preemption", value=0.0 if waiting else 1.0, why=why)


def free_capacity(c: Candidate, policy: ScorePolicy) -> Score:
    """How full the tightest resource would be afterwards (pack), or how empty (spread)."""
    fullest, words = 0.0, "asks for nothing that is counted"
    for (flavor, resource), amount in c.charges.items():
        account = c.view.account_of(flavor, resource)
        if amount and account.capacity:
            left = account.free - amount
            full = 1.0 - left / account.capacity
            if full >= fullest:
                fullest = full
                left_of = f"{quantity.text(resource, left)} of {quantity.text(resource, account.capacity)}"
                words = f"{left_of} {resource} of {flavor} would stay free"
    return Score(rule="free_capacity", value=round(fullest if policy.pack else 1.0 - fullest, 4), why=words)


def order_in_config(c: Candidate, policy: ScorePolicy) -> Score:
    """The user's order before the administrator's; without either all are equal."""
    order = c.request.wanted or c.request.configured
    if not order:
        return Score(rule="order_in_config", value=1.0, why="no order given")
    index = order.index(c.view.name)
    return Score(rule="order_in_config", value=1.0 - index / len(order), why=f"number {index + 1} of {len(order)}")


SCORES: tuple[Callable[[Candidate, ScorePolicy], Score], ...] = (needs_no_preemption, free_capacity, order_in_config)


def few_recent_failures(failures: float) -> Score:
    """`failures`: refusals, evictions and losses on that cluster, each fading with time. Not part of a shape's answer."""
    value = round(1.0 / (1.0 + failures) - 1.0, 4)
    return Score(rule="few_recent_failures", value=value, why=f"{failures:.1f} recent failures")


def total(scores: tuple[Score, ...], weights: Mapping[str, float]) -> float:
    return sum(score.value * weights.get(score.rule, 0.0) for score in scores)


#: After so many seconds a failure counts half.
FAILURE_HALF_LIFE_S = 300.0


def faded(count: float, age_s: float) -> float:
    """What is left of a count of failures after `age_s`; below a hundredth it is forgotten."""
    left = count * 0.5 ** (max(0.0, age_s) / FAILURE_HALF_LIFE_S)
    return left if left >= 0.01 else 0.0
