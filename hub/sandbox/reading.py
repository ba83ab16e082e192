"""Lists: selectors, pages that belong together, and what a resourceVersion in the request means.

A continue token names a version and the last key that was given; the next page is answered as of that version, from the
objects of today and the log of what changed since. Once the log is compacted the token has expired (410).
"""

import base64
import binascii
from collections.abc import Iterator, Mapping

import orjson
from msgspec import Struct

from hub.sandbox.errors import bad_request, expired, forbidden_field, future_version, invalid_options, not_supported
from hub.sandbox.selectors import Predicate, named_only, parse_fields, parse_labels
from hub.sandbox.served import Served
from hub.sandbox.storage import Collection, Key, Stored

CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


class ListParameters(Struct, frozen=True, kw_only=True):
    namespace: str = ""
    #: Only the object of this name, when the field selector says so and nothing else.
    name: str = ""
    labels: Predicate | None = None
    fields: Predicate | None = None
    limit: int = 0
    token: str = ""
    resource_version: str = ""
    match: str = ""

    def selects(self, obj: dict) -> bool:
        return (self.labels is None or self.labels(obj)) and (self.fields is None or self.fields(obj))

    @property
    def selective(self) -> bool:
        return self.labels is not None or self.fields is not None


class Page(Struct, frozen=True, kw_only=True):
    items: list[Stored]
    version: int
    token: str = ""
    remaining: int | None = None


def whole_number(query: Mapping[str, str], name: str) -> int:
    """A parameter that is a number of 0 or more; 0 when it is absent. Raises ApiError 400."""
    text = query.get(name, "")
    if text and not text.isdecimal():
        raise bad_request(f"invalid value for the parameter {name}: {text!r} is not a whole number")
    return int(text or 0)


def list_parameters(served: Served, namespace: str, query: Mapping[str, str]) -> ListParameters:
    """Raises ApiError 400 for what cannot be parsed."""
    fields = query.get("fieldSelector", "")
    return ListParameters(
        namespace=namespace,
        name=named_only(fields),
        labels=parse_labels(query.get("labelSelector", "")),
        fields=parse_fields(fields, served.fields),
        limit=whole_number(query, "limit"),
        token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        match=query.get("resourceVersionMatch", ""),
    )


def make_token(version: int, last: Key) -> str:
    return base64.urlsafe_b64encode(orjson.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": list(last)})).decode()


def read_token(text: str) -> tuple[int, Key]:
    """Raises ApiError 400."""
    try:
        token = orjson.loads(base64.urlsafe_b64decode(text))
        namespace, name = token["start"]
        return int(token["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise bad_request(f"continue key is not valid: {error}") from error


def parse_version(text: str) -> int:
    """Raises ApiError 400."""
    if not text.isdecimal():
        raise bad_request(f"invalid resource version: {text!r} is not a number")
    return int(text)


def _wanted_version(p: ListParameters, current: int) -> int | None:
    """The past version that was asked for, None for the present. Raises ApiError."""
    if p.match and not p.resource_version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        raise invalid_options("ListOptions", forbidden_field("resourceVersionMatch", why))
    if p.match not in ("", "Exact", "NotOlderThan"):
        wrong = not_supported("resourceVersionMatch", p.match, ("Exact", "NotOlderThan"))
        raise invalid_options("ListOptions", wrong)
    if not p.resource_version or p.resource_version == "0":
        return None
    if (asked := parse_version(p.resource_version)) > current:
        raise future_version(asked, current)
    exact = p.match == "Exact" or (p.limit and not p.match)
    return asked if exact else None


def list_page(collection: Collection, p: ListParameters, current: int) -> Page:
    """One page of a list. Raises ApiError 400, 410 and 504."""
    after: Key | None = None
    if p.token:
        if p.resource_version not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        version, after = read_token(p.token)
    else:
        version = _wanted_version(p, current)
    if version is None:
        return _page(p, _present(collection, p, after), current)
    if (past := collection.as_of(version)) is None:
        raise expired(CONTINUE_EXPIRED) if p.token else expired()
    return _page(p, _as_of(collection, p, past, after), version)


def _present(collection: Collection, p: ListParameters, after: Key | None) -> Iterator[Stored]:
    objects = collection.objects
    if p.name and (found := objects.get((p.namespace, p.name))):
        return iter([found])
    return (objects[key] for key in collection.ordered(p.namespace, after))


def _as_of(
    collection: Collection, p: ListParameters, past: Mapping[Key, Stored | None], after: Key | None
) -> Iterator[Stored]:
    gone = {k for k in past if k not in collection.objects and (not p.namespace or k[0] == p.namespace)}
    keys = collection.ordered(p.namespace, after)
    if gone:
        keys = sorted({*keys, *(k for k in gone if after is None or k > after)})
    for key in keys:
        found = past[key] if key in past else collection.objects[key]
        if found is not None:
            yield found


def _page(p: ListParameters, stream: Iterator[Stored], version: int) -> Page:
    if p.selective:
        stream = (stored for stored in stream if p.selects(stored.object))
    if not p.limit:
        return Page(items=list(stream), version=version)
    items: list[Stored] = []
    for stored in stream:
        if len(items) == p.limit:
            remaining = None if p.selective else 1 + sum(1 for _ in stream)
            return Page(items=items, version=version, token=make_token(version, items[-1].key), remaining=remaining)
        items.append(stored)
    return Page(items=items, version=version)
