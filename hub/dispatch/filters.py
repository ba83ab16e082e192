"""Where a workload may go: one function per rule, which says in words why not, or None.

Rules come in two groups. `SHAPE_RULES` give the same answer to all workloads of one shape, so decide.py asks them once
per shape and version of a cluster; `WORKLOAD_RULES` depend on what happened to this workload. Within a group the order
is from what lasts to what passes: the first rule that objects gives the reason that people read.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from msgspec import Struct

from hub.dispatch.capacity import ClusterView, FlavorResource, QueueView
from hub.dispatch.clusters import OFFERS_TO, ClusterState
from hub.dispatch.holes import pack
from hub.dispatch.ledger import Account
from hub.dispatch.placement import Placement, State
from hub.dispatch.request import PodSetNeed, Request
from hub.kueue.api import core, quantity
from hub.kueue.api.meta import Instant
from hub.kueue.wire import PodSetFlavors


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How long a cluster that did not want (or keep) a workload is not asked again about the same workload."""

    base_s: float = 5.0
    max_s: float = 300.0


class Candidate:
    """One workload and one cluster, with what several rules need. Made for one question and thrown away."""

    def __init__(self, request: Request, view: ClusterView) -> None:
        self.request = request
        self.view = view

    @cached_property
    def queue_name(self) -> str | None:
        """The worker's ClusterQueue: where the LocalQueue points to, or where one that we create would point to."""
        request, view = self.request, self.view
        found = view.local_queues.get((request.workload.namespace, request.local_queue))
        if found is not None or not view.creates_local_queues:
            return found
        wanted = (request.cluster_queue, view.default_cluster_queue)
        return next((name for name in wanted if name in view.queues), None)

    @property
    def queue(self) -> QueueView | None:
        return self.view.queues.get(self.queue_name) if self.queue_name is not None else None

    @cached_property
    def flavors(self) -> dict[str, str]:
        """Flavor of the management cluster -> the worker's. Those that the worker does not have are left out."""
        found = ((f, self._worker_flavor(f)) for need in self.request.pod_sets for f in need.flavors.values())
        return {flavor: worker for flavor, worker in found if worker is not None}

    def _worker_flavor(self, flavor: str) -> str | None:
        if flavor in self.view.flavors:
            return flavor
        labels = self.request.flavor_labels.get(flavor)
        if not labels:
            return None
        return next((f.name for f in self.view.flavors.values() if f.node_labels == labels), None)

    @cached_property
    def charges(self) -> dict[FlavorResource, int]:
        """What the workload would be charged there."""
        total: dict[FlavorResource, int] = {}
        for need in self.request.pod_sets:
            for resource, flavor in need.flavors.items():
                key = (self.flavors[flavor], resource)
                total[key] = total.get(key, 0) + need.total.get(resource, 0)
        return total

    def pod_sets(self) -> tuple[PodSetFlavors, ...]:
        """The assignment in the worker's flavor names."""
        return tuple(
            PodSetFlavors(
                name=need.name,
                count=need.count,
                flavors={resource: self.flavors[flavor] for resource, flavor in need.flavors.items()},
                per_pod=need.per_pod,
            )
            for need in self.request.pod_sets
        )


# --- rules that give one answer to a whole shape -----------------------------------------------------------------------


def allowed(c: Candidate) -> str | None:
    """MultiKueueConfig's list, and the user's own, which may only narrow it."""
    if c.request.configured is not None and c.view.name not in c.request.configured:
        return "not in the MultiKueueConfig of its ClusterQueue"
    if c.request.wanted is not None and c.view.name not in c.request.wanted:
        return f"the workload asks for {', '.join(c.request.wanted) or 'no cluster at all'}"
    return None


_CLOSED = {
    ClusterState.INVITED: "its agent has not joined yet",
    ClusterState.SUSPECT: "its agent does not answer",
    ClusterState.LOST: "lost: its agent has been silent for too long",
    ClusterState.CORDONED: "cordoned",
    ClusterState.DRAINING: "being drained",
    ClusterState.REMOVED: "being removed",
}


def accepts_new_work(c: Candidate) -> str | None:
    cluster = c.view.cluster
    if cluster.state not in OFFERS_TO:
        detail = f" ({cluster.message})" if cluster.message else ""
        return f"{_CLOSED[cluster.state]}{detail}"
    return None if cluster.capacity is not None else "has not reported its capacity yet"


def tolerates_taints(c: Candidate) -> str | None:
    taints = [core.Taint(key=t.key, value=t.value, effect=t.effect) for t in c.view.cluster.taints]
    taint = core.untolerated(taints, c.request.tolerations)
    if taint is None:
        return None
    return f"cluster taint {taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect} is not tolerated"


def serves_kind(c: Candidate) -> str | None:
    return None if c.request.kind in c.view.kinds else f"does not serve {c.request.kind}"


def namespace_there(c: Candidate) -> str | None:
    namespace = c.request.workload.namespace
    if namespace in c.view.namespaces or c.view.creates_namespaces:
        return None
    return f"namespace {namespace} does not exist and its agent may not create it"


def local_queue_there(c: Candidate) -> str | None:
    where = f"LocalQueue {c.request.workload.namespace}/{c.request.local_queue}"
    if c.queue_name is None:
        if not c.view.creates_local_queues:
            return f"{where} does not exist (or is stopped) and its agent may not create it"
        return f"{where} does not exist, and there is no ClusterQueue {c.request.cluster_queue} that one could point to"
    if (queue := c.queue) is None:
        return f"{where} points to ClusterQueue {c.queue_name}, which does not exist"
    return None if queue.active else f"ClusterQueue {queue.name} is not active: {queue.reason or 'no reason given'}"


def flavors_there(c: Candidate) -> str | None:
    for need in c.request.pod_sets:
        for flavor in sorted(set(need.flavors.values())):
            if flavor not in c.flavors:
                labels = c.request.flavor_labels.get(flavor)
                return f"no flavor {flavor}" + (f", and none with its node labels {_labels(labels)}" if labels else "")
    return None


def room_by_flavor(c: Candidate) -> str | None:
    """The sum of what nodes have free: never above capacity, whatever the holes look like."""
    for (flavor, resource), amount in c.charges.items():
        account = c.view.account_of(flavor, resource)
        if amount > account.free:
            return f"flavor {flavor} has {_of(resource, account)} free, {quantity.text(resource, amount)} needed"
    return None


def room_on_nodes(c: Candidate) -> str | None:
    """No pod set larger than what the nodes hold, pod by pod. Pod sets of one workload share the room."""
    holes = {name: view.holes for name, view in c.view.flavors.items()}
    for need in sorted(c.request.pod_sets, key=_size, reverse=True):
        for flavor in sorted({c.flavors[f] for f in need.flavors.values()}):
            packed = pack(holes[flavor], need.per_pod, need.count)
            if packed.missing:
                return _too_large(need, flavor, need.count - packed.missing, c)
            holes[flavor] = packed.holes
    return None


def quota_on_worker(c: Candidate) -> str | None:
    queue = c.queue
    for (flavor, resource), amount in c.charges.items():
        account = queue.rooms.get((flavor, resource)) if queue else None
        if account is None:
            return f"ClusterQueue {c.queue_name} has no quota for {resource} in flavor {flavor}"
        if amount > account.free:
            return (
                f"ClusterQueue {c.queue_name} has {_of(resource, account)} of its quota of {flavor} left, "
                f"{quantity.text(resource, amount)} needed"
            )
    return None


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _of(resource: str, account: Account) -> str:
    return f"{quantity.text(resource, account.free)} of {quantity.text(resource, account.capacity)} {resource}"


def _size(need: PodSetNeed) -> tuple[int, ...]:
    """Scarce devices first: what has a domain in its name is no cpu or memory."""
    devices = sum(amount for resource, amount in need.per_pod.items() if "/" in resource)
    return (devices, need.per_pod.get("memory", 0), need.per_pod.get("cpu", 0))


def _too_large(need: PodSetNeed, flavor: str, placed: int, c: Candidate) -> str:
    holes = c.view.flavors[flavor].holes
    wants = ", ".join(
        f"{quantity.text(r, n)} {r}" for r, n in need.per_pod.items() if "/" in r or len(need.per_pod) < 3
    )
    best = ", ".join(
        f"{quantity.text(r, holes.largest(r))} {r}" for r in need.per_pod if "/" in r or len(need.per_pod) < 3
    )
    return (
        f"nodes of flavor {flavor} have room for {placed} of {need.count} pods of pod set {need.name} ({wants} each); "
        f"the largest hole is {best}"
    )


ShapeRule = Callable[[Candidate], str | None]

#: Those that no waiting will change, as long as the cluster is set up as it is.
SETUP_RULES: tuple[ShapeRule, ...] = (
    allowed,
    serves_kind,
    namespace_there,
    local_queue_there,
    flavors_there,
    tolerates_taints,
)
#: Those that depend on what else runs there; on an emptied cluster they tell what can never fit.
ROOM_RULES: tuple[ShapeRule, ...] = (room_by_flavor, room_on_nodes, quota_on_worker)

SHAPE_RULES: tuple[ShapeRule, ...] = (allowed, accepts_new_work, *SETUP_RULES[1:], *ROOM_RULES)


# --- rules about this workload's own past ------------------------------------------------------------------------------


class Rebuff(Struct, frozen=True, kw_only=True):
    """The cluster said no to this workload, or took it back: how often in a row, when last, and why."""

    cluster: str
    times: int
    last_at: Instant
    reason: str
    message: str


#: Ends of a placement that speak against the cluster. Withdrawn was the hub's own wish.
_REBUFFS = frozenset({State.REFUSED, State.EVICTED, State.LOST})


def rebuffs_of(placements: Iterable[Placement]) -> dict[str, Rebuff]:
    """What the workload's earlier placements tell about the clusters, newest last."""
    found: dict[str, Rebuff] = {}
    for p in sorted(placements, key=lambda p: p.ended_at or 0.0):
        if p.state in _REBUFFS and p.ended_at is not None:
            times = found[p.cluster].times + 1 if p.cluster in found else 1
            found[p.cluster] = Rebuff(
                cluster=p.cluster, times=times, last_at=p.ended_at, reason=p.reason, message=p.message
            )
    return found


def retry_at(rebuff: Rebuff, policy: RetryPolicy) -> Instant:
    """When the cluster may be asked again: exponential in the number of rebuffs."""
    return rebuff.last_at + min(policy.max_s, policy.base_s * 2.0 ** min(rebuff.times - 1, 30))


def not_refused_lately(rebuff: Rebuff | None, policy: RetryPolicy, now: Instant) -> str | None:
    if rebuff is None or (at := retry_at(rebuff, policy)) <= now:
        return None
    detail = f": {rebuff.message}" if rebuff.message else ""
    return f"said {rebuff.reason or 'no'} {now - rebuff.last_at:.0f} s ago{detail}; asked again in {at - now:.0f} s"
