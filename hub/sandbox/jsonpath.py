r"""The part of JSONPath that printer columns use: fields, indexes, wildcards and filters on equality or presence.

.spec.suspend    .status.conditions[?(@.type=="Ready")].status    .spec.items[0].name    .metadata.labels.a\.b/c
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Step = Callable[[Any], Iterator[Any]]

_FIELD = re.compile(r"\.((?:\\.|[^.\[\]\\])+)")
_QUOTED = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\")\]")
_INDEX = re.compile(r"\[(-?\d+)\]")
_WILDCARD = re.compile(r"\[\*\]|\.\*")
_FILTER = re.compile(r"\[\?\(\s*(@[^=!<>)]*?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?))?\s*\)\]")

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class PathError(ValueError):
    """The text is no JSONPath, or one beyond what printer columns need. The message quotes it."""


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _index(at: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= at < len(value):
            yield value[at]

    return step


def _all(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _filter(path: str, op: str, literal: str) -> Step:
    inner = compile_path(path.removeprefix("@") or ".")
    wanted = _literal(literal) if op else None

    def holds(item: Any) -> bool:
        found = list(inner(item))
        if not op:
            return bool(found)
        return any(type(f) is type(wanted) and _COMPARE[op](f, wanted) for f in found)

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from (item for item in value if holds(item))

    return step


def _literal(text: str) -> Any:
    if text.startswith("'") and text.endswith("'"):
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError as error:
        raise PathError(f"{text!r} is not a value that a filter can compare with") from error


def _next_step(text: str, at: int) -> tuple[Step, int]:
    if found := _WILDCARD.match(text, at):
        return _all, found.end()
    if found := _FIELD.match(text, at):
        return _field(re.sub(r"\\(.)", r"\1", found[1])), found.end()
    if found := _QUOTED.match(text, at):
        return _field(found[1] if found[1] is not None else found[2]), found.end()
    if found := _INDEX.match(text, at):
        return _index(int(found[1])), found.end()
    if found := _FILTER.match(text, at):
        return _filter(found[1], found[2] or "", found[3] or ""), found.end()
    raise PathError(f"{text!r} cannot be read as a JSONPath from character {at} on")


def compile_path(text: str) -> Callable[[Any], Iterable[Any]]:
    """A function from a document to the values found, in order. Raises PathError."""
    path = text.removeprefix("{").removesuffix("}")
    steps: list[Step] = []
    at = len(path) if path == "." else 0
    while at < len(path):
        step, at = _next_step(path, at)
        steps.append(step)

    def find(document: Any) -> Iterable[Any]:
        found: list[Any] = [document]
        for step in steps:
            found = [inner for value in found for inner in step(value)]
        return found

    return find
