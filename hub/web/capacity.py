"""What is free where, and how old the figures are; queues with what they use."""

from aiohttp import web
from msgspec import Struct

from hub.kueue.api.meta import format_time
from hub.kueue.api.resources import CLUSTER_QUEUES, LOCAL_QUEUES
from hub.store import views
from hub.web import fleet_view
from hub.web.context import context_of
from hub.web.fleet_view import CapacityInfo, TotalInfo
from hub.web.middleware import require
from hub.web.routes import Parameter, Route, json_answer


class CapacityAnswer(Struct, frozen=True, kw_only=True):
    items: list[CapacityInfo]
    totals: list[TotalInfo]


class QueueInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    kind: str
    namespace: str
    name: str
    cohort: str
    cluster_queue: str
    pending: int
    reserving: int
    admitted: int
    active: bool
    reason: str
    #: flavor -> resource -> {nominal, reserved, used, borrowed}, in engine units.
    usage: dict[str, dict[str, dict[str, int]]]
    updated_at: str


class QueueList(Struct, frozen=True, kw_only=True):
    items: list[QueueInfo]


async def get_capacity(request: web.Request) -> web.Response:
    await require(request, "list", CLUSTER_QUEUES)
    context = context_of(request)
    async with context.database.transaction() as connection:
        seen = await fleet_view.load(connection, context.clock(), context.stale_after_s)
    flavor, cluster = request.query.get("flavor", ""), request.query.get("cluster", "")
    items = fleet_view.capacity_infos(seen, flavor=flavor, cluster=cluster)
    return json_answer(CapacityAnswer(items=items, totals=fleet_view.totals(seen, flavor=flavor)))


async def list_queues(request: web.Request) -> web.Response:
    namespace = request.query.get("namespace", "")
    await require(request, "list", LOCAL_QUEUES if namespace else CLUSTER_QUEUES, namespace)
    async with context_of(request).database.transaction() as connection:
        rows = await views.list_queues(connection)
    kind = request.query.get("kind", "")
    return json_answer(QueueList(items=queue_infos(rows, kind=kind, namespace=namespace)))


def queue_infos(rows: list[views.QueueRow], *, kind: str = "", namespace: str = "") -> list[QueueInfo]:
    """With a namespace: its LocalQueues and the ClusterQueues that they point to."""
    targets = {row.cluster_queue for row in rows if row.namespace == namespace}

    def wanted(row: views.QueueRow) -> bool:
        here = not namespace or row.namespace == namespace or (not row.namespace and row.name in targets)
        return here and kind in ("", row.kind)

    return [_queue_info(row) for row in rows if wanted(row)]


def _queue_info(row: views.QueueRow) -> QueueInfo:
    return QueueInfo(
        kind=row.kind,
        namespace=row.namespace,
        name=row.name,
        cohort=row.cohort,
        cluster_queue=row.cluster_queue,
        pending=row.pending,
        reserving=row.reserving,
        admitted=row.admitted,
        active=row.active,
        reason=row.reason,
        usage=row.usage,
        updated_at=format_time(row.updated_at),
    )


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/capacity",
        handler=get_capacity,
        summary="Capacity by cluster, flavor and resource, with the age of the figures",
        query={
            "flavor": Parameter(description="only this flavor"),
            "cluster": Parameter(description="only this cluster"),
        },
        answer=CapacityAnswer,
        tag="capacity",
    ),
    Route(
        method="GET",
        path="/api/v1/queues",
        handler=list_queues,
        summary="Queues of the management cluster and what they use",
        query={
            "kind": Parameter(description="ClusterQueue or LocalQueue"),
            "namespace": Parameter(description="LocalQueues of this namespace and their ClusterQueues"),
        },
        answer=QueueList,
        tag="queues",
    ),
]
