"""OpenAPI documents: what kubectl explain shows and what kubectl apply asks of them."""

import json
import subprocess
import sys

import orjson
import pytest

from hub.kueue.api.meta import Resource
from hub.sandbox.builtin_schemas import builtin_schema
from hub.sandbox.openapi import Documented, v2_document, v3_document, v3_index
from hub.sandbox.schemas import drop_unknown

ALL = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


def documented(group: str, version: str, plural: str, kind: str, *, namespaced=True, schema=None) -> Documented:
    resource = Resource(group=group, version=version, plural=plural, kind=kind, namespaced=namespaced)
    text = None if schema is None else orjson.dumps(schema)
    return Documented(resource=resource, verbs=ALL, subresources=("status",), schema=text)


JOBS = documented("batch", "v1", "jobs", "Job")
PODS = documented("", "v1", "pods", "Pod")
NODES = documented("", "v1", "nodes", "Node", namespaced=False)
QUEUE_SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "amount": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True},
                "default": {"type": "string", "nullable": True, "default": "x"},
            },
        }
    },
}
QUEUES = documented("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False, schema=QUEUE_SCHEMA)
SERVED = [JOBS, PODS, NODES, QUEUES]


def v3(gv: str) -> dict:
    body = v3_document(SERVED, gv)
    assert body is not None
    return json.loads(body)


def references(value) -> set[str]:
    if isinstance(value, list):
        return {ref for item in value for ref in references(item)}
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own | {ref for part in value.values() for ref in references(part)}


@pytest.mark.parametrize("gv", ["api/v1", "apis/batch/v1", "apis/kueue.x-k8s.io/v1beta2"])
def test_every_reference_of_a_v3_document_leads_somewhere(gv: str):
    document = v3(gv)
    found = {ref.removeprefix("#/components/schemas/") for ref in references(document)}
    assert found <= set(document["components"]["schemas"])


def test_every_reference_of_the_v2_document_leads_somewhere():
    document = json.loads(v2_document(SERVED))
    found = {ref.removeprefix("#/definitions/") for ref in references(document)}
    assert found <= set(document["definitions"])
    assert "allOf" not in json.dumps(document["definitions"]["io.k8s.api.batch.v1.Job"])


def test_a_patch_can_ask_for_field_validation():
    path = v3("apis/batch/v1")["paths"]["/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]
    assert {"get", "put", "patch", "delete", "parameters"} == set(path)
    assert "fieldValidation" in [p["name"] for p in path["patch"]["parameters"]]
    assert path["patch"]["x-kubernetes-group-version-kind"] == {"group": "batch", "version": "v1", "kind": "Job"}


def test_paths_follow_scope_and_subresources():
    assert set(v3("api/v1")["paths"]) == {
        "/api/v1/namespaces/{namespace}/pods",
        "/api/v1/namespaces/{namespace}/pods/{name}",
        "/api/v1/namespaces/{namespace}/pods/{name}/status",
        "/api/v1/pods",
        "/api/v1/nodes",
        "/api/v1/nodes/{name}",
        "/api/v1/nodes/{name}/status",
    }


PROPERTIES = [
    ("Job", "spec", {"default": {}}),
    ("JobSpec", "parallelism", {"type": "integer", "format": "int32"}),
    ("JobSpec", "activeDeadlineSeconds", {"type": "integer", "format": "int64"}),
    ("JobStatus", "startTime", {"allOf": [{"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Time"}]}),
    (
        "core.v1.PodSpec",
        "containers",
        {
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "name",
        },
    ),
    ("core.v1.PodSpec", "volumes", {"x-kubernetes-patch-strategy": "merge,retainKeys"}),
    ("core.v1.PodSpec", "tolerations", {"type": "array", "x-kubernetes-list-type": "atomic"}),
    ("core.v1.PodSpec", "nodeSelector", {"x-kubernetes-map-type": "atomic"}),
    ("meta.v1.ObjectMeta", "finalizers", {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}),
]


@pytest.mark.parametrize(("owner", "name", "want"), PROPERTIES, ids=[f"{o}.{n}" for o, n, _ in PROPERTIES])
def test_properties_of_built_in_kinds(owner: str, name: str, want: dict):
    schemas = v3("apis/batch/v1")["components"]["schemas"]
    (schema,) = (s for full, s in schemas.items() if full.endswith(f".{owner}"))
    found = schema["properties"][name]
    assert {key: found.get(key) for key in want} == want
    assert found["description"], "kubectl explain shows a text"


def test_what_the_kind_requires_is_marked():
    schemas = v3("apis/batch/v1")["components"]["schemas"]
    assert schemas["io.k8s.api.batch.v1.JobSpec"]["required"] == ["template"]
    assert schemas["io.k8s.api.batch.v1.Job"]["x-kubernetes-group-version-kind"] == [
        {"group": "batch", "kind": "Job", "version": "v1"}
    ]


def test_a_custom_resource_shows_its_own_schema():
    schema = v3("apis/kueue.x-k8s.io/v1beta2")["components"]["schemas"]["io.x-k8s.kueue.v1beta2.ClusterQueue"]
    assert schema["properties"]["spec"] == QUEUE_SCHEMA["properties"]["spec"]
    assert schema["properties"]["metadata"]["allOf"][0]["$ref"].endswith("meta.v1.ObjectMeta")
    assert schema["properties"]["kind"]["type"] == "string"


def test_v2_leaves_out_what_its_readers_do_not_know_but_keeps_fields_of_that_name():
    definitions = json.loads(v2_document(SERVED))["definitions"]
    spec = definitions["io.x-k8s.kueue.v1beta2.ClusterQueue"]["properties"]["spec"]
    assert spec["properties"] == {"amount": {"x-kubernetes-int-or-string": True}, "default": {"type": "string"}}


def test_the_index_moves_when_a_document_does():
    def address(served: list[Documented], gv: str) -> str:
        return json.loads(v3_index(served))["paths"][gv]["serverRelativeURL"]

    changed = {"type": "object", "properties": {}}
    other = documented("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False, schema=changed)
    before, after = SERVED, [JOBS, PODS, NODES, other]
    gv = "apis/kueue.x-k8s.io/v1beta2"
    assert address(before, gv).startswith(f"/openapi/v3/{gv}?hash=")
    assert address(before, gv) != address(after, gv)
    assert address(before, "api/v1") == address(after, "api/v1")


def test_a_group_version_that_is_not_served_has_no_document():
    assert v3_document(SERVED, "apis/apps/v1") is None


def test_documents_do_not_wait_for_the_client_library_to_be_imported():
    program = """
import sys
from tests.unit.test_sandbox_openapi import SERVED, v3_document
assert b"JobSpec" in v3_document(SERVED, "apis/batch/v1")
assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_unknown_fields_of_built_in_kinds_are_found():
    pod = {
        "containers": [{"name": "a", "imagee": "x", "resources": {"limits": {"cpu": 1}}}],
        "nodeSelector": {"a": "b"},
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    job["spec"] = {"template": {"metadata": {"labels": {"a": "b"}, "lables": {}}, "spec": pod}, "paralelism": 1}
    schema = builtin_schema("batch", "v1", "Job")
    assert schema is not None
    _, unknown = drop_unknown(job, schema)
    assert unknown == ["spec.paralelism", "spec.template.metadata.lables", "spec.template.spec.containers[0].imagee"]
    assert builtin_schema("batch", "v1", "Nothing") is None
