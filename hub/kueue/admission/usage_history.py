"""Admission fair sharing: what a LocalQueue used lately decides how soon its workloads are looked at (KEP-4136).

    usage = sum over resources of  weight x (consumed + penalties)  / weight of the LocalQueue

`consumed` follows what is admitted with a half-life; a penalty is charged the moment quota is reserved, so that a queue
cannot flood the cluster between two samples. Amounts are base units: cores, bytes, pieces.
"""

from collections.abc import Mapping

from hub.kueue.admission.config import LocalQ
from hub.kueue.admission.policy import AdmissionFairSharing
from hub.kueue.admission.records import Work
from hub.kueue.admission.requests import scaled
from hub.kueue.api.meta import Instant


def base_units(resource: str, amount: int) -> float:
    return amount / 1000 if resource == "cpu" else float(amount)


def fading(elapsed_s: float, half_life_s: float) -> float:
    """How much of the past is forgotten after so long, from 0 to 1."""
    return 1.0 - 0.5 ** (max(0.0, elapsed_s) / half_life_s) if half_life_s > 0 else 1.0


def sample(local: LocalQ, rules: AdmissionFairSharing, now: Instant) -> bool:
    """Move `consumed` towards what is admitted now, if the last sample is old enough. True: it moved."""
    elapsed = now - local.settled_at
    if local.settled_at and elapsed < rules.sampling_interval_s:
        return False
    if rules.half_life_s <= 0:
        local.used = {}
    elif local.settled_at:
        alpha = fading(elapsed, rules.half_life_s)
        current = admitted_usage(local)
        local.used = {
            r: _nine_digits(local.used.get(r, 0.0) * (1 - alpha) + current.get(r, 0.0) * alpha)
            for r in {*local.used, *current}
        }
    local.settled_at = now
    return True


def _nine_digits(value: float) -> float:
    return int(value * 1e9) / 1e9


def admitted_usage(local: LocalQ) -> dict[str, float]:
    """Resource -> what its admitted workloads hold."""
    total: dict[str, float] = {}
    for work in local.members.values():
        reservation = work.reservation
        if reservation is None or not reservation.admitted:
            continue
        for cell, amount in reservation.charges:
            resource = cell.key[1]
            total[resource] = total.get(resource, 0.0) + base_units(resource, amount)
    return total


def penalize(work: Work, rules: AdmissionFairSharing) -> None:
    """Quota was reserved for it: charge what it would have consumed by the next sample."""
    share = fading(rules.sampling_interval_s, rules.half_life_s) if rules.half_life_s > 0 else 0.0
    penalty: dict[str, float] = {}
    for need in work.shape.pod_sets:
        for resource, amount in scaled(need.per_pod, need.count).items():
            penalty[resource] = penalty.get(resource, 0.0) + base_units(resource, amount) * share
    work.local.penalties[work.key] = penalty


def settle_penalty(work: Work) -> None:
    """It is admitted: the penalty becomes history."""
    for resource, amount in work.local.penalties.pop(work.key, {}).items():
        work.local.used[resource] = work.local.used.get(resource, 0.0) + amount


def usage(local: LocalQ, rules: AdmissionFairSharing) -> float:
    """By what its workloads queue, less first. A LocalQueue of weight 0 comes last."""
    if local.weight <= 0:
        return float("inf")
    total = _weighted(local.used, rules)
    for penalty in local.penalties.values():
        total += _weighted(penalty, rules)
    return total / local.weight


def _weighted(amounts: Mapping[str, float], rules: AdmissionFairSharing) -> float:
    return sum(rules.resource_weights.get(resource, 1.0) * amount for resource, amount in sorted(amounts.items()))
