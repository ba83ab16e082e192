"""What a client learns about the API before it uses it."""

import pytest

from tests.contract.client import Client

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def test_groups_and_versions_are_listed(client: Client):
    core = await client.get("/api")
    assert (core["kind"], core["versions"]) == ("APIVersions", ["v1"])
    groups = {g["name"]: g for g in (await client.get("/apis"))["groups"]}
    assert groups["batch"]["preferredVersion"] == {"groupVersion": "batch/v1", "version": "v1"}
    one = await client.get("/apis/batch")
    assert (one["kind"], one["name"]) == ("APIGroup", "batch")


async def test_resources_have_their_names_and_verbs(client: Client):
    found = await client.get("/apis/batch/v1")
    assert (found["kind"], found["groupVersion"]) == ("APIResourceList", "batch/v1")
    resources = {r["name"]: r for r in found["resources"]}
    jobs = resources["jobs"]
    assert (jobs["kind"], jobs["singularName"], jobs["namespaced"], jobs["categories"]) == ("Job", "job", True, ["all"])
    assert set(jobs["verbs"]) >= {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
    assert resources["jobs/status"]["verbs"] == ["get", "patch", "update"]
    core = {r["name"]: r for r in (await client.get("/api/v1"))["resources"]}
    assert core["pods"]["shortNames"] == ["po"]
    assert core["nodes"]["namespaced"] is False
    assert (core["pods/eviction"]["group"], core["pods/eviction"]["kind"]) == ("policy", "Eviction")


@pytest.mark.parametrize(("path", "group", "version"), [("/api", "", "v1"), ("/apis", "batch", "v1")])
async def test_all_of_it_in_one_document(client: Client, path, group, version):
    answer = await client.call("GET", path, accept=f"{AGGREGATED},application/json")
    assert "as=APIGroupDiscoveryList" in answer.headers["Content-Type"]
    items = {item["metadata"].get("name", ""): item for item in answer.json["items"]}
    versions = {v["version"]: v for v in items[group]["versions"]}
    resources = {r["resource"]: r for r in versions[version]["resources"]}
    name = "pods" if not group else "jobs"
    assert resources[name]["scope"] == "Namespaced"
    assert {s["subresource"] for s in resources[name]["subresources"]} >= {"status"}


async def test_the_version_says_which_kubernetes_this_is(client: Client):
    found = await client.get("/version")
    assert found["major"] == "1"
    assert int(found["minor"].rstrip("+")) >= 35


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health_is_plain(client: Client, path):
    assert (await client.call("GET", path)).text == "ok"


async def test_openapi_v3_says_where_the_documents_are(client: Client):
    index = await client.get("/openapi/v3")
    where = index["paths"]["apis/batch/v1"]["serverRelativeURL"]
    document = await client.get(where)
    job = document["components"]["schemas"]["io.k8s.api.batch.v1.Job"]
    assert job["x-kubernetes-group-version-kind"] == [{"group": "batch", "kind": "Job", "version": "v1"}]
    patch = document["paths"]["/apis/batch/v1/namespaces/{namespace}/jobs/{name}"]["patch"]
    assert "fieldValidation" in {p.get("name") for p in patch["parameters"]}
