"""From JSON documents to Structs and back, with errors that name the field.

Reading is tolerant: unknown fields are ignored and limits such as "at most 18 items" are not looked at, because objects
that come from an API server have passed its schema, perhaps that of a later version. Types and enumerations hold.
The rules for what people write are in `hub.kueue.api.validation`.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from hub.kueue.api.errors import DecodeError

T = TypeVar("T")

_AT = re.compile(r"^(?P<message>.*?)(?: - at `(?:key in )?\$?\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every typed piece of a manifest: camelCase outside, empty fields left out."""


def limits(**keywords: object) -> Meta:
    """Keywords of the published schema (minimum, maxItems, pattern, ...), for API servers and `validation` to enforce."""
    return Meta(extra_json_schema=dict(keywords))


def read(kind: type[T], document: object, *, subject: str = "", at: str = "") -> T:
    """The document as that type. Raises DecodeError with the field's path, below `at`."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), subject, at) from None


def document(part: Struct) -> dict[str, Any]:
    """The JSON document of a Struct; shares nothing with it that is mutable."""
    return msgspec.to_builtins(part)


def text_of(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def mapping_of(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def part_of(document: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """The object at that path of a manifest; empty when it, or something on the way to it, is missing or null."""
    found: Any = document
    for key in path:
        found = found.get(key) or {}
    return found


def list_of(document: Mapping[str, Any], *path: str) -> list[dict[str, Any]]:
    """The list of objects at that path of a manifest; empty when it is missing or null."""
    return part_of(document, *path[:-1]).get(path[-1]) or []


def _explained(complaint: str, subject: str, at: str) -> DecodeError:
    found = _AT.match(complaint)
    message, path = (found["message"], found["path"] or "") if found else (complaint, "")
    path = path if path.startswith("[") or not (at and path) else f".{path}"
    if missing := _MISSING.search(message):
        below = f"{at}{path}"
        return DecodeError(f"{below}.{missing[1]}" if below else missing[1], "is required", subject=subject)
    return DecodeError(f"{at}{path}", message.replace("`", ""), subject=subject)
