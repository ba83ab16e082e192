"""What comes in over HTTP, before anything else looks at it: is it an object of its kind, and which fields are unknown?

Built-in kinds are read by the schemas of `builtin_schemas.py`; controllers in the process write what they know to be
right and do not come by here. Custom resources always do, because their defaults come from their schema.
"""

from collections.abc import Sequence

from hub.sandbox.apply import untyped
from hub.sandbox.builtin_schemas import builtin_schema
from hub.sandbox.decoding import fits, misfit
from hub.sandbox.documents import Document
from hub.sandbox.schemas import Schema, drop_empty, drop_unknown, fill_in, strict_error, unreadable
from hub.sandbox.served import Served


def take_in(served: Served, body: Document, validation: str, *, outside: bool) -> tuple[Document, list[str]]:
    """(the object without unknown fields and with the defaults of its schema, warnings for the client).

    `validation` is Ignore, Warn or Strict; `outside`: it came over HTTP. Raises ApiError 400 for what cannot be read,
    and for unknown fields under Strict.
    """
    resource = served.resource
    if served.schema is not None:
        known, unknown = drop_unknown(body, served.schema, _metadata())
        known = fill_in(known, served.schema)
    elif outside and (schema := builtin_schema(resource.group, resource.version, resource.kind)) is not None:
        if fits(body, schema):
            return body, []
        if why := misfit(body, schema):
            raise unreadable(resource.kind, resource.version, why)
        known, unknown = drop_unknown(body, schema, schema.properties.get("metadata"))
        known = drop_empty(known, schema)
    else:
        return body, []
    if unknown and validation == "Strict":
        raise strict_error(resource.kind, resource.version, unknown)
    return known, [f'unknown field "{path}"' for path in unknown] if validation == "Warn" else []


def check_declared(served: Served, config: Document) -> None:
    """An applied manifest may state only fields that its schema declares. Raises ApiError 500, as kube-apiserver does."""
    resource = served.resource
    schema = served.schema or builtin_schema(resource.group, resource.version, resource.kind)
    if schema is None:
        return
    _, unknown = drop_unknown(config, schema, _metadata())
    if unknown:
        raise untyped(config, _undeclared(unknown))
    if served.schema is None and (why := misfit(config, schema)):
        raise untyped(config, why)


def _undeclared(paths: Sequence[str]) -> str:
    lines = [f".{path}: field not declared in schema" for path in paths]
    return lines[0] if len(lines) == 1 else "errors:\n" + "\n".join(f"  {line}" for line in lines)


def _metadata() -> Schema | None:
    return builtin_schema("", "v1", "ObjectMeta")
