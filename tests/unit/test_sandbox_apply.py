"""Server-side apply: who owns which field, what conflicts, what goes when it is no longer stated."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.sandbox import field_sets as fs
from hub.sandbox.apply import LAST_APPLIED, Writer, apply, manager_name, track_update
from hub.sandbox.errors import ApiError
from hub.sandbox.shapes import builtin_shape, crd_shape

NOW = 1_700_000_000.0
TIME = "2023-11-14T22:13:20Z"
DEPLOYMENT = builtin_shape("Deployment")
JOB = builtin_shape("Job")


def deployment(labels=None, **spec) -> dict:
    meta = {"name": "web", "namespace": "default", **({"labels": labels} if labels else {})}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, **({"spec": spec} if spec else {})}


def template(*containers: dict) -> dict:
    return {"spec": {"containers": list(containers)}}


def writer(manager: str, subresource: str = "", resets: tuple[str, ...] = ("status",)) -> Writer:
    return Writer(manager=manager, api_version="apps/v1", subresource=subresource, resets=resets)


def applied(live, config, manager="a", *, force=False, now=NOW, shape=DEPLOYMENT) -> dict:
    return stored(apply(live, config, shape, writer(manager), now, force=force))


def updated(live, new, manager="a", *, now=NOW, shape=DEPLOYMENT, **more) -> dict:
    managed = track_update(live, new, shape, writer(manager, **more), now)
    return stored({**new, "metadata": {**new["metadata"], "managedFields": managed}})


def stored(manifest: dict) -> dict:
    manifest["metadata"].setdefault("uid", "u1")
    return manifest


def owners(manifest: dict) -> dict[tuple[str, str], dict]:
    return {(e["manager"], e["operation"]): e["fieldsV1"] for e in manifest["metadata"]["managedFields"]}


def conflicts(live, config, manager="b", shape=DEPLOYMENT) -> ApiError:
    with pytest.raises(ApiError) as raised:
        apply(live, config, shape, writer(manager), NOW)
    return raised.value


# --- sets of fields --------------------------------------------------------------------------------------------------------

A, B = {"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}


@pytest.mark.parametrize(
    ("stated", "want"),
    [
        pytest.param({"replicas": 1}, {"f:replicas": {}}, id="a scalar is a leaf"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, {"f:selector": {}}, id="a selector has one owner"),
        pytest.param({"strategy": {}}, {"f:strategy": {}}, id="an empty object is owned itself"),
        pytest.param(
            {"template": {"metadata": {"labels": {"x": "1"}}}},
            {"f:template": {"f:metadata": {"f:labels": {"f:x": {}}}}},
            id="labels are owned one by one",
        ),
        pytest.param(
            {"template": template({**A, "ports": [{"containerPort": 80}], "args": ["x"]})},
            {
                "f:template": {
                    "f:spec": {
                        "f:containers": {
                            'k:{"name":"a"}': {
                                ".": {},
                                "f:args": {},
                                "f:image": {},
                                "f:name": {},
                                "f:ports": {
                                    'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}
                                },
                            }
                        }
                    }
                }
            },
            id="items are told apart by their keys, left-out keys have their default",
        ),
    ],
)
def test_what_an_applied_manifest_owns(stated, want):
    manifest = deployment(**stated)
    assert fs.set_of(manifest, DEPLOYMENT) == {"f:spec": want}
    assert owners(applied(None, manifest)) == {("a", "Apply"): {"f:spec": want}}


def test_an_update_owns_parents_that_the_kind_does_not_always_have():
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "labels": {"x": "1"}, "finalizers": ["f"]},
        "spec": {"template": template({**A, "resources": {"limits": {"cpu": "1"}}}), "suspend": True},
    }
    (entry,) = updated(None, job, "kubectl-create", shape=JOB)["metadata"]["managedFields"]
    assert entry == {
        "manager": "kubectl-create",
        "operation": "Update",
        "apiVersion": "apps/v1",
        "time": TIME,
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:metadata": {"f:labels": {".": {}, "f:x": {}}, "f:finalizers": {".": {}, 'v:"f"': {}}},
            "f:spec": {
                "f:suspend": {},
                "f:template": {
                    "f:spec": {
                        "f:containers": {
                            'k:{"name":"a"}': {
                                ".": {},
                                "f:image": {},
                                "f:name": {},
                                "f:resources": {".": {}, "f:limits": {".": {}, "f:cpu": {}}},
                            },
                        }
                    }
                },
            },
        },
    }


def test_a_custom_resource_owns_by_its_schema():
    listed = {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}}
    spec = {
        "type": "object",
        "properties": {
            "keyed": {**listed, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
            "plain": listed,
            "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"x": {"type": "string"}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
    stated = {
        "keyed": [{"k": "1"}],
        "plain": [{"k": "1"}],
        "set": ["x"],
        "whole": {"x": "1"},
        "free": {"deep": {"er": 1}, "list": [1]},
        "map": {"x": "1"},
    }
    want = {
        "f:keyed": {'k:{"k":"1"}': {".": {}, "f:k": {}}},
        "f:plain": {},
        "f:set": {'v:"x"': {}},
        "f:whole": {},
        "f:free": {"f:deep": {".": {}, "f:er": {}}, "f:list": {}},
        "f:map": {"f:x": {}},
    }
    shape = crd_shape({"type": "object", "properties": {"spec": spec}})
    assert fs.set_of({"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "x"}, "spec": stated}, shape) == {
        "f:spec": want
    }


def test_an_object_that_becomes_a_number_loses_its_parts():
    changed, removed = fs.compare({"x": {"a": 1}}, {"x": 1}, crd_shape(None))
    assert (changed, removed) == ({"f:x": {}}, {"f:x": {"f:a": {}}})


# --- conflicts -------------------------------------------------------------------------------------------------------------


def test_another_value_for_a_field_that_somebody_applied_is_a_conflict():
    live = applied(None, deployment(replicas=1))
    error = conflicts(live, deployment(replicas=2))
    assert (error.code, error.reason) == (409, "Conflict")
    assert error.message == 'Apply failed with 1 conflict: conflict with "a": .spec.replicas'
    assert error.status()["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "a"', "field": ".spec.replicas"}
    ]


def test_conflicts_with_updates_name_the_version_and_the_subresource():
    live = updated(None, deployment(replicas=1), "kubectl-create")
    want = 'Apply failed with 1 conflict: conflict with "kubectl-create" using apps/v1: .spec.replicas'
    assert conflicts(live, deployment(replicas=2)).message == want
    scaled = updated(live, {**live, "spec": {"replicas": 3}}, "hpa", subresource="scale", resets=())
    want = 'Apply failed with 1 conflict: conflict with "hpa" with subresource "scale" using apps/v1: .spec.replicas'
    assert conflicts(scaled, deployment(replicas=2)).message == want


def test_several_conflicts_are_listed_by_manager():
    live = applied(None, deployment(replicas=1, paused=True), "z")
    live = applied(live, deployment(template=template(A)), "m")
    error = conflicts(live, deployment(replicas=2, paused=False, template=template({**A, "image": "a:2"})))
    assert error.message == (
        'Apply failed with 3 conflicts: conflicts with "m":\n'
        '- .spec.template.spec.containers[name="a"].image\n'
        'conflicts with "z":\n- .spec.paused\n- .spec.replicas'
    )


def test_the_same_value_is_no_conflict_but_shared():
    live = applied(applied(None, deployment(replicas=1)), deployment(replicas=1), "b")
    assert set(owners(live)) == {("a", "Apply"), ("b", "Apply")}
    alone = applied(live, deployment(labels={"x": "1"}), "b")
    assert alone["spec"] == {"replicas": 1}, "the other owner keeps the field alive"
    assert applied(alone, deployment(labels={"x": "1"}), "a").get("spec") is None, "the last owner takes it along"


def test_force_takes_the_field_from_its_owner():
    live = applied(None, deployment(replicas=1, paused=True))
    forced = applied(live, deployment(replicas=2), "b", force=True)
    assert forced["spec"] == {"replicas": 2, "paused": True}
    assert owners(forced) == {
        ("a", "Apply"): {"f:spec": {"f:paused": {}}},
        ("b", "Apply"): {"f:spec": {"f:replicas": {}}},
    }


def test_an_update_takes_a_field_without_asking():
    live = applied(None, deployment(replicas=1))
    after = updated(live, {**live, "spec": {"replicas": 5}}, "kubectl-scale")
    assert owners(after) == {("kubectl-scale", "Update"): {"f:spec": {"f:replicas": {}}}}


# --- what goes, what stays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "want_spec"),
    [
        pytest.param({"replicas": 1, "paused": True}, {"paused": True}, {"paused": True}, id="a field"),
        pytest.param(
            {"template": template(A, B)}, {"template": template(B)}, {"template": template(B)}, id="an item of a list"
        ),
        pytest.param(
            {"template": template({**A, "env": [{"name": "X", "value": "1"}]})},
            {"template": template(A)},
            {"template": template(A)},
            id="a whole list inside an item",
        ),
        pytest.param({"replicas": 1, "template": template(A)}, {}, None, id="everything"),
    ],
)
def test_what_is_no_longer_stated_goes(first, then, want_spec):
    assert applied(applied(None, deployment(**first)), deployment(**then)).get("spec") == want_spec


def test_what_others_added_stays():
    live = applied(None, deployment({"mine": "1", "old": "1"}, template=template(A)))
    theirs = copy.deepcopy(live)
    theirs["metadata"]["labels"]["theirs"] = "1"
    theirs["spec"]["template"]["spec"]["containers"] = [B, {**A, "tty": True}]
    live = updated(live, theirs, "other")
    after = applied(live, deployment({"mine": "2"}, template=template({**A, "image": "a:2"})))
    assert after["metadata"]["labels"] == {"mine": "2", "theirs": "1"}
    assert after["spec"]["template"]["spec"]["containers"] == [B, {**A, "image": "a:2", "tty": True}]
    assert after["metadata"]["name"] == "web"


def test_defaults_of_the_server_stay_while_their_parent_is_stated():
    live = applied(None, deployment(replicas=1, strategy={"type": "RollingUpdate"}))
    live["spec"]["revisionHistoryLimit"] = 10
    after = applied(live, deployment(strategy={"type": "RollingUpdate"}))
    assert after["spec"] == {"strategy": {"type": "RollingUpdate"}, "revisionHistoryLimit": 10}


@pytest.mark.parametrize(
    ("live", "config", "want"),
    [
        pytest.param("a b c", "b a", "b c a", id="applied items keep their own order"),
        pytest.param("a b c", "d b", "a d b c", id="a new item goes before the shared one that follows it"),
        pytest.param("x a y b", "b a", "x y b a", id="items of others stay in front of what followed them"),
        pytest.param("", "a b", "a b", id="the first apply decides"),
    ],
)
def test_order_of_merged_lists(live, config, want):
    def pod_template(names: str) -> dict:
        return {"template": template(*({"name": n, "image": "i"} for n in names.split()))}

    first = updated(None, deployment(**pod_template(live)), "creator")
    after = applied(first, deployment(**pod_template(config)), "b")
    assert " ".join(c["name"] for c in after["spec"]["template"]["spec"]["containers"]) == want


# --- subresources, times, resets -------------------------------------------------------------------------------------------


def test_status_and_spec_are_tracked_apart():
    live = updated(None, {**deployment(replicas=1), "status": {"replicas": 9}}, "kubectl")
    assert owners(live) == {("kubectl", "Update"): {"f:spec": {"f:replicas": {}}}}
    new = {**live, "spec": {"replicas": 7}, "status": {"replicas": 1, "conditions": [{"type": "Ok", "status": "True"}]}}
    entries = track_update(live, new, DEPLOYMENT, writer("kubectl", "status", ("spec", "metadata")), NOW)
    (mine,) = [e for e in entries if e.get("subresource") == "status"]
    condition = {".": {}, "f:status": {}, "f:type": {}}
    want = {"f:replicas": {}, "f:conditions": {".": {}, 'k:{"type":"Ok"}': condition}}
    assert mine["fieldsV1"] == {"f:status": want}
    assert len(entries) == 2, "the entry of the main resource is another one"


def test_times_move_only_with_changes():
    live = applied(None, deployment(replicas=1), now=NOW - 60)
    (same,) = applied(live, deployment(replicas=1))["metadata"]["managedFields"]
    (moved,) = applied(live, deployment(replicas=2))["metadata"]["managedFields"]
    assert (same["time"], moved["time"]) == ("2023-11-14T22:12:20Z", TIME)
    unchanged = updated(live, live, "other")
    assert unchanged["metadata"]["managedFields"] == live["metadata"]["managedFields"]


@pytest.mark.parametrize("empty", [[], [{}]], ids=["an empty list", "one empty entry"])
def test_ownership_can_be_dropped_with(empty):
    live = applied(None, deployment(replicas=1))
    dropped = updated(live, {**live, "metadata": {**live["metadata"], "managedFields": empty}})
    assert dropped["metadata"]["managedFields"] == []
    assert updated(dropped, {**dropped, "spec": {"replicas": 2}})["metadata"]["managedFields"] == []
    adopted = applied(dropped, deployment(paused=True), "b")
    assert owners(adopted)["before-first-apply", "Update"] == {"f:spec": {"f:replicas": {}}}


def test_at_most_ten_updaters_are_told_apart():
    live = None
    for i in range(14):
        before = live["spec"] if live else {}
        live = updated(live, deployment(**before, **{f"field{i}": i}), f"m{i:02}", now=NOW + i)
    entries = live["metadata"]["managedFields"]
    assert len(entries) == 10
    assert entries[0]["manager"] == "ancient-changes"
    assert len(entries[0]["fieldsV1"]["f:spec"]) == 5


def test_kubectl_moves_from_client_side_to_server_side_apply_without_conflict():
    stated = deployment(replicas=1)
    annotated = copy.deepcopy(stated)
    annotated["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(stated)}
    live = updated(None, annotated, "kubectl-client-side-apply")
    after = applied(live, deployment(replicas=2), "kubectl")
    assert after["spec"] == {"replicas": 2}
    assert json.loads(after["metadata"]["annotations"][LAST_APPLIED]) == deployment(replicas=2)
    scaled = updated(live, {**live, "spec": {"replicas": 7}}, "hpa")
    assert '"hpa"' in conflicts(scaled, deployment(replicas=2), "kubectl").message


@pytest.mark.parametrize(
    ("config", "want_code", "want_text"),
    [
        pytest.param({"metadata": {"managedFields": []}}, 400, "managedFields must be nil", id="with managedFields"),
        pytest.param({"apiVersion": "apps/v2"}, 400, "expected: apps/v1", id="of another version"),
        pytest.param(
            {"spec": {"template": template("x")}},
            500,
            "(default/web; apps/v1, Kind=Deployment): .spec.template.spec.containers: element 0: associative list",
            id="with an item that is no object",
        ),
        pytest.param(
            {"spec": {"template": template(A, A)}}, 500, 'duplicate entries for key [name="a"]', id="with an item twice"
        ),
    ],
)
def test_a_manifest_that_can_not_be_applied(config, want_code, want_text):
    error = conflicts(None, {**deployment(), **config})
    assert error.code == want_code
    assert want_text in error.message


@pytest.mark.parametrize(
    ("asked", "agent", "want"),
    [
        ("me", "kubectl/v1.35.2 (linux/amd64)", "me"),
        ("", "kubectl/v1.35.2 (linux/amd64)", "kubectl"),
        ("", "Swagger-Codegen/1.0/python", "Swagger-Codegen"),
        ("", "", "unknown"),
    ],
)
def test_a_writer_is_named_by_its_field_manager_or_its_user_agent(asked, agent, want):
    assert manager_name(asked, agent) == want


# --- properties ------------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abc")
CONTAINERS = st.lists(
    st.fixed_dictionaries({"name": NAMES}, optional={"image": NAMES, "tty": st.booleans(), "args": st.lists(NAMES)}),
    unique_by=lambda c: c["name"],
    max_size=3,
)
SPECS = st.fixed_dictionaries(
    {}, optional={"replicas": st.integers(0, 2), "template": CONTAINERS.map(lambda c: template(*c))}
)
CONFIGS = st.builds(lambda labels, spec: deployment(labels, **spec), st.dictionaries(NAMES, NAMES, max_size=2), SPECS)


@given(CONFIGS, CONFIGS)
def test_applying_twice_changes_nothing_more(first, second):
    live = applied(None, first)
    once = applied(live, second, "b", force=True)
    assert applied(once, second, "b", now=NOW + 9) == once


@given(CONFIGS, CONFIGS, CONFIGS)
def test_what_is_applied_is_there_and_what_one_manager_leaves_is_gone(first, second, third):
    live = applied(applied(None, first), second, "b", force=True)
    after = applied(live, third, "a", force=True)
    left = applied(after, deployment(), "a")
    assert fs.difference(fs.set_of(third, DEPLOYMENT), fs.set_of(after, DEPLOYMENT)) == {}
    only_a = fs.difference(fs.set_of(left, DEPLOYMENT), owners(left).get(("b", "Apply"), {}))
    assert not [path for path in fs.members(only_a) if "containers[" not in path], "everything left belongs to b"


@given(CONFIGS, CONFIGS)
def test_forced_apply_by_one_manager_leaves_exactly_its_manifest(first, second):
    after = applied(applied(None, first), second)
    assert fs.set_of(after, DEPLOYMENT) == fs.set_of(second, DEPLOYMENT)


TREES = st.recursive(
    st.just({}), lambda inner: st.dictionaries(st.sampled_from(["f:a", "f:b", "."]), inner, max_size=3), max_leaves=6
)


def canonical(node: dict) -> dict:
    found = {k: canonical(v) for k, v in node.items() if k != "."}
    return {".": {}, **found} if "." in node and found else found


def paths(node: dict) -> set[str]:
    return set(fs.members(node))


SETS = TREES.map(canonical).map(lambda node: {k: v for k, v in node.items() if k != "."})


@given(SETS, SETS)
def test_set_operations_are_those_of_sets_of_paths(a, b):
    assert paths(fs.union(a, b)) == paths(a) | paths(b)
    assert paths(fs.difference(a, b)) == paths(a) - paths(b)
    assert paths(fs.intersection(a, b)) == paths(a) & paths(b)
