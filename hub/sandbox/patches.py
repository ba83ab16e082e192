"""The three patches a client may send, as pure functions: old object and patch in, new object out, neither changed.

merge patch             RFC 7386; null removes, lists are replaced
JSON patch              RFC 6902; a list of operations
strategic merge patch   Kubernetes' own, for built-in kinds: as a merge patch, but lists of named things are merged
                        by their key, and directives say what a merge cannot:
                          {"$patch": "replace" | "delete"}     this object, or this item of a list
                          "$deleteFromPrimitiveList/F": [...]  take these out of the set F
                          "$setElementOrder/F": [...]          the order the list F is to have
                          "$retainKeys": [...]                 drop what is not named here
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jsonpatch
import jsonpointer

from hub.sandbox.errors import ApiError, bad_request
from hub.sandbox.shapes import PLAIN, Shape

JSON_PATCH_OPERATIONS_MAX = 10_000

_PATCH = "$patch"
_RETAIN = "$retainKeys"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def _unmergeable(message: str) -> ApiError:
    """A strategic merge patch that can be read but not merged. kube-apiserver has no code for it and answers 500."""
    return ApiError(500, "", message)


class _Replace(jsonpatch.ReplaceOperation):
    """Kubernetes' JSON patches may replace a field that is not there."""

    def apply(self, obj: Any) -> Any:
        parent, part = self.pointer.to_last(obj)
        if isinstance(parent, dict) and isinstance(part, str):
            parent[part] = self.operation["value"]
            return obj
        return super().apply(obj)


class _JsonPatch(jsonpatch.JsonPatch):
    operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "replace": _Replace})


# --- RFC 7386 and RFC 6902 -------------------------------------------------------------------------------------------------


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` after the merge patch (RFC 7386, section 2). What did not change is shared with `target`."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def json_patch(target: dict[str, Any], operations: Any) -> Any:
    """`target` after the operations (RFC 6902). Raises ApiError: 400 for what is no list, 422 when it does not apply."""
    if not isinstance(operations, list):
        raise bad_request(f"a JSON patch is a list of operations, not {_go_type(operations)}")
    if len(operations) > JSON_PATCH_OPERATIONS_MAX:
        message = (
            f"The allowed maximum operations in a JSON patch is {JSON_PATCH_OPERATIONS_MAX}, got {len(operations)}"
        )
        raise ApiError(413, "RequestEntityTooLarge", message)
    try:
        return _JsonPatch(operations).apply(target)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError) as error:
        # The library quotes the whole object after " in "; the user has it.
        why = str(error).partition(" in {")[0]
        raise ApiError(422, "Invalid", f"the JSON patch does not apply: {why}") from error


# --- strategic merge patch -------------------------------------------------------------------------------------------------


def strategic_merge_patch(target: dict[str, Any], patch: Any, shape: Shape) -> dict[str, Any]:
    """`target` after a strategic merge patch; `shape` is that of the kind. Raises ApiError (400, 500)."""
    if not isinstance(patch, dict):
        raise bad_request(f"a strategic merge patch is an object, not {_go_type(patch)}")
    return _merge_objects(target, patch, shape)


def _merge_objects(target: Mapping[str, Any], patch: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    if _PATCH in patch:
        return _directed(patch)
    merged = _retained(target, patch) if _RETAIN in patch else dict(target)
    for name, value in patch.items():
        if name.startswith(_DELETE_FROM):
            _delete_from_set(merged, name.removeprefix(_DELETE_FROM), value)
    for name, value in patch.items():
        if name == _RETAIN or name.startswith((_ORDER, _DELETE_FROM)):
            continue
        if value is None:
            merged.pop(name, None)
        else:
            _merge_field(merged, name, value, shape.child(name))
    for directive, order in patch.items():
        if directive.startswith(_ORDER):
            name = directive.removeprefix(_ORDER)
            _set_order(target.get(name), merged, name, order, patch.get(name), shape.child(name))
    return merged


def _merge_field(merged: dict[str, Any], name: str, value: Any, shape: Shape) -> None:
    old = merged.get(name)
    if isinstance(value, dict) and isinstance(old, dict) and "replace" not in shape.strategy:
        merged[name] = _merge_objects(old, value, shape)
    elif isinstance(value, list) and isinstance(old, list) and "merge" in shape.strategy:
        merged[name] = _merge_lists(old, value, shape)
    elif isinstance(value, dict) and value.get(_PATCH) == "delete":
        merged.pop(name, None)
    else:
        merged[name] = _without_directives(value)


def _directed(patch: Mapping[str, Any]) -> dict[str, Any]:
    if patch[_PATCH] == "replace":
        return {key: value for key, value in patch.items() if key != _PATCH}
    if patch[_PATCH] == "delete":
        return {}
    raise _unknown_directive(patch)


def _retained(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    keep = patch[_RETAIN]
    if not isinstance(keep, list):
        raise bad_request(f"invalid patch format of retainKeys: {keep!r} is not a list of field names")
    for name, value in patch.items():
        if value is not None and not name.startswith("$") and name not in keep:
            raise bad_request(
                f"invalid patch format of retainKeys: the patch sets {name!r}, which {keep} does not name"
            )
    return {name: value for name, value in target.items() if name in keep}


def _without_directives(value: Any) -> Any:
    """A value that had nothing to merge with: directives and nulls have done their work."""
    if isinstance(value, list):
        kept = [v for v in value if not (isinstance(v, dict) and v.get(_PATCH) is not None)]
        return [_without_directives(v) for v in kept]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if v is not None and not k.startswith("$")}
    return {
        k: _without_directives(v) for k, v in kept.items() if not (isinstance(v, dict) and v.get(_PATCH) == "delete")
    }


# --- lists -----------------------------------------------------------------------------------------------------------------


def _merge_lists(old: list[Any], patch: list[Any], shape: Shape) -> list[Any]:
    if not old and not patch:
        return old
    _check_one_type([*old, *patch])
    if not isinstance((patch or old)[0], dict):
        merged = list(dict.fromkeys([*old, *patch]))
        return _ordered(merged, patch, old, "")
    if not shape.merge_key:
        raise _unmergeable("cannot merge lists without merge key")
    return _merge_keyed(old, patch, shape)


def _merge_keyed(old: list[Any], patch: list[Any], shape: Shape) -> list[Any]:
    key = shape.merge_key
    plain = [item for item in patch if _PATCH not in item]
    base = _after_list_directives(old, patch, key)
    if base is None:
        return plain
    merged = list(base)
    places = {_hashable(item.get(key)): place for place, item in reversed(list(enumerate(merged)))}
    for item in plain:
        value = _hashable(_key_value(item, key))
        if (place := places.get(value)) is None:
            places[value] = len(merged)
            merged.append(_without_directives(item))
        else:
            merged[place] = _merge_objects(merged[place], item, shape.items or PLAIN)
    return _ordered(merged, plain, base, key)


def _after_list_directives(old: list[Any], patch: list[Any], key: str) -> list[Any] | None:
    """What is left of the list once its deletions are done; None when the patch replaces it."""
    gone: set[Any] = set()
    replace = False
    for item in patch:
        match item.get(_PATCH):
            case None:
                pass
            case "delete":
                gone.add(_hashable(_key_value(item, key)))
            case "replace":
                replace = True
            case "merge":
                raise _unmergeable("merging lists cannot yet be specified in the patch")
            case _:
                raise _unknown_directive(item)
    return None if replace else [item for item in old if _hashable(item.get(key)) not in gone]


def _delete_from_set(merged: dict[str, Any], name: str, gone: Any) -> None:
    if not isinstance(gone, list):
        raise bad_request(f"invalid patch format of primitive list: {_DELETE_FROM}{name} must be a list")
    if isinstance(old := merged.get(name), list):
        merged[name] = [item for item in old if item not in gone]


def _set_order(old: Any, merged: dict[str, Any], name: str, order: Any, patched: Any, shape: Shape) -> None:
    if not isinstance(order, list):
        raise bad_request(f"invalid patch format of setElementOrder list: {_ORDER}{name} must be a list")
    _check_order(order, patched, shape.merge_key, name)
    if isinstance(merged.get(name), list):
        merged[name] = _ordered(merged[name], order, old if isinstance(old, list) else [], shape.merge_key)


def _check_order(order: list[Any], patched: Any, key: str, name: str) -> None:
    """The items that a patch changes must stand in its order list, in that order."""
    ranks = {_hashable(_identity(item, key)): rank for rank, item in enumerate(order)}
    items = [item for item in patched or [] if not (isinstance(item, dict) and item.get(_PATCH) is not None)]
    found = [ranks.get(_hashable(_identity(item, key)), -1) for item in items]
    if -1 in found or found != sorted(found):
        raise _unmergeable(
            f"The order in patch list:\n{patched}\n doesn't match $setElementOrder list:\n{order}\n (field {name})"
        )


def _ordered(merged: list[Any], wanted: list[Any], server: list[Any], key: str) -> list[Any]:
    """Items named in `wanted` in that order; the others keep the server's order and stay before what they stood before."""
    want = {_hashable(_identity(item, key)): rank for rank, item in reversed(list(enumerate(wanted)))}
    had = {_hashable(_identity(item, key)): rank for rank, item in reversed(list(enumerate(server)))}

    def identity(item: Any) -> Any:
        return _hashable(_identity(item, key))

    named = sorted((i for i in merged if identity(i) in want), key=lambda i: want[identity(i)])
    others = sorted((i for i in merged if identity(i) not in want), key=lambda i: had.get(identity(i), len(had)))
    result: list[Any] = []
    while named and others:
        left, right = had.get(identity(others[0])), had.get(identity(named[0]))
        stays_first = left is not None and right is not None and left < right
        result.append((others if stays_first else named).pop(0))
    return [*result, *named, *others]


def _identity(item: Any, key: str) -> Any:
    return item.get(key) if key and isinstance(item, dict) else item


def _key_value(item: Mapping[str, Any], key: str) -> Any:
    if key not in item:
        raise _unmergeable(f"map: {dict(item)} does not contain declared merge key: {key}")
    return item[key]


def _hashable(value: Any) -> Any:
    return repr(value) if isinstance(value, dict | list) else value


def _check_one_type(items: list[Any]) -> None:
    if len({isinstance(item, dict) for item in items}) > 1:
        raise _unmergeable("list element types are not identical: objects and plain values can not be merged")
    if any(isinstance(item, list) for item in items):
        raise _unmergeable("lists of lists are not supported in a strategic merge patch")


def _unknown_directive(patch: Mapping[str, Any]) -> ApiError:
    return _unmergeable(f"unknown patch type: {patch[_PATCH]} in map: {dict(patch)}; use replace or delete")


def _go_type(value: Any) -> str:
    """The JSON type of a value in the words of Kubernetes' messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {dict: "object", list: "array", str: "string", int: "integer", float: "number"}
    return names.get(type(value), type(value).__name__)
