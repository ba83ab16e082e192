"""The effect words that every decision returns. A decision says what should happen; the edge makes it happen.

Applying an operation twice must do no harm: `Create` of an object that is there already is an answer, not an error;
`Patch` carries the resourceVersion or uid that the decision was taken on when it matters; `Delete` names the uid, so
that it can never hit a namesake that came later.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from hub.kueue.api.meta import ObjectKey, Resource

EventType = Literal["Normal", "Warning"]


class Operation(Struct, frozen=True, kw_only=True):
    resource: Resource
    key: ObjectKey


class Create(Operation, frozen=True, kw_only=True):
    manifest: dict[str, Any]


class Patch(Operation, frozen=True, kw_only=True):
    """A JSON merge patch (RFC 7386) of the object or, with `subresource`, of that part of it."""

    body: dict[str, Any]
    subresource: Literal["", "status"] = ""
    #: Refuse the patch when the object changed since the decision read it.
    resource_version: str | None = None
    #: Refuse the patch when the name now belongs to another object.
    uid: str | None = None


class Delete(Operation, frozen=True, kw_only=True):
    uid: str
    propagation: Literal["Background", "Foreground", "Orphan"] = "Background"


class EmitEvent(Operation, frozen=True, kw_only=True):
    """An event about the object, in Kueue's words."""

    type: EventType
    reason: str
    message: str
    uid: str = ""


class RequeueAfter(Struct, frozen=True, kw_only=True):
    """Look at this object again after so many seconds, even if nothing happens to it."""

    resource: Resource
    key: ObjectKey
    delay_s: float


def merge_patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest merge patch (RFC 7386) that turns one document into the other; empty when they are equal.

    Lists are replaced as a whole: a merge patch knows no other way.
    """
    patch: dict[str, Any] = {}
    for name in [*after, *(name for name in before if name not in after)]:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            patch[name] = merge_patch_between(cast("dict[str, Any]", old), cast("dict[str, Any]", new))
        else:
            patch[name] = new
    return patch
