"""Where topology-aware scheduling meets quota: which pod sets need a place, and whether there is one.

A pod set needs a place when it asks for one, or when its ClusterQueue has flavors with a topology only. Quota is decided
first; then all pod sets of the workload are placed one after the other, each seeing what those before it took. When that
fails although there is quota, preemption may help if an empty cluster could take the workload (KEP-2724).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hub.kueue.admission.assignment import Assignment, Mode, PodSetChoice
from hub.kueue.admission.config import Flavor, Group, Queue
from hub.kueue.admission.policy import Topology as TopologyPolicy
from hub.kueue.admission.requests import PodSetNeed, Shape, wants_topology
from hub.kueue.admission.topology import Amounts, NodeFacts, Room, Rooms, Tree, node_facts
from hub.kueue.admission.topology_counts import Gang
from hub.kueue.admission.topology_search import Rules, search
from hub.kueue.admission.topology_usage import Occupied, Placement, occupied_by
from hub.kueue.admission.topology_wishes import named_levels, wish_of
from hub.kueue.admission.what_if import WhatIf
from hub.kueue.api.core import node as read_node
from hub.kueue.api.v1beta2 import Admission, ResourceFlavor, Topology
from hub.kueue.api.v1beta2 import names as n

if TYPE_CHECKING:
    from hub.kueue.admission.records import Work
    from hub.kueue.admission.victims import Victim


class Ask(NamedTuple):
    """A pod set that needs a place, and the flavor in whose topology."""

    pod_set: PodSetChoice
    flavor: str


class _Checks(NamedTuple):
    """What the admission checks of a ClusterQueue mean for places."""

    #: Flavors whose places are found when a check is Ready.
    delayed: frozenset[str] = frozenset()
    #: Workers find the places.
    never: bool = False


_NO_CHECKS = _Checks()


class Places:
    def __init__(self, policy: TopologyPolicy | None, *, exact: bool) -> None:
        self.policy = policy
        #: Look at everything again before a place is taken, the number of pods included. Kueue looks at less.
        self._exact = exact
        self.rules = Rules() if policy is None else Rules(policy.mixed_profile, policy.balanced)
        self._topologies: dict[str, Topology] = {}
        self._flavors: dict[str, ResourceFlavor] = {}
        self._trees: dict[str, Tree] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._foreign: dict[str, Amounts] = {}
        #: Host names of nodes that were there and are gone: workloads on them need others.
        self.lost: set[str] = set()
        self._rooms = Rooms(shared=policy is not None and policy.overlapping_flavors)
        self._checks: dict[str, _Checks] = {}
        self._held: list[Occupied] = []

    # --- configuration ---------------------------------------------------------------------------------------------------

    def set_topology(self, topology: Topology) -> None:
        name = topology.metadata.name
        before = self._topologies.get(name)
        self._topologies[name] = topology
        if before is None or before.spec != topology.spec:
            self._replant(name)

    def remove_topology(self, name: str) -> None:
        self._topologies.pop(name, None)
        self._replant(name)

    def set_flavor(self, flavor: ResourceFlavor) -> None:
        name = flavor.metadata.name
        before = self._flavors.get(name)
        self._flavors[name] = flavor
        if before is None or before.spec != flavor.spec:
            self._plant(name)

    def remove_flavor(self, name: str) -> None:
        self._flavors.pop(name, None)
        self._fell(name)

    def set_queue(self, queue: Queue, delayed: Sequence[str], *, never: bool) -> None:
        """What a ClusterQueue's checks mean for places: flavors that wait for a check, and `never` when a worker decides."""
        self._checks[queue.name] = _Checks(frozenset(delayed), never)

    def missing_topologies(self, flavors: Sequence[str]) -> list[str]:
        """Topologies that these flavors name and that do not exist."""
        if self.policy is None:
            return []
        named = {t for f in flavors if (o := self._flavors.get(f)) and (t := o.spec.topology_name)}
        return sorted(named - set(self._topologies))

    def trees(self) -> list[Tree]:
        """The topology of every flavor that has one, with what is used where."""
        return list(self._trees.values())

    def tree(self, flavor: str) -> Tree | None:
        return self._trees.get(flavor)

    def topology_flavor(self, flavors: Iterable[str]) -> str | None:
        """The one among these flavors that has a topology."""
        return next((f for f in flavors if f in self._trees), None)

    def _replant(self, topology: str) -> None:
        for name, flavor in self._flavors.items():
            if flavor.spec.topology_name == topology:
                self._plant(name)

    def _fell(self, name: str) -> None:
        tree = self._trees.pop(name, None)
        if tree is not None:
            tree.uproot()

    def _plant(self, name: str) -> None:
        """Make the tree of a flavor anew."""
        self._fell(name)
        spec = self._flavors[name].spec
        topology = self._topologies.get(spec.topology_name or "")
        if self.policy is None or topology is None:
            return
        tree = self._trees[name] = Tree(name, topology, spec.node_labels, spec.tolerations, self._rooms)
        for node in self._nodes.values():
            tree.put(node, self._foreign.get(node.name, {}))

    # --- nodes -----------------------------------------------------------------------------------------------------------

    def set_node(self, node: dict[str, Any]) -> bool:
        """True: something changed that matters for placement. Raises DecodeError."""
        facts = node_facts(read_node(node))
        if self._nodes.get(facts.name) == facts:
            return False
        self._nodes[facts.name] = facts
        self.lost.discard(_host(facts))
        for tree in self._trees.values():
            tree.put(facts, self._foreign.get(facts.name, {}))
        return True

    def remove_node(self, name: str) -> bool:
        """True: it was there."""
        for tree in self._trees.values():
            tree.drop(name, self._foreign.get(name, {}))
        facts = self._nodes.pop(name, None)
        if facts is None:
            return False
        self.lost.add(_host(facts))
        return True

    def set_foreign_usage(self, node: str, requests: dict[str, int]) -> bool:
        """True: a node of some topology has other room now."""
        before = self._foreign.get(node, {})
        if before == requests:
            return False
        self._foreign[node] = dict(requests)
        return bool(sum(tree.shift_foreign(node, before, requests) for tree in self._trees.values()))

    # --- which flavors -----------------------------------------------------------------------------------------------------

    def mismatch(self, queue: Queue, group: Group, flavor: Flavor, need: PodSetNeed) -> str:
        """Why the pod set cannot use the flavor as far as topology goes, "" if it can."""
        if self.policy is None:
            return ""
        if not wants_topology(need.topology):
            if flavor.topology and not self._only(queue):
                return f'Flavor "{flavor.name}" supports only TopologyAwareScheduling'
            return ""
        if flavor.topology is None:
            if group.resources.isdisjoint(need.raw_per_pod):
                return ""
            return f'Flavor "{flavor.name}" does not support TopologyAwareScheduling'
        tree = self._trees.get(flavor.name)
        if tree is None:
            return f'Flavor "{flavor.name}" information missing in TAS cache'
        if any(level not in tree.levels for level in named_levels(need.topology)):
            return f'Flavor "{flavor.name}" does not contain the requested level'
        return ""

    def matter(self, queue: Queue, shape: Shape) -> bool:
        """Does a workload of this shape need a place in this ClusterQueue?"""
        return self.policy is not None and (shape.wants_topology or self._only(queue))

    def _only(self, queue: Queue) -> bool:
        """Has every flavor of the ClusterQueue a topology, so that all its workloads are placed?"""
        names = [f for g in queue.groups for f in g.flavors]
        return bool(names) and all(self.is_topology_flavor(queue, f) for f in names)

    def is_topology_flavor(self, queue: Queue, flavor: str) -> bool:
        return self.policy is not None and (f := self._flavors.get(flavor)) is not None and bool(f.spec.topology_name)

    # --- placing ---------------------------------------------------------------------------------------------------------

    def place(self, work: "Work", queue: Queue, assignment: Assignment) -> None:
        """Find places for pod sets that need one."""
        asks = self.requests(work, queue, assignment)
        if not asks:
            return
        if assignment.mode is Mode.FIT:
            found, failed, why = self.find(asks, empty=False)
            if failed is None:
                _store(found)
            else:
                failed.demote(Mode.PREEMPT, why)
        if assignment.mode is Mode.PREEMPT and not work.facts.unhealthy_nodes:
            found, failed, why = self.find(asks, empty=True)
            if failed is not None:
                failed.demote(Mode.NOFIT, why)
            else:
                for ask in asks:
                    ask.pod_set.demote(Mode.PREEMPT, "")

    def hold_place(self, work: "Work", queue: Queue, assignment: Assignment, victims: Sequence["Victim"]) -> None:
        """Find the place that a preemptor will have, so that it can be held for it."""
        asks = self.requests(work, queue, assignment)
        if not asks or work.facts.unhealthy_nodes:
            return
        with WhatIf() as trial:
            trial.remove_all(victim.work for victim in victims)
            found, _, _ = self.find(asks, empty=not victims)
        _store(found)

    def requests(self, work: "Work", queue: Queue, assignment: Assignment) -> list[Ask]:
        """Pod sets of the assignment that need a place and can have one now."""
        if not self.matter(queue, work.shape):
            return []
        only = self._only(queue)
        checks = self._checks.get(queue.name, _NO_CHECKS)
        asks: list[Ask] = []
        for pod_set in assignment.pod_sets:
            if pod_set.error or pod_set.count == 0 or not (only or wants_topology(pod_set.need.topology)):
                continue
            flavors = {c.flavor for c in pod_set.choices.values() if self.is_topology_flavor(queue, c.flavor)}
            if len(flavors) != 1:
                pod_set.error = (
                    "more than one flavor with a topology assigned" if flavors else "no flavor with a topology assigned"
                )
                continue
            flavor = flavors.pop()
            if checks.never or (flavor in checks.delayed and work.reservation is None):
                pod_set.delayed = "Pending"
            else:
                asks.append(Ask(pod_set, flavor))
        return asks

    def has_room(self, asks: Sequence[Ask]) -> bool:
        """Is there a place for all of them now?"""
        return self.find(asks, empty=False)[1] is None

    def find(
        self, asks: Sequence[Ask], *, empty: bool = False
    ) -> tuple[list[tuple[PodSetChoice, Placement]], PodSetChoice | None, str]:
        """Places by pod set; and the first pod set without one, with the reason."""
        found: list[tuple[PodSetChoice, Placement]] = []
        try:
            for flavor, members in _gangs(asks):
                placed = self._place_gang(flavor, members, empty=empty)
                if isinstance(placed, str):
                    return found, members[0], placed
                for pod_set, placement in placed:
                    found.append((pod_set, placement))
                    placement.occupied.assume()
            return found, None, ""
        finally:
            for _, placement in found:
                placement.occupied.forget()

    def _place_gang(
        self, flavor: str, members: list[PodSetChoice], *, empty: bool
    ) -> list[tuple[PodSetChoice, Placement]] | str:
        tree = self._trees.get(flavor)
        if tree is None:
            return f'flavor "{flavor}" has no topology yet'
        workers, leader = members[0], members[1] if len(members) > 1 else None
        if leader is not None and leader.count > workers.count:
            workers, leader = leader, workers
        wish = wish_of(tree, workers.need.topology if wants_topology(workers.need.topology) else None)
        if isinstance(wish, str):
            return wish
        gang = Gang(workers.need, workers.count, None if leader is None else leader.need)
        placed = search(tree, gang, wish, self.rules, empty=empty)
        if isinstance(placed, str):
            return placed
        found = [(workers, Placement(tree, workers.need.raw_per_pod, placed.pods))]
        if leader is not None:
            found.append((leader, Placement(tree, leader.need.raw_per_pod, placed.leader)))
        return found

    # --- occupying ---------------------------------------------------------------------------------------------------------

    def usages(self, assignment: Assignment) -> list[Occupied]:
        """What the assignment occupies."""
        return [p.placement.occupied for p in assignment.pod_sets if p.placement is not None]

    def occupied_by(self, admission: Admission, shape: Shape) -> list[Occupied]:
        """What an admission occupies that an object shows."""
        needs = {need.name: need for need in shape.pod_sets}
        found: list[Occupied] = []
        for assigned in admission.pod_set_assignments:
            need, written = needs.get(assigned.name), assigned.topology_assignment
            if need is not None and written is not None:
                flavors = [f for f in dict.fromkeys(assigned.flavors.values()) if f in self._trees]
                found.append(occupied_by(self._rooms, flavors, need.raw_per_pod, written))
        return found

    def still_free(self, assignment: Assignment) -> bool:
        """Is the place that was found still there, after what earlier heads of the cycle took?"""
        placements = [p.placement for p in assignment.pod_sets if p.placement is not None]
        if not placements:
            return True
        if not self._exact:
            return all(_fits_alone(p) for p in placements)
        total: dict[Room, Amounts] = {}
        for placement in placements:
            placement.occupied.count_in(total)
        leaves = {leaf.room: leaf for p in placements for v, _ in p.domains if (leaf := p.tree.leaves.get(v))}
        return all(
            room in leaves
            and all(leaves[room].free.get(r, 0) - room.used.get(r, 0) >= v for r, v in asked.items() if v)
            for room, asked in total.items()
        )

    def hold(self, assignment: Assignment) -> None:
        """Occupy the place until the end of the cycle."""
        for occupied in self.usages(assignment):
            occupied.occupy()
            self._held.append(occupied)

    def drop_held(self) -> None:
        """The cycle is over."""
        for occupied in self._held:
            occupied.release()
        self._held.clear()

    def trouble(self, works: Iterable["Work"]) -> str:
        """Where usage of a domain is not what reservations occupy; "" when all is well."""
        total: dict[Room, Amounts] = {}
        for work in works:
            for occupied in work.reservation.topology if work.reservation is not None else ():
                if isinstance(occupied, Occupied):
                    occupied.count_in(total)
        for key, room in self._rooms:
            want = {r: v for r, v in total.get(room, {}).items() if v}
            got = {r: v for r, v in room.used.items() if v}
            if want != got or any(room.assumed.values()):
                return f"domain {key} has {got} used, but its workloads occupy {want}"
        return ""


def _host(node: NodeFacts) -> str:
    return node.labels.get(n.HOSTNAME_LABEL, node.name)


def _store(found: Iterable[tuple[PodSetChoice, Placement]]) -> None:
    for pod_set, placement in found:
        pod_set.placement = placement


def _gangs(asks: Sequence[Ask]) -> Iterable[tuple[str, list[PodSetChoice]]]:
    """Pod sets that are placed together, flavor by flavor."""
    gangs: dict[tuple[str, str], list[PodSetChoice]] = {}
    flavors = {ask.flavor: i for i, ask in reversed(list(enumerate(asks)))}
    for i, (pod_set, flavor) in enumerate(asks):
        group = pod_set.need.group
        gangs.setdefault((flavor, f"#{i}" if group is None else group), []).append(pod_set)
    return sorted(((flavor, members) for (flavor, _), members in gangs.items()), key=lambda gang: flavors[gang[0]])


def _fits_alone(placement: Placement) -> bool:
    """Does every domain have room for this pod set? Kueue's second look: number of pods and other pod sets do not count."""
    for values, pods in placement.domains:
        leaf = placement.tree.leaves.get(values)
        if leaf is None:
            return False
        for resource, value in placement.per_pod.items():
            if value and (leaf.free.get(resource, 0) - leaf.room.used.get(resource, 0)) // value < pods:
                return False
    return True
