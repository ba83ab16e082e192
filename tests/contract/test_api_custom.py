"""Custom resources: served when applied, shaped by their schema, shown by their columns, gone with their definition."""

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.client import JSON_PATCH, MERGE, STRATEGIC, Client
from tests.contract.test_api_tables import TABLE, shown

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

SPEC_SCHEMA = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
        "replicas": {"type": "integer", "default": 1},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "slots": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
            },
        },
    },
}
STATUS_SCHEMA = {
    "type": "object",
    "properties": {
        "replicas": {"type": "integer"},
        "ready": {"type": "boolean"},
        "conditions": {
            "type": "array",
            "items": {"type": "object", "properties": {"type": {"type": "string"}, "status": {"type": "string"}}},
        },
    },
}


def definition(group: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"spec": copy.deepcopy(SPEC_SCHEMA), "status": STATUS_SCHEMA}}
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Slot", "type": "string", "jsonPath": ".spec.slots[*].name"},
        {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": columns,
        "selectableFields": [{"jsonPath": ".spec.color"}],
    }
    names = {"plural": "boxes", "singular": "box", "kind": "Box", "shortNames": ["bx"], "categories": ["all"]}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return kind | {"metadata": {"name": f"boxes.{group}"}, "spec": spec}


def established(event: dict[str, Any]) -> bool:
    conditions = event["object"].get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@pytest.fixture
async def group(client: Client, namespace: str) -> AsyncIterator[str]:
    """A group in which boxes are defined."""
    name = f"{namespace}.example.com"
    await client.post(DEFINITIONS, definition(name))
    await client.until(DEFINITIONS, f"boxes.{name}", established)
    yield name
    await client.call("DELETE", f"{DEFINITIONS}/boxes.{name}")


@pytest.fixture
async def boxes(client: Client, group: str, namespace: str) -> str:
    path = f"/apis/{group}/v1/namespaces/{namespace}/boxes"
    while (await client.call("GET", path)).code == 404:  # a real server takes a moment after Established
        pass
    return path


def box(group_path: str, name: str, **spec: Any) -> dict[str, Any]:
    group = group_path.split("/")[2]
    return {"apiVersion": f"{group}/v1", "kind": "Box", "metadata": {"name": name}, "spec": {"size": 3, **spec}}


async def test_the_definition_says_that_it_is_served(client: Client, group):
    status = (await client.get(f"{DEFINITIONS}/boxes.{group}"))["status"]
    assert {c["type"]: c["status"] for c in status["conditions"]} == {"NamesAccepted": "True", "Established": "True"}
    assert status["acceptedNames"]["shortNames"] == ["bx"]
    assert status["storedVersions"] == ["v1"]


async def test_it_is_discovered(client: Client, boxes, group):
    resources = {r["name"]: r for r in (await client.get(f"/apis/{group}/v1"))["resources"]}
    assert resources["boxes"]["shortNames"] == ["bx"]
    assert set(resources) == {"boxes", "boxes/status", "boxes/scale"}


async def test_defaults_come_and_unknown_fields_go(client: Client, boxes):
    made = await client.post(boxes, box(boxes, "a", weight=9, free={"any": {"thing": 1}}))
    assert made["spec"] == {"size": 3, "color": "red", "replicas": 1, "free": {"any": {"thing": 1}}}
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        pytest.param({"size": 11}, "spec.size", "FieldValueInvalid", id="too large"),
        pytest.param({"size": "3"}, "spec.size", "FieldValueTypeInvalid", id="of another type"),
        pytest.param({"size": None}, "spec.size", "FieldValueRequired", id="missing"),
        pytest.param({"color": "green"}, "spec.color", "FieldValueNotSupported", id="none of the values"),
        pytest.param({"slots": [{"name": "a"}, {"name": "a"}]}, "spec.slots[1]", "FieldValueDuplicate", id="twice"),
    ],
)
async def test_what_the_schema_forbids_is_refused(client: Client, boxes, spec, field, reason):
    answer = await client.call("POST", boxes, box(boxes, "a", **spec))
    assert answer.refusal == (422, "Invalid")
    assert (field, reason) in [(c["field"], c["reason"]) for c in answer.json["details"]["causes"]]


async def test_unknown_fields_are_refused_when_strict(client: Client, boxes):
    answer = await client.call("POST", f"{boxes}?fieldValidation=Strict", box(boxes, "a", weight=9))
    assert answer.refusal == (400, "BadRequest")
    assert 'unknown field "spec.weight"' in answer.json["message"]


async def test_a_replace_must_say_what_it_replaces(client: Client, boxes):
    made = await client.post(boxes, box(boxes, "a"))
    answer = await client.call("PUT", f"{boxes}/a", box(boxes, "a", size=4))
    assert answer.refusal == (422, "Invalid")
    assert answer.json["details"]["causes"][0]["field"] == "metadata.resourceVersion"
    changed = await client.put(f"{boxes}/a", made | {"spec": {"size": 4}})
    assert changed["metadata"]["generation"] == 2


async def test_status_is_apart(client: Client, boxes):
    made = await client.post(boxes, box(boxes, "a") | {"status": {"ready": True}})
    assert "status" not in made
    await client.patch(
        f"{boxes}/a/status", {"status": {"ready": True}, "spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}}
    )
    now = await client.get(f"{boxes}/a")
    assert (now["status"], now["spec"]["size"]) == ({"ready": True}, 3)
    assert now["metadata"]["generation"] == 1


async def test_patches(client: Client, boxes):
    await client.post(boxes, box(boxes, "a"))
    assert (await client.patch(f"{boxes}/a", {"spec": {"size": 4}}, MERGE))["spec"]["size"] == 4
    steps = [{"op": "replace", "path": "/spec/size", "value": 5}]
    assert (await client.patch(f"{boxes}/a", steps, JSON_PATCH))["spec"]["size"] == 5
    assert (await client.call("PATCH", f"{boxes}/a", {}, media=STRATEGIC)).refusal == (415, "UnsupportedMediaType")


async def test_apply_merges_lists_by_their_keys(client: Client, boxes):
    path, media = f"{boxes}/a?fieldManager=", "application/apply-patch+yaml"
    await client.patch(f"{path}one", box(boxes, "a", slots=[{"name": "x", "n": 1}]), media)
    both = await client.patch(f"{path}two", box(boxes, "a", slots=[{"name": "y", "n": 2}]), media)
    assert [s["name"] for s in both["spec"]["slots"]] == ["x", "y"]
    less = box(boxes, "a")
    assert [s["name"] for s in (await client.patch(f"{path}one", less, media))["spec"]["slots"]] == ["y"]


async def test_scale(client: Client, boxes):
    await client.post(boxes, box(boxes, "a"))
    found = await client.get(f"{boxes}/a/scale")
    assert (found["kind"], found["apiVersion"], found["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 1})
    await client.patch(f"{boxes}/a/scale", {"spec": {"replicas": 5}})
    assert (await client.get(f"{boxes}/a"))["spec"]["replicas"] == 5


async def test_columns(client: Client, boxes):
    await client.post(boxes, box(boxes, "a", slots=[{"name": "x"}, {"name": "y"}]))
    ready = {"status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]}}
    await client.patch(f"{boxes}/a/status", ready)
    table = await client.get(boxes, accept=TABLE)
    row = shown(table)[0]
    assert row["Age"].endswith("s")
    assert row | {"Age": ""} == {"Name": "a", "Size": 3, "Ready": "True", "Slot": "x", "Age": ""}
    assert shown(table, wide=True)[0]["Color"] == "red"


async def test_selectable_fields(client: Client, boxes):
    await client.post(boxes, box(boxes, "a"))
    await client.post(boxes, box(boxes, "b", color="blue"))
    found = await client.get(f"{boxes}?fieldSelector=spec.color%3Dblue")
    assert [i["metadata"]["name"] for i in found["items"]] == ["b"]
    assert (await client.call("GET", f"{boxes}?fieldSelector=spec.size%3D3")).refusal == (400, "BadRequest")


async def test_a_new_schema_holds_at_once(client: Client, boxes, group):
    changed = definition(group)
    del changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"][
        "maximum"
    ]
    await client.patch(f"{DEFINITIONS}/boxes.{group}", {"spec": changed["spec"]})
    while (answer := await client.call("POST", boxes, box(boxes, "a", size=99))).code in (422, 503):
        pass
    assert answer.code == 201


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"metadata": {"name": "wrong"}}, "metadata.name", id="a name that is not plural.group"),
        pytest.param({"spec": {"scope": "Global"}}, "spec.scope", id="a scope that is none"),
        pytest.param({"spec": {"names": {"plural": "", "kind": "Box"}}}, "spec.names.plural", id="no plural"),
    ],
)
async def test_a_wrong_definition_is_refused(client: Client, namespace, change, field):
    body = definition(f"{namespace}.example.com")
    body = body | {name: body[name] | part for name, part in change.items()}
    answer = await client.call("POST", DEFINITIONS, body)
    assert answer.refusal == (422, "Invalid")
    assert field in [c["field"] for c in answer.json["details"]["causes"]]


async def test_a_definition_takes_its_objects_along(client: Client, boxes, group):
    await client.post(boxes, box(boxes, "a") | {"metadata": {"name": "a", "finalizers": ["x.io/keep"]}})
    await client.delete(f"{DEFINITIONS}/boxes.{group}")
    await client.until(boxes, "a", lambda e: "deletionTimestamp" in e["object"]["metadata"])
    assert (await client.call("GET", f"{DEFINITIONS}/boxes.{group}")).code == 200
    await client.patch(f"{boxes}/a", {"metadata": {"finalizers": None}})
    await client.gone(DEFINITIONS, f"boxes.{group}")
    while (await client.call("GET", boxes)).code == 200:
        pass
