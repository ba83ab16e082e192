"""What a decision may look at besides the workload and its ClusterQueue: policy, flavors, topology, time."""

from hub.kueue.admission.config import Flavor
from hub.kueue.admission.places import Places
from hub.kueue.admission.policy import Policy
from hub.kueue.api.meta import Instant


class Scene:
    __slots__ = ("cycle", "flavors", "now", "places", "policy")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.flavors: dict[str, Flavor] = {}
        self.places = Places(policy.topology)
        self.now: Instant = 0.0
        #: Number of the scheduling cycle.
        self.cycle = 0
