"""Objects as plain JSON documents: finding something deep inside, and copying all of it."""

from typing import Any

import orjson

Document = dict[str, Any]


def dig(obj: Any, *path: str) -> Any:
    """The value at `path`, None when something on the way is missing or no object."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def copied(obj: Document) -> Document:
    """A private deep copy; several times faster than copy.deepcopy."""
    return orjson.loads(orjson.dumps(obj))
