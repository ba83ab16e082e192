"""Workloads: where each is, why it waits, and everything that happened to it."""

from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from hub.dispatch.decide import DecisionRecord
from hub.dispatch.placement import LIVE
from hub.dispatch.why import why as explain
from hub.kueue.admission.messages import Position
from hub.kueue.api.meta import Instant, ObjectKey, format_time
from hub.kueue.api.resources import WORKLOADS
from hub.store import decisions, history, placements, views
from hub.store.database import Connection
from hub.store.errors import NotFound
from hub.web.context import context_of
from hub.web.middleware import require
from hub.web.problems import wrong_field
from hub.web.routes import Parameter, Route, json_answer

PAGE_MAX = 1_000


class WorkloadInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    namespace: str
    name: str
    uid: str
    job_kind: str
    job_name: str
    local_queue: str
    cluster_queue: str
    priority: int
    state: str
    reason: str
    message: str
    cluster: str
    placement: str
    position: int | None
    gpus: int
    created_at: str
    placed_at: str | None
    running_at: str | None
    finished_at: str | None
    updated_at: str
    succeeded: bool | None


class WorkloadList(Struct, frozen=True, kw_only=True, rename={"next_page": "continue"}):
    items: list[WorkloadInfo]
    #: Token of the next page; empty on the last one.
    next_page: str = ""


class ClusterVerdict(Struct, frozen=True, kw_only=True):
    cluster: str
    #: chosen, fits or refused.
    verdict: str
    score: float | None
    reasons: list[str]


class DecisionInfo(Struct, frozen=True, kw_only=True):
    at: str
    outcome: str
    message: str
    chosen: list[str]
    clusters: list[ClusterVerdict]
    #: Clusters that are not listed, by the rule that refused them.
    others: dict[str, int]


class WhyInfo(Struct, frozen=True, kw_only=True):
    workload: WorkloadInfo
    sentence: str
    reason: str
    message: str
    position: int | None
    decision: DecisionInfo | None


class HistoryItem(Struct, frozen=True, kw_only=True):
    seq: int
    at: str
    cluster: str
    generation: int
    event: str
    reason: str
    message: str


class HistoryList(Struct, frozen=True, kw_only=True):
    items: list[HistoryItem]


async def list_workloads(request: web.Request) -> web.Response:
    query = request.query
    namespace = query.get("namespace", "")
    await require(request, "list", WORKLOADS, namespace)
    limit = _limit(query.get("limit", "500"))
    wanted = views.WorkloadFilter(
        namespaces=(namespace,) if namespace else None,
        states=(query["state"],) if query.get("state") else None,
        cluster=query.get("cluster", ""),
        local_queue=query.get("queue", ""),
        limit=limit,
        after=ObjectKey.parse(query["continue"]) if query.get("continue") else None,
    )
    async with context_of(request).database.transaction() as connection:
        rows = await views.list_workloads(connection, wanted)
    token = f"{rows[-1].namespace}/{rows[-1].name}" if len(rows) == limit else ""
    return json_answer(WorkloadList(items=[workload_info(row) for row in rows], next_page=token))


def _limit(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= PAGE_MAX:
        raise wrong_field("query.limit", f"{text!r} must be a number from 1 to {PAGE_MAX}")
    return int(text)


async def get_workload(request: web.Request) -> web.Response:
    async with context_of(request).database.transaction() as connection:
        return json_answer(workload_info(await _asked(request, connection)))


async def explain_workload(request: web.Request) -> web.Response:
    context = context_of(request)
    async with context.database.transaction() as connection:
        return json_answer(await explained(connection, await _asked(request, connection), context.clock()))


async def workload_history(request: web.Request) -> web.Response:
    async with context_of(request).database.transaction() as connection:
        row = await _asked(request, connection)
        entries = await history.for_workload(connection, ObjectKey(row.namespace, row.name))
    return json_answer(HistoryList(items=history_items(entries)))


async def _asked(request: web.Request, connection: Connection) -> views.WorkloadRow:
    """The workload of that name, or the one of the job of that name. Raises NotFound."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    await require(request, "get", WORKLOADS, namespace)
    found = await views.get_workload(connection, ObjectKey(namespace, name))
    if found is None:
        raise NotFound(f"there is no workload {name} in namespace {namespace}, nor one of a job of that name")
    return found


async def explained(connection: Connection, row: views.WorkloadRow, now: Instant) -> WhyInfo:
    """One sentence and what is behind it."""
    key = ObjectKey(row.namespace, row.name)
    stored = await decisions.latest(connection, key)
    record = msgspec.convert(stored.record, DecisionRecord) if stored and stored.workload_uid == row.uid else None
    known = await placements.for_workload(connection, key, row.uid)
    waiting = row.state in ("Pending", "Evicted") and not any(p.state in LIVE for p in known)
    position = (
        Position(reason=row.reason, message=row.message, cluster_queue=row.cluster_queue, position=row.position)
        if waiting and row.reason
        else None
    )
    answer = explain(key, position, record, known, now)
    return WhyInfo(
        workload=workload_info(row),
        sentence=answer.sentence,
        reason=answer.reason,
        message=row.message,
        position=answer.position,
        decision=_decision(record) if record is not None else None,
    )


def _decision(record: DecisionRecord) -> DecisionInfo:
    return DecisionInfo(
        at=format_time(record.at),
        outcome=record.outcome.value,
        message=record.message,
        chosen=list(record.clusters),
        clusters=[_verdict(verdict, record) for verdict in record.verdicts],
        others=record.others,
    )


def _verdict(verdict: Any, record: DecisionRecord) -> ClusterVerdict:
    word = "chosen" if verdict.cluster in record.clusters else "fits" if verdict.fits else "refused"
    reasons = [verdict.why] if verdict.why else []
    reasons += [f"{score.rule} {score.value:+.2f}: {score.why}" for score in verdict.scores]
    return ClusterVerdict(
        cluster=verdict.cluster, verdict=word, score=round(verdict.score, 3) if verdict.fits else None, reasons=reasons
    )


def history_items(entries: list[history.Entry]) -> list[HistoryItem]:
    return [
        HistoryItem(
            seq=entry.seq,
            at=format_time(entry.at),
            cluster=entry.cluster,
            generation=entry.generation,
            event=entry.event,
            reason=entry.reason or entry.event,
            message=entry.message,
        )
        for entry in entries
    ]


def workload_info(row: views.WorkloadRow) -> WorkloadInfo:
    return WorkloadInfo(
        namespace=row.namespace,
        name=row.name,
        uid=row.uid,
        job_kind=row.job_kind,
        job_name=row.job_name,
        local_queue=row.local_queue,
        cluster_queue=row.cluster_queue,
        priority=row.priority,
        state=row.state,
        reason=row.reason,
        message=row.message,
        cluster=row.cluster,
        placement=row.placement_id,
        position=row.position,
        gpus=row.gpus,
        created_at=format_time(row.created_at),
        placed_at=_time(row.placed_at),
        running_at=_time(row.running_at),
        finished_at=_time(row.finished_at),
        updated_at=format_time(row.updated_at),
        succeeded=row.succeeded,
    )


def _time(instant: Instant | None) -> str | None:
    return None if instant is None else format_time(instant)


_ONE = "/api/v1/workloads/{namespace}/{name}"
ROUTES = [
    Route(
        method="GET",
        path="/api/v1/workloads",
        handler=list_workloads,
        summary="Workloads, by namespace and name",
        query={
            "namespace": Parameter(description="only this namespace; without it the right to list all is needed"),
            "queue": Parameter(description="only of this LocalQueue"),
            "state": Parameter(description="only in this state"),
            "cluster": Parameter(description="only on this cluster"),
            "limit": Parameter(description=f"page size, at most {PAGE_MAX}", type="integer"),
            "continue": Parameter(description="token of the page before"),
        },
        answer=WorkloadList,
        tag="workloads",
    ),
    Route(method="GET", path=_ONE, handler=get_workload, summary="One workload", answer=WorkloadInfo, tag="workloads"),
    Route(
        method="GET",
        path=f"{_ONE}/why",
        handler=explain_workload,
        summary="Why it waits, or why it is where it is",
        answer=WhyInfo,
        tag="workloads",
    ),
    Route(
        method="GET",
        path=f"{_ONE}/history",
        handler=workload_history,
        summary="Everything that happened to it",
        answer=HistoryList,
        tag="workloads",
    ),
]
