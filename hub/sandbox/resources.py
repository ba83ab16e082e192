"""Resource lists of containers: quantities in their one written form, and what requests and limits may not say."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from hub.kueue.api.errors import QuantityError
from hub.kueue.api.quantity import nanos
from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, bad_request, invalid_value, required

NATIVE = ("cpu", "memory", "ephemeral-storage")
_NANO = 10**9
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")


@lru_cache(maxsize=1 << 14)
def canonical(quantity: str | float) -> str:
    """The quantity as apimachinery writes it: the largest suffix of its own family that leaves a whole number.

    Raises ApiError 400 for what is no quantity.
    """
    try:
        value = nanos(quantity)
    except QuantityError as error:
        raise bad_request(f"quantities must match the regular expression of a resource.Quantity: {error}") from error
    text = str(quantity)
    if "e" in text.lower() and not text.endswith("E"):
        return text
    if text.endswith("i") and value % _NANO == 0 and abs(value) >= 1024 * _NANO:
        return _scaled(value // _NANO, 1024, _BINARY)
    return _scaled(value, 1000, _DECIMAL)


def _scaled(value: int, base: int, suffixes: tuple[str, ...]) -> str:
    if value == 0:
        return "0"
    step = 0
    while value % base == 0 and step < len(suffixes) - 1:
        value, step = value // base, step + 1
    return f"{value}{suffixes[step]}"


def normalize(resources: Document) -> None:
    """Write every quantity of `requests` and `limits` in its one form, in place."""
    for name in ("limits", "requests"):
        if listed := resources.get(name):
            resources[name] = {resource: canonical(quantity) for resource, quantity in listed.items()}


def resource_errors(resources: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    """Field errors of a container's `resources` at the path `at`; quantities are normalized already."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for field, listed in (("limits", limits), ("requests", requests)):
        for name, quantity in listed.items():
            yield from _quantity_errors(name, quantity, f"{at}.{field}[{name}]")
    for name, quantity in requests.items():
        yield from _pair_errors(name, quantity, limits.get(name), at)


def _quantity_errors(name: str, quantity: str, at: str) -> Iterator[FieldError]:
    if nanos(quantity) < 0:
        yield invalid_value(at, quantity, "must be greater than or equal to 0")
    elif name not in NATIVE and nanos(quantity) % _NANO:
        yield invalid_value(at, quantity, "must be an integer")


def _pair_errors(name: str, request: str, limit: str | None, at: str) -> Iterator[FieldError]:
    """Only cpu, memory and the like may be promised twice: of anything else a container has what it asks for."""
    shared = name in NATIVE
    if limit is None:
        if not shared:
            yield required(f"{at}.limits", "Limit must be set for non overcommitable resources")
    elif not shared and nanos(request) != nanos(limit):
        yield invalid_value(f"{at}.requests", request, f"must be equal to {name} limit of {limit}")
    elif nanos(request) > nanos(limit):
        yield invalid_value(f"{at}.requests", request, f"must be less than or equal to {name} limit of {limit}")
