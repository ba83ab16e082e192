"""A route is declared once: path, handler, what it takes and answers. Routing table and OpenAPI document come from it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from hub.web.problems import FieldProblem, ProblemError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

JSON = "application/json"


class Parameter(Struct, frozen=True, kw_only=True):
    description: str
    #: JSON schema type.
    type: str = "string"


class Route(Struct, frozen=True, kw_only=True):
    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any = None
    status: int = 200
    body: Any = None
    #: Media types of the body; the first is the usual one.
    body_types: Sequence[str] = (JSON,)
    query: Mapping[str, Parameter] = {}
    #: Media type of the answer, when it is not JSON.
    answer_type: str = JSON
    tag: str = ""
    open: bool = False

    @property
    def operation_id(self) -> str:
        return self.handler.__name__.strip("_")


def json_answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type=JSON)


async def read_body(request: web.Request, kind: type[T]) -> T:
    """The body as that type. Raises a 422 problem that names the field."""
    raw = await request.read()
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at `$")
        field = at.strip("`.") or "body"
        raise ProblemError(
            422, "invalid request", f"{field}: {text}", errors=[FieldProblem(field=field, message=text)]
        ) from None


def checked(route: Route) -> Handler:
    """The handler, after a look at the query: a parameter that nobody reads is a mistake to be told, not to be ignored."""

    async def handler(request: web.Request) -> web.StreamResponse:
        unknown = [name for name in request.query if name not in route.query]
        if unknown:
            known = ", ".join(route.query) or "none"
            problem = FieldProblem(field=f"query.{unknown[0]}", message=f"is not known here; known are: {known}")
            raise ProblemError(400, "unknown query parameter", f"{unknown[0]}: {problem.message}", errors=[problem])
        return await route.handler(request)

    return handler
