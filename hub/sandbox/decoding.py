"""Can a manifest be read as an object of its built-in kind? kube-apiserver decodes it into Go structs and says what
does not fit in the words of Go's JSON package; so do we, because that is what people paste into search engines.

Custom resources are not decoded: there `validation.py` names wrong types.
"""

import base64
import binascii
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from hub.kueue.api.errors import QuantityError
from hub.kueue.api.quantity import nanos
from hub.sandbox.formats import QUANTITY_RULE
from hub.sandbox.schemas import Document, Schema

_INT_BITS = {"int32": 31, "int64": 63}
_GO_SCALARS = {"boolean": "bool", "number": "float64", "string": "string"}
_JSON_KINDS = {"object": dict, "array": list, "string": str, "boolean": bool}


def fits(value: Any, schema: Schema) -> bool:
    """Is everything as it should be: known fields, values of their types, no nulls? Most bodies are, and one quick walk
    tells. What is not gets the closer look of `misfit`, `drop_unknown` and `drop_nulls`, which find the words for it.
    """
    if schema.keeps_unknown and not schema.type:
        return value is not None
    if (check := _SPECIAL.get(schema.name or schema.format)) is not None:
        return value is not None and check(value) is None
    wanted = schema.type
    if wanted == "integer":
        return _is_integer(value, schema.format)
    if wanted == "object" and type(value) is dict:
        properties, values = schema.properties, schema.values
        for name, part in value.items():
            if (inner := properties.get(name) or values) is None:
                return False
            if type(part) is str and inner.simple is str and not inner.name:
                continue  # any text will do, as for most fields; types with a name read themselves
            if not fits(part, inner):
                return False
        return True
    if wanted == "array" and type(value) is list:
        items = schema.items
        return items is not None and all(fits(item, items) for item in value)
    return (wanted == "string" and type(value) is str) or (wanted == "boolean" and type(value) is bool)


def misfit(manifest: Document, schema: Schema) -> str | None:
    """Why the manifest is no object of that kind: the first reason found, or None. Null is a field that is not there."""
    return next(_misfits(manifest, schema, schema.name, ""), None)


def _misfits(value: Any, schema: Schema, owner: str, path: str) -> Iterator[str]:
    """`owner` is the Go struct whose field `path` leads to."""
    if value is None or (schema.keeps_unknown and not schema.type):
        return
    if (check := _SPECIAL.get(schema.name or schema.format)) is not None:
        if (wrong := check(value)) is not None:
            yield wrong if " " in wrong else _wrong(value, wrong, owner, path)
    elif schema.type == "integer":
        if not _is_integer(value, schema.format):
            yield _wrong(value, schema.format or "int64", owner, path, exact=True)
    elif not isinstance(value, _JSON_KINDS.get(schema.type, object)):
        yield _wrong(value, _go_type(schema), owner, path)
    elif isinstance(value, list) and schema.items is not None:
        for item in value:
            yield from _misfits(item, schema.items, owner, path)
    elif isinstance(value, dict):
        yield from _misfits_below(value, schema, owner, path)


def _misfits_below(value: Document, schema: Schema, owner: str, path: str) -> Iterator[str]:
    for name, part in value.items():
        if name in schema.properties:
            inner = f"{path}.{name}" if path else name
            yield from _misfits(part, schema.properties[name], schema.name or owner, inner)
        elif schema.values is not None:
            yield from _misfits(part, schema.values, owner, path)


def _wrong(value: Any, go_type: str, owner: str, path: str, *, exact: bool = False) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "bool"}
    number = f"number {value}" if exact else "number"
    return (
        f"json: cannot unmarshal {kinds.get(type(value), number)} into Go struct field {owner}.{path} of type {go_type}"
    )


def _go_type(schema: Schema) -> str:
    if schema.type == "array":
        return f"[]{_go_type(schema.items)}" if schema.items is not None else "[]interface {}"
    if schema.name:
        return f"v1.{schema.name}"
    if schema.type == "object":
        return f"map[string]{_go_type(schema.values)}" if schema.values is not None else "map[string]interface {}"
    return _GO_SCALARS.get(schema.type) or schema.format or "interface {}"


def _is_integer(value: Any, width: str) -> bool:
    bits = _INT_BITS.get(width, 63)
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits


# --- types that read themselves: each gives a Go type, a whole message, or None when all is well ---------------------------


def _quantity(value: Any) -> str | None:
    try:
        nanos(value if isinstance(value, str | int | float) else "")
    except QuantityError:
        return QUANTITY_RULE
    return None


def _int_or_string(value: Any) -> str | None:
    return None if isinstance(value, str) or _is_integer(value, "int32") else "int32"


def _time(value: Any) -> str | None:
    if not isinstance(value, str):
        return "string"
    try:
        known = datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        known = False
    layout = "2006-01-02T15:04:05Z07:00"
    return None if known else f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"'


def _bytes(value: Any) -> str | None:
    if not isinstance(value, str):
        return "[]uint8"
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return "illegal base64 data at input byte 0"
    return None


_SPECIAL = {"Quantity": _quantity, "IntOrString": _int_or_string, "Time": _time, "MicroTime": _time, "byte": _bytes}
