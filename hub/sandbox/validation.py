"""Does an object keep to its structural schema? What is wrong comes back as field errors in kube-apiserver's words.

In its order: the schema itself, embedded objects, lists that must hold nothing twice, and then, when nothing more basic
is wrong, the CEL rules. On an update, what did not change is not held against the user (ratcheting, KEP-4008), except
by rules about the change itself.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from hub.sandbox.errors import FieldError, duplicate, invalid_value, not_supported, required, too_long
from hub.sandbox.formats import format_check
from hub.sandbox.rules_cel import ask
from hub.sandbox.schemas import ABSENT, Document, Schema

#: With one of these wrong, CEL rules may stumble over what they expect, so they are not asked.
BLOCKING = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)

_INT_BITS = {"int32": 31, "int64": 63}


def validate(manifest: Document, schema: Schema, old: Document | None = None) -> list[FieldError]:
    """What is wrong with a custom resource. `old` is the object that an update replaces; metadata is not looked at."""
    before = ABSENT if old is None else old
    found: list[FieldError] = []
    _check(manifest, schema, "", before, found)
    found += _embedded(manifest, schema, "")
    twice = list(_twice(manifest, schema, "", old))
    if twice and (old is None or not any(True for _ in _twice(old, schema, "", None))):
        found += twice
    if not schema.has_rules:
        return found
    if any(error.reason in BLOCKING for error in found):
        why = (
            "some validation rules were not checked because the object was invalid;"
            " correct the existing errors to complete validation"
        )
        return [*found, invalid_value("<nil>", None, why)]
    return [*found, *_broken_rules(manifest, schema, "", old)]


# --- the schema itself -----------------------------------------------------------------------------------------------------


def _check(value: Any, schema: Schema, at: str, old: Any, found: list[FieldError]) -> None:
    if old is not ABSENT and at and value == old:
        return
    if value is None:
        if schema.type and not schema.nullable:
            found.append(_wrong_type(at, schema.type, "null"))
        return
    if not _fits(value, schema):
        wanted = "integer,string" if schema.int_or_string else schema.type
        found.append(_wrong_type(at, wanted, _JSON_TYPES[type(value)]))
    if schema.any_of or schema.one_of or schema.all_of or schema.none_of is not None:
        found.extend(_alternatives(value, schema, at))
    if isinstance(value, str):
        found.extend(_string_errors(value, schema, at))
    elif isinstance(value, list):
        _check_list(value, schema, at, old, found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found.extend(_number_errors(value, schema, at))
    if schema.enum and value not in schema.enum:
        found.append(not_supported(at, value, [v if isinstance(v, str) else json.dumps(v) for v in schema.enum]))
    if isinstance(value, dict):
        _check_object(value, schema, at, old, found)


_JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "integer",
    list: "array",
    str: "string",
    type(None): "null",
}


def _fits(value: Any, schema: Schema) -> bool:
    got, wanted = _JSON_TYPES[type(value)], schema.type
    if schema.int_or_string:
        return got in ("integer", "string")
    if wanted in (got, ""):
        return True
    return (wanted == "number" and got == "integer") or (wanted == "integer" and got == "number" and value.is_integer())


def _wrong_type(at: str, wanted: str, got: str) -> FieldError:
    text = f'Invalid value: {json.dumps(got)}: {at} in body must be of type {wanted}: "{got}"'
    return FieldError(at, "FieldValueTypeInvalid", text)


def _string_errors(value: str, schema: Schema, at: str) -> Iterator[FieldError]:
    least, most = schema.length
    if most is not None and len(value) > most:
        yield too_long(at, most)
    elif least is not None and len(value) < least:
        yield invalid_value(at, value, f"{at} in body should be at least {least} chars long")
    elif schema.matcher is not None and not schema.matcher.search(value):
        yield invalid_value(at, value, f"{at} in body should match '{schema.pattern}'")
    if schema.format and (check := format_check(schema.format)) is not None and not check(value):
        shown = json.dumps(value)
        text = f"Invalid value: {shown}: {at} in body must be of type {schema.format}: {shown}"
        yield FieldError(at, "FieldValueTypeInvalid", text)


def _number_errors(value: float, schema: Schema, at: str) -> Iterator[FieldError]:
    bits = _INT_BITS.get(schema.format) if schema.type == "integer" else None
    fraction = schema.type == "integer" and isinstance(value, float) and not value.is_integer()
    if fraction or (bits is not None and not -(1 << bits) <= value < 1 << bits):
        how = f"with format {schema.format}" if bits else "(default format)"
        yield _nowhere(f"Checked value must be of type integer {how} in {at}")
    factor = schema.multiple_of
    if factor and not math.isclose(value / factor, round(value / factor), abs_tol=1e-9):
        yield invalid_value(at, value, f"{at} in body should be a multiple of {factor}")
    least, most = schema.minimum, schema.maximum
    if least is not None and (value < least or (schema.exclusive_minimum and value == least)):
        word = "greater than" if schema.exclusive_minimum else "greater than or equal to"
        yield invalid_value(at, value, f"{at} in body should be {word} {least}")
    if most is not None and (value > most or (schema.exclusive_maximum and value == most)):
        word = "less than" if schema.exclusive_maximum else "less than or equal to"
        yield invalid_value(at, value, f"{at} in body should be {word} {most}")


def _too_many(at: str, count: int, most: int) -> FieldError:
    items = "item" if most == 1 else "items"
    return FieldError(at, "FieldValueTooMany", f"Too many: {count}: must have at most {most} {items}")


def _check_list(value: list[Any], schema: Schema, at: str, old: Any, found: list[FieldError]) -> None:
    if (inner := schema.items) is not None:
        before = _items_by_key(old, schema)
        for place, item in enumerate(value):
            if type(item) is not inner.simple:
                was = before.get(_key_of(item, schema), ABSENT) if before else ABSENT
                _check(item, inner, f"{at}[{place}]", was, found)
    least, most = schema.items_count
    if least is not None and len(value) < least:
        found.append(invalid_value(at, len(value), f"{at} in body should have at least {least} items"))
    if most is not None and len(value) > most:
        found.append(_too_many(at, len(value), most))


def _items_by_key(old: Any, schema: Schema) -> dict[Any, Any]:
    """Old items of a keyed list; the items of other lists can not be matched with new ones."""
    if schema.list_type != "map" or not isinstance(old, list):
        return {}
    return {_key_of(item, schema): item for item in old}


def _key_of(item: Any, schema: Schema) -> Any:
    return tuple(_identity(item.get(key)) for key in schema.keys) if isinstance(item, dict) else None


def _identity(value: Any) -> Any:
    """Something to tell values apart by: 1, 1.0 and true are three."""
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return value if isinstance(value, str) else (type(value), value)


def _check_object(value: Document, schema: Schema, at: str, old: Any, found: list[FieldError]) -> None:
    least, most = schema.fields_count
    if least is not None and len(value) < least:
        found.append(invalid_value(at, len(value), f"{at} in body should have at least {least} properties"))
    if most is not None and len(value) > most:
        found.append(_too_many(at, len(value), most))
    prefix = f"{at}." if at else ""
    was = old if isinstance(old, dict) else {}
    whole = not at or schema.embedded
    for name, part in value.items():
        inner = schema.of_field(name)
        if inner is not None and type(part) is not inner.simple and not (whole and name == "metadata"):
            _check(part, inner, prefix + name, was.get(name, ABSENT), found)
    found.extend(required(prefix + name) for name in schema.required if name not in value)


# --- alternatives ----------------------------------------------------------------------------------------------------------


def _nowhere(message: str) -> FieldError:
    """An error of an alternative: kube-apiserver gives it no field, only a text."""
    return FieldError("<nil>", "FieldValueInvalid", f'Invalid value: "": {message}')


def _errors(value: Any, schema: Schema, at: str) -> list[FieldError]:
    found: list[FieldError] = []
    _check(value, schema, at, ABSENT, found)
    return found


def _alternatives(value: Any, schema: Schema, at: str) -> Iterator[FieldError]:
    name = json.dumps(at)
    if schema.any_of and (closest := _closest(value, schema.any_of, at)):
        yield _nowhere(f"{name} must validate at least one schema (anyOf)")
        yield from closest
    if schema.one_of:
        results = [_errors(value, part, at) for part in schema.one_of]
        valid = sum(not errors for errors in results)
        if valid != 1:
            how = "Found none valid" if not valid else f"Found {valid} valid alternatives"
            yield _nowhere(f"{name} must validate one and only one schema (oneOf). {how}")
            yield from min(results, key=len)
    if schema.all_of:
        results = [_errors(value, part, at) for part in schema.all_of]
        for errors in results:
            yield from errors
        if any(results):
            how = ". None validated" if all(results) else ""
            yield _nowhere(f"{name} must validate all the schemas (allOf){how}")
    if schema.none_of is not None and not _errors(value, schema.none_of, at):
        yield _nowhere(f"{name} must not validate the schema (not)")


def _closest(value: Any, alternatives: Sequence[Schema], at: str) -> list[FieldError]:
    """The errors of the alternative that fits best; none when one fits."""
    results: list[list[FieldError]] = []
    for part in alternatives:
        if not (errors := _errors(value, part, at)):
            return []
        results.append(errors)
    return min(results, key=len)


# --- embedded objects, and lists that hold nothing twice -------------------------------------------------------------------


def _embedded(value: Any, schema: Schema, at: str) -> Iterator[FieldError]:
    if not schema.has_embedded:
        return
    if isinstance(value, list) and schema.items is not None:
        for place, item in enumerate(value):
            yield from _embedded(item, schema.items, f"{at}[{place}]")
    if not isinstance(value, dict):
        return
    if schema.embedded:
        for name in ("apiVersion", "kind"):
            if name not in value:
                yield required(f"{at}.{name}")
            elif not isinstance(value[name], str) or not value[name]:
                yield invalid_value(f"{at}.{name}", value[name], "must not be empty")
    for name, part in value.items():
        if isinstance(part, dict | list) and (inner := schema.of_field(name)) is not None:
            yield from _embedded(part, inner, _step(schema, at, name))


def _step(schema: Schema, at: str, name: str) -> str:
    if name not in schema.properties:
        return f"{at}[{name}]"
    return f"{at}.{name}" if at else name


def _twice(value: Any, schema: Schema, at: str, old: Any) -> Iterator[FieldError]:
    """Lists that hold something twice, apart from what is as it was in `old`."""
    if not schema.has_distinct_lists or value == old:
        return
    if isinstance(value, dict):
        was = old if isinstance(old, dict) else {}
        for name, part in value.items():
            if isinstance(part, dict | list) and (inner := schema.of_field(name)) is not None:
                yield from _twice(part, inner, _step(schema, at, name), was.get(name))
    elif isinstance(value, list):
        if schema.list_type in ("set", "map"):
            yield from _twice_in_list(value, schema, at)
        if schema.items is not None and schema.items.has_distinct_lists:
            for place, item in enumerate(value):
                yield from _twice(item, schema.items, f"{at}[{place}]", None)


def _twice_in_list(value: list[Any], schema: Schema, at: str) -> Iterator[FieldError]:
    counts: dict[Any, int] = {}
    for place, item in enumerate(value):
        if schema.list_type == "map" and not isinstance(item, dict):
            yield invalid_value(f"{at}[{place}]", item, "must be an object for an array of list-type map")
            return
        identity = _key_of(item, schema) if schema.list_type == "map" else _identity(item)
        counts[identity] = counts.get(identity, 0) + 1
        if counts[identity] == 2:
            shown = {key: item[key] for key in schema.keys if key in item} if schema.list_type == "map" else item
            yield duplicate(f"{at}[{place}]", shown)


# --- CEL rules -------------------------------------------------------------------------------------------------------------


def _broken_rules(value: Any, schema: Schema, at: str, old: Any) -> Iterator[FieldError]:
    """`old` is None where nothing comparable was there before. Of what did not change only rules about change are asked."""
    same = old is not None and value == old
    if value is None or not (schema.has_rules_about_change if same else schema.has_rules):
        return
    for rule in schema.rules:
        if not (same and not rule.is_about_change) and (error := ask(rule, value, old, at)) is not None:
            yield error
    for part in schema.all_of:
        yield from _broken_rules(value, part, at, old)
    if isinstance(value, dict):
        was = old if isinstance(old, dict) else {}
        for name, part in value.items():
            if (inner := schema.of_field(name)) is not None and inner.has_rules:
                yield from _broken_rules(part, inner, _step(schema, at, name), was.get(name))
    elif isinstance(value, list) and schema.items is not None and schema.items.has_rules:
        before = _items_by_key(old, schema)
        for place, item in enumerate(value):
            yield from _broken_rules(item, schema.items, f"{at}[{place}]", before.get(_key_of(item, schema)))
