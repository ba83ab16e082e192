"""What a decision may look at besides the workload and its ClusterQueue: policy, flavors, topology, time."""

from collections.abc import Collection, Mapping

from hub.kueue.admission.config import Flavor
from hub.kueue.admission.places import Places
from hub.kueue.admission.policy import Policy
from hub.kueue.admission.records import Work
from hub.kueue.api.meta import Instant, ObjectKey


class Scene:
    __slots__ = ("blocked", "cycle", "flavors", "hidden", "now", "places", "policy", "works")

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.flavors: dict[str, Flavor] = {}
        self.places = Places(policy.topology, exact=policy.rules == "hub")
        #: Every workload there is, to find the slice that another one replaces.
        self.works: Mapping[ObjectKey, Work] = {}
        self.now: Instant = 0.0
        #: Workloads that others preempt already in this cycle, or that it let in: nobody's candidates while a head looks again.
        self.hidden: Collection[Work] = ()
        #: Somebody who was admitted has not started yet, and nobody else may be admitted before (waitForPodsReady).
        self.blocked = False
        #: Number of the scheduling cycle.
        self.cycle = 0
