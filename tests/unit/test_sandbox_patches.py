"""Patches: RFC 7386 with its appendix, RFC 6902 errors, and strategic merge patches on built-in kinds."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.sandbox.errors import ApiError
from hub.sandbox.patches import json_patch, merge_patch, strategic_merge_patch
from hub.sandbox.shapes import builtin_shape

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "$y"])
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)

#: The test cases of RFC 7386, appendix A.
APPENDIX = """
    {"a":"b"}             | {"a":"c"}                  | {"a":"c"}
    {"a":"b"}             | {"b":"c"}                  | {"a":"b","b":"c"}
    {"a":"b"}             | {"a":null}                 | {}
    {"a":"b","b":"c"}     | {"a":null}                 | {"b":"c"}
    {"a":["b"]}           | {"a":"c"}                  | {"a":"c"}
    {"a":"c"}             | {"a":["b"]}                | {"a":["b"]}
    {"a":{"b":"c"}}       | {"a":{"b":"d","c":null}}   | {"a":{"b":"d"}}
    {"a":[{"b":"c"}]}     | {"a":[1]}                  | {"a":[1]}
    ["a","b"]             | ["c","d"]                  | ["c","d"]
    {"a":"b"}             | ["c"]                      | ["c"]
    {"a":"foo"}           | null                       | null
    {"a":"foo"}           | "bar"                      | "bar"
    {"e":null}            | {"a":1}                    | {"e":null,"a":1}
    [1,2]                 | {"a":"b","c":null}         | {"a":"b"}
    {}                    | {"a":{"bb":{"ccc":null}}}  | {"a":{"bb":{}}}
"""


@pytest.mark.parametrize("row", APPENDIX.strip().splitlines())
def test_merge_patch_does_what_the_appendix_of_rfc_7386_says(row: str):
    target, patch, want = (json.loads(cell) for cell in row.split("|"))
    assert merge_patch(target, patch) == want


def holds_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(v is None or holds_null(v) for v in value.values())
    return False


@given(JSON, JSON)
def test_a_merge_patch_applied_twice_changes_nothing_more(target, patch):
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_changes_neither_of_its_arguments(target, patch):
    before = copy.deepcopy((target, patch))
    merge_patch(target, patch)
    assert (target, patch) == before


@given(OBJECTS.filter(lambda o: not holds_null(o)))
def test_an_object_without_nulls_is_its_own_patch_from_nothing(wanted):
    assert merge_patch({}, wanted) == wanted
    assert merge_patch(wanted, {}) == wanted


@pytest.mark.parametrize(
    ("operations", "want_code"),
    [
        pytest.param({"op": "add"}, 400, id="a patch that is no list can not be read"),
        pytest.param([{"op": "jump", "path": "/a"}], 422, id="an unknown operation does not apply"),
        pytest.param([{"op": "test", "path": "/a", "value": 2}], 422, id="a failing test does not apply"),
        pytest.param([{"op": "remove", "path": "/zz"}], 422, id="removing what is not there does not apply"),
        pytest.param(
            [{"op": "replace", "path": "/a/b/c", "value": 1}], 422, id="a path through a scalar does not apply"
        ),
        pytest.param([{"op": "test", "path": "/a", "value": 1}] * 10_001, 413, id="too many operations are refused"),
    ],
)
def test_json_patch_errors(operations, want_code):
    with pytest.raises(ApiError) as raised:
        json_patch({"a": 1}, operations)
    assert raised.value.code == want_code


def test_json_patch_may_replace_a_field_that_is_not_there():
    assert json_patch({"a": {}}, [{"op": "replace", "path": "/a/b", "value": 1}]) == {"a": {"b": 1}}


def test_json_patch_leaves_the_object_as_it_was():
    target = {"a": {"b": [1]}}
    assert json_patch(target, [{"op": "add", "path": "/a/b/-", "value": 2}]) == {"a": {"b": [1, 2]}}
    assert target == {"a": {"b": [1]}}


# --- strategic merge patch -------------------------------------------------------------------------------------------------


def pod(**spec) -> dict:
    return {"spec": spec}


A = {"name": "a", "image": "a:1"}
B = {"name": "b", "image": "b:1"}
C = {"name": "c", "image": "c:1"}
HTTP = {"containerPort": 80, "protocol": "TCP"}
DNS = {"containerPort": 53, "protocol": "UDP"}

CASES = [
    pytest.param(
        pod(containers=[A, B]),
        pod(containers=[{"name": "b", "image": "b:2"}]),
        pod(containers=[A, {"name": "b", "image": "b:2"}]),
        id="containers are merged by name and keep their order",
    ),
    pytest.param(
        pod(containers=[A]), pod(containers=[C]), pod(containers=[C, A]), id="a new container goes before the others"
    ),
    pytest.param(
        pod(containers=[A, B]),
        pod(containers=[C], **{"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
        pod(containers=[A, B, C]),
        id="an order list says where a new container goes",
    ),
    pytest.param(
        pod(containers=[A, B, C]),
        pod(**{"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}),
        pod(containers=[B, C, A]),
        id="an order list alone reorders, and what it does not name stays before what it stood before",
    ),
    pytest.param(
        pod(containers=[A, B]),
        pod(containers=[{"name": "a", "$patch": "delete"}]),
        pod(containers=[B]),
        id="a deleted container goes, the others stay",
    ),
    pytest.param(
        pod(containers=[A, B]),
        pod(containers=[{"$patch": "replace"}, C]),
        pod(containers=[C]),
        id="a replace item replaces the whole list",
    ),
    pytest.param(
        pod(containers=[{**A, "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]),
        pod(containers=[{"name": "a", "env": [{"name": "X", "value": "3"}]}]),
        pod(containers=[{**A, "env": [{"name": "X", "value": "3"}, {"name": "Y", "value": "2"}]}]),
        id="variables are merged by name inside a container",
    ),
    pytest.param(
        pod(containers=[{**A, "ports": [HTTP, DNS]}]),
        pod(containers=[{"name": "a", "ports": [{"containerPort": 53, "name": "dns"}]}]),
        pod(containers=[{**A, "ports": [HTTP, {**DNS, "name": "dns"}]}]),
        id="ports are merged by containerPort",
    ),
    pytest.param(
        pod(containers=[{**A, "volumeMounts": [{"mountPath": "/x", "name": "v"}], "args": ["1", "2"]}]),
        pod(containers=[{"name": "a", "volumeMounts": [{"mountPath": "/y", "name": "v"}], "args": ["3"]}]),
        pod(
            containers=[
                {
                    **A,
                    "volumeMounts": [{"mountPath": "/y", "name": "v"}, {"mountPath": "/x", "name": "v"}],
                    "args": ["3"],
                }
            ]
        ),
        id="mounts are merged by mountPath, arguments are replaced",
    ),
    pytest.param(
        pod(tolerations=[{"key": "a"}]),
        pod(tolerations=[{"key": "b"}]),
        pod(tolerations=[{"key": "b"}]),
        id="tolerations are replaced",
    ),
    pytest.param(
        pod(volumes=[{"name": "v", "emptyDir": {}}]),
        pod(volumes=[{"name": "v", "hostPath": {"path": "/"}, "$retainKeys": ["name", "hostPath"]}]),
        pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
        id="retainKeys drops the volume source of before",
    ),
    pytest.param(
        pod(nodeSelector={"a": "1", "b": "2"}),
        pod(nodeSelector={"a": None, "c": "3"}),
        pod(nodeSelector={"b": "2", "c": "3"}),
        id="null removes a key",
    ),
    pytest.param(
        pod(nodeSelector={"a": "1"}),
        pod(nodeSelector={"b": "2", "$patch": "replace"}),
        pod(nodeSelector={"b": "2"}),
        id="replace on an object drops the keys of before",
    ),
    pytest.param(
        {"metadata": {"labels": {"a": "1"}}},
        {"metadata": {"labels": {"$patch": "delete"}, "annotations": {"b": "1", "c": None}}},
        {"metadata": {"labels": {}, "annotations": {"b": "1"}}},
        id="delete empties an object, and nulls do not enter a new one",
    ),
    pytest.param(
        {"metadata": {"finalizers": ["a", "b", "d"]}},
        {"metadata": {"finalizers": ["c", "b"], "$deleteFromPrimitiveList/finalizers": ["a", "b"]}},
        {"metadata": {"finalizers": ["c", "b", "d"]}},
        id="finalizers are a set with additions and deletions",
    ),
    pytest.param(
        {"metadata": {"ownerReferences": [{"uid": "1", "name": "x"}, {"uid": "2", "name": "y"}]}},
        {"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}]}},
        {"metadata": {"ownerReferences": [{"uid": "2", "name": "y"}]}},
        id="owner references are told apart by uid",
    ),
    pytest.param(
        pod(),
        pod(containers=[{**A, "env": [{"name": "X", "$patch": "delete"}]}, {"name": "z", "$patch": "delete"}]),
        pod(containers=[{**A, "env": []}]),
        id="directives without anything to act on leave no trace",
    ),
]


@pytest.mark.parametrize(("target", "patch", "want"), CASES)
def test_strategic_merge_patch(target, patch, want):
    before = copy.deepcopy((target, patch))
    assert strategic_merge_patch(target, patch, builtin_shape("Pod")) == want
    assert (target, patch) == before, "arguments must not change"


def test_a_job_is_merged_down_to_its_pod_template():
    job = {"spec": {"template": {"spec": {"containers": [A, B]}}}}
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}}
    merged = strategic_merge_patch(job, patch, builtin_shape("Job"))
    assert merged["spec"]["template"]["spec"]["containers"] == [{"name": "a", "image": "a:2"}, B]


@pytest.mark.parametrize(
    ("kind", "patch", "want_code", "want_text"),
    [
        pytest.param("Pod", ["x"], 400, "an object", id="a list is no strategic merge patch"),
        pytest.param("Pod", pod(containers=[{"image": "x"}]), 500, "merge key: name", id="an item without its key"),
        pytest.param("Pod", pod(**{"$patch": "jump"}), 500, "unknown patch type: jump", id="an unknown directive"),
        pytest.param("Pod", pod(containers=[{"$patch": "merge"}]), 500, "merging lists", id="merge of a list"),
        pytest.param(
            "Pod",
            pod(containers=[C], **{"$setElementOrder/containers": [{"name": "a"}]}),
            500,
            "$setElementOrder",
            id="an order list that forgets a patched item",
        ),
        pytest.param(
            "Pod", pod(**{"$retainKeys": ["volumes"], "nodeName": "n"}), 400, "retainKeys", id="a field not retained"
        ),
        pytest.param(
            "Pod",
            {"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}},
            400,
            "primitive list",
            id="deletions that are no list",
        ),
    ],
)
def test_strategic_merge_patch_errors(kind, patch, want_code, want_text):
    with pytest.raises(ApiError) as raised:
        strategic_merge_patch({"metadata": {}, **pod(containers=[A])}, patch, builtin_shape(kind))
    assert raised.value.code == want_code
    assert want_text in raised.value.message


@given(st.permutations([A, B, C]), st.permutations(["a", "b", "c"]))
def test_an_order_list_that_names_all_decides_alone(containers, names):
    order = {"$setElementOrder/containers": [{"name": name} for name in names]}
    merged = strategic_merge_patch(pod(containers=containers), pod(**order), builtin_shape("Pod"))
    assert [c["name"] for c in merged["spec"]["containers"]] == names
