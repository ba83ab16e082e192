"""Clusters and capacity as the API shows them: the dispatcher's own fold, so that people and dispatcher see one truth."""

from collections import Counter

from msgspec import Struct

from hub.dispatch.capacity import CapacityRow, ClusterCapacity, ClusterView, Fleet, FleetCapacity, fold
from hub.dispatch.clusters import Cluster
from hub.dispatch.placement import LIVE, Placement
from hub.kueue.api.meta import Instant, format_time
from hub.store import clusters as cluster_rows
from hub.store import placements as placement_rows
from hub.store.database import Connection


class Amounts(Struct, frozen=True, kw_only=True, rename="camel"):
    """In engine units: milli for cpu, else the resource's own."""

    capacity: int
    ours: int
    others: int
    assumed: int
    free: int
    largest_hole: int


class FlavorInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    nodes: int
    nodes_ready: int
    resources: dict[str, Amounts]


class Gpus(Struct, frozen=True, kw_only=True, rename="camel"):
    """All GPUs of a cluster, whatever their flavor."""

    capacity: int = 0
    used: int = 0
    assumed: int = 0
    free: int = 0
    largest_hole: int = 0


class ClusterInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    state: str
    reason: str
    message: str
    cordoned: bool
    labels: dict[str, str]
    address: str
    agent_version: str
    wire_version: int
    kubernetes_version: str
    created_at: str
    last_contact_at: str | None
    capacity_at: str | None
    #: Seconds since the agent last confirmed the figures; None: it never sent any.
    age_s: float | None
    stale: bool
    nodes: int
    nodes_ready: int
    #: Workloads that are offered to it or run there.
    placements: int
    gpus: Gpus
    flavors: list[FlavorInfo]
    kinds: list[str]


class CapacityInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    cluster: str
    state: str
    flavor: str
    resource: str
    capacity: int
    ours: int
    others: int
    assumed: int
    free: int
    largest_hole: int
    nodes: int
    nodes_ready: int
    age_s: float | None
    stale: bool


class TotalInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    """Over all clusters whose figures are fresh."""

    flavor: str
    resource: str
    capacity: int
    used: int
    assumed: int
    free: int
    largest_hole: int


class FleetPicture(Struct, frozen=True, kw_only=True):
    """One consistent look at the fleet."""

    views: dict[str, ClusterView]
    folded: FleetCapacity
    live: dict[str, int]


async def load(connection: Connection, now: Instant, stale_after_s: float) -> FleetPicture:
    clusters = await cluster_rows.list_clusters(connection)
    held = await placement_rows.load_unreleased(connection)
    return picture(clusters, held, now, stale_after_s)


def picture(clusters: list[Cluster], held: list[Placement], now: Instant, stale_after_s: float) -> FleetPicture:
    views = {view.name: view for view in Fleet(clusters, held).views()}
    live = Counter(placement.cluster for placement in held if placement.state in LIVE)
    return FleetPicture(views=views, folded=fold(views.values(), now, stale_after_s), live=dict(live))


def cluster_infos(seen: FleetPicture) -> list[ClusterInfo]:
    return [_cluster_info(seen.views[c.cluster], c, seen.live.get(c.cluster, 0)) for c in seen.folded.clusters]


def _cluster_info(view: ClusterView, folded: ClusterCapacity, live: int) -> ClusterInfo:
    cluster = view.cluster
    return ClusterInfo(
        name=cluster.name,
        state=cluster.state.value,
        reason=cluster.reason,
        message=cluster.message,
        cordoned=cluster.cordoned,
        labels=cluster.labels,
        address=cluster.address,
        agent_version=cluster.agent_version,
        wire_version=cluster.wire_version,
        kubernetes_version=cluster.capacity.kubernetes_version if cluster.capacity else "",
        created_at=format_time(cluster.created_at),
        last_contact_at=_time(cluster.last_contact_at),
        capacity_at=_time(cluster.capacity_at),
        age_s=folded.age_s,
        stale=folded.stale,
        nodes=folded.nodes,
        nodes_ready=folded.nodes_ready,
        placements=live,
        gpus=_gpus(folded.rows),
        flavors=_flavors(view, folded.rows),
        kinds=sorted(view.kinds),
    )


def _time(instant: Instant | None) -> str | None:
    return None if instant is None else format_time(instant)


def is_gpu(resource: str) -> bool:
    return resource.endswith("/gpu")


def _gpus(rows: tuple[CapacityRow, ...]) -> Gpus:
    mine = [row for row in rows if is_gpu(row.resource)]
    return Gpus(
        capacity=sum(row.capacity for row in mine),
        used=sum(row.ours + row.others for row in mine),
        assumed=sum(row.assumed for row in mine),
        free=sum(row.free for row in mine),
        largest_hole=max((row.largest_hole for row in mine), default=0),
    )


def _flavors(view: ClusterView, rows: tuple[CapacityRow, ...]) -> list[FlavorInfo]:
    return [
        FlavorInfo(
            name=flavor.name,
            nodes=flavor.nodes,
            nodes_ready=flavor.nodes_ready,
            resources={row.resource: _amounts(row) for row in rows if row.flavor == flavor.name},
        )
        for flavor in view.flavors.values()
        if flavor.nodes or any(row.flavor == flavor.name and (row.ours or row.assumed) for row in rows)
    ]


def _amounts(row: CapacityRow) -> Amounts:
    return Amounts(
        capacity=row.capacity,
        ours=row.ours,
        others=row.others,
        assumed=row.assumed,
        free=row.free,
        largest_hole=row.largest_hole,
    )


def capacity_infos(seen: FleetPicture, *, flavor: str = "", cluster: str = "") -> list[CapacityInfo]:
    """One row for each resource of each flavor that has nodes on a cluster."""
    return [
        CapacityInfo(
            cluster=info.name,
            state=info.state,
            flavor=f.name,
            resource=resource,
            capacity=amounts.capacity,
            ours=amounts.ours,
            others=amounts.others,
            assumed=amounts.assumed,
            free=amounts.free,
            largest_hole=amounts.largest_hole,
            nodes=f.nodes,
            nodes_ready=f.nodes_ready,
            age_s=info.age_s,
            stale=info.stale,
        )
        for info in cluster_infos(seen)
        if cluster in ("", info.name)
        for f in info.flavors
        if flavor in ("", f.name)
        for resource, amounts in sorted(f.resources.items())
    ]


def totals(seen: FleetPicture, *, flavor: str = "") -> list[TotalInfo]:
    return [
        TotalInfo(
            flavor=row.flavor,
            resource=row.resource,
            capacity=row.capacity,
            used=row.ours + row.others,
            assumed=row.assumed,
            free=row.free,
            largest_hole=row.largest_hole,
        )
        for row in seen.folded.totals
        if flavor in ("", row.flavor) and row.capacity
    ]
