"""The route table and the order of the middleware; nothing else."""

from pathlib import Path

import aiohttp_jinja2
import jinja2
from aiohttp import web

from hub.web import apply, capacity, clusters, dashboard, events, join, middleware, openapi, status, workloads
from hub.web.context import CONTEXT, WebContext
from hub.web.routes import Route, checked, json_answer

BODY_BYTES_MAX = 8 * 1024 * 1024
_HERE = Path(__file__).parent

API_ROUTES: list[Route] = [
    *clusters.ROUTES,
    *capacity.ROUTES,
    *workloads.ROUTES,
    *apply.ROUTES,
    *events.ROUTES,
    *status.ROUTES,
    *join.ROUTES,
]


def make_app(context: WebContext) -> web.Application:
    app = web.Application(
        middlewares=[middleware.request_ids, middleware.problems_instead_of_exceptions, middleware.callers],
        client_max_size=BODY_BYTES_MAX,
    )
    app[CONTEXT] = context
    loader = jinja2.FileSystemLoader(_HERE / "templates")
    aiohttp_jinja2.setup(
        app, loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, filters=dashboard.FILTERS
    )
    for route in API_ROUTES:
        app.router.add_route(route.method, route.path, checked(route))
    app.router.add_get("/api/v1/openapi.json", _document)
    dashboard.add_routes(app)
    app.router.add_static("/static/", _HERE / "static")
    return app


async def _document(request: web.Request) -> web.Response:
    return json_answer(openapi.document(API_ROUTES, request.app[CONTEXT].version))
