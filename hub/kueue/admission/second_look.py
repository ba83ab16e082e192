"""Places for workloads that hold quota already: found late, or found anew because a node failed.

    reserved, place Pending ──checks Ready──▶ look ──found──▶ Place (then Admit)
    admitted, node unhealthy ───────────────▶ look ──found──▶ Place
                                               └──no place──▶ look again after 1, 2, 4 ... 30 s, or Evict NodeFailures

Quota and flavors stay as they are, and nobody is preempted for it (KEP-2724).
"""

from copy import copy
from typing import TYPE_CHECKING, Literal

import msgspec

from hub.kueue.admission import messages as m
from hub.kueue.admission.assignment import PodSetChoice
from hub.kueue.admission.places import Ask, Places
from hub.kueue.admission.records import Reservation, Work
from hub.kueue.admission.requests import PodSetNeed
from hub.kueue.admission.topology_encoding import decode
from hub.kueue.admission.topology_replacing import replacement
from hub.kueue.api.v1beta2 import Admission, PodSetAssignment, TopologyAssignment
from hub.kueue.api.v1beta2 import names as n

if TYPE_CHECKING:
    from hub.kueue.admission.state import AdmissionState

FIRST_S = 1.0
LONGEST_S = 30.0


def look(state: "AdmissionState", work: Work) -> None:
    """Look for the place, if the workload needs one and it is time."""
    reservation = work.reservation
    if reservation is None or reservation.evicted or reservation.returning or not _is_needed(state, work, reservation):
        return
    if reservation.look_at is None:
        _later(state, work, reservation)
    elif reservation.look_at <= state.now:
        _look(state, work, reservation)


def look_all(state: "AdmissionState") -> None:
    """A node is gone: whoever ran there needs another one."""
    for work in list(state.works.values()):
        if work.reservation is not None and work.reservation.topology:
            look(state, work)


def _is_needed(state: "AdmissionState", work: Work, reservation: Reservation) -> bool:
    facts = work.facts
    assigned = reservation.admission.pod_set_assignments
    if _failed(state, work, reservation):
        return True
    if reservation.admitted or reservation.queue.places_elsewhere:
        return False
    checks = reservation.queue.checks_for({f for a in assigned for f in a.flavors.values()})
    ready = {c.name for c in facts.checks if c.state == "Ready"}
    return any(_is_late(a) for a in assigned) and ready.issuperset(checks)


def _failed(state: "AdmissionState", work: Work, reservation: Reservation) -> frozenset[str]:
    """Nodes of the workload that it was told to leave, or that are gone."""
    bad = state.config.scene.places.lost.union(work.facts.unhealthy_nodes)
    if not bad:
        return frozenset()
    return frozenset(host for a in reservation.admission.pod_set_assignments for host in _hosts(a) & bad)


def _is_late(assigned: PodSetAssignment) -> bool:
    return assigned.delayed_topology_request == "Pending" and assigned.topology_assignment is None


def _hosts(assigned: PodSetAssignment) -> set[str]:
    written = assigned.topology_assignment
    if written is None or written.levels[-1] != n.HOSTNAME_LABEL:
        return set()
    return {values[-1] for values, _ in decode(written)}


def _later(state: "AdmissionState", work: Work, reservation: Reservation) -> None:
    reservation.look_at = state.now + min(LONGEST_S, FIRST_S * 2.0**reservation.looks)
    reservation.looks = min(reservation.looks + 1, 16)
    state.alarm(reservation.look_at, work.key)


def _look(state: "AdmissionState", work: Work, reservation: Reservation) -> None:
    places = state.config.scene.places
    failed = _failed(state, work, reservation)
    found = _replaced(places, work, reservation, failed) if failed else _placed(places, work, reservation)
    if not isinstance(found, str):
        reservation.look_at, reservation.looks = None, 0
        _settle(state, work, reservation, found)
    elif failed and places.policy is not None and places.policy.replacement_fails_fast:
        reservation.evicted = True
        reservation.queue.running.refresh(work)
        nodes = ", ".join(sorted(failed))
        message = f"Workload cannot go on without node(s) {nodes}: {found}"
        state.out.append(m.Evict(key=work.key, reason=n.EvictedReason.NODE_FAILURES, message=message))
    else:
        _later(state, work, reservation)


def _settle(state: "AdmissionState", work: Work, reservation: Reservation, admission: Admission) -> None:
    for occupied in reservation.topology:
        occupied.release()
    reservation.admission = admission
    reservation.topology = state.config.scene.places.occupied_by(admission, work.shape)
    for occupied in reservation.topology:
        occupied.occupy()
    state.out.append(m.Place(key=work.key, admission=admission, message="Found a place in the topology"))


# --- found late --------------------------------------------------------------------------------------------------------


def _placed(places: Places, work: Work, reservation: Reservation) -> Admission | str:
    needs = {need.name: need for need in work.shape.pod_sets}
    asks: list[Ask] = []
    for assigned in reservation.admission.pod_set_assignments:
        need = needs.get(assigned.name)
        flavor = places.topology_flavor(assigned.flavors.values())
        if _is_late(assigned) and need is not None and flavor is not None:
            count = need.count if assigned.count is None else assigned.count
            asks.append(Ask(PodSetChoice(_updated(work, need), count, {}), flavor))
    found, failed, why = places.find(asks)
    if failed is not None:
        return why
    placed = {pod_set.need.name: placement.assignment() for pod_set, placement in found}
    return _with(reservation.admission, placed)


def _updated(work: Work, need: PodSetNeed) -> PodSetNeed:
    """The pod set with what checks add to node selector and tolerations."""
    updates = [u for check in work.facts.checks for u in check.pod_set_updates if u.name == need.name]
    if not updates:
        return need
    spec = need.spec
    for update in updates:
        selector = {**spec.node_selector, **update.node_selector}
        spec = msgspec.structs.replace(
            spec, node_selector=selector, tolerations=[*spec.tolerations, *update.tolerations]
        )
    updated = copy(need)
    updated.spec = spec
    return updated


def _with(admission: Admission, placed: dict[str, TopologyAssignment]) -> Admission:
    changed = [
        msgspec.structs.replace(a, topology_assignment=placed[a.name], delayed_topology_request=_done(a))
        if a.name in placed
        else a
        for a in admission.pod_set_assignments
    ]
    return msgspec.structs.replace(admission, pod_set_assignments=changed)


def _done(assigned: PodSetAssignment) -> Literal["Ready"] | None:
    return "Ready" if assigned.delayed_topology_request is not None else None


# --- a node failed -----------------------------------------------------------------------------------------------------


def _replaced(places: Places, work: Work, reservation: Reservation, failed: frozenset[str]) -> Admission | str:
    if len(failed) > 1:
        return "more than one node failed"
    needs = {need.name: need for need in work.shape.pod_sets}
    placed: dict[str, TopologyAssignment] = {}
    for assigned in reservation.admission.pod_set_assignments:
        need, written = needs.get(assigned.name), assigned.topology_assignment
        if need is None or written is None or not _hosts(assigned) & failed:
            continue
        flavor = places.topology_flavor(assigned.flavors.values())
        tree = places.tree(flavor) if flavor is not None else None
        if tree is None:
            return "its flavor has no topology any more"
        found = replacement(tree, _updated(work, need), decode(written), failed, places.rules)
        if isinstance(found, str):
            return found
        placed[assigned.name] = found
    return _with(reservation.admission, placed)
