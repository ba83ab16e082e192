"""Cluster reports and ledger folded into one view of the fleet: the same numbers for the dispatcher and for people.

    CapacityReport of the agent ─┐
                                 ├─view_of─▶ ClusterView ─┬─ filters and scores (decide.py)
    ledger: what placements hold ┘                        └─fold─▶ table, JSON, page: with age, stale rows marked as stale

Free room node by node (holes) is corrected as well: placements that the report does not count yet are packed into it first.
"""

import itertools
from collections.abc import Iterable, Iterator

from msgspec import Struct

from hub.dispatch.clusters import Cluster, ClusterState
from hub.dispatch.holes import Holes, pack
from hub.dispatch.ledger import Account, Held, Ledger, entries
from hub.dispatch.placement import Placement, State, holds_room
from hub.kueue.api.meta import Instant
from hub.kueue.wire import CapacityReport, FlavorCapacity, QueueCapacity, QuotaRoom

#: Numbers of versions, the same for all fleets: answers remembered from one fleet never pass for another's.
_VERSIONS = itertools.count(1)

#: (flavor, resource) of a worker cluster.
FlavorResource = tuple[str, str]


class FlavorView(Struct, kw_only=True):
    name: str
    node_labels: dict[str, str]
    accounts: dict[str, Account]
    holes: Holes
    shapes: Holes
    nodes: int
    nodes_ready: int


class QueueView(Struct, kw_only=True):
    """A worker's ClusterQueue. `rooms` has an account for every quota that it has."""

    name: str
    active: bool
    reason: str
    pending: int
    rooms: dict[FlavorResource, Account]


class ClusterView(Struct, kw_only=True):
    """One cluster as a decision sees it: the last report, corrected by what the ledger knows."""

    cluster: Cluster
    #: Rises with every change that can change an answer; equal versions give equal answers.
    version: int
    flavors: dict[str, FlavorView]
    queues: dict[str, QueueView]
    #: (namespace, name) -> ClusterQueue of the worker, for those that are active.
    local_queues: dict[tuple[str, str], str]
    namespaces: frozenset[str]
    kinds: frozenset[str]
    creates_namespaces: bool
    creates_local_queues: bool
    default_cluster_queue: str

    @property
    def name(self) -> str:
        return self.cluster.name

    def account_of(self, flavor: str, resource: str) -> Account:
        """The account, made on demand: what is charged must not be forgotten because a report no longer names it."""
        view = self.flavors.get(flavor)
        if view is None:
            view = self.flavors[flavor] = _flavor_view(FlavorCapacity(name=flavor))
        return view.accounts.setdefault(resource, Account())

    def charge(self, placement: Placement, sign: int = 1) -> None:
        """Count (or no longer count) what the placement holds."""
        for row in entries(placement):
            assumed, confirmed = (0, row.amount) if row.confirmed else (row.amount, 0)
            self.count(row.queue, row.flavor, row.resource, assumed=sign * assumed, confirmed=sign * confirmed)

    def count(self, queue: str, flavor: str, resource: str, *, assumed: int, confirmed: int) -> None:
        """In the flavor, and in the queue's quota of it."""
        found = self.queues.get(queue)
        room = found.rooms.get((flavor, resource)) if found else None
        for account in (self.account_of(flavor, resource), room):
            if account is not None:
                account.assumed += assumed
                account.confirmed += confirmed

    def fill_holes(self, placement: Placement) -> None:
        """Take the room node by node that the placement's pods will take, in every flavor that they use."""
        for need in placement.intent.pod_sets:
            for name in sorted(set(need.flavors.values())):
                if (flavor := self.flavors.get(name)) is not None:
                    flavor.holes = pack(flavor.holes, need.per_pod, need.count).holes


def _flavor_view(report: FlavorCapacity) -> FlavorView:
    return FlavorView(
        name=report.name,
        node_labels=report.node_labels,
        accounts={r: Account(capacity=a.capacity, others=a.others, ours=a.ours) for r, a in report.resources.items()},
        holes=Holes.of(report.holes),
        shapes=Holes.of(report.shapes),
        nodes=report.nodes,
        nodes_ready=report.nodes_ready,
    )


def _quota_account(room: QuotaRoom) -> Account:
    """`available` as the report has it, taken apart: what is reserved there and not ours belongs to others."""
    return Account(capacity=room.limit, others=max(0, room.limit - room.available - room.ours), ours=room.ours)


def _queue_view(report: QueueCapacity) -> QueueView:
    rooms = {(f, r): _quota_account(room) for f, by_resource in report.rooms.items() for r, room in by_resource.items()}
    return QueueView(name=report.name, active=report.active, reason=report.reason, pending=report.pending, rooms=rooms)


def view_of(cluster: Cluster, held: Held, version: int = 0) -> ClusterView:
    """The cluster's last report, less what is held there beyond it."""
    report = cluster.capacity or CapacityReport()
    view = ClusterView(
        cluster=cluster,
        version=version,
        flavors={f.name: _flavor_view(f) for f in report.flavors},
        queues={q.name: _queue_view(q) for q in report.queues},
        local_queues={(q.namespace, q.name): q.cluster_queue for q in report.local_queues if q.active},
        namespaces=frozenset(report.namespaces),
        kinds=frozenset(report.kinds),
        creates_namespaces=report.creates_namespaces,
        creates_local_queues=report.creates_local_queues,
        default_cluster_queue=report.default_cluster_queue,
    )
    for (queue, flavor, resource), (assumed, confirmed) in held.sums.items():
        view.count(queue, flavor, resource, assumed=assumed, confirmed=confirmed)
    counted = frozenset(report.counted)
    for placement_id, placement in held.placements.items():
        if placement_id not in counted and placement.state is not State.LOST:
            view.fill_holes(placement)
    return view


def emptied(view: ClusterView) -> ClusterView:
    """The same cluster with nobody on it, every node ready and nothing cordoned: what could ever fit."""
    flavors = {
        name: FlavorView(
            name=name,
            node_labels=f.node_labels,
            accounts={r: Account(capacity=_most(f, r)) for r in f.accounts},
            holes=f.shapes if f.shapes.groups else f.holes,
            shapes=f.shapes,
            nodes=f.nodes,
            nodes_ready=f.nodes,
        )
        for name, f in view.flavors.items()
    }
    queues = {
        name: QueueView(
            name=name,
            active=True,
            reason="",
            pending=0,
            rooms={key: Account(capacity=room.capacity) for key, room in q.rooms.items()},
        )
        for name, q in view.queues.items()
    }
    return ClusterView(
        cluster=view.cluster,
        version=view.version,
        flavors=flavors,
        queues=queues,
        local_queues=view.local_queues,
        namespaces=view.namespaces,
        kinds=view.kinds,
        creates_namespaces=view.creates_namespaces,
        creates_local_queues=view.creates_local_queues,
        default_cluster_queue=view.default_cluster_queue,
    )


def _most(flavor: FlavorView, resource: str) -> int:
    """Ready nodes may offer less than all nodes together, and an old agent may not report shapes."""
    return max(flavor.accounts[resource].capacity, flavor.shapes.total(resource))


class Fleet:
    """All clusters and what is held on them, kept up to date in place. Views are made when somebody looks."""

    def __init__(self, clusters: Iterable[Cluster] = (), placements: Iterable[Placement] = ()) -> None:
        self.clusters: dict[str, Cluster] = {c.name: c for c in clusters}
        self.ledger = Ledger(placements)
        self._views: dict[str, ClusterView] = {}
        #: Rises when a cluster comes, goes or changes in a way that outlasts what runs there: size, queues, kinds.
        self.setup_version = next(_VERSIONS)

    def update(self, cluster: Cluster) -> bool:
        """Take in a cluster. True when what may be offered there changed."""
        before = self.clusters.get(cluster.name)
        self.clusters[cluster.name] = cluster
        if before is not None and _answers_alike(before, cluster):
            if (view := self._views.get(cluster.name)) is not None:
                view.cluster = cluster
            return False
        self._views.pop(cluster.name, None)
        if before is None or setup_of(before) != setup_of(cluster):
            self.setup_version = next(_VERSIONS)
        return True

    def forget(self, name: str) -> None:
        self.clusters.pop(name, None)
        self.setup_version = next(_VERSIONS)
        self._views.pop(name, None)

    def put(self, placement: Placement) -> bool:
        """Take in the newest version of a placement. True when room was taken or became free."""
        before = self.ledger.get(placement)
        if not self.ledger.put(placement):
            return False
        view = self._views.get(placement.cluster)
        released = not holds_room(placement)
        if view is None or released:  # its pods go back into the holes: only a new view knows where
            self._views.pop(placement.cluster, None)
        elif before is None:
            view.charge(placement)
            view.fill_holes(placement)
            view.version = next(_VERSIONS)
        else:
            view.charge(before, -1)
            view.charge(placement)
        return released or before is None

    def view(self, name: str) -> ClusterView:
        view = self._views.get(name)
        if view is None:
            cluster = self.clusters[name]
            view = self._views[name] = view_of(cluster, self.ledger.on(name), next(_VERSIONS))
        return view

    def views(self) -> Iterator[ClusterView]:
        return (self.view(name) for name in self.clusters)


def _answers_alike(before: Cluster, after: Cluster) -> bool:
    return (
        before.capacity is after.capacity
        and before.state is after.state
        and before.labels == after.labels
        and before.taints == after.taints
    )


def setup_of(cluster: Cluster) -> object:
    """What decides whether a workload could ever run there; equal for two reports that differ in usage only."""
    report = cluster.capacity
    if report is None:
        return None
    flavors = [
        (f.name, f.node_labels, f.shapes, {r: a.capacity for r, a in f.resources.items()}) for f in report.flavors
    ]
    queues = [(q.name, {f: {r: m.limit for r, m in by.items()} for f, by in q.rooms.items()}) for q in report.queues]
    doors = (report.local_queues, report.namespaces, report.kinds, report.creates_namespaces)
    more = (report.creates_local_queues, report.default_cluster_queue, cluster.taints)
    return (flavors, queues, doors, more, cluster.state is ClusterState.REMOVED)


# --- for people --------------------------------------------------------------------------------------------------------


class CapacityRow(Struct, frozen=True, kw_only=True):
    """One resource of one flavor of one cluster (or, in totals, of all clusters). Engine units."""

    flavor: str
    resource: str
    capacity: int = 0
    others: int = 0
    #: Used by our copies, confirmed by the agent or counted in its report.
    ours: int = 0
    #: Offered, and not yet confirmed.
    assumed: int = 0
    free: int = 0
    #: The most that one node has free; in totals the most of any cluster.
    largest_hole: int = 0


class ClusterCapacity(Struct, frozen=True, kw_only=True):
    cluster: str
    state: str
    #: Seconds since the agent last confirmed these numbers. None: it has never sent any.
    age_s: float | None
    #: Too old to be trusted; the numbers are the last known ones.
    stale: bool
    nodes: int
    nodes_ready: int
    rows: tuple[CapacityRow, ...]


class FleetCapacity(Struct, frozen=True, kw_only=True):
    clusters: tuple[ClusterCapacity, ...]
    #: By flavor and resource, over clusters whose numbers are fresh.
    totals: tuple[CapacityRow, ...]


def fold(views: Iterable[ClusterView], now: Instant, stale_after_s: float) -> FleetCapacity:
    """The fleet as a table."""
    clusters = tuple(_cluster_row(view, now, stale_after_s) for view in views)
    totals: dict[FlavorResource, CapacityRow] = {}
    for cluster in clusters:
        for row in () if cluster.stale else cluster.rows:
            key = (row.flavor, row.resource)
            totals[key] = _plus(totals[key], row) if key in totals else row
    return FleetCapacity(clusters=clusters, totals=tuple(totals[key] for key in sorted(totals)))


def _cluster_row(view: ClusterView, now: Instant, stale_after_s: float) -> ClusterCapacity:
    cluster = view.cluster
    age_s = None if cluster.capacity_at is None else max(0.0, now - cluster.capacity_at)
    rows = (
        _capacity_row(f, resource, account) for f in view.flavors.values() for resource, account in f.accounts.items()
    )
    return ClusterCapacity(
        cluster=cluster.name,
        state=cluster.state.value,
        age_s=age_s,
        stale=age_s is None or age_s > stale_after_s,
        nodes=sum(f.nodes for f in view.flavors.values()),
        nodes_ready=sum(f.nodes_ready for f in view.flavors.values()),
        rows=tuple(rows),
    )


def _capacity_row(flavor: FlavorView, resource: str, account: Account) -> CapacityRow:
    ours = account.used_by_us - account.assumed if account.used_by_us > account.assumed else account.confirmed
    return CapacityRow(
        flavor=flavor.name,
        resource=resource,
        capacity=account.capacity,
        others=account.others,
        ours=ours,
        assumed=account.used_by_us - ours,
        free=account.free,
        largest_hole=min(flavor.holes.largest(resource), account.free),
    )


def _plus(left: CapacityRow, right: CapacityRow) -> CapacityRow:
    return CapacityRow(
        flavor=left.flavor,
        resource=left.resource,
        capacity=left.capacity + right.capacity,
        others=left.others + right.others,
        ours=left.ours + right.ours,
        assumed=left.assumed + right.assumed,
        free=left.free + right.free,
        largest_hole=max(left.largest_hole, right.largest_hole),
    )
