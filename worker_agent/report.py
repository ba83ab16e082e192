"""Pure: what the caches of this cluster hold -> the capacity that the hub is told.

Room is counted where it is, node by node: a pod set of eight pods with four GPUs each fits when so many nodes have so
much free, not when the sum would do. Nodes with the same room are folded into one hole.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hub.kueue.admission.messages import QueueStatus
from hub.kueue.api import core, quantity
from hub.kueue.api.meta import Instant, ObjectKey
from hub.kueue.api.v1beta2 import ResourceFlavor, Workload, names
from hub.kueue.wire import Amount, CapacityReport, FlavorCapacity, Hole, LocalQueueReport, QueueCapacity, QuotaRoom

#: Different holes told per flavor; the smallest are left out first, which only hides room that is hard to use.
HOLES_MAX = 200
ENDED = frozenset({"Succeeded", "Failed"})


class NodeRoom(Struct, frozen=True, kw_only=True):
    """One node: what it offers and what is free, in engine units."""

    name: str
    labels: dict[str, str]
    taints: list[core.Taint]
    usable: bool
    allocatable: dict[str, int]


class PodUse(Struct, frozen=True, kw_only=True):
    """One bound pod that has not ended."""

    node: str
    requests: dict[str, int]
    #: "" for pods that are not ours.
    placement: str = ""


class Cluster(Struct, frozen=True, kw_only=True):
    """Everything a capacity report is made of."""

    nodes: Sequence[NodeRoom]
    pods: Sequence[PodUse]
    #: Placements with pods that are not bound yet: not counted.
    unbound: frozenset[str]
    flavors: Sequence[ResourceFlavor]
    queues: Mapping[str, QueueStatus]
    #: ClusterQueue -> (flavor, resource) -> what our copies hold of its quota.
    ours: Mapping[str, Mapping[tuple[str, str], int]]
    local_queues: Mapping[ObjectKey, str]
    namespaces: Iterable[str]
    kinds: Sequence[str]


def node_room(manifest: Mapping[str, Any]) -> NodeRoom:
    """Raises DecodeError or QuantityError for a node that no API server would serve."""
    node = core.node(manifest)
    return NodeRoom(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        usable=node.is_ready and not node.spec.unschedulable,
        allocatable={name: quantity.amount(name, q) for name, q in node.status.allocatable.items()},
    )


def pod_use(manifest: Mapping[str, Any]) -> PodUse | None:
    """None for a pod that ended: it takes no room. `node` is "" for one that is not bound."""
    if (manifest.get("status") or {}).get("phase") in ENDED:
        return None
    spec = core.pod_template({"spec": manifest["spec"]}).spec
    labels = manifest["metadata"].get("labels") or {}
    requests = {**core.pod_requests(spec), quantity.PODS: 1}
    return PodUse(node=spec.node_name, requests=requests, placement=labels.get(names.PLACEMENT, ""))


def capacity(cluster: Cluster, *, creates: tuple[bool, bool, str], version: str, now: Instant) -> CapacityReport:
    """The report. `creates` is (namespaces, LocalQueues, default ClusterQueue) that this agent may make."""
    ours, others = _use_by_node(cluster.pods)
    bound = {pod.placement for pod in cluster.pods if pod.placement}
    return CapacityReport(
        flavors=[_flavor(flavor, cluster.nodes, ours, others) for flavor in cluster.flavors],
        queues=[_queue(name, status, cluster.ours.get(name, {})) for name, status in sorted(cluster.queues.items())],
        local_queues=[
            LocalQueueReport(namespace=key.namespace, name=key.name, cluster_queue=target)
            for key, target in sorted(cluster.local_queues.items())
        ],
        namespaces=sorted(cluster.namespaces),
        kinds=list(cluster.kinds),
        counted=sorted(bound - cluster.unbound),
        creates_namespaces=creates[0],
        creates_local_queues=creates[1],
        default_cluster_queue=creates[2],
        kubernetes_version=version,
        seen_at=now,
    )


_Use = dict[str, Counter[str]]


def _use_by_node(pods: Iterable[PodUse]) -> tuple[_Use, _Use]:
    ours: _Use = {}
    others: _Use = {}
    for pod in pods:
        if pod.node:
            (ours if pod.placement else others).setdefault(pod.node, Counter()).update(pod.requests)
    return ours, others


def _flavor(flavor: ResourceFlavor, nodes: Sequence[NodeRoom], ours: _Use, others: _Use) -> FlavorCapacity:
    wanted = flavor.spec.node_labels.items()
    members = [node for node in nodes if wanted <= node.labels.items()]
    usable = [node for node in members if node.usable and not _repels(flavor, node)]
    return FlavorCapacity(
        name=flavor.metadata.name,
        node_labels=flavor.spec.node_labels,
        resources=_amounts(usable, ours, others),
        holes=_holes(usable, ours, others),
        shapes=_folded(node.allocatable for node in members),
        nodes=len(members),
        nodes_ready=len(usable),
    )


def _repels(flavor: ResourceFlavor, node: NodeRoom) -> bool:
    """A taint that pods of this flavor do not tolerate by themselves: the flavor's own taints are asked of the pods."""
    known = {(taint.key, taint.effect) for taint in flavor.spec.node_taints}
    strange = [taint for taint in node.taints if (taint.key, taint.effect) not in known]
    return core.untolerated(strange, flavor.spec.tolerations) is not None


def _amounts(nodes: Sequence[NodeRoom], ours: _Use, others: _Use) -> dict[str, Amount]:
    resources = sorted({name for node in nodes for name in node.allocatable})
    return {
        resource: Amount(
            capacity=sum(node.allocatable.get(resource, 0) for node in nodes),
            ours=_total(ours, nodes, resource),
            others=_total(others, nodes, resource),
        )
        for resource in resources
    }


def _total(use: _Use, nodes: Sequence[NodeRoom], resource: str) -> int:
    return sum(use[node.name][resource] for node in nodes if node.name in use)


def _holes(nodes: Sequence[NodeRoom], ours: _Use, others: _Use) -> list[Hole]:
    nothing: Counter[str] = Counter()

    def free(node: NodeRoom) -> dict[str, int]:
        mine, theirs = ours.get(node.name, nothing), others.get(node.name, nothing)
        return {name: max(0, n - mine[name] - theirs[name]) for name, n in node.allocatable.items()}

    return _folded(free(node) for node in nodes)


def _folded(rooms: Iterable[Mapping[str, int]]) -> list[Hole]:
    counted = Counter(tuple(sorted(room.items())) for room in rooms)
    largest_first = sorted(counted.items(), key=lambda hole: _size(hole[0]), reverse=True)
    return [Hole(free=dict(free), nodes=n) for free, n in largest_first[:HOLES_MAX]]


def _size(free: tuple[tuple[str, int], ...]) -> tuple[int, int]:
    """Extended resources such as GPUs are scarce, so they order first; then cpu."""
    room = dict(free)
    return sum(n for name, n in free if "/" in name), room.get(quantity.CPU, 0)


def _queue(name: str, status: QueueStatus, ours: Mapping[tuple[str, str], int]) -> QueueCapacity:
    rooms = {
        flavor: {
            resource: QuotaRoom(available=available, limit=most, ours=ours.get((flavor, resource), 0))
            for resource, (available, most) in amounts.items()
        }
        for flavor, amounts in status.room.items()
    }
    return QueueCapacity(name=name, active=status.active, reason=status.reason, pending=status.pending, rooms=rooms)


class QuotaUse(Struct, frozen=True, kw_only=True):
    """What one of our copies holds of a ClusterQueue's quota."""

    cluster_queue: str
    amounts: dict[tuple[str, str], int]


def quota_use(workload: Workload, origin: str) -> QuotaUse | None:
    """None for a foreign workload and for one without a reservation."""
    admission = workload.status.admission
    if workload.metadata.labels.get(names.MULTIKUEUE_ORIGIN) != origin or admission is None:
        return None
    amounts: Counter[tuple[str, str]] = Counter()
    for assignment in admission.pod_set_assignments:
        for resource, used in assignment.resource_usage.items():
            if flavor := assignment.flavors.get(resource):
                amounts[flavor, resource] += quantity.amount(resource, used)
    return QuotaUse(cluster_queue=admission.cluster_queue, amounts=dict(amounts))


def quota_by_queue(uses: Iterable[QuotaUse]) -> dict[str, dict[tuple[str, str], int]]:
    total: dict[str, Counter[tuple[str, str]]] = {}
    for use in uses:
        total.setdefault(use.cluster_queue, Counter()).update(use.amounts)
    return {name: dict(amounts) for name, amounts in total.items()}
