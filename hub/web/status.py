"""Health for probes, and for people what every loop does."""

from aiohttp import web
from msgspec import Struct

from hub.kueue.api.meta import format_time
from hub.kueue.runtime.loop import LoopStatus
from hub.store import leases
from hub.store.database import LEADER
from hub.store.errors import StoreError
from hub.web.context import context_of
from hub.web.routes import Route, json_answer


class LoopInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    runs: int
    failures_in_row: int
    last_start: str | None
    last_elapsed_s: float | None
    last_error: str


class StatusInfo(Struct, frozen=True, kw_only=True, rename="camel"):
    version: str
    is_leader: bool
    database_ok: bool
    loops: list[LoopInfo]


async def healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def readyz(request: web.Request) -> web.Response:
    if await _database_ok(request):
        return web.Response(text="ok")
    return web.Response(status=503, text="the database does not answer")


async def get_status(request: web.Request) -> web.Response:
    context = context_of(request)
    return json_answer(
        StatusInfo(
            version=context.version,
            is_leader=context.is_leader(),
            database_ok=await _database_ok(request),
            loops=[_loop(status) for status in context.loops()],
        )
    )


async def _database_ok(request: web.Request) -> bool:
    try:
        async with context_of(request).database.transaction() as connection:
            await leases.get(connection, LEADER)
            return True
    except StoreError:
        return False


def _loop(status: LoopStatus) -> LoopInfo:
    return LoopInfo(
        name=status.name,
        runs=status.runs,
        failures_in_row=status.failures_in_row,
        last_start=format_time(status.last_start) if status.last_start is not None else None,
        last_elapsed_s=status.last_elapsed_s,
        last_error=status.last_error,
    )


ROUTES = [
    Route(
        method="GET",
        path="/healthz",
        handler=healthz,
        summary="Is the process alive",
        answer_type="text/plain",
        open=True,
    ),
    Route(method="GET", path="/readyz", handler=readyz, summary="Can it serve", answer_type="text/plain", open=True),
    Route(
        method="GET",
        path="/api/v1/status",
        handler=get_status,
        summary="Version, leadership and loops",
        answer=StatusInfo,
    ),
]
