"""What one head of a queue would get: flavors, victims, or fewer pods."""

from collections.abc import Sequence

from hub.kueue.admission import better, preemption
from hub.kueue.admission.assignment import Assignment, Mode
from hub.kueue.admission.config import Queue
from hub.kueue.admission.flavors import Pins, assign, assign_first, preemption_need
from hub.kueue.admission.records import Tried, Work
from hub.kueue.admission.scene import Scene
from hub.kueue.admission.victims import Demand, Victim
from hub.kueue.admission.what_if import WhatIf
from hub.kueue.api.meta import ObjectKey

Found = tuple[Assignment, list[Victim]]


def nominate(scene: Scene, work: Work, queue: Queue, pins: Pins | None = None) -> Found:
    """The best that can be done for the workload now: a fit, a fit at the price of victims, a smaller one, or none.

    Preemption at full size is preferred to a fit at reduced size.
    """
    tried = work.tried
    if tried is not None and is_outdated(scene, tried, work, queue):
        work.tried = None
    if pins is None and (first := assign_first(scene, work, queue)) is not None:
        return first, []
    replaced = _replaced(scene, work, queue)
    if replaced is not None:
        assignment, victims = _instead_of(scene, work, queue, replaced)
    else:
        assignment, victims = _sized(scene, work, queue, pins)
    if assignment.mode is Mode.PREEMPT:
        scene.places.hold_place(work, queue, assignment, victims)
    return assignment, victims


def _replaced(scene: Scene, work: Work, queue: Queue) -> Work | None:
    """The running slice of the same job that this one replaces (KEP-77)."""
    if not work.facts.replaces or not scene.policy.elastic_slices:
        return None
    old = scene.works.get(ObjectKey(work.key.namespace, work.facts.replaces.rpartition("/")[2]))
    return old if old is not None and old.reservation is not None and old.reservation.queue is queue else None


def _instead_of(scene: Scene, work: Work, queue: Queue, old: Work) -> Found:
    """As if the old slice were gone, at full size and on its flavors: only the difference has to be found."""
    kept = {p.name: p.flavors for p in old.reservation.admission.pod_set_assignments} if old.reservation else {}
    hidden, scene.hidden = scene.hidden, [*scene.hidden, old]
    with WhatIf() as trial:
        trial.remove(old)
        assignment = assign(scene, work, queue, None, [kept.get(need.name, {}) for need in work.shape.pod_sets])
        victims = find_victims(scene, work, queue, assignment) if assignment.mode is Mode.PREEMPT else []
    scene.hidden = hidden
    assignment.replaces = old
    return assignment, victims


def is_outdated(scene: Scene, tried: Tried, work: Work, queue: Queue) -> bool:
    """Must the search for flavors start over? Within one cycle it goes on although quotas moved."""
    if scene.policy.preserve_scan_progress:
        if scene.policy.shape_hashing and tried.likeness != (work.shape.like, work.priority):
            return True
        if scene.cycle - tried.cycle <= 1:
            return False
    return queue.generation > tried.generation


def _sized(scene: Scene, work: Work, queue: Queue, pins: Pins | None) -> Found:
    full = assign(scene, work, queue, None, pins)
    if full.mode is Mode.FIT:
        return full, []
    if full.mode is Mode.PREEMPT:
        victims = find_victims(scene, work, queue, full)
        if victims:
            return full, victims
    if scene.policy.partial_admission and work.shape.may_shrink:
        smaller = _smaller(scene, work, queue, pins)
        if smaller is not None:
            return smaller
    return full, []


def find_victims(scene: Scene, work: Work, queue: Queue, assignment: Assignment) -> list[Victim]:
    """Whom an assignment that needs preemption would push out."""
    contested = frozenset(cell.key for cell in assignment.contested())
    safe = better.safe_from(scene.policy, work, scene.now)
    placing = scene.places.requests(work, queue, assignment)
    return preemption.find(scene, Demand(work, queue, preemption_need(assignment), contested, placing, safe))


def _smaller(scene: Scene, work: Work, queue: Queue, pins: Pins | None) -> Found | None:
    """The largest size below the full one that works, by bisection between full and minimum counts.

    Sizes shrink in proportion over the pod sets that may shrink. Larger sizes are assumed not to work when smaller ones
    do not; where that is wrong, the answer is Kueue's.
    """
    full = [p.spec_count for p in work.shape.pod_sets]
    deltas = [p.spec_count - (p.spec_count if p.min_count is None else p.min_count) for p in work.shape.pod_sets]
    total = sum(deltas)
    if total <= 0:
        return None
    low, high = 0, total + 1
    good_at, good = 0, None
    while low < high:
        middle = (low + high) // 2
        found = _works(scene, work, queue, shrunk(full, deltas, middle, total), pins)
        if found is None:
            low = middle + 1
        else:
            good_at, good = middle, found
            high = middle
    return good if low == good_at else None


def shrunk(full: Sequence[int], deltas: Sequence[int], step: int, total: int) -> list[int]:
    """Counts at so many of `total` steps from full to minimum, rounded towards more pods."""
    return [count - delta * step // total for count, delta in zip(full, deltas, strict=True)]


def _works(scene: Scene, work: Work, queue: Queue, counts: Sequence[int], pins: Pins | None) -> Found | None:
    assignment = assign(scene, work, queue, counts, pins)
    if assignment.mode is Mode.FIT:
        return assignment, []
    if assignment.mode is Mode.PREEMPT:
        victims = find_victims(scene, work, queue, assignment)
        if victims:
            return assignment, victims
    return None
