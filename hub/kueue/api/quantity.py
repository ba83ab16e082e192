"""Kubernetes quantities, read exactly, and the whole numbers that the engine counts with.

    "1500m" ──nanos──▶ 1_500_000_000 ──amount("cpu", ·)──▶ 1500 ──text("cpu", ·)──▶ "1500m"

A quantity is exact to the nano and at most 2^63-1 in size, as in apimachinery: finer ones are rounded away from zero,
larger ones are cut. Engine units are milli for cpu and the resource's own unit for everything else, rounded up.
"""

import re
from functools import lru_cache
from typing import Annotated

from hub.kueue.api.decoding import limits
from hub.kueue.api.errors import QuantityError

PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
#: As it stands in a manifest. Only pod templates, which no schema of ours checks, may hold a fraction unquoted.
RawQuantity = str | int | float
#: In the fields of our own kinds.
Quantity = Annotated[str | int, limits(**{"x-kubernetes-int-or-string": True, "pattern": PATTERN})]
#: Likewise, where less than nothing makes no sense. A pattern says so, because what CEL costs on a field that may be a
#: number or a text is beyond what API servers allow.
Quota = Annotated[
    str | int,
    limits(**{"x-kubernetes-int-or-string": True, "pattern": PATTERN.replace(r"(\+|-)?", r"\+?", 1), "minimum": 0}),
]

CPU, MEMORY, EPHEMERAL_STORAGE, PODS = "cpu", "memory", "ephemeral-storage", "pods"

#: No limit; also what an int64 holds at most.
UNLIMITED = 2**63 - 1
LOWEST = -(2**63)

_NANO = 10**9
_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d*)(?:\.(?P<fraction>\d*))?(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?\d+))?",
    re.ASCII,
)
_BINARY = {suffix: 1024**power for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, None: 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
#: Powers of ten beyond these change nothing: the value is cut, or rounded to one nano.
_EXPONENT_MOST = 40


@lru_cache(maxsize=1 << 16)
def nanos(quantity: RawQuantity) -> int:
    """The quantity times 10^9. Raises QuantityError."""
    if isinstance(quantity, bool):
        raise QuantityError(f"{quantity!r} is not a quantity: write a number or a text such as 500m or 2Gi")
    if isinstance(quantity, int):
        return _cut(quantity * _NANO)
    found = _GRAMMAR.fullmatch(str(quantity))
    if not found or not (found["whole"] or found["fraction"]):
        raise QuantityError(f"{quantity!r} is not a quantity: write a number or a text such as 500m or 2Gi")
    fraction = found["fraction"] or ""
    digits = int(found["whole"] + fraction)
    power = int(found["exponent"]) if found["exponent"] else _DECIMAL[found["decimal"]]
    power = max(-_EXPONENT_MOST, min(_EXPONENT_MOST, power))
    top = digits * _BINARY.get(found["binary"] or "", 1) * 10 ** (9 + max(power, 0))
    size = _divided_up(top, 10 ** (len(fraction) + max(-power, 0)))
    return _cut(-size if found["sign"] == "-" else size)


@lru_cache(maxsize=1 << 16)
def amount(resource: str, quantity: RawQuantity) -> int:
    """In engine units: milli-CPU for cpu, else the resource's own, rounded away from zero. Raises QuantityError."""
    return amount_of_nanos(resource, nanos(quantity))


def amount_of_nanos(resource: str, value: int) -> int:
    """Likewise, of a value that `nanos` gave or a sum of such. Cut to what an int64 holds: then it is UNLIMITED."""
    unit = 10**6 if resource == CPU else _NANO
    size = _divided_up(abs(value), unit)
    return clamp(-size if value < 0 else size)


@lru_cache(maxsize=1 << 14)
def text(resource: str, value: int) -> str:
    """An amount in engine units as Kubernetes prints it: 1500 of cpu is "1500m", 1073741824 of memory is "1Gi"."""
    if resource == CPU:
        return f"{value}m" if value % 1000 else _decimal(value // 1000)
    # apimachinery prints bytes below one Ki as decimals.
    if is_bytes(resource) and abs(value) >= 1024:
        return _scaled(value, 1024, ["", *_BINARY])
    return _decimal(value)


def is_bytes(resource: str) -> bool:
    return resource in (MEMORY, EPHEMERAL_STORAGE) or resource.startswith("hugepages-")


def clamp(value: int) -> int:
    return LOWEST if value < LOWEST else min(value, UNLIMITED)


def add(left: int, right: int) -> int:
    """Saturating; UNLIMITED plus anything stays UNLIMITED."""
    return UNLIMITED if UNLIMITED in (left, right) else clamp(left + right)


def subtract(left: int, right: int) -> int:
    """Saturating; UNLIMITED less UNLIMITED is 0, and a finite amount less UNLIMITED is the lowest there is."""
    if left == UNLIMITED:
        return 0 if right == UNLIMITED else UNLIMITED
    return LOWEST if right == UNLIMITED else clamp(left - right)


def multiply(value: int, times: int) -> int:
    """Saturating, for `times` >= 0; UNLIMITED times anything but 0 stays UNLIMITED."""
    return clamp(value * times)


def _divided_up(top: int, bottom: int) -> int:
    return -(-top // bottom)


def _cut(value: int) -> int:
    most = UNLIMITED * _NANO
    return max(-most, min(most, value))


def _decimal(value: int) -> str:
    return _scaled(value, 1000, ["", "k", "M", "G", "T", "P", "E"])


def _scaled(value: int, base: int, suffixes: list[str]) -> str:
    step = 0
    while value and value % base == 0 and step < len(suffixes) - 1:
        value //= base
        step += 1
    return f"{value}{suffixes[step]}"
