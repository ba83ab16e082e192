"""Clusters and requests that read like a sentence: make_cluster("east").flavor("h100", nodes=4, gpus=8).obj()."""

from dataclasses import dataclass, field

from hub.dispatch.clusters import Cluster, ClusterState, ClusterTaint
from hub.dispatch.nominate import Choice
from hub.dispatch.offer import Payload, offer
from hub.dispatch.placement import Placement
from hub.dispatch.request import PodSetNeed, Request
from hub.kueue.api.meta import ObjectKey
from hub.kueue.wire import Amount, CapacityReport, FlavorCapacity, Hole, LocalQueueReport, QueueCapacity, QuotaRoom

GPU = "nvidia.com/gpu"


@dataclass
class ClusterBuilder:
    name: str
    state: ClusterState = ClusterState.ACTIVE
    taints: tuple[ClusterTaint, ...] = ()
    flavors: list[FlavorCapacity] = field(default_factory=list)
    rooms: dict[str, dict[str, QuotaRoom]] = field(default_factory=dict)
    pending: int = 0
    report: dict = field(default_factory=dict)
    capacity_at: float = 0.0

    def flavor(self, name: str, *, nodes: int, gpus: int, cpu: int = 64_000, used: int = 0, labels=None):
        """`nodes` equal nodes; `used` GPUs are taken by others, from whole nodes first."""
        full, partly = divmod(used, gpus)
        holes = [Hole(free={GPU: gpus, "cpu": cpu}, nodes=nodes - full - bool(partly))]
        holes += [Hole(free={GPU: gpus - partly, "cpu": cpu})] if partly else []
        amounts = {GPU: Amount(capacity=nodes * gpus, others=used), "cpu": Amount(capacity=nodes * cpu)}
        shapes = [Hole(free={GPU: gpus, "cpu": cpu}, nodes=nodes)]
        self.flavors.append(
            FlavorCapacity(
                name=name,
                node_labels=labels or {},
                resources=amounts,
                holes=[h for h in holes if h.nodes],
                shapes=shapes,
                nodes=nodes,
                nodes_ready=nodes,
            )
        )
        return self.quota(name, gpus=nodes * gpus, available=nodes * gpus - used, cpu=nodes * cpu)

    def quota(self, flavor: str, *, gpus: int, available: int | None = None, cpu: int = 1 << 40):
        room = gpus if available is None else available
        self.rooms[flavor] = {
            GPU: QuotaRoom(available=room, limit=gpus),
            "cpu": QuotaRoom(available=cpu, limit=cpu),
        }
        return self

    def with_state(self, state: ClusterState):
        self.state = state
        return self

    def taint(self, key: str):
        self.taints = (*self.taints, ClusterTaint(key=key))
        return self

    def waiting(self, pending: int):
        self.pending = pending
        return self

    def reporting(self, **changes):
        self.report |= changes
        return self

    def obj(self) -> Cluster:
        fields = {
            "namespaces": ["team-a"],
            "kinds": ["batch/v1, Job"],
            "local_queues": [LocalQueueReport(namespace="team-a", name="main", cluster_queue="cq")],
            "flavors": self.flavors,
            "queues": [QueueCapacity(name="cq", pending=self.pending, rooms=self.rooms)],
        } | self.report
        return Cluster(
            name=self.name,
            state=self.state,
            taints=self.taints,
            capacity=CapacityReport(**fields),
            capacity_at=self.capacity_at,
        )


def make_cluster(name: str) -> ClusterBuilder:
    return ClusterBuilder(name)


def make_request(name: str = "train", *, gpus: int = 1, pods: int = 1, flavor: str = "h100", **fields) -> Request:
    need = PodSetNeed(
        name="main",
        count=pods,
        per_pod={GPU: gpus, "cpu": 1000},
        total={GPU: gpus * pods, "cpu": 1000 * pods},
        flavors={GPU: flavor, "cpu": flavor},
    )
    known = {
        "workload": ObjectKey("team-a", name),
        "uid": f"uid-{name}",
        "kind": "batch/v1, Job",
        "local_queue": "main",
        "cluster_queue": "cq",
        "pod_sets": (need,),
    } | fields
    return Request(**known)


def make_offer(request: Request, choice: Choice, *, past=(), now: float = 0.0, placement_id: str = "") -> Placement:
    what = Payload(workload_spec={}, annotations={}, job={})
    return offer(request, choice, what, past, placement_id=placement_id or f"p-{request.uid}-{len(past)}", now=now)
