"""Sets of fields of an object, kept in the form in which managedFields carries them (fieldsV1).

    {"f:spec": {"f:replicas": {}, "f:containers": {'k:{"name":"a"}': {".": {}, "f:image": {}}}}}

An empty dict is a member; "." beside children says that the parent is a member too. Steps: `f:` a field, `k:` an item
of a keyed list by its keys, `v:` an item of a set by its value. Sets are never changed, so they share parts freely.
The rules are those of structured-merge-diff: what owning, adding, removing and changing a field means for each shape.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from hub.sandbox.shapes import ATOMIC, Shape

FieldSet = dict[str, Any]

LEAF: FieldSet = {}
#: Values of other types are always leaves.
_DIVISIBLE = (dict, list)

#: Fields that nobody owns: the server writes them, or they name the object.
UNOWNED_METADATA = frozenset(
    {
        "clusterName",
        "creationTimestamp",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)


class ListError(ValueError):
    """An item of a keyed list can not be told apart. The message starts with the path, as in `.spec.containers: ...`."""


# --- set operations --------------------------------------------------------------------------------------------------------


def is_member(node: FieldSet) -> bool:
    return not node or "." in node


def _node(member: bool, children: FieldSet) -> FieldSet | None:
    """A node in its one form; None when it holds nothing."""
    if not children:
        return LEAF if member else None
    return {".": LEAF, **children} if member else children


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    """Two whole sets (not nodes: an empty argument is an empty set, not a member)."""
    if not a or not b:
        return a or b
    merged = dict(a)
    for step, there in b.items():
        if step == ".":
            merged["."] = LEAF
        elif (here := merged.get(step)) is None:
            merged[step] = there
        elif here is not there:
            merged[step] = _union_nodes(here, there)
    return merged


def _union_nodes(a: FieldSet, b: FieldSet) -> FieldSet:
    if not a or not b:
        rest = a or b
        return rest if not rest or "." in rest else {".": LEAF, **rest}
    return union(a, b)


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """What `a` has and `b` has not. A parent does not take its children with it."""
    if not a or not b:
        return a
    kept = {}
    for step, here in a.items():
        if step == ".":
            continue
        there = b.get(step)
        node = here if there is None else _difference_nodes(here, there)
        if node is not None:
            kept[step] = node
    return kept


def _difference_nodes(a: FieldSet, b: FieldSet) -> FieldSet | None:
    return _node(is_member(a) and not is_member(b), difference(a, b) if b else {k: v for k, v in a.items() if k != "."})


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    shared = {}
    for step, here in a.items():
        there = b.get(step)
        if step == "." or there is None:
            continue
        node = _node(is_member(here) and is_member(there), intersection(here, there))
        if node is not None:
            shared[step] = node
    return shared


def without(a: FieldSet, paths: FieldSet) -> FieldSet:
    """`a` without the leaves of `paths` and everything below them."""
    kept = {}
    for step, here in a.items():
        there = paths.get(step)
        if there is None or step == ".":
            kept[step] = here
        elif there and (rest := without(here, there)):
            kept[step] = rest
    return kept


def members(a: FieldSet, at: str = "") -> Iterator[str]:
    """Paths of all members as people write them: `.spec.containers[name="a"].image`."""
    steps = [(at + _readable(step), node) for step, node in sorted(a.items()) if step != "."]
    yield from (path for path, node in steps if is_member(node))
    for path, node in steps:
        yield from members(node, path)


def _readable(step: str) -> str:
    kind, _, rest = step.partition(":")
    match kind:
        case "f":
            return f".{rest}"
        case "k":
            pairs = sorted(json.loads(rest).items())
            return "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in pairs) + "]"
        case "v":
            return f"[={rest}]"
        case _:
            return f"[{rest}]"


# --- steps into lists ------------------------------------------------------------------------------------------------------


def item_step(item: Any, shape: Shape, place: int) -> str:
    """The step that stands for one item; keys that it leaves out are no part of it. Raises ListError."""
    if shape.form == "set":
        if item is None or isinstance(item, dict | list):
            raise ListError(f"element {place}: a set holds plain values only")
        return "v:" + orjson.dumps(item).decode()
    if not isinstance(item, dict):
        raise ListError(f"element {place}: associative list with keys may not have non-map elements")
    values = {key: item.get(key, shape.key_defaults.get(key)) for key in shape.keys}
    keys = {key: value for key, value in values.items() if value is not None}
    return "k:" + orjson.dumps(keys, option=orjson.OPT_SORT_KEYS).decode()


def is_divided(value: Any, shape: Shape) -> bool:
    """May parts of this value have different owners?"""
    if isinstance(value, dict):
        return shape.form in ("struct", "map", "deduced")
    return isinstance(value, list) and shape.form in ("set", "keyed")


def keyed_items(items: list[Any], shape: Shape) -> dict[str, Any]:
    """Items by step; of items with the same step the first counts, and those without a step are left out."""
    found: dict[str, Any] = {}
    for place, item in enumerate(items):
        try:
            found.setdefault(item_step(item, shape, place), item)
        except ListError:
            continue
    return found


# --- what an object sets ---------------------------------------------------------------------------------------------------


def set_of(manifest: Mapping[str, Any], shape: Shape) -> FieldSet:
    """All fields that a manifest states: what an apply of it owns. Raises ListError for lists that can not be merged."""
    return _owned_root(_stated_children(manifest, shape, ""))


def _owned_root(fields: FieldSet) -> FieldSet:
    """A set of a whole object without the fields that nobody owns."""
    kept = {step: node for step, node in fields.items() if step not in ("f:apiVersion", "f:kind")}
    if (meta := kept.pop("f:metadata", None)) and (
        owned := {step: node for step, node in meta.items() if step != "." and step[2:] not in UNOWNED_METADATA}
    ):
        kept["f:metadata"] = owned
    return kept


def _stated(value: Any, shape: Shape, at: str) -> FieldSet | None:
    """The node for one value, without saying whether the value itself is a member; None when only empty lists are in it."""
    if not is_divided(value, shape):
        return LEAF
    if isinstance(value, dict):
        return (_stated_children(value, shape, at) or None) if value else LEAF
    children: FieldSet = {}
    for place, item in enumerate(value):
        step = _step_at(item, shape, place, at)
        if step in children:
            raise ListError(f"{at}: duplicate entries for key {_readable(step)}")
        node = _stated(item, shape.items or ATOMIC, at + _readable(step))
        children[step] = {".": LEAF, **node} if node else LEAF
    return children or None


def _stated_children(value: Mapping[str, Any], shape: Shape, at: str) -> FieldSet:
    children: FieldSet = {}
    for name, part in value.items():
        node = _stated(part, shape.child(name), f"{at}.{name}")
        named = shape.form == "struct" or name in shape.fields
        if node and not named and "." not in node:
            node = {".": LEAF, **node}
        if node is not None or not named:
            children[f"f:{name}"] = node or LEAF
    return children


def _step_at(item: Any, shape: Shape, place: int, at: str) -> str:
    try:
        return item_step(item, shape, place)
    except ListError as error:
        raise ListError(f"{at}: {error}") from None


# --- what an update changed ------------------------------------------------------------------------------------------------


def compare(old: Mapping[str, Any], new: Mapping[str, Any], shape: Shape) -> tuple[FieldSet, FieldSet]:
    """(fields that were added or changed, fields that are gone) from one whole object to the next."""
    changed: FieldSet = {}
    removed: FieldSet = {}
    _compare_fields(old, new, shape, changed, removed)
    return _owned_root(changed), _owned_root(removed)


def _compare_fields(
    old: Mapping[str, Any], new: Mapping[str, Any], shape: Shape, changed: FieldSet, removed: FieldSet
) -> None:
    for name, after in new.items():
        before = old.get(name)
        if before is None and name not in old and type(after) not in _DIVISIBLE:
            changed[f"f:{name}"] = LEAF
            continue
        part = shape.child(name)
        if before is None and name not in old:
            if not (part.inline and isinstance(after, dict | list)):
                changed[f"f:{name}"] = _all_of(after, part)
                continue
            before = type(after)()
        if before is not after and before != after:
            _compare_values(f"f:{name}", before, after, part, changed, removed)
    for name, before in old.items():
        if name not in new:
            part = shape.child(name)
            if part.inline and isinstance(before, dict | list):
                _compare_values(f"f:{name}", before, type(before)(), part, changed, removed)
            else:
                removed[f"f:{name}"] = _all_of(before, part)


def _compare_values(step: str, old: Any, new: Any, shape: Shape, changed: FieldSet, removed: FieldSet) -> None:
    """Two values that differ."""
    more: FieldSet = {}
    less: FieldSet = {}
    if isinstance(old, dict) and isinstance(new, dict) and is_divided(new, shape):
        _compare_fields(old, new, shape, more, less)
    elif isinstance(old, list) and isinstance(new, list) and is_divided(new, shape):
        _compare_lists(old, new, shape, more, less)
    else:
        # Of a value that became one of another kind, the parts are gone.
        if parts := {at: node for at, node in _all_of(old, shape).items() if at != "."}:
            removed[step] = parts
        changed[step] = _all_of(new, shape)
        return
    if more:
        changed[step] = more
    if less:
        removed[step] = less


def _compare_lists(old: list[Any], new: list[Any], shape: Shape, changed: FieldSet, removed: FieldSet) -> None:
    before, after = keyed_items(old, shape), keyed_items(new, shape)
    for step, item in after.items():
        if step not in before:
            changed[step] = _all_of(item, shape.items or ATOMIC)
        elif before[step] != item:
            _compare_values(step, before[step], item, shape.items or ATOMIC, changed, removed)
    for step, item in before.items():
        if step not in after:
            removed[step] = _all_of(item, shape.items or ATOMIC)


def _all_of(value: Any, shape: Shape) -> FieldSet:
    """The node of a value that came or went as a whole: every part is a member, parents too."""
    if not value or not is_divided(value, shape):
        return LEAF
    node: FieldSet = {".": LEAF}
    if isinstance(value, dict):
        for name, part in value.items():
            node[f"f:{name}"] = _all_of(part, shape.child(name)) if type(part) in _DIVISIBLE else LEAF
    else:
        for step, item in keyed_items(value, shape).items():
            node[step] = _all_of(item, shape.items or ATOMIC)
    return node


# --- taking fields away ----------------------------------------------------------------------------------------------------


def with_named_parents(fields: FieldSet, shape: Shape) -> FieldSet:
    """The set with every named field on the way to a member: owning a part of `spec.template` is owning `spec`."""
    full: FieldSet = {}
    for step, node in fields.items():
        if step == ".":
            full["."] = LEAF
            continue
        inner = _shape_at(step, shape)
        below = with_named_parents(node, inner)
        named = step.startswith("f:") and (shape.form == "struct" or step[2:] in shape.fields)
        full[step] = {".": LEAF, **below} if below and named else below
    return full


def _shape_at(step: str, shape: Shape) -> Shape:
    return shape.child(step[2:]) if step.startswith("f:") else (shape.items or ATOMIC)


def remove(value: Any, fields: FieldSet, shape: Shape) -> Any:
    """The value without the members of `fields`. What is atomic stays whole; a part that was emptied goes."""
    if not value or not fields or not is_divided(value, shape):
        return value
    if isinstance(value, dict):
        parts = ((name, _remove_step(part, f"f:{name}", fields, shape.child(name))) for name, part in value.items())
        return {name: part for name, part in parts if part is not _GONE}
    items = (
        _remove_step(item, _safe_step(item, shape, place), fields, shape.items or ATOMIC)
        for place, item in enumerate(value)
    )
    return [item for item in items if item is not _GONE]


_GONE = object()


def _remove_step(part: Any, step: str, fields: FieldSet, shape: Shape) -> Any:
    node = fields.get(step)
    if node is None:
        return part
    if is_member(node):
        return _GONE
    rest = remove(part, node, shape)
    return rest if rest or not part else _GONE


def _safe_step(item: Any, shape: Shape, place: int) -> str:
    try:
        return item_step(item, shape, place)
    except ListError:
        return ""
