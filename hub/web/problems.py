"""Every way in which a request can fail, as problem+json (RFC 9457), from one table."""

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from hub.dispatch.clusters import InvalidClusterTransition
from hub.kueue.runtime import errors as kubernetes
from hub.store import errors as store

PROBLEM_JSON = "application/problem+json"


class FieldProblem(Struct, frozen=True, kw_only=True):
    field: str
    message: str


class Problem(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """RFC 9457. `errors` names the fields that are wrong; `holding` what stands in the way."""

    title: str
    status: int
    detail: str = ""
    type: str = "about:blank"
    errors: list[FieldProblem] = []
    holding: list[str] = []
    results: list[Any] = []
    request_id: str = ""


class ProblemError(Exception):
    """A handler says no."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str = "",
        *,
        errors: Sequence[FieldProblem] = (),
        holding: Sequence[str] = (),
        results: Sequence[Any] = (),
    ) -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.problem = Problem(
            title=title, status=status, detail=detail, errors=list(errors), holding=list(holding), results=list(results)
        )


def wrong_field(field: str, message: str) -> ProblemError:
    return ProblemError(
        422, "invalid request", f"{field}: {message}", errors=[FieldProblem(field=field, message=message)]
    )


#: Exception -> (status, title). The first class that fits counts; the exception's own words are the detail.
TABLE: list[tuple[type[Exception], int, str]] = [
    (store.ClusterExists, 409, "a cluster of this name is registered already"),
    (store.NotFound, 404, "not found"),
    (store.Conflict, 409, "somebody else was faster"),
    (store.Stale, 503, "another replica leads now"),
    (store.DiskFull, 507, "the database's disk is full"),
    (store.Unavailable, 503, "the database does not answer"),
    (InvalidClusterTransition, 409, "not possible in this state"),
    (kubernetes.NotFound, 404, "not found"),
    (kubernetes.AlreadyExists, 409, "it exists already"),
    (kubernetes.Conflict, 409, "it changed meanwhile"),
    (kubernetes.Invalid, 422, "refused by the management cluster"),
    (kubernetes.Unauthorized, 401, "the management cluster does not know this token"),
    (kubernetes.Forbidden, 403, "not allowed by the management cluster"),
    (kubernetes.TooManyRequests, 429, "the management cluster is busy"),
    (kubernetes.KubernetesError, 502, "the management cluster does not answer"),
    (msgspec.DecodeError, 400, "the body is not what this route takes"),
]


def problem_of(error: Exception) -> Problem | None:
    """None for an exception that no handler may let out: a bug, to be logged and answered with 500."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, web.HTTPException):
        return Problem(title=error.reason, status=error.status)
    for kind, status, title in TABLE:
        if isinstance(error, kind):
            return Problem(title=title, status=status, detail=str(error))
    return None


def answer(problem: Problem) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    if problem.status in (429, 503):
        headers["Retry-After"] = "1"
    body = msgspec.json.encode(problem)
    return web.Response(status=problem.status, body=body, content_type=PROBLEM_JSON, headers=headers)
