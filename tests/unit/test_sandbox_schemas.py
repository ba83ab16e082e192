"""Structural schemas: unknown fields, defaults, and what is wrong in kube-apiserver's words."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.sandbox.schemas import drop_empty, drop_unknown, fill_in, read_schema, strict_error, unasked_rules
from hub.sandbox.validation import validate


def schema_of(**properties) -> dict:
    spec = {"type": "object", "properties": properties}
    return {"type": "object", "properties": {"spec": spec}}


def thing(spec: dict | None = None, **more) -> dict:
    meta = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    return {**meta, **({"spec": spec} if spec is not None else {}), **more}


STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def listed(items: dict, **more) -> dict:
    return {"type": "array", "items": items, **more}


def record(**properties) -> dict:
    return {"type": "object", "properties": properties}


# --- unknown fields --------------------------------------------------------------------------------------------------------

OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"known": record(a=STRING)}}
EMBEDDED = {"type": "object", "x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}


@pytest.mark.parametrize(
    ("schema", "spec", "want_spec", "want_unknown"),
    [
        pytest.param({"a": STRING}, {"a": "1", "b": "2"}, {"a": "1"}, ["spec.b"], id="a field"),
        pytest.param({"a": record()}, {"a": {"b": {"c": 1}}}, {"a": {}}, ["spec.a.b"], id="an object of fields"),
        pytest.param(
            {"a": listed(record(x=STRING))},
            {"a": [{"x": "1"}, {"y": "2"}]},
            {"a": [{"x": "1"}, {}]},
            ["spec.a[1].y"],
            id="a field of an item",
        ),
        pytest.param(
            {"a": {"type": "object", "additionalProperties": record(x=STRING)}},
            {"a": {"free": {"x": "1", "y": "2"}}},
            {"a": {"free": {"x": "1"}}},
            ["spec.a.free.y"],
            id="a field below a free key",
        ),
        pytest.param(
            {"a": OPEN},
            {"a": {"any": {"thing": 1}, "known": {"a": "1", "b": 2}}},
            {"a": {"any": {"thing": 1}, "known": {"a": "1"}}},
            ["spec.a.known.b"],
            id="where unknown fields are kept, known ones are still looked into",
        ),
        pytest.param(
            {"a": EMBEDDED},
            {"a": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}},
            {"a": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}},
            [],
            id="nothing of an embedded object",
        ),
    ],
)
def test_what_the_schema_does_not_know_goes(schema, spec, want_spec, want_unknown):
    given_thing = thing(spec)
    before = copy.deepcopy(given_thing)
    kept, unknown = drop_unknown(given_thing, read_schema(schema_of(**schema)))
    assert (kept, unknown) == (thing(want_spec), want_unknown)
    assert given_thing == before, "the argument must not change"


def test_strict_clients_are_told_which_fields_are_unknown():
    error = strict_error("Thing", "v1", ["spec.b", "status"])
    assert error.code == 400
    assert error.message == (
        'Thing in version "v1" cannot be handled as a Thing: '
        'strict decoding error: unknown field "spec.b", unknown field "status"'
    )


# --- defaults --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "spec", "want"),
    [
        pytest.param({"a": {**STRING, "default": "x"}}, {}, {"a": "x"}, id="a missing field"),
        pytest.param({"a": {**STRING, "default": "x"}}, {"a": ""}, {"a": ""}, id="not an empty one"),
        pytest.param({"a": {**STRING, "default": "x"}}, {"a": None}, {"a": "x"}, id="a null that is no value"),
        pytest.param(
            {"a": {**STRING, "default": "x", "nullable": True}}, {"a": None}, {"a": None}, id="not a null that is one"
        ),
        pytest.param({"a": STRING}, {"a": None}, {}, id="a null without default goes"),
        pytest.param({"a": record(b={**STRING, "default": "x"})}, {}, {}, id="nothing below what is not there"),
        pytest.param(
            {"a": {**record(b={**STRING, "default": "x"}), "default": {}}},
            {},
            {"a": {"b": "x"}},
            id="a default is filled in itself",
        ),
        pytest.param(
            {"a": listed(record(b={**INTEGER, "default": 1}))}, {"a": [{}]}, {"a": [{"b": 1}]}, id="items of a list"
        ),
        pytest.param(
            {"a": {"type": "object", "additionalProperties": record(b={**INTEGER, "default": 1})}},
            {"a": {"k": {}}},
            {"a": {"k": {"b": 1}}},
            id="values of free keys",
        ),
    ],
)
def test_defaults_fill_in(schema, spec, want):
    given_thing = thing(spec)
    before = copy.deepcopy(given_thing)
    assert fill_in(given_thing, read_schema(schema_of(**schema))) == thing(want)
    assert given_thing == before, "the argument must not change"


def test_a_default_is_a_fresh_copy_every_time():
    schema = read_schema(schema_of(a={"type": "array", "items": STRING, "default": ["x"]}))
    fill_in(thing({}), schema)["spec"]["a"].append("y")
    assert fill_in(thing({}), schema)["spec"]["a"] == ["x"]


# --- validation ------------------------------------------------------------------------------------------------------------

SET = listed(STRING, **{"x-kubernetes-list-type": "set"})
KEYED = listed(record(k=STRING, v=INTEGER), **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]})


@pytest.mark.parametrize(
    ("schema", "value", "want"),
    [
        pytest.param(INTEGER, "x", 'spec.f: Invalid value: "string": spec.f in body must be of type integer: "string"', id="a string for an integer"),
        pytest.param(INTEGER, True, 'spec.f: Invalid value: "boolean": spec.f in body must be of type integer: "boolean"', id="a boolean for an integer"),
        pytest.param({"x-kubernetes-int-or-string": True}, True, 'spec.f: Invalid value: "boolean": spec.f in body must be of type integer,string: "boolean"', id="a boolean for int-or-string"),
        pytest.param(STRING, None, 'spec.f: Invalid value: "null": spec.f in body must be of type string: "null"', id="null where it is no value"),
        pytest.param({**INTEGER, "minimum": 0}, -1, "spec.f: Invalid value: -1: spec.f in body should be greater than or equal to 0", id="below the minimum"),
        pytest.param({**INTEGER, "minimum": 0, "exclusiveMinimum": True}, 0, "spec.f: Invalid value: 0: spec.f in body should be greater than 0", id="at an exclusive minimum"),
        pytest.param({**INTEGER, "maximum": 5}, 6, "spec.f: Invalid value: 6: spec.f in body should be less than or equal to 5", id="above the maximum"),
        pytest.param({**INTEGER, "multipleOf": 4}, 6, "spec.f: Invalid value: 6: spec.f in body should be a multiple of 4", id="no multiple"),
        pytest.param({**STRING, "maxLength": 2}, "abc", "spec.f: Too long: may not be more than 2 bytes", id="too long"),
        pytest.param({**STRING, "minLength": 1}, "", 'spec.f: Invalid value: "": spec.f in body should be at least 1 chars long', id="too short"),
        pytest.param({**STRING, "pattern": "^[a-z]+$"}, "aB\n", r"""spec.f: Invalid value: "aB\n": spec.f in body should match '^[a-z]+$'""", id="against the pattern"),
        pytest.param({**STRING, "pattern": "^a$"}, "a\n", r"""spec.f: Invalid value: "a\n": spec.f in body should match '^a$'""", id="a line break after the end of the pattern"),
        pytest.param({**STRING, "format": "date-time"}, "noon", 'spec.f: Invalid value: "noon": spec.f in body must be of type date-time: "noon"', id="no date-time"),
        pytest.param({**STRING, "format": "ipv4"}, "1.2.3", 'spec.f: Invalid value: "1.2.3": spec.f in body must be of type ipv4: "1.2.3"', id="no address"),
        pytest.param({**STRING, "enum": ["a", "b"]}, "c", 'spec.f: Unsupported value: "c": supported values: "a", "b"', id="none of the values"),
        pytest.param(listed(STRING, maxItems=1), ["a", "b"], "spec.f: Too many: 2: must have at most 1 item", id="too many items"),
        pytest.param(listed(STRING, minItems=1), [], "spec.f: Invalid value: 0: spec.f in body should have at least 1 items", id="too few items"),
        pytest.param(listed(INTEGER), [1, "x"], 'spec.f[1]: Invalid value: "string": spec.f[1] in body must be of type integer: "string"', id="a wrong item"),
        pytest.param({**record(a=STRING), "required": ["a"]}, {}, "spec.f.a: Required value", id="a required field is missing"),
        pytest.param(SET, ["a", "b", "a", "a"], 'spec.f[2]: Duplicate value: "a"', id="a set holds something twice"),
        pytest.param(KEYED, [{"k": "a", "v": 1}, {"k": "a", "v": 2}], 'spec.f[1]: Duplicate value: {"k":"a"}', id="a key stands twice"),
        pytest.param({"type": "object", "additionalProperties": INTEGER}, {"k": "x"}, 'spec.f.k: Invalid value: "string": spec.f.k in body must be of type integer: "string"', id="a wrong value of a free key"),
        pytest.param({**INTEGER, "not": {"enum": [3]}}, 3, '<nil>: Invalid value: "": "spec.f" must not validate the schema (not)', id="what it must not be"),
        pytest.param(EMBEDDED, {"kind": "Pod"}, "spec.f.apiVersion: Required value", id="an embedded object without apiVersion"),
    ],
)  # fmt: skip
def test_what_is_wrong(schema, value, want):
    assert texts(schema_of(f=schema), {"f": value}) == [want]


def texts(schema: dict, spec: dict, old: dict | None = None) -> list[str]:
    errors = validate(thing(spec), read_schema(schema), None if old is None else thing(old))
    return [f"{e.field}: {e.message}" for e in errors]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param(INTEGER, 3.0, id="a whole number written with a point"),
        pytest.param({"type": "number"}, 3, id="an integer for a number"),
        pytest.param({**STRING, "nullable": True}, None, id="null where it is a value"),
        pytest.param({"x-kubernetes-int-or-string": True}, "5Gi", id="a text for int-or-string"),
        pytest.param({"x-kubernetes-int-or-string": True, "minimum": 0}, 5, id="a number for int-or-string"),
        pytest.param(
            {**STRING, "format": "date-time"}, "2024-05-01T10:00:00.5+02:00", id="a time with fraction and zone"
        ),
        pytest.param({**STRING, "format": "no-such-format"}, "x", id="a format that nobody knows"),
        pytest.param({**STRING, "pattern": "(?<name>["}, "x", id="a pattern that can not be read"),
        pytest.param(KEYED, [{"k": "a"}, {"k": "b"}], id="distinct keys"),
    ],
)
def test_what_is_right(schema, value):
    assert texts(schema_of(f=schema), {"f": value}) == []


ONE_OF = {**record(a=STRING, b=STRING), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}


@pytest.mark.parametrize(
    ("schema", "value", "want"),
    [
        pytest.param(ONE_OF, {"a": "1", "b": "2"}, "(oneOf). Found 2 valid alternatives", id="two alternatives fit"),
        pytest.param(ONE_OF, {}, "(oneOf). Found none valid", id="no alternative fits"),
        pytest.param({"anyOf": [INTEGER, STRING]}, True, "at least one schema (anyOf)", id="none of some types"),
        pytest.param(
            {**STRING, "allOf": [{"maxLength": 1}, {"minLength": 1}]}, "ab", "all the schemas (allOf)", id="one of all"
        ),
    ],
)
def test_alternatives(schema, value, want):
    found = texts(schema_of(f=schema), {"f": value})
    assert [
        text for text in found if text.startswith('<nil>: Invalid value: "": "spec.f" must validate') and want in text
    ]
    assert len(found) > 1 or "Found 2" in want, "the closest alternative says what it misses"


# --- rules, and what an update may leave as it was -------------------------------------------------------------------------


def ruled(schema: dict, rule: str, **more) -> dict:
    return {**schema, "x-kubernetes-validations": [{"rule": rule, **more}]}


COUNT = ruled(record(least=INTEGER, most=INTEGER), "self.least <= self.most", message="least must not exceed most")
FIXED = ruled(STRING, "self == oldSelf", message="is fixed")


@pytest.mark.parametrize(
    ("schema", "old", "new", "want"),
    [
        pytest.param(COUNT, None, {"least": 2, "most": 1}, ["spec.f: Invalid value: least must not exceed most"], id="a broken rule"),
        pytest.param(COUNT, None, {"least": 1, "most": 1}, [], id="a kept rule"),
        pytest.param(COUNT, None, {"most": 1}, ['spec.f: Invalid value: "object": no such key: least evaluating rule: least must not exceed most'], id="a rule that stumbles"),
        pytest.param(FIXED, None, "a", [], id="a rule about change does not hold for a new object"),
        pytest.param(FIXED, "a", "a", [], id="a rule about change holds without change"),
        pytest.param(FIXED, "a", "b", ['spec.f: Invalid value: "b": is fixed'], id="a rule about change forbids it"),
        pytest.param(ruled(STRING, "self != 'x'"), None, "x", ["spec.f: Invalid value: \"x\": failed rule: self != 'x'"], id="a rule without message"),
        pytest.param(ruled(INTEGER, "self < 3", messageExpression="string(self) + ' is too much'"), None, 3, ["spec.f: Invalid value: 3: 3 is too much"], id="a computed message"),
        pytest.param(ruled(record(a=STRING), "false", fieldPath=".a", reason="FieldValueForbidden", message="no"), None, {}, ["spec.f.a: Forbidden: no"], id="a rule that blames a field"),
        pytest.param(ruled(INTEGER, "oldSelf.hasValue() || self == 1", optionalOldSelf=True), None, 2, ["spec.f: Invalid value: 2: failed rule: oldSelf.hasValue() || self == 1"], id="a rule about creation"),
        pytest.param(listed(FIXED, **{"x-kubernetes-list-type": "set"}), ["a"], ["b"], [], id="items of a set have no past"),
    ],
)  # fmt: skip
def test_rules(schema, old, new, want):
    assert texts(schema_of(f=schema), {"f": new}, None if old is None else {"f": old}) == want


def test_items_of_a_keyed_list_are_compared_with_their_past():
    keyed = {**KEYED, "items": record(k=STRING, v=ruled(INTEGER, "self >= oldSelf", message="may only grow"))}
    old = {"f": [{"k": "a", "v": 3}, {"k": "b", "v": 1}]}
    new = {"f": [{"k": "b", "v": 2}, {"k": "a", "v": 2}]}
    assert texts(schema_of(f=keyed), new, old) == ["spec.f[1].v: Invalid value: 2: may only grow"]


def test_rules_wait_until_the_object_has_its_shape():
    found = texts(schema_of(f=COUNT, g=INTEGER), {"f": {"least": 2, "most": 1}, "g": "x"})
    want = (
        "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid;"
        " correct the existing errors to complete validation"
    )
    assert found[1:] == [want]


def test_what_was_wrong_before_is_not_held_against_an_update():
    schema = schema_of(f={**INTEGER, "minimum": 0}, g=STRING, h=COUNT, s=SET)
    wrong = {"f": -1, "g": "a", "h": {"least": 2, "most": 1}, "s": ["x", "x"]}
    assert len(texts(schema, wrong)) == 3
    assert texts(schema, {**wrong, "g": "b"}, wrong) == []
    assert len(texts(schema, {**wrong, "f": -2}, wrong)) == 1


def test_rules_that_can_not_be_asked_are_named():
    schema = read_schema(schema_of(f=listed(ruled(STRING, "isIP(self)")), g=ruled(STRING, "self ==")))
    by_ip, by_syntax = unasked_rules(schema)
    assert by_ip == "spec.f[]: the function 'isIP' is not evaluated here: isIP(self)"
    assert by_syntax.startswith("spec.g: compilation failed: Syntax error")


def test_metadata_is_left_to_others():
    schema = {"type": "object", "properties": {"metadata": {"type": "object", "required": ["labels"]}}}
    assert validate(thing(), read_schema(schema)) == []


# --- properties ------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abc")
SCALAR_SCHEMAS = st.sampled_from(
    [STRING, INTEGER, {**STRING, "default": "d"}, {**INTEGER, "default": 1}, {**STRING, "nullable": True}]
)
SCHEMAS = st.recursive(
    SCALAR_SCHEMAS,
    lambda inner: (
        st.dictionaries(NAMES, inner, max_size=3).map(lambda p: record(**p))
        | st.dictionaries(NAMES, inner, max_size=3).map(lambda p: {**record(**p), "default": {}})
        | inner.map(listed)
        | inner.map(lambda s: {"type": "object", "additionalProperties": s})
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(NAMES, SCHEMAS, max_size=3), st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=3))
def test_dropping_and_filling_in_once_is_enough(properties, spec):
    schema = read_schema(schema_of(**properties))
    kept, _ = drop_unknown(thing(spec), schema)
    assert drop_unknown(kept, schema) == (kept, [])
    filled = fill_in(kept, schema)
    assert fill_in(filled, schema) == filled
    assert drop_unknown(filled, schema) == (filled, []), "a default is never unknown"


def test_of_built_in_kinds_empty_fields_are_fields_that_are_not_there():
    labels = {"type": "object", "additionalProperties": STRING}
    parts = {"a": STRING, "list": listed(record(b=STRING)), "labels": labels, "part": record(c=STRING), "any": OPEN}
    schema = read_schema({**record(**parts, needed=listed(STRING)), "required": ["needed"]})
    given = {"a": None, "list": [], "labels": {}, "part": {"c": None}, "any": {"x": None}, "needed": []}
    assert drop_empty(given, schema) == {"part": {}, "any": {"x": None}, "needed": []}
    assert drop_empty({"list": [{"b": None}], "a": ""}, schema) == {"list": [{}], "a": ""}
    kept = {"list": [{"b": "x"}], "labels": {"l": ""}}
    assert drop_empty(kept, schema) is kept
