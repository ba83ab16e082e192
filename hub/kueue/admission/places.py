"""Where topology-aware scheduling meets quota: which pod sets need a place, and whether there is one."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hub.kueue.admission.config import Flavor, Group, Queue
from hub.kueue.admission.policy import Topology as TopologyPolicy
from hub.kueue.admission.requests import PodSetNeed, Shape, wants_topology
from hub.kueue.api.v1beta2 import ResourceFlavor, Topology

if TYPE_CHECKING:
    from hub.kueue.admission.assignment import Assignment
    from hub.kueue.admission.records import Work
    from hub.kueue.admission.scene import Scene
    from hub.kueue.admission.victims import Victim


class Places:
    def __init__(self, policy: TopologyPolicy | None) -> None:
        self.policy = policy
        self._topologies: dict[str, Topology] = {}
        self._flavors: dict[str, ResourceFlavor] = {}

    # --- configuration ---------------------------------------------------------------------------------------------------

    def set_topology(self, topology: Topology) -> None:
        self._topologies[topology.metadata.name] = topology

    def remove_topology(self, name: str) -> None:
        self._topologies.pop(name, None)

    def set_flavor(self, flavor: ResourceFlavor) -> None:
        self._flavors[flavor.metadata.name] = flavor

    def remove_flavor(self, name: str) -> None:
        self._flavors.pop(name, None)

    def set_queue(self, queue: Queue, flavors: Sequence[str], delayed: Sequence[str], *, never: bool) -> None:
        """What a ClusterQueue's flavors and checks mean for places: `delayed` ones wait for a check, `never` for a worker."""

    def missing_topologies(self, flavors: Sequence[str]) -> list[str]:
        """Topologies that these flavors name and that do not exist."""
        if self.policy is None:
            return []
        named = {t for f in flavors if (o := self._flavors.get(f)) and (t := o.spec.topology_name)}
        return sorted(named - set(self._topologies))

    def set_node(self, node: dict[str, Any]) -> bool:
        """True: something changed that matters for placement."""
        return False

    def remove_node(self, name: str) -> bool:
        return False

    def set_foreign_usage(self, node: str, requests: dict[str, int]) -> bool:
        return False

    # --- decisions -------------------------------------------------------------------------------------------------------

    def mismatch(self, queue: Queue, group: Group, flavor: Flavor, need: PodSetNeed) -> str:
        """Why the pod set cannot use the flavor as far as topology goes, "" if it can."""
        if self.policy is None:
            return ""
        if not wants_topology(need.topology):
            return f'Flavor "{flavor.name}" supports only TopologyAwareScheduling' if flavor.topology else ""
        if flavor.topology is None and not group.resources.isdisjoint(need.raw_per_pod):
            return f'Flavor "{flavor.name}" does not support TopologyAwareScheduling'
        return ""

    def matter(self, queue: Queue, shape: Shape) -> bool:
        """Does a workload of this shape need a place in this ClusterQueue?"""
        return False

    def is_topology_flavor(self, queue: Queue, flavor: str) -> bool:
        return False

    def place(self, scene: "Scene", work: "Work", queue: Queue, assignment: "Assignment") -> None:
        """Find places for pod sets that need one."""

    def hold_place(
        self, scene: "Scene", work: "Work", queue: Queue, assignment: "Assignment", victims: Sequence["Victim"]
    ) -> None:
        """Find the place that a preemptor will have, so that it can be held for it."""

    def requests(self, scene: "Scene", work: "Work", queue: Queue, assignment: "Assignment") -> object:
        return None

    def has_room(self, placing: object) -> bool:
        return True

    def usages(self, assignment: "Assignment") -> list[Any]:
        return []

    def still_free(self, assignment: "Assignment") -> bool:
        return True

    def hold(self, assignment: "Assignment") -> None:
        """Occupy the place until the end of the cycle."""

    def drop_held(self) -> None:
        """The cycle is over."""

    def validate(self, works: Iterable["Work"]) -> None:
        """Usage of domains is what reservations occupy."""
