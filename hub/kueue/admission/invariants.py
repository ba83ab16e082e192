"""What must hold whatever happened. Tests call `validate` after everything they do."""

from typing import TYPE_CHECKING

from hub.kueue.admission.config import Queue
from hub.kueue.admission.quota import Node
from hub.kueue.admission.records import Spot, Work

if TYPE_CHECKING:
    from hub.kueue.admission.state import AdmissionState


class InvariantError(Exception):
    """The state contradicts itself: a bug in the engine."""


def validate(state: "AdmissionState") -> None:
    """Raises InvariantError that names what does not add up."""
    state.config.settle()
    for queue in state.config.queues.values():
        _usage_is_what_is_reserved(queue)
        _counts_match(queue)
    for cohort in state.config.forest.cohorts.values():
        _usage_is_what_children_do_not_keep(cohort)
    for work in state.works.values():
        _is_in_one_place(work)
    trouble = state.config.scene.places.trouble(state.works.values())
    _check(not trouble, trouble)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def _usage_is_what_is_reserved(queue: Queue) -> None:
    sums: dict[tuple[str, str], int] = {}
    for work in queue.running:
        reservation = work.reservation
        _check(reservation is not None, f"{work.key} is listed in {queue.name} and holds nothing")
        for cell, amount in reservation.charges if reservation else ():
            _check(cell.node is queue, f"{work.key} is charged to a cell of {cell.node.name}, not {queue.name}")
            sums[cell.key] = sums.get(cell.key, 0) + amount
    for key, cell in queue.cells.items():
        want = sums.get(key, 0)
        _check(cell.usage == want, f"{queue.name} {key}: usage is {cell.usage}, its workloads hold {want}")


def _usage_is_what_children_do_not_keep(cohort: Node) -> None:
    for key, cell in cohort.cells.items():
        want = sum(
            max(0, c.usage - c.local) for child in [*cohort.cohorts, *cohort.queues] if (c := child.cells.get(key))
        )
        _check(cell.usage == want, f"cohort {cohort.name} {key}: usage is {cell.usage}, its children bring {want}")


def _counts_match(queue: Queue) -> None:
    everyone = list(queue.pending.everyone())
    _check(
        len(everyone) == len(queue.pending), f"{queue.name} counts {len(queue.pending)} pending and has {len(everyone)}"
    )
    ready = [w for w in everyone if not queue.pending.is_parked(w)]
    _check(len(ready) == queue.pending.ready, f"{queue.name} counts {queue.pending.ready} ready and has {len(ready)}")
    if ready:
        head, first = queue.pending.peek(), queue.pending.in_order()[0]
        _check(head is first, f"{queue.name}: the head is {head}, in order it is {first}")


def _is_in_one_place(work: Work) -> None:
    if work.spot is Spot.RESERVED:
        _check(work.reservation is not None and work.lane is None, f"{work} holds quota and waits")
        _check(work.queue is not None and work in work.queue.running, f"{work} is not listed in its queue")
    else:
        _check(work.reservation is None, f"{work} holds quota in the wrong place")
        _check(work.spot is not Spot.IN_FLIGHT, f"{work} is in flight outside a cycle")
        _check((work.spot is Spot.QUEUED) == (work.lane is not None), f"{work} and its lane disagree")
