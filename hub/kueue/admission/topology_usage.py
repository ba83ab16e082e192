"""What workloads occupy in topologies, decided here or read from an object."""

from collections.abc import Mapping, Sequence

from hub.kueue.admission.topology import Leaf, Room, Rooms, Tree, Values, change
from hub.kueue.admission.topology_encoding import decode, encode
from hub.kueue.api.v1beta2 import TopologyAssignment


class Occupied:
    """Room that the pods of one pod set take."""

    __slots__ = ("_per_pod", "_rooms")

    def __init__(self, per_pod: Mapping[str, int], rooms: Sequence[tuple[Room, int]]) -> None:
        self._per_pod = per_pod
        self._rooms = rooms

    def occupy(self) -> None:
        for room, pods in self._rooms:
            change(room.used, self._per_pod, pods)
            room.touch()

    def release(self) -> None:
        for room, pods in self._rooms:
            change(room.used, self._per_pod, -pods)
            room.touch()

    def assume(self) -> None:
        """For the rest of a search, until `forget`."""
        for room, pods in self._rooms:
            change(room.assumed, self._per_pod, pods)
            room.touch()

    def forget(self) -> None:
        for room, _ in self._rooms:
            room.assumed.clear()
            room.touch()

    def count_in(self, total: dict[Room, dict[str, int]]) -> None:
        """Add it to sums per room."""
        for room, pods in self._rooms:
            change(total.setdefault(room, {}), self._per_pod, pods)


class Placement:
    """Where the pods of one pod set go."""

    __slots__ = ("domains", "occupied", "per_pod", "tree")

    def __init__(self, tree: Tree, per_pod: Mapping[str, int], leaves: Sequence[tuple[Leaf, int]]) -> None:
        self.tree = tree
        self.per_pod = per_pod
        self.domains: list[tuple[Values, int]] = [(leaf.values, pods) for leaf, pods in leaves]
        self.occupied = Occupied(per_pod, [(leaf.room, pods) for leaf, pods in leaves])

    def assignment(self) -> TopologyAssignment:
        """In the form of `status.admission`; nodes are named by host name alone."""
        if self.tree.by_host:
            return encode(self.tree.levels[-1:], [(values[-1:], pods) for values, pods in self.domains])
        return encode(self.tree.levels, self.domains)


def occupied_by(
    rooms: Rooms, flavors: Sequence[str], per_pod: Mapping[str, int], assignment: TopologyAssignment
) -> Occupied:
    """What a pod set with this assignment occupies, whether its nodes are known or not."""
    flavor = flavors[0] if flavors else ""
    return Occupied(
        per_pod, [(rooms.of(flavor, assignment.levels, values), pods) for values, pods in decode(assignment)]
    )
