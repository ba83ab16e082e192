"""The OpenAPI 3.1 document, made from the routes and the types that they name."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from hub.web.problems import PROBLEM_JSON, Problem
from hub.web.routes import Route

_PARAMETER = re.compile(r"\{(\w+)\}")
#: Problems that any route with a token can answer with.
_COMMON = {"401": "no known token", "403": "not allowed by the management cluster's RBAC", "503": "try again"}


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.answer, route.body) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, Problem], ref_template="#/components/schemas/{name}")
    of = dict(zip([*map(id, types), id(Problem)], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MultiKueue Hub",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "a token of the management cluster"}
            },
        },
    }


def _operation(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.operation_id, "summary": route.summary}
    if route.tag:
        operation["tags"] = [route.tag]
    if route.open:
        operation["security"] = []
    if parameters := _parameters(route):
        operation["parameters"] = parameters
    if route.body is not None or route.body_types != ("application/json",):
        schema = schemas[id(route.body)] if route.body is not None else {"type": "string"}
        operation["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": schema} for kind in route.body_types},
        }
    operation["responses"] = _responses(route, schemas)
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    inside = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    query = [
        {"name": name, "in": "query", "description": p.description, "schema": {"type": p.type}}
        for name, p in route.query.items()
    ]
    return [*inside, *query]


def _responses(route: Route, schemas: dict[int, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"description": route.summary}
    if route.answer is not None:
        good["content"] = {route.answer_type: {"schema": schemas[id(route.answer)]}}
    elif route.answer_type != "application/json":
        good["content"] = {route.answer_type: {"schema": {"type": "string"}}}
    problem = {"content": {PROBLEM_JSON: {"schema": schemas[id(Problem)]}}}
    problems = {"default": {"description": "what went wrong, and where", **problem}}
    if not route.open:
        problems |= {status: {"description": text, **problem} for status, text in _COMMON.items()}
    return {str(route.status): good, **problems}
