"""The nodes of one flavor as a tree of topology domains, with what is free in each.

    zone         a                          levels come from the Topology, values from the labels of the nodes
                 ├── rack 1                 leaf: a node when the lowest level is the host name,
                 │    ├── node x            else all nodes with the same values
                 │    └── node y
                 └── rack 2 ...

A tree is kept up to date: nodes and what foreign pods use come and go one at a time, and so does what workloads occupy. A
leaf's `Room` is what workloads occupy there; trees of flavors that select the same node share it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hub.kueue.admission.requests import PodSetNeed
from hub.kueue.api.core import Node, Taint, Toleration, fits_node_labels, untolerated
from hub.kueue.api.errors import ApiError
from hub.kueue.api.quantity import amount
from hub.kueue.api.v1beta2 import Topology
from hub.kueue.api.v1beta2 import names as n

#: Values of the levels from the top, the name of a domain within its flavor.
Values = tuple[str, ...]
#: resource -> amount in engine units.
Amounts = dict[str, int]
PODS = "pods"


class Room:
    """What workloads occupy in a leaf domain."""

    __slots__ = ("assumed", "leaves", "used")

    def __init__(self) -> None:
        #: Its leaf in each tree that has it.
        self.leaves: list[Leaf] = []
        self.used: Amounts = {}
        #: What pod sets of the workload that is being placed would take on top.
        self.assumed: Amounts = {}

    def touch(self) -> None:
        """What is occupied changed: counts of its leaves are out of date."""
        for leaf in self.leaves:
            leaf.changed.add(leaf)


def change(amounts: Amounts, per_pod: Mapping[str, int], times: int) -> None:
    """Add so many pods, each of which counts as one of `pods`."""
    for resource, value in per_pod.items():
        amounts[resource] = amounts.get(resource, 0) + value * times
    amounts[PODS] = amounts.get(PODS, 0) + times


class Rooms:
    """Every room by the leaf it belongs to; they outlive trees, because workloads do."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._rooms: dict[tuple[str, Values], Room] = {}

    def of(self, flavor: str, levels: Sequence[str], values: Values) -> Room:
        """The room of a leaf. Where leaves are nodes, flavors share it."""
        if levels[-1] == n.HOSTNAME_LABEL:
            values = values[-1:]
            flavor = "" if self._shared else flavor
        return self._rooms.setdefault((flavor, values), Room())

    def __iter__(self) -> Iterator[tuple[tuple[str, Values], Room]]:
        return iter(self._rooms.items())


class NodeFacts(NamedTuple):
    """What placement reads of a node."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Taint]
    #: Ready and not cordoned.
    usable: bool
    allocatable: Mapping[str, int]


def node_facts(node: Node) -> NodeFacts:
    """What placement reads of a node. Amounts that cannot be read count as none."""
    allocatable: Amounts = {}
    for resource, quantity in node.status.allocatable.items():
        try:
            allocatable[resource] = amount(resource, quantity)
        except ApiError:
            allocatable[resource] = 0
    taints = tuple(node.spec.taints)
    return NodeFacts(
        node.metadata.name,
        dict(node.metadata.labels),
        taints,
        node.is_ready and not node.spec.unschedulable,
        allocatable,
    )


class Domain:
    """One domain. The counts are notes of the placement that is being searched for."""

    __slots__ = ("children", "leader", "level", "parent", "pods", "pods_led", "slices", "slices_led", "values")

    def __init__(self, values: Values, parent: "Domain | None") -> None:
        self.values = values
        self.level = len(values) - 1
        self.parent = parent
        self.children: list[Domain] = []
        #: How many pods and slices fit, without and with the leader; does the leader fit?
        self.pods = 0
        self.pods_led = 0
        self.slices = 0
        self.slices_led = 0
        self.leader = 0


class Leaf(Domain):
    """A domain of the lowest level."""

    __slots__ = ("changed", "free", "nodes", "room")

    def __init__(self, values: Values, parent: Domain | None, room: Room, changed: "set[Leaf]") -> None:
        super().__init__(values, parent)
        #: The tree's leaves whose counts are out of date.
        self.changed = changed
        #: Allocatable of its nodes less what foreign pods use.
        self.free: Amounts = {}
        self.nodes: dict[str, NodeFacts] = {}
        self.room = room


class Tree:
    """The topology of one flavor."""

    def __init__(
        self,
        flavor: str,
        topology: Topology,
        node_labels: Mapping[str, str],
        tolerations: Sequence[Toleration],
        rooms: Rooms,
    ) -> None:
        self.flavor = flavor
        self.topology = topology.metadata.name
        self.levels = tuple(level.node_label for level in topology.spec.levels)
        #: Are leaves nodes? Only then do taints and selectors of pods count.
        self.by_host = self.levels[-1] == n.HOSTNAME_LABEL
        self._node_labels = node_labels
        self._tolerations = tuple(tolerations)
        self._rooms = rooms
        #: level -> values -> domain.
        self.domains: list[dict[Values, Domain]] = [{} for _ in self.levels]
        self.leaves: dict[Values, Leaf] = {}
        #: What the counts in the domains are the answer to, and leaves that changed since. See `topology_counts`.
        self.counted: object = None
        self.changed: set[Leaf] = set()
        self._leaf_of: dict[str, Leaf] = {}
        self._excluded: dict[PodSetNeed, dict[Leaf, str]] = {}

    def level_index(self, label: str) -> int | None:
        return self.levels.index(label) if label in self.levels else None

    # --- nodes -----------------------------------------------------------------------------------------------------------

    def put(self, node: NodeFacts, foreign: Mapping[str, int]) -> None:
        """A node is new or changed."""
        self.drop(node.name, foreign)
        if not node.usable or any(node.labels.get(k) != v for k, v in self._node_labels.items()):
            return
        if not all(label in node.labels for label in self.levels):
            return
        leaf = self._leaf(tuple(node.labels[label] for label in self.levels))
        leaf.nodes[node.name] = node
        self._leaf_of[node.name] = leaf
        _shift(leaf.free, node.allocatable, 1)
        _shift(leaf.free, foreign, -1)
        self._forget()

    def drop(self, name: str, foreign: Mapping[str, int]) -> None:
        """A node is gone. `foreign`: what was counted as used by foreign pods on it."""
        leaf = self._leaf_of.pop(name, None)
        if leaf is None:
            return
        node = leaf.nodes.pop(name)
        _shift(leaf.free, node.allocatable, -1)
        _shift(leaf.free, foreign, 1)
        if not leaf.nodes:
            self._prune(leaf)
        self._forget()

    def shift_foreign(self, name: str, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
        """Foreign pods use another amount of a node now. False: the node is not in this tree."""
        leaf = self._leaf_of.get(name)
        if leaf is None:
            return False
        _shift(leaf.free, before, 1)
        _shift(leaf.free, after, -1)
        self.changed.add(leaf)
        return True

    def uproot(self) -> None:
        """The tree is given up."""
        for leaf in self.leaves.values():
            leaf.room.leaves.remove(leaf)

    def _forget(self) -> None:
        """Nodes changed: work out everything anew."""
        self._excluded.clear()
        self.counted = None

    def _leaf(self, values: Values) -> Leaf:
        found = self.leaves.get(values)
        if found is None:
            parent = self._inner(values[:-1]) if len(values) > 1 else None
            room = self._rooms.of(self.flavor, self.levels, values)
            found = self.leaves[values] = Leaf(values, parent, room, self.changed)
            room.leaves.append(found)
            self._add(found)
        return found

    def _inner(self, values: Values) -> Domain:
        found = self.domains[len(values) - 1].get(values)
        if found is None:
            found = Domain(values, self._inner(values[:-1]) if len(values) > 1 else None)
            self._add(found)
        return found

    def _add(self, domain: Domain) -> None:
        self.domains[domain.level][domain.values] = domain
        if domain.parent is not None:
            domain.parent.children.append(domain)

    def _prune(self, leaf: Leaf) -> None:
        del self.leaves[leaf.values]
        leaf.room.leaves.remove(leaf)
        self.changed.discard(leaf)
        domain: Domain | None = leaf
        while domain is not None and not domain.children:
            del self.domains[domain.level][domain.values]
            if domain.parent is not None:
                domain.parent.children.remove(domain)
            domain = domain.parent

    # --- who may go where ------------------------------------------------------------------------------------------------

    def excluded(self, need: PodSetNeed) -> Mapping[Leaf, str]:
        """Nodes that pods of this pod set cannot run on, with the cause: taint or nodeSelector."""
        if not self.by_host:
            return {}
        found = self._excluded.get(need)
        if found is None:
            found = self._excluded[need] = {
                leaf: why for leaf in self.leaves.values() if (why := self._keeps(leaf, need))
            }
        return found

    def _keeps(self, leaf: Leaf, need: PodSetNeed) -> str:
        for node in leaf.nodes.values():
            if untolerated(node.taints, [*need.spec.tolerations, *self._tolerations]) is not None:
                return "taint"
            if not fits_node_labels(need.spec, node.labels, node.name):
                return "nodeSelector"
        return ""


def _shift(amounts: Amounts, by: Mapping[str, int], sign: int) -> None:
    for resource, value in by.items():
        amounts[resource] = amounts.get(resource, 0) + sign * value
