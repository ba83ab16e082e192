"""Whatever the published schema allows is read, is found within limits, and comes back as it was."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub.kueue.api.decoding import document
from hub.kueue.api.rules.bounds import outside_limits
from hub.kueue.api.schema import structural
from hub.kueue.api.v1beta2 import KINDS, decode, encode
from hub.kueue.api.validation import check

QUANTITIES = st.integers(0, 10**6) | st.sampled_from(["0", "1500m", "2Gi", "0.5", "1e3", "7k", "+1"])
TEXTS = st.from_regex(r"[a-z]([a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)


def documents(schema):
    """Documents that are within a structural schema; its rules are another matter."""
    if schema.get("x-kubernetes-int-or-string"):
        return QUANTITIES
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.dictionaries(TEXTS, ANYTHING, max_size=3)
    return _BY_TYPE[schema["type"]](schema)


def _objects(schema):
    if "additionalProperties" in schema:
        return st.dictionaries(TEXTS, documents(schema["additionalProperties"]), max_size=3)
    fields = {name: documents(child) for name, child in schema.get("properties", {}).items()}
    required = set(schema.get("required", []))
    optional = {name: made for name, made in fields.items() if name not in required}
    return st.fixed_dictionaries({name: fields[name] for name in fields if name in required}, optional=optional)


def _arrays(schema):
    keys = schema.get("x-kubernetes-list-map-keys")
    defaults = {name: child.get("default") for name, child in schema["items"].get("properties", {}).items()}
    by_key = (lambda item: tuple(item.get(key, defaults[key]) for key in keys)) if keys else None
    if schema.get("x-kubernetes-list-type") == "set":
        by_key = repr
    least = schema.get("minItems", 0)
    return st.lists(documents(schema["items"]), min_size=least, max_size=least + 2, unique_by=by_key)


def _strings(schema):
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    return st.just("2026-01-31T12:00:00Z") if schema.get("format") == "date-time" else TEXTS


_BY_TYPE = {
    "object": _objects,
    "array": _arrays,
    "string": _strings,
    "boolean": lambda schema: st.booleans(),
    "integer": lambda schema: st.integers(schema.get("minimum", -(2**31)), 2**31 - 1),
}


@st.composite
def manifests(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    body = draw(documents(structural(KINDS[kind].type)))
    return body | {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": "n", "namespace": "ns"}}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(manifests())
def test_round_trip(manifest):
    decoded = decode(manifest)
    encoded = encode(decoded)
    assert decode(encoded) == decoded
    assert encode(decode(encoded)) == encoded
    schema = structural(type(decoded))
    assert list(outside_limits(schema, manifest)) == []
    assert list(outside_limits(schema, document(decoded))) == []
    # Rules may be broken, and then they say so; they never fail.
    assert all(str(error) for error in check(manifest, manifest))
