"""Values, operators and functions of CEL expressions. A method call `x.f(y)` is the function f with x in front."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import total_ordering
from itertools import pairwise
from typing import Any

from hub.kueue.api.errors import QuantityError
from hub.kueue.api.quantity import nanos
from hub.sandbox.formats import QUANTITY_RULE


class MissingError(Exception):
    """A key, index or optional value that is not there, or a text that is no quantity: the message says it all."""


# --- types of values that JSON has not -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Type:
    """What type() gives."""

    name: str


TYPES = {name: Type(name) for name in ("bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint")}
_PYTHON_TYPES = {
    bool: "bool",
    bytes: "bytes",
    float: "double",
    int: "int",
    list: "list",
    dict: "map",
    type(None): "null_type",
    str: "string",
}


@dataclass(frozen=True, slots=True)
class Optional:
    present: bool
    content: Any = None


NONE = Optional(False)


@total_ordering
@dataclass(frozen=True, slots=True)
class Quantity:
    """A Kubernetes quantity, in billionths of its unit."""

    nanos: int

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos


# --- operators -------------------------------------------------------------------------------------------------------------


def select(value: Any, name: str) -> Any:
    if isinstance(value, Optional):
        return _optional_select(value, name)
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} has no field {name!r}")
    if name not in value:
        raise MissingError(f"no such key: {name}")
    return value[name]


def index(value: Any, key: Any) -> Any:
    if isinstance(value, Optional):
        return _optional_select(value, key)
    if isinstance(value, dict):
        return select(value, key)
    if not isinstance(value, list) or isinstance(key, bool) or not isinstance(key, int | float):
        raise TypeError(f"{value!r} can not be indexed by {key!r}")
    if not 0 <= key < len(value):
        raise MissingError(f"index out of bounds: {key}")
    return value[int(key)]


def _optional_select(value: Any, key: Any) -> Optional:
    if isinstance(value, Optional):
        return _optional_select(value.content, key) if value.present else NONE
    try:
        return Optional(True, index(value, key))
    except MissingError:
        return NONE


def _matched(a: Any, b: Any) -> tuple[Any, Any]:
    """A text beside a time, a duration or a quantity is one itself: schemas say so by a format that is not known here."""
    for left, right in ((a, b), (b, a)):
        if isinstance(left, str) and (parse := _PARSERS.get(type(right))) is not None:
            return (parse(a), b) if left is a else (a, parse(b))
    return a, b


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    a, b = _matched(a, b)
    return bool(a == b)


def less(a: Any, b: Any) -> bool:
    a, b = _matched(a, b)
    if isinstance(a, bool) is not isinstance(b, bool) or isinstance(a, list | dict):
        raise TypeError(f"{a!r} < {b!r}")
    return bool(a < b)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | datetime | timedelta):
        raise TypeError(f"{value!r} is not a number")
    return value


def add(a: Any, b: Any) -> Any:
    if isinstance(a, str | bytes | list) and type(a) is type(b):
        return a + b
    a, b = _matched(a, b)
    return _number(a) + _number(b)


def _subtract(a: Any, b: Any) -> Any:
    a, b = _matched(a, b)
    return _number(a) - _number(b)


def _divide(a: Any, b: Any) -> Any:
    if isinstance(_number(a), float) or isinstance(_number(b), float):
        return a / b
    return int(a / b) if abs(a) < 1 << 53 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def _modulo(a: Any, b: Any) -> Any:
    return int(math.fmod(_number(a), _number(b)))


# --- conversions -----------------------------------------------------------------------------------------------------------

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    sign, text = (-1, value[1:]) if value[:1] == "-" else (1, value)
    if text != "0" and not re.fullmatch(
        f"(?:{_DURATION.pattern.replace('?P<number>', '?:').replace('?P<unit>', '?:')})+", text
    ):
        raise ValueError(f"{value!r} is not a duration")
    return timedelta(seconds=sign * sum(float(m["number"]) * _SECONDS[m["unit"]] for m in _DURATION.finditer(text)))


def _timestamp(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return found


def _quantity(value: Any) -> Quantity:
    if isinstance(value, Quantity):
        return value
    if not isinstance(value, str):
        raise TypeError("quantity() takes a text")
    try:
        return Quantity(nanos(value))
    except QuantityError:
        raise MissingError(QUANTITY_RULE) from None


_PARSERS: dict[type, Callable[[Any], Any]] = {datetime: _timestamp, timedelta: _duration, Quantity: _quantity}


def _int(value: Any) -> int:
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, str) and not re.fullmatch(r"[+-]?\d+", value):
        raise ValueError(f"{value!r} is not an int")
    if isinstance(value, bool | list | dict):
        raise TypeError(f"int({value!r})")
    return int(value)


def _uint(value: Any) -> int:
    if (found := _int(value)) < 0:
        raise ValueError("unsigned integer overflow")
    return found


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | dict) or value is None:
        raise TypeError(f"string({value!r})")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bool(value: Any) -> bool:
    words = {"true": True, "True": True, "TRUE": True, "t": True, "1": True}
    words |= {"false": False, "False": False, "FALSE": False, "f": False, "0": False}
    return value if isinstance(value, bool) else words[value]


def _type(value: Any) -> Type:
    return TYPES[_PYTHON_TYPES[type(value)]]


def _size(value: Any) -> int:
    if not isinstance(value, str | bytes | list | dict):
        raise TypeError(f"size({value!r})")
    return len(value)


# --- texts and lists -------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _index_of(value: Any, sought: Any, start: int = 0) -> int:
    if isinstance(value, str):
        return value.find(_text(sought), start)
    return next((i for i, item in enumerate(value) if equal(item, sought)), -1)


def _last_index_of(value: Any, sought: Any) -> int:
    if isinstance(value, str):
        return value.rfind(_text(sought))
    return next((i for i in range(len(value) - 1, -1, -1) if equal(value[i], sought)), -1)


def _substring(value: str, start: int, end: int | None = None) -> str:
    end = len(_text(value)) if end is None else end
    if not 0 <= start <= end <= len(value):
        raise MissingError(f"index out of range: {start}")
    return value[start:end]


def _split(value: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    return value.split(separator, limit - 1 if limit > 0 else -1) if separator else list(value)


def _format(value: str, arguments: list[Any]) -> str:
    rest = iter(arguments)

    def shown(found: re.Match[str]) -> str:
        clause = found[1]
        if clause == "%":
            return "%"
        argument = next(rest)
        if clause == "s":
            return json.dumps(argument) if isinstance(argument, list | dict) else _string(argument)
        if clause in ("d", "x", "X", "b", "o"):
            return format(argument, clause)
        digits = clause[1:-1] if clause.startswith(".") else "6"
        return format(float(argument), f".{digits}{clause[-1]}")

    return re.sub(r"%(%|s|d|x|X|b|o|(?:\.\d+)?[fe])", shown, value)


def _contains(value: Any, part: Any) -> bool:
    return _text(part) in _text(value)


def _is_sorted(items: list[Any]) -> bool:
    return all(not less(after, before) for before, after in pairwise(items))


def _sum(items: list[Any]) -> Any:
    total: Any = items[0] if items else 0
    for item in items[1:]:
        total = add(total, item)
    return total


def _extreme(items: list[Any], *, most: bool) -> Any:
    if not items:
        raise MissingError("min or max of an empty list")
    found = items[0]
    for item in items[1:]:
        found = item if less(found, item) is most else found
    return found


def _distinct(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if not any(equal(item, seen) for seen in found):
            found.append(item)
    return found


def _all_in(items: list[Any], others: list[Any]) -> bool:
    return all(any(equal(item, other) for other in others) for item in items)


# --- optionals and quantities ----------------------------------------------------------------------------------------------


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise MissingError("optional.none() dereference")
    return optional.content


def _is_quantity(value: Any) -> bool:
    try:
        _quantity(value)
    except (TypeError, MissingError):
        return False
    return True


def _quantity_of(value: Any) -> Quantity:
    """An argument of add and sub may be a quantity or a whole number."""
    return Quantity(value * 10**9) if isinstance(value, int) else _quantity(value)


def _as_integer(value: Quantity) -> int:
    if value.nanos % 10**9:
        raise ValueError("cannot convert value to integer")
    return value.nanos // 10**9


def _double(value: Any) -> float:
    try:
        return float(Decimal(value)) if isinstance(value, str) else float(_number(value))
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a double") from None


#: First parts of dotted function names, which are no variables.
NAMESPACES = frozenset({"cel", "math", "optional", "sets"})

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_-_": _subtract,
    "_*_": lambda a, b: _number(a) * _number(b),
    "_/_": _divide,
    "_%_": _modulo,
    "bool": _bool,
    "bytes": lambda value: value.encode() if isinstance(value, str) else value,
    "double": _double,
    "duration": _duration,
    "dyn": lambda value: value,
    "int": _int,
    "string": _string,
    "timestamp": _timestamp,
    "type": _type,
    "uint": _uint,
    "size": _size,
    # texts
    "charAt": lambda value, at: _substring(value, at, min(at + 1, len(value))),
    "contains": _contains,
    "endsWith": lambda value, part: _text(value).endswith(_text(part)),
    "find": lambda value, pattern: found[0] if (found := re.search(pattern, value)) else "",
    "findAll": lambda value, pattern, limit=-1: [m[0] for m in re.finditer(pattern, value)][
        : limit if limit >= 0 else None
    ],
    "format": _format,
    "indexOf": _index_of,
    "join": lambda items, separator="": separator.join(items),
    "lastIndexOf": _last_index_of,
    "lowerAscii": lambda value: _text(value).lower(),
    "matches": lambda value, pattern: re.search(pattern, _text(value)) is not None,
    "replace": lambda value, old, new, limit=-1: value.replace(old, new, limit),
    "split": _split,
    "startsWith": lambda value, part: _text(value).startswith(_text(part)),
    "substring": _substring,
    "trim": lambda value: _text(value).strip(),
    "upperAscii": lambda value: _text(value).upper(),
    # lists
    "distinct": _distinct,
    "isSorted": _is_sorted,
    "max": lambda items: _extreme(items, most=True),
    "min": lambda items: _extreme(items, most=False),
    "reverse": lambda value: value[::-1],
    "slice": lambda items, start, end: items[start:end],
    "sort": sorted,
    "sum": _sum,
    "sets.contains": lambda items, others: _all_in(others, items),
    "sets.equivalent": lambda items, others: _all_in(items, others) and _all_in(others, items),
    "sets.intersects": lambda items, others: any(_all_in([item], others) for item in items),
    "math.greatest": lambda *values: _extreme(list(values[0] if isinstance(values[0], list) else values), most=True),
    "math.least": lambda *values: _extreme(list(values[0] if isinstance(values[0], list) else values), most=False),
    # optionals
    "hasValue": lambda optional: optional.present,
    "optional.none": lambda: NONE,
    "optional.of": lambda value: Optional(True, value),
    "optional.ofNonZeroValue": lambda value: Optional(True, value) if value else NONE,
    "optional.select": _optional_select,
    "or": lambda optional, other: optional if optional.present else other,
    "orValue": lambda optional, other: optional.content if optional.present else other,
    "value": _value,
    # quantities (Kubernetes' own)
    "add": lambda a, b: Quantity(_quantity(a).nanos + _quantity_of(b).nanos),
    "asApproximateFloat": lambda value: value.nanos / 10**9,
    "asInteger": _as_integer,
    "compareTo": lambda a, b: (a.nanos > b.nanos) - (a.nanos < b.nanos),
    "isGreaterThan": lambda a, b: b < a,
    "isInteger": lambda value: value.nanos % 10**9 == 0,
    "isLessThan": lambda a, b: a < b,
    "isQuantity": _is_quantity,
    "quantity": _quantity,
    "sign": lambda value: (value.nanos > 0) - (value.nanos < 0),
    "sub": lambda a, b: Quantity(_quantity(a).nanos - _quantity_of(b).nanos),
    # times
    "getDate": lambda value: _timestamp(value).day,
    "getFullYear": lambda value: _timestamp(value).year,
    "getHours": lambda value: (
        int(value.total_seconds() // 3600) if isinstance(value, timedelta) else _timestamp(value).hour
    ),
    "getMinutes": lambda value: (
        int(value.total_seconds() // 60) if isinstance(value, timedelta) else _timestamp(value).minute
    ),
    "getMonth": lambda value: _timestamp(value).month - 1,
    "getSeconds": lambda value: (
        int(value.total_seconds()) if isinstance(value, timedelta) else _timestamp(value).second
    ),
}
