"""What is wrong with a field, as data, in the words that Kubernetes uses for it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

FieldErrors = Iterator["FieldError"]


class FieldError(Struct, frozen=True):
    """`path` as kubectl prints it, e.g. spec.podSets[0].count; "" is the object as a whole."""

    path: str
    value: Any
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError(path, value, f"Invalid value: {_shown(value)}: {detail}")


def immutable(path: str, value: Any, when: str = "") -> FieldError:
    return invalid(path, value, f"field is immutable {when}".rstrip())


def required(path: str, detail: str = "") -> FieldError:
    return FieldError(path, None, ": ".join(part for part in ("Required value", detail) if part))


def forbidden(path: str, detail: str) -> FieldError:
    return FieldError(path, None, f"Forbidden: {detail}")


def duplicate(path: str, value: Any) -> FieldError:
    return FieldError(path, value, f"Duplicate value: {_shown(value)}")


def unsupported(path: str, value: Any, supported: Iterable[str]) -> FieldError:
    listed = ", ".join(_shown(one) for one in supported)
    return FieldError(path, value, f"Unsupported value: {_shown(value)}: supported values: {listed}")


def too_many(path: str, count: int, most: int) -> FieldError:
    return FieldError(path, count, f"Too many: {count}: must have at most {most} items")


def not_found(path: str, value: Any) -> FieldError:
    return FieldError(path, value, f"Not found: {_shown(value)}")


def duplicates(path: str, values: Sequence[str]) -> FieldErrors:
    """One error for each value that occurred before, at its place in the list at `path`."""
    seen: set[str] = set()
    for index, value in enumerate(values):
        if value in seen:
            yield duplicate(f"{path}[{index}]", value)
        seen.add(value)


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
