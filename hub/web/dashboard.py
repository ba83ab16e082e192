"""The pages: one that shows the whole fleet and refreshes itself, one per workload, and the sign-in.

Rendered here from the same reads as the API. The page's own script listens to /api/v1/events and fetches the parts again;
without scripts it is a page all the same. Nothing is loaded from elsewhere (Content-Security-Policy).
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp_jinja2
from aiohttp import web

from hub.kueue.api.meta import Instant, ObjectKey, parse_time
from hub.kueue.api.resources import CLUSTER_QUEUES, WORKLOADS
from hub.store import history, views
from hub.store.errors import NotFound
from hub.web import fleet_view, sessions
from hub.web.capacity import queue_infos
from hub.web.context import context_of
from hub.web.middleware import CALLER, require
from hub.web.workloads import WorkloadInfo, explained, history_items, workload_info

SHOWN_MAX = 300
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: Finished work is news for a while; then it makes room.
RECENT_S = 600.0


def add_routes(app: web.Application) -> None:
    app.router.add_get("/", fleet_page)
    app.router.add_get("/parts/fleet", fleet_part)
    app.router.add_get("/workloads/{namespace}/{name}", workload_page)
    app.router.add_get("/sign-in", sign_in_page)
    app.router.add_post("/sign-in", sign_in)
    app.router.add_get("/sign-out", sign_out)


async def fleet_page(request: web.Request) -> web.StreamResponse:
    return _render("fleet.html", request, await _fleet(request))


async def fleet_part(request: web.Request) -> web.StreamResponse:
    """What the page's script puts in place of the old."""
    return _render("fleet_part.html", request, await _fleet(request))


async def _fleet(request: web.Request) -> dict[str, Any]:
    await require(request, "list", CLUSTER_QUEUES)
    context = context_of(request)
    namespace, state = request.query.get("team", ""), request.query.get("state", "")
    await require(request, "list", WORKLOADS, namespace)
    wanted = views.WorkloadFilter(namespaces=(namespace,) if namespace else None, limit=5_000)
    async with context.database.transaction() as connection:
        seen = await fleet_view.load(connection, context.clock(), context.stale_after_s)
        rows = await views.list_workloads(connection, wanted)
        queues = await views.list_queues(connection)
    infos = [workload_info(row) for row in rows]
    shown = [info for info in infos if state in ("", info.state)]
    return {
        "clusters": fleet_view.cluster_infos(seen),
        "totals": [total for total in fleet_view.totals(seen) if fleet_view.is_gpu(total.resource)],
        "queues": [queue for queue in queue_infos(queues) if queue.kind == "ClusterQueue"],
        "counts": Counter(info.state for info in infos),
        "workloads": sorted(shown, key=_by_interest)[:SHOWN_MAX],
        "left_out": max(0, len(shown) - SHOWN_MAX),
        "teams": sorted({row.namespace for row in rows}),
        "team": namespace,
        "state": state,
        "now": context.clock(),
    }


_INTEREST = {"Pending": 0, "Evicted": 0, "QuotaReserved": 1, "Admitted": 2, "Running": 3, "Finished": 9}


def _by_interest(info: WorkloadInfo) -> tuple[int, float]:
    """What waits first, then what runs, then what ended; the newest of each first."""
    return _INTEREST.get(info.state, 5), -parse_time(info.created_at)


async def workload_page(request: web.Request) -> web.StreamResponse:
    context = context_of(request)
    key = ObjectKey(request.match_info["namespace"], request.match_info["name"])
    await require(request, "get", WORKLOADS, key.namespace)
    async with context.database.transaction() as connection:
        row = await views.get_workload(connection, key)
        if row is None:
            raise NotFound(f"there is no workload {key}")
        answer = await explained(connection, row, context.clock())
        entries = await history.for_workload(connection, ObjectKey(row.namespace, row.name))
    facts = {"why": answer, "w": answer.workload, "history": history_items(entries), "now": context.clock()}
    return _render("workload.html", request, facts)


# --- signing in ------------------------------------------------------------------------------------------------------


async def sign_in_page(request: web.Request) -> web.StreamResponse:
    """A form; or, with a token in the address (as the demo prints it), straight on."""
    if token := request.query.get("token", ""):
        return await _sign_in(request, token)
    return _render("sign_in.html", request, {"wrong": False})


async def sign_in(request: web.Request) -> web.StreamResponse:
    return await _sign_in(request, str((await request.post()).get("token", "")).strip())


async def _sign_in(request: web.Request, token: str) -> web.StreamResponse:
    if not token or await context_of(request).gate.identify(token) is None:
        response = _render("sign_in.html", request, {"wrong": True})
        response.set_status(401)
        return response
    response = web.Response(status=303, headers={"Location": "/"})
    sessions.remember(request, response, token)
    return response


async def sign_out(request: web.Request) -> web.StreamResponse:
    response = web.Response(status=303, headers={"Location": "/sign-in"})
    sessions.forget(response)
    return response


def _render(template: str, request: web.Request, facts: dict[str, Any]) -> web.StreamResponse:
    caller = request.get(CALLER)
    response = aiohttp_jinja2.render_template(
        template, request, {"user": caller.user.username if caller else "", **facts}
    )
    response.headers.update(_HEADERS)
    return response


# --- words for people ------------------------------------------------------------------------------------------------


def duration(seconds: float | None) -> str:
    """3s, 12m, 5h, 4d; "never" for what never happened."""
    if seconds is None:
        return "never"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def since(when: str | None, now: Instant) -> str:
    return duration(now - parse_time(when)) if when else "-"


def share(part: int, whole: int) -> str:
    """Percent with one decimal, for a bar's width."""
    return f"{100 * part / whole:.1f}" if whole else "0"


def gpu_usage(usage: dict[str, dict[str, dict[str, int]]]) -> list[tuple[str, int, int]]:
    """(flavor, reserved, nominal) of the GPUs of a queue."""
    return [
        (flavor, amounts.get("reserved", 0), amounts.get("nominal", 0))
        for flavor, resources in sorted(usage.items())
        for resource, amounts in resources.items()
        if fleet_view.is_gpu(resource)
    ]


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": duration,
    "since": since,
    "share": share,
    "gpu_usage": gpu_usage,
}
