"""The limits that stand in a structural schema, checked here as an API server checks them.

What decoding has seen to (types, enumerations, fields that must be there) is not looked at again.
"""

import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

from hub.kueue.api.errors import QuantityError
from hub.kueue.api.quantity import nanos
from hub.kueue.api.rules.field_errors import (
    FieldError,
    FieldErrors,
    duplicate,
    invalid,
    required,
    too_many,
    unsupported,
)
from hub.kueue.api.schema import Schema

_INT32 = 2**31


def outside_limits(schema: Schema, value: Any, path: str = "") -> FieldErrors:
    """Every limit that the document breaks, in the order of the schema."""
    if value is None:
        return
    if schema.get("x-kubernetes-int-or-string"):
        yield from _quantity(schema, value, path)
    elif (check := _BY_TYPE.get(schema["type"])) is not None:
        yield from check(schema, value, path)


def _object(schema: Schema, value: dict[str, Any], path: str) -> FieldErrors:
    if (most := schema.get("maxProperties")) is not None and len(value) > most:
        yield too_many(path, len(value), most)
    for name, child in schema.get("properties", {}).items():
        if name in value:
            yield from outside_limits(child, value[name], f"{path}.{name}" if path else name)
    if "additionalProperties" in schema:
        for key, item in value.items():
            yield from outside_limits(schema["additionalProperties"], item, f"{path}[{key}]")


def _array(schema: Schema, value: list[Any], path: str) -> FieldErrors:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if len(value) < least:
        yield required(path, f"must have at least {least} item{'s' if least > 1 else ''}")
    if most is not None and len(value) > most:
        # Thousands of complaints about the items would hide this one.
        yield too_many(path, len(value), most)
        return
    for index, item in enumerate(value):
        yield from outside_limits(schema["items"], item, f"{path}[{index}]")
    yield from _repeated(schema, value, path)


def _repeated(schema: Schema, value: list[Any], path: str) -> FieldErrors:
    """Items that have the key of an earlier one; in a list that is a set the item is its own key."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys is None and schema.get("x-kubernetes-list-type") != "set":
        return
    seen: set[tuple[Any, ...]] = set()
    for index, item in enumerate(value):
        key = tuple(_key(schema["items"], item, name) for name in keys) if keys else (item,)
        if key in seen:
            where = f"{path}[{index}].{keys[0]}" if keys else f"{path}[{index}]"
            yield duplicate(where, key[0] if len(key) == 1 else ", ".join(map(str, key)))
        seen.add(key)


def _key(items: Schema, item: dict[str, Any], name: str) -> Any:
    return item.get(name, items["properties"][name].get("default"))


def _string(schema: Schema, value: str, path: str) -> FieldErrors:
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(path, value, [one for one in schema["enum"] if one])
    if len(value) < schema.get("minLength", 0):
        yield required(path, "must not be empty")
    elif (most := schema.get("maxLength")) is not None and len(value) > most:
        yield FieldError(path, value, f"Too long: may not be more than {most} characters")
    elif value and (pattern := schema.get("pattern")) and not _compiled(pattern).search(value):
        yield invalid(path, value, f"should match '{pattern}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        yield invalid(path, value, "must be a time as of RFC 3339, e.g. 2026-01-31T12:00:00Z")


def _integer(schema: Schema, value: int, path: str) -> FieldErrors:
    least = schema.get("minimum")
    if least is not None and value < least:
        yield invalid(path, value, f"must be greater than or equal to {least}")
    if schema.get("format") == "int32" and not -_INT32 <= value < _INT32:
        yield invalid(path, value, "must fit an int32")


def _quantity(schema: Schema, value: str | int, path: str) -> FieldErrors:
    try:
        size = nanos(value)
    except QuantityError as error:
        yield invalid(path, value, str(error))
        return
    if "minimum" in schema and size < schema["minimum"]:
        yield invalid(path, value, f"must be greater than or equal to {schema['minimum']}")


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


_BY_TYPE: dict[str, Callable[[Schema, Any, str], FieldErrors]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _integer,
}
