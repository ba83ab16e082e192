"""Structural schemas (apiextensions/v1): read once, then used to drop, fill in and check the fields of objects.

    drop_unknown   fields that the schema does not know go; strict clients get their paths
    fill_in        defaults, and nulls where null is no value
    validate       in `validation.py`

A schema is read into `Schema` nodes, which say at every step whether anything below them needs a look, so that a walk
skips what it can. Objects are never changed: what stays the same is shared between the old object and the new one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hub.sandbox.errors import ApiError, bad_request
from hub.sandbox.rules_cel import Rule, read_rule

Document = dict[str, Any]

#: Fields that every whole object has, whatever its schema says.
_WHOLE_OBJECT = frozenset({"apiVersion", "kind", "metadata"})
ABSENT: Any = object()


@dataclass(slots=True, eq=False)
class Schema:
    """One node. All texts and numbers are those of the OpenAPI document; absent ones are None or empty."""

    #: Last part of the definition's name; "" for a schema that has none.
    name: str = ""
    type: str = ""
    format: str = ""
    nullable: bool = False
    properties: "dict[str, Schema]" = field(default_factory=dict)
    #: Schema of the values of free keys; None: there are none.
    values: "Schema | None" = None
    items: "Schema | None" = None
    required: tuple[str, ...] = ()
    default: Any = ABSENT
    keeps_unknown: bool = False
    embedded: bool = False
    int_or_string: bool = False
    list_type: str = ""
    keys: tuple[str, ...] = ()
    enum: tuple[Any, ...] = ()
    pattern: str = ""
    matcher: re.Pattern[str] | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | None = None
    #: (least, most) for the length of a string, the items of a list and the fields of an object.
    length: tuple[int | None, int | None] = (None, None)
    items_count: tuple[int | None, int | None] = (None, None)
    fields_count: tuple[int | None, int | None] = (None, None)
    all_of: "tuple[Schema, ...]" = ()
    any_of: "tuple[Schema, ...]" = ()
    one_of: "tuple[Schema, ...]" = ()
    none_of: "Schema | None" = None
    rules: tuple[Rule, ...] = ()
    #: Is there anything of the kind here or below? Defaults count from the parent's point of view.
    has_defaults: bool = False
    has_rules: bool = False
    has_rules_about_change: bool = False
    has_embedded: bool = False
    has_distinct_lists: bool = False
    #: The Python type of a value that can not be wrong if it is of that type; None when there is more to check.
    simple: Any = None

    def of_field(self, name: str) -> "Schema | None":
        return self.properties.get(name) or self.values


def read_schema(document: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> Schema:
    """A Schema from an `openAPIV3Schema`, or from a schema whose `$ref`s point into `definitions` by their last part."""
    return _Reader(definitions or {}).read(document)


class _Reader:
    """Reads each definition once, so that a schema may contain itself."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._read: dict[str, Schema] = {}

    def read(self, document: Mapping[str, Any]) -> Schema:
        name = _ref(document)
        if not name:
            schema = Schema()
            self._fill(schema, document)
            return schema
        if name not in self._read:
            self._read[name] = Schema(name=name.rpartition(".")[2])
            self._fill(self._read[name], self._definitions[name])
        return self._read[name]

    def _fill(self, schema: Schema, document: Mapping[str, Any]) -> None:
        _read_own(schema, document)
        schema.properties = {name: self.read(part) for name, part in document.get("properties", {}).items()}
        values = document.get("additionalProperties")
        schema.values = (
            self.read(values) if isinstance(values, Mapping) else Schema(keeps_unknown=True) if values else None
        )
        schema.items = self.read(document["items"]) if "items" in document else None
        schema.all_of, schema.any_of, schema.one_of = (
            tuple(self.read(part) for part in document.get(word, ())) for word in ("allOf", "anyOf", "oneOf")
        )
        schema.none_of = self.read(document["not"]) if "not" in document else None
        _sum_up(schema)


_SIMPLE: dict[str, type] = {"string": str, "boolean": bool, "integer": int}


def _is_unbound(schema: Schema) -> bool:
    """Does a scalar of the right type satisfy it, whatever its value?"""
    bounds = (schema.minimum, schema.maximum, schema.multiple_of, schema.none_of, *schema.length)
    words = (schema.enum, schema.pattern, schema.format, schema.all_of, schema.any_of, schema.one_of, schema.rules)
    return not any(words) and all(bound is None for bound in bounds)


def _sum_up(schema: Schema) -> None:
    schema.simple = _SIMPLE.get(schema.type) if _is_unbound(schema) else None
    below = [*schema.properties.values(), *(s for s in (schema.values, schema.items) if s)]
    schema.has_defaults = any(s.has_defaults or s.default is not ABSENT for s in below)
    ruled = [*below, *schema.all_of]
    schema.has_rules = bool(schema.rules) or any(s.has_rules for s in ruled)
    schema.has_rules_about_change = any(r.is_about_change for r in schema.rules) or any(
        s.has_rules_about_change for s in ruled
    )
    schema.has_embedded = schema.embedded or any(s.has_embedded for s in below)
    schema.has_distinct_lists = schema.list_type in ("set", "map") or any(s.has_distinct_lists for s in below)


def _ref(document: Mapping[str, Any]) -> str:
    """Name of the definition that is meant; Kubernetes wraps references in a one-part allOf to say more about them."""
    if "$ref" not in document and len(parts := document.get("allOf", ())) == 1 and "$ref" in parts[0]:
        return str(parts[0]["$ref"]).rpartition("/")[2]
    return str(document.get("$ref", "")).rpartition("/")[2]


def _read_own(schema: Schema, document: Mapping[str, Any]) -> None:
    schema.type = document.get("type", "")
    schema.format = document.get("format", "")
    schema.nullable = bool(document.get("nullable"))
    schema.required = tuple(document.get("required", ()))
    schema.default = ABSENT if document.get("default") is None else document["default"]
    schema.keeps_unknown = bool(document.get("x-kubernetes-preserve-unknown-fields"))
    schema.embedded = bool(document.get("x-kubernetes-embedded-resource"))
    schema.int_or_string = bool(document.get("x-kubernetes-int-or-string"))
    schema.list_type = document.get("x-kubernetes-list-type", "")
    schema.keys = tuple(document.get("x-kubernetes-list-map-keys", ()))
    schema.rules = tuple(read_rule(rule) for rule in document.get("x-kubernetes-validations", ()))
    schema.enum = tuple(document.get("enum", ()))
    schema.pattern = document.get("pattern", "")
    schema.matcher = _matcher(schema.pattern)
    schema.minimum, schema.maximum = document.get("minimum"), document.get("maximum")
    schema.exclusive_minimum = bool(document.get("exclusiveMinimum"))
    schema.exclusive_maximum = bool(document.get("exclusiveMaximum"))
    schema.multiple_of = document.get("multipleOf")
    schema.length = (document.get("minLength"), document.get("maxLength"))
    schema.items_count = (document.get("minItems"), document.get("maxItems"))
    schema.fields_count = (document.get("minProperties"), document.get("maxProperties"))


def _matcher(pattern: str) -> re.Pattern[str] | None:
    """The pattern in Python's dialect. What only RE2 understands is not checked (None), as an unknown format is not."""
    if not pattern:
        return None
    # `$` is the end of the text in RE2; in Python it would also stand before a last line break.
    python = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]|\$", lambda m: r"\Z" if m[0] == "$" else m[0], pattern)
    try:
        return re.compile(python.replace(r"\z", r"\Z"))
    except re.error:
        return None


# --- fields that the schema does not know ----------------------------------------------------------------------------------


def drop_unknown(manifest: Document, schema: Schema, metadata: Schema | None = None) -> tuple[Document, list[str]]:
    """(the object without unknown fields, their paths in order). apiVersion, kind and metadata always stay.

    `metadata` is looked into when its schema is given.
    """
    unknown: list[str] = []
    kept = _drop_from_object(manifest, schema, "", unknown, whole=True)
    if metadata is not None and (meta := manifest.get("metadata")):
        rest = _drop_from_object(meta, metadata, "metadata", unknown, whole=False)
        kept = kept if rest is meta else {**kept, "metadata": rest}
    return kept, sorted(unknown)


def _drop(value: Any, schema: Schema | None, at: str, unknown: list[str]) -> Any:
    if isinstance(value, dict):
        return _drop_from_object(value, schema, at, unknown, whole=schema is not None and schema.embedded)
    if not isinstance(value, list) or not value:
        return value
    items = None if schema is None else schema.items
    if items is None and schema is not None and schema.keeps_unknown:
        return value
    kept = [_drop(item, items, f"{at}[{place}]", unknown) for place, item in enumerate(value)]
    return value if all(a is b for a, b in zip(kept, value, strict=True)) else kept


def _drop_from_object(value: Document, schema: Schema | None, at: str, unknown: list[str], *, whole: bool) -> Document:
    kept: Document | None = None
    for name, part in value.items():
        if whole and name in _WHOLE_OBJECT:
            continue
        inner = schema.of_field(name) if schema is not None else None
        if inner is not None:
            rest = _drop(part, inner, f"{at}.{name}" if at else name, unknown) if part else part
            if rest is not part:
                kept = dict(value) if kept is None else kept
                kept[name] = rest
        elif schema is None or not schema.keeps_unknown:
            if at or name not in _WHOLE_OBJECT:
                unknown.append(f"{at}.{name}" if at else name)
            kept = dict(value) if kept is None else kept
            del kept[name]
    return value if kept is None else kept


def drop_empty(value: Any, schema: Schema) -> Any:
    """The value without nulls and without lists and maps that hold nothing: for a built-in kind these are fields that are
    not there. Empty objects with named fields stay (emptyDir: {}), and so do lists that the kind must have.
    """
    if schema.keeps_unknown or not value:
        return value
    if isinstance(value, dict):
        kept = {n: drop_empty(p, s) if (s := schema.of_field(n)) else p for n, p in value.items() if p is not None}
        kept = {name: part for name, part in kept.items() if part or not _may_go(name, part, schema)}
        same = len(kept) == len(value) and all(kept[name] is part for name, part in value.items())
        return value if same else kept
    if not isinstance(value, list) or schema.items is None:
        return value
    items = [drop_empty(item, schema.items) for item in value]
    return value if all(a is b for a, b in zip(items, value, strict=True)) else items


def _may_go(name: str, part: Any, schema: Schema) -> bool:
    """An empty list of managedFields means something: give up all ownership."""
    inner = schema.of_field(name)
    if inner is None or name in schema.required or name == "managedFields":
        return False
    return part == [] or (part == {} and inner.values is not None)


def strict_error(kind: str, version: str, unknown: Iterable[str], duplicates: Iterable[str] = ()) -> ApiError:
    """The 400 answer to a client that asked for strict validation; paths as `drop_unknown` gives them."""
    found = [f'duplicate field "{path}"' for path in duplicates] + [f'unknown field "{path}"' for path in unknown]
    return unreadable(kind, version, f"strict decoding error: {', '.join(found)}")


def unreadable(kind: str, version: str, why: str) -> ApiError:
    """The 400 answer to a body that is no object of that kind."""
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {why}')


# --- defaults --------------------------------------------------------------------------------------------------------------


def fill_in(manifest: Document, schema: Schema) -> Document:
    """The object with the defaults of its schema. A null where null is no value gives way to the default or goes."""
    return _fill_in(manifest, schema)


def _fill_in(value: Any, schema: Schema) -> Any:
    if isinstance(value, dict):
        return _fill_in_object(value, schema)
    if not isinstance(value, list) or not value or schema.items is None:
        return value
    filled = [_fill_in(_instead_of_null(item, schema.items), schema.items) for item in value]
    return value if all(a is b for a, b in zip(filled, value, strict=True)) else filled


def _fill_in_object(value: Any, schema: Schema) -> Any:
    filled: Document | None = None
    for name, part in value.items():
        inner = schema.of_field(name)
        if inner is None:
            continue
        new = part if part is not None else _instead_of_null(part, inner)
        if new is None and not inner.nullable:
            filled = dict(value) if filled is None else filled
            del filled[name]
            continue
        new = _fill_in(new, inner)
        if new is not part:
            filled = dict(value) if filled is None else filled
            filled[name] = new
    if not schema.has_defaults:
        return value if filled is None else filled
    for name, inner in schema.properties.items():
        if inner.default is not ABSENT and name not in value:
            filled = dict(value) if filled is None else filled
            filled[name] = _fill_in(copy_json(inner.default), inner)
    return value if filled is None else filled


def _instead_of_null(value: Any, schema: Schema) -> Any:
    if value is None and not schema.nullable and schema.default is not ABSENT:
        return copy_json(schema.default)
    return value


def copy_json(value: Any) -> Any:
    """A deep copy of plain JSON."""
    if isinstance(value, dict):
        return {name: copy_json(part) for name, part in value.items()}
    return [copy_json(item) for item in value] if isinstance(value, list) else value


def unasked_rules(schema: Schema, at: str = "") -> list[str]:
    """Rules that are not checked here, each with its place and the reason."""
    found = [f"{at or '<root>'}: {rule.fault}: {rule.text}" for rule in schema.rules if rule.fault]
    if schema.has_rules:
        for name, part in schema.properties.items():
            found += unasked_rules(part, f"{at}.{name}" if at else name)
        found += [line for part in (schema.items, schema.values) if part for line in unasked_rules(part, f"{at}[]")]
        found += [line for part in schema.all_of for line in unasked_rules(part, at)]
    return found
