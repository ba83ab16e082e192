"""Server-side apply and the ownership of fields (KEP-555).

Every write leaves a mark in `metadata.managedFields`: which manager wrote which fields, by which operation.

    Update  create, replace and the patches other than apply: the writer takes what it changed from everybody else.
    Apply   the writer states what it wants. What it stated before and states no more goes, unless somebody else owns
            it too. What another manager owns with another value is a conflict, unless `force` takes it.

Entries of `managedFields` are told apart by manager, operation, subresource and, for updates, by version. Times move
only when the write changed something. All functions are pure: manifests in, manifests or lists out, `now` in seconds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hub.kueue.api.meta import Instant, format_time
from hub.sandbox import field_sets as fs
from hub.sandbox.errors import ApiError, bad_request
from hub.sandbox.field_sets import FieldSet
from hub.sandbox.shapes import ATOMIC, Shape

Manifest = dict[str, Any]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
BEFORE_FIRST_APPLY = "before-first-apply"
ANCIENT_CHANGES = "ancient-changes"
UPDATE_MANAGERS_MAX = 10
MANAGER_NAME_MAX = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes, and through which door."""

    manager: str
    api_version: str
    subresource: str = ""
    #: Dotted paths that this door does not let through, so that nothing below them is ever owned.
    resets: tuple[str, ...] = ()


def manager_name(field_manager: str, user_agent: str) -> str:
    """What a writer is called: the fieldManager that it asks for, else the first part of its user agent."""
    return field_manager or user_agent.partition("/")[0][:MANAGER_NAME_MAX] or "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One entry of managedFields."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""
    time: str | None = None
    fields: FieldSet

    @property
    def identity(self) -> tuple[str, str, str, str]:
        version = "" if self.operation == "Apply" else self.api_version
        return (self.manager, self.operation, self.subresource, version)

    @property
    def age(self) -> tuple[str, str, str, str, str]:
        return (self.operation, self.time or "", self.manager, self.api_version, self.subresource)


def _encode(entries: Iterable[_Entry]) -> list[dict[str, Any]]:
    encoded = []
    for e in sorted((e for e in entries if e.fields), key=lambda e: e.age):
        entry = {"manager": e.manager, "operation": e.operation, "apiVersion": e.api_version}
        if e.time:
            entry["time"] = e.time
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": e.fields}
        encoded.append(entry | ({"subresource": e.subresource} if e.subresource else {}))
    return encoded


def _decode(managed: Any) -> list[_Entry]:
    """The entries, or none at all when one of them can not be read."""
    try:
        return [_decode_one(entry) for entry in managed or ()]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def _decode_one(entry: Mapping[str, Any]) -> _Entry:
    if entry["operation"] not in ("Apply", "Update") or entry["fieldsType"] != "FieldsV1" or not entry["apiVersion"]:
        raise ValueError(entry)
    return _Entry(
        manager=entry.get("manager", ""),
        operation=entry["operation"],
        api_version=entry["apiVersion"],
        subresource=entry.get("subresource", ""),
        time=entry.get("time"),
        fields=dict(entry.get("fieldsV1") or {}),
    )


# --- updates ---------------------------------------------------------------------------------------------------------------


def track_update(
    live: Mapping[str, Any] | None, new: Mapping[str, Any], shape: Shape, writer: Writer, now: Instant
) -> list[dict[str, Any]]:
    """`managedFields` of `new`, which is about to be stored over `live` (None: it is created); [] for none.

    Like kube-apiserver it honours the entries that a client sends along, drops all when a client sends an empty list
    (or one empty entry), and does not begin to track an object that has no entries.
    """
    entries = _entries_for_update(live, new, writer)
    if live is not None and not entries:
        return []
    changed, removed = fs.compare(live or {}, new, shape)
    blocked = _as_set(writer.resets)
    changed, removed = fs.without(changed, blocked), fs.without(removed, blocked)
    mine = _Entry(
        manager=writer.manager,
        operation="Update",
        api_version=writer.api_version,
        subresource=writer.subresource,
        time=format_time(now),
        fields=changed,
    )
    if not entries:  # a new object: there is nobody to share with
        return _encode([mine])
    kept = [_reduced(e, changed, removed) for e in entries if e.identity != mine.identity]
    return _encode(_capped([*kept, _grown(mine, entries, removed, now)]))


def _entries_for_update(live: Mapping[str, Any] | None, new: Mapping[str, Any], writer: Writer) -> list[_Entry]:
    before = live["metadata"].get("managedFields") if live else None
    if writer.subresource:
        return _decode(before)
    sent = new["metadata"].get("managedFields")
    if sent in ([], [{}]):
        return []
    return _decode(sent) or _decode(before)


def _grown(mine: _Entry, entries: Sequence[_Entry], removed: FieldSet, now: Instant) -> _Entry:
    """The writer's entry: what it had, without what is gone, with what it changed just now."""
    before = next((e for e in entries if e.identity == mine.identity), None)
    fields = fs.union(fs.difference(before.fields, removed), mine.fields) if before else mine.fields
    time = format_time(now) if mine.fields or before is None else before.time
    return replace(mine, fields=fields, time=time)


def _reduced(entry: _Entry, *taken: FieldSet) -> _Entry:
    fields = entry.fields
    for some in taken:
        fields = fs.difference(fields, some)
    return entry if fields is entry.fields else replace(entry, fields=fields)


def _as_set(paths: Iterable[str]) -> FieldSet:
    fields: FieldSet = {}
    for path in paths:
        node = fields
        for name in path.split("."):
            node = node.setdefault(f"f:{name}", {})
    return fields


def _capped(entries: list[_Entry]) -> list[_Entry]:
    """At most ten updaters are told apart: the oldest of a version share one entry."""
    updaters = sorted((e for e in entries if e.operation == "Update" and e.fields), key=lambda e: e.age)
    surplus = len(updaters) - UPDATE_MANAGERS_MAX
    if surplus <= 0:
        return entries
    merged = _merged_oldest(updaters, surplus)
    return [*(e for e in entries if e.operation == "Apply"), *merged]


def _merged_oldest(updaters: list[_Entry], surplus: int) -> list[_Entry]:
    firsts: dict[str, _Entry] = {}
    gone: set[tuple[str, ...]] = set()
    buckets: dict[str, _Entry] = {}
    for entry in updaters:
        version = entry.api_version
        if surplus <= 0:
            break
        if version not in firsts:
            firsts[version] = entry
            continue
        bucket = buckets.get(version) or firsts[version]
        fields = fs.union(bucket.fields, entry.fields)
        buckets[version] = replace(bucket, manager=ANCIENT_CHANGES, subresource="", time=entry.time, fields=fields)
        gone |= {entry.identity, firsts[version].identity}
        surplus -= 1
    return [*buckets.values(), *(e for e in updaters if e.identity not in gone)]


# --- apply -----------------------------------------------------------------------------------------------------------------


def apply(
    live: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    shape: Shape,
    writer: Writer,
    now: Instant,
    *,
    force: bool = False,
) -> Manifest:
    """The object after `config` was applied to `live` (None: there is none yet), with its managedFields.

    Raises ApiError: 409 with one cause per conflicting field, 400 for managedFields or another version in `config`,
    500 when lists of `config` can not be merged, as kube-apiserver does.
    """
    _check_config(config, writer)
    try:
        return _apply(live, config, shape, writer, now, force=force)
    except _ConflictsError as conflicts:
        allowed = _allowed_by_last_applied(live, shape) if writer.manager == "kubectl" else {}
        remaining = [(entry, rest) for entry, found in conflicts.found if (rest := fs.difference(found, allowed))]
        if remaining:
            raise _conflict_error(remaining) from None
        return _apply(live, config, shape, writer, now, force=True)


def _check_config(config: Mapping[str, Any], writer: Writer) -> None:
    if config.get("metadata", {}).get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    if (version := config.get("apiVersion")) != writer.api_version:
        raise bad_request(
            f"Incorrect version specified in apply patch. Specified patch version: {version}, expected: {writer.api_version}"
        )


class _ConflictsError(Exception):
    """Fields that other managers own with other values."""

    def __init__(self, found: list[tuple[_Entry, FieldSet]]) -> None:
        super().__init__(found)
        self.found = found


def _apply(
    live: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    shape: Shape,
    writer: Writer,
    now: Instant,
    *,
    force: bool,
) -> Manifest:
    entries = _entries_for_apply(live, shape, writer, now)
    stated = fs.without(_stated_by(config, shape), _as_set(writer.resets))
    mine = _Entry(
        manager=writer.manager,
        operation="Apply",
        api_version=writer.api_version,
        subresource=writer.subresource,
        fields=stated,
    )
    last = next((e for e in entries if e.identity == mine.identity), None)
    others = [e for e in entries if e.identity != mine.identity]

    merged: Manifest = _merge_objects(live or {}, config, shape)
    if last is not None:
        merged = _without_abandoned(merged, last.fields, [mine, *others], shape)
    changed, removed = fs.compare(live or {}, merged, shape)
    changed = fs.without(changed, _as_set(writer.resets))
    conflicts = [(e, both) for e in others if (both := fs.intersection(e.fields, changed))]
    if conflicts and not force:
        raise _ConflictsError(conflicts)

    time = format_time(now) if changed or removed or live is None else (last.time if last else None)
    kept = [_reduced(e, changed, removed) for e in others]
    merged = _with_last_applied(merged, config, writer)
    meta = {**merged.get("metadata", {}), "managedFields": _encode([*kept, replace(mine, time=time)])}
    return {**merged, "metadata": meta}


def _entries_for_apply(live: Mapping[str, Any] | None, shape: Shape, writer: Writer, now: Instant) -> list[_Entry]:
    """The entries of the live object. What is there without an owner belongs to "before-first-apply"."""
    if live is None:
        return []
    if entries := _decode(live["metadata"].get("managedFields")):
        return entries
    fields, _ = fs.compare({}, live, shape)
    return [
        _Entry(
            manager=BEFORE_FIRST_APPLY,
            operation="Update",
            api_version=writer.api_version,
            subresource=writer.subresource,
            time=format_time(now),
            fields=fs.without(fields, _as_set(writer.resets)),
        )
    ]


def _stated_by(config: Mapping[str, Any], shape: Shape) -> FieldSet:
    try:
        return fs.set_of(config, shape)
    except fs.ListError as error:
        raise untyped(config, str(error)) from error


def untyped(config: Mapping[str, Any], why: str) -> ApiError:
    """The answer to an applied manifest that does not fit its type; `why` starts with the path of what is wrong."""
    meta = config.get("metadata", {})
    group, _, version = config.get("apiVersion", "").rpartition("/")
    kind = f"{group}/{version}, Kind={config.get('kind', '')}"
    named = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    return ApiError(500, "", f"failed to create typed patch object ({named}; {kind}): {why}")


def _without_abandoned(merged: Manifest, last: FieldSet, entries: Sequence[_Entry], shape: Shape) -> Manifest:
    """`merged` without what the writer stated last time and nobody owns any more."""
    owned: FieldSet = {}
    for entry in entries:
        owned = fs.union(owned, entry.fields)
    abandoned = fs.difference(fs.with_named_parents(last, shape), fs.with_named_parents(owned, shape))
    if meta := abandoned.pop("f:metadata", None):
        abandoned["f:metadata"] = {step: node for step, node in meta.items() if step != "."}
    return fs.remove(merged, abandoned, shape)


# --- merging ---------------------------------------------------------------------------------------------------------------


def _merge_objects(live: Mapping[str, Any], config: Mapping[str, Any], shape: Shape) -> Manifest:
    merged = dict(live)
    for name, value in config.items():
        merged[name] = _merge_values(merged[name], value, shape.child(name)) if name in merged else value
    return merged


def _merge_values(live: Any, config: Any, shape: Shape) -> Any:
    if not fs.is_divided(config, shape) or type(live) is not type(config):
        return config
    if isinstance(config, dict):
        return _merge_objects(live, config, shape)
    return _merge_lists(live, config, shape)


def _merge_lists(live: list[Any], config: list[Any], shape: Shape) -> list[Any]:
    """Live items and applied ones. Applied items keep their order; a live item that is not applied stays where it was."""
    ours = [fs.item_step(item, shape, place) for place, item in enumerate(config)]
    applied = dict(zip(ours, config, strict=True))
    before = fs.keyed_items(live, shape)
    theirs = list(before)
    shared = [step for step in ours if step in before]

    def merged(step: str) -> Any:
        if step not in applied:
            return before[step]
        return _merge_values(before[step], applied[step], shape.items or ATOMIC) if step in before else applied[step]

    order: list[str] = []
    left, right, done = 0, 0, set()
    while left < len(theirs) or right < len(ours):
        there = theirs[left] if left < len(theirs) else None
        here = ours[right] if right < len(ours) else None
        if there is not None and (there in done or (there in applied and there != here and there != shared[0])):
            left += 1
        elif there is not None and there not in applied:
            order.append(there)
            left += 1
        else:
            assert here is not None
            order.append(here)
            done.add(here)
            right += 1
            if shared and shared[0] == here:
                shared.pop(0)
    return [merged(step) for step in order]


# --- conflicts, and kubectl's own annotation -------------------------------------------------------------------------------


def _conflict_error(conflicts: Sequence[tuple[_Entry, FieldSet]]) -> ApiError:
    found = [(_described(entry), path) for entry, fields in conflicts for path in fs.members(fields)]
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path} for who, path in found
    ]
    return ApiError(409, "Conflict", _conflict_message(found), {"causes": causes})


def _conflict_message(found: Sequence[tuple[str, str]]) -> str:
    if len(found) == 1:
        who, path = found[0]
        return f"Apply failed with 1 conflict: conflict with {who}: {path}"
    lines: list[str] = []
    for who in sorted({who for who, _ in found}):
        lines.append(f"conflicts with {who}:")
        lines += [f"- {path}" for owner, path in found if owner == who]
    return f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)


def _described(entry: _Entry) -> str:
    text = json.dumps(entry.manager)
    if entry.subresource:
        text += f" with subresource {json.dumps(entry.subresource)}"
    return text if entry.operation == "Apply" else f"{text} using {entry.api_version}"


def _allowed_by_last_applied(live: Mapping[str, Any] | None, shape: Shape) -> FieldSet:
    """Fields that kubectl set by client-side apply and that still have that value: its first server-side apply takes them."""
    text = ((live or {}).get("metadata", {}).get("annotations") or {}).get(LAST_APPLIED)
    if not live or not text:
        return {}
    try:
        stated = json.loads(text)
        if stated.get("apiVersion") != live.get("apiVersion"):
            return {}
        fields = fs.set_of(stated, shape)
    except (ValueError, AttributeError):
        return {}
    changed, removed = fs.compare(stated, live, shape)
    return fs.difference(fs.difference(fields, changed), removed)


def _with_last_applied(merged: Manifest, config: Mapping[str, Any], writer: Writer) -> Manifest:
    """Where client-side apply left its annotation, kubectl's server-side apply keeps it up to date."""
    meta = merged.get("metadata", {})
    annotations = meta.get("annotations") or {}
    if writer.manager != "kubectl" or not annotations.get(LAST_APPLIED):
        return merged
    stated = {**config, "metadata": dict(config["metadata"])}
    if own := stated["metadata"].get("annotations"):
        stated["metadata"]["annotations"] = {k: v for k, v in own.items() if k != LAST_APPLIED}
    text = json.dumps(stated, separators=(",", ":"), sort_keys=True) + "\n"
    return {**merged, "metadata": {**meta, "annotations": {**annotations, LAST_APPLIED: text}}}
