"""What happens around every handler: a request id, problems instead of stack traces, and who is asking."""

import logging
import re
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web
from msgspec import structs

from hub.kueue.api.meta import Resource
from hub.web import problems, sessions
from hub.web.access import Caller
from hub.web.context import context_of

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CALLER = web.RequestKey("caller", Caller)
REQUEST_ID = web.RequestKey("request_id", str)
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: Open to everybody, and why it may be.
OPEN = {
    "/healthz": "a probe has no token",
    "/readyz": "a probe has no token",
    "/api/v1/openapi.json": "the document says nothing about anybody's work",
    "/agent/v1/join": "the body carries a one-time token",
    "/sign-in": "where a token is given",
}
OPEN_PREFIXES = ("/static/",)


@web.middleware
async def request_ids(request: web.Request, handler: Handler) -> web.StreamResponse:
    given = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
    response = await handler(request)
    if not response.prepared:
        response.headers["X-Request-Id"] = request[REQUEST_ID]
    return response


@web.middleware
async def problems_instead_of_exceptions(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPRedirection:
        raise
    except Exception as error:
        problem = problems.problem_of(error)
        if problem is None:
            log.exception("request %s: %s %s failed", request[REQUEST_ID], request.method, request.path)
            problem = problems.Problem(title="the hub failed", status=500, detail="see its log for this request id")
        return problems.answer(structs.replace(problem, request_id=request[REQUEST_ID]))


@web.middleware
async def callers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Nothing is open by default: without a known token there is 401, or the sign-in page for a browser."""
    if request.path in OPEN or request.path.startswith(OPEN_PREFIXES):
        return await handler(request)
    token = _bearer(request) or sessions.token_in(request)
    caller = await context_of(request).gate.identify(token) if token else None
    if caller is None:
        if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
            raise web.HTTPSeeOther("/sign-in")
        raise problems.ProblemError(401, "who are you?", "give a bearer token of the management cluster")
    request[CALLER] = caller
    return await handler(request)


def _bearer(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


async def require(request: web.Request, verb: str, resource: Resource, namespace: str = "") -> None:
    """Raises a 403 problem that names what is missing."""
    caller = request[CALLER]
    if await context_of(request).gate.may(caller, verb, resource, namespace):
        return
    where = f" in namespace {namespace}" if namespace else ""
    detail = f"{caller.user.username} may not {verb} {resource.plural}.{resource.group}{where}; the management cluster's RBAC decides"
    raise problems.ProblemError(403, "not allowed", detail)
