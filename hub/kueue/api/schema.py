"""Types to structural schemas: the OpenAPI v3 dialect in which a CustomResourceDefinition says what it accepts.

    Struct ──▶ object, properties, required          Literal ──▶ enum         limits(...) ──▶ merged in as they are
    X | None ──▶ X                                   dict ──▶ additionalProperties
    rules of `cel` ──▶ x-kubernetes-validations      "#:" comments ──▶ description

Structural means: every node has one type, or says that it is a number or a text (x-kubernetes-int-or-string) or that
it holds anything (x-kubernetes-preserve-unknown-fields). No references, so that API servers can prune and default.
"""

import inspect
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from hub.kueue.api.cel import FIELD_RULES, TYPE_RULES, Rule
from hub.kueue.api.meta import Condition, ObjectMeta

Schema = dict[str, Any]

#: metav1.Condition, with the limits that its API has.
_CONDITION: Schema = {
    "type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "type": {
            "type": "string",
            "maxLength": 316,
            "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        },
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1024,
            "pattern": r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        },
        "message": {"type": "string", "maxLength": 32768},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
    },
}
_FIXED: dict[type[Struct], Schema] = {ObjectMeta: {"type": "object"}, Condition: _CONDITION}
_ANY_CONTENT: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


@lru_cache(maxsize=64)
def structural(kind: type[Struct], *, described: bool = False) -> Schema:
    """Schema of a kind or of a part of one. With `described`, texts for kubectl explain are read from the sources."""
    return _Writer(described=described).of(types.type_info(kind))


class _Writer:
    def __init__(self, *, described: bool) -> None:
        self._described = described

    def of(self, kind: types.Type) -> Schema:
        match kind:
            case types.Metadata():
                return self.of(kind.type) | _keywords(kind)
            case types.StructType():
                return _FIXED.get(kind.cls) or self._object(kind)
            case types.UnionType():
                return self._alternatives(kind)
            case types.ListType():
                return {"type": "array", "items": self.of(kind.item_type)}
            case types.DictType():
                return self._map(kind)
            case types.LiteralType():
                return {"type": "string", "enum": list(kind.values)}
            case types.StrType():
                return {"type": "string"}
            case types.BoolType():
                return {"type": "boolean"}
            case types.IntType():
                return {"type": "integer"}
            case _:
                raise TypeError(f"no structural schema for {kind}")

    def _object(self, kind: types.StructType) -> Schema:
        texts = comments(kind.cls) if self._described else {}
        schema: Schema = {"type": "object"}
        if self._described and kind.cls.__doc__:
            schema["description"] = " ".join(kind.cls.__doc__.split())
        if required := [field.encode_name for field in kind.fields if _is_required(field)]:
            schema["required"] = required
        schema["properties"] = {field.encode_name: self._field(kind.cls, field, texts) for field in kind.fields}
        return schema | _validations(TYPE_RULES.get(kind.cls, ()))

    def _field(self, owner: type[Struct], field: types.Field, texts: dict[str, str]) -> Schema:
        schema = dict(self.of(field.type))
        if text := texts.get(field.name):
            schema["description"] = text
        # An empty default is Go's zero value: the field is simply not there.
        if isinstance(field.default, str | int) and field.default:
            schema["default"] = field.default
        rules = FIELD_RULES.get((owner, field.name), ())
        return schema | _validations([*TYPE_RULES.get(_struct_of(field.type), ()), *rules])

    def _alternatives(self, kind: types.UnionType) -> Schema:
        others = [self.of(one) for one in kind.types if not isinstance(one, types.NoneType)]
        if len(others) == 1:
            return others[0]
        names = sorted({one["type"] for one in others})
        if names != ["integer", "string"]:
            raise TypeError(f"no structural schema for {kind}: only a number or a text may share a field")
        return {"anyOf": [{"type": name} for name in names]}

    def _map(self, kind: types.DictType) -> Schema:
        if isinstance(kind.value_type, types.AnyType):
            return dict(_ANY_CONTENT)
        return {"type": "object", "additionalProperties": self.of(kind.value_type)}


def comments(kind: type[Struct]) -> dict[str, str]:
    """The `#:` comments above the fields of a Struct, by field."""
    found: dict[str, str] = {}
    pending: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        text = line.strip()
        if text.startswith("#:"):
            pending.append(text.removeprefix("#:").strip())
        elif field := re.match(r"(\w+): ", text):
            if pending:
                found[field[1]] = " ".join(pending)
            pending = []
    return found


def _is_required(field: types.Field) -> bool:
    # Every object has metadata; API servers see to that, and schemas of kinds do not speak of it.
    return field.required and not (isinstance(field.type, types.StructType) and field.type.cls is ObjectMeta)


def _struct_of(kind: types.Type) -> type[Struct]:
    """The Struct that a field holds, if it holds one directly: its rules would be overwritten by the field's own."""
    if isinstance(kind, types.Metadata):
        return _struct_of(kind.type)
    if isinstance(kind, types.UnionType):
        return next((_struct_of(one) for one in kind.types if not isinstance(one, types.NoneType)), Struct)
    return kind.cls if isinstance(kind, types.StructType) else Struct


def _validations(rules: Sequence[Rule]) -> Schema:
    if not rules:
        return {}
    return {"x-kubernetes-validations": [msgspec.to_builtins(rule) for rule in rules]}


def _keywords(kind: types.Metadata) -> Schema:
    return kind.extra_json_schema or {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - msgspec's annotation is a bare dict
