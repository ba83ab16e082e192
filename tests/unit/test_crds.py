from pathlib import Path

import pytest
import yaml

from hub.kueue.api import crds
from hub.kueue.api.cel import FIELD_RULES, TYPE_RULES
from hub.kueue.api.schema import structural
from hub.kueue.api.v1beta2 import KINDS

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"
KIND_NAMES = [pytest.param(kind, id=kind) for kind in KINDS]


def nodes(schema, path="$"):
    """Every node of a schema, with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from nodes(schema[keyword], f"{path}.{keyword}")


def schema_of(kind):
    return crds.manifest(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_files_are_as_the_types_say(kind):
    assert (CRDS / crds.file_name(kind)).read_text() == crds.text(kind), "run `make crds`"


def test_there_are_no_other_files():
    assert sorted(p.name for p in CRDS.iterdir()) == sorted(crds.file_name(kind) for kind in KINDS)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_schemas_are_structural(kind):
    for path, node in nodes(schema_of(kind)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), f"{path} has no type"
        assert not {"$ref", "oneOf", "allOf", "not", "definitions", "title"} & node.keys(), path
        assert ("items" in node) == (node.get("type") == "array"), f"{path} must say what its items are"
        assert not ("properties" in node and "additionalProperties" in node), path
        if "anyOf" in node:
            assert node.get("x-kubernetes-int-or-string"), f"{path}: only a number or a text may be anyOf"


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_list_keys_are_there_in_every_item(kind):
    for path, node in nodes(schema_of(kind)):
        for key in node.get("x-kubernetes-list-map-keys", []):
            item = node["items"]
            assert key in item.get("required", []) or "default" in item["properties"][key], f"{path}: {key}"


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_defaults_are_valid_where_they_stand(kind):
    for path, node in nodes(schema_of(kind)):
        if "default" in node and "enum" in node:
            assert node["default"] in node["enum"], path


def test_every_rule_is_published():
    published = {
        rule["rule"]
        for kind in KINDS
        for _, node in nodes(schema_of(kind))
        for rule in node.get("x-kubernetes-validations", [])
    }
    assert {rule.rule for rules in [*TYPE_RULES.values(), *FIELD_RULES.values()] for rule in rules} == published


def test_a_pod_template_is_kept_whole():
    pod_set = schema_of("Workload")["properties"]["spec"]["properties"]["podSets"]["items"]
    assert pod_set["properties"]["template"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert pod_set["required"] == ["template"]


def test_defaults_of_the_api_are_published():
    spec = schema_of("ClusterQueue")["properties"]["spec"]["properties"]
    assert spec["queueingStrategy"]["default"] == "BestEffortFIFO"
    assert spec["stopPolicy"]["default"] == "None"
    assert spec["preemption"]["default"] == {}
    assert spec["preemption"]["properties"]["withinClusterQueue"]["default"] == "Never"
    assert "default" not in spec["cohortName"]


def test_workloads_can_be_selected_by_their_cluster_queue():
    version = crds.manifest("Workload")["spec"]["versions"][0]
    assert version["selectableFields"] == [{"jsonPath": ".status.admission.clusterQueue"}]
    assert version["subresources"] == {"status": {}}
    columns = [(column["name"], column.get("priority", 0)) for column in version["additionalPrinterColumns"]]
    assert columns == [("Queue", 0), ("Reserved in", 0), ("Admitted", 0), ("Finished", 0), ("Age", 0)]


def test_descriptions_come_from_the_sources_only_when_asked_for():
    assert "description" not in structural(KINDS["Workload"].type)
    assert schema_of("ClusterQueue")["description"] == "Quota by flavor and resource, and who may use it before whom."
    queue = schema_of("ClusterQueue")["properties"]["spec"]["properties"]["namespaceSelector"]
    assert queue["description"] == "Absent selects no namespace, empty selects all of them."


def test_main_writes_one_file_per_kind(tmp_path):
    crds.main(tmp_path / "new")
    kinds = [yaml.safe_load(p.read_text())["spec"]["names"]["kind"] for p in (tmp_path / "new").iterdir()]
    assert sorted(kinds) == sorted(KINDS)
