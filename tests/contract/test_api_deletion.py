"""Deleting: preconditions, finalizers, grace, owners, namespaces."""

import pytest

from tests.api_servers import Api
from tests.contract.client import MERGE, Client
from tests.contract.manifests import config, job, owner, pod


@pytest.fixture
def controllers(api: Api) -> None:
    if not api.controllers:
        pytest.skip("owners and namespaces need a kube-controller-manager beside kube-apiserver")


async def test_an_object_goes_at_once_and_says_what_it_was(client: Client, configs):
    made = await client.post(configs, config("a"))
    gone = await client.delete(f"{configs}/a")
    assert (gone["kind"], gone["status"]) == ("Status", "Success")
    assert gone["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert (await client.call("GET", f"{configs}/a")).code == 404


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
async def test_a_delete_of_another_object_of_the_name_is_a_conflict(client: Client, configs, field):
    await client.post(configs, config("a"))
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {field: "1"}}
    assert (await client.call("DELETE", f"{configs}/a", body)).refusal == (409, "Conflict")
    assert (await client.call("GET", f"{configs}/a")).code == 200


async def test_finalizers_keep_an_object_until_the_last_is_gone(client: Client, configs):
    await client.post(configs, config("a", finalizers=["x.io/one", "x.io/two"]))
    marked = await client.delete(f"{configs}/a")
    assert marked["metadata"]["deletionTimestamp"]
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
    await client.patch(f"{configs}/a", {"metadata": {"finalizers": ["x.io/two"]}})
    assert (await client.call("GET", f"{configs}/a")).code == 200
    await client.patch(f"{configs}/a", {"metadata": {"finalizers": None}})
    assert (await client.call("GET", f"{configs}/a")).code == 404


async def test_an_object_that_is_going_takes_no_new_finalizer(client: Client, configs):
    await client.post(configs, config("a", finalizers=["x.io/one"]))
    await client.delete(f"{configs}/a")
    more = {"metadata": {"finalizers": ["x.io/one", "x.io/late"]}}
    answer = await client.call("PATCH", f"{configs}/a", more, media=MERGE)
    assert answer.refusal == (422, "Invalid")
    assert answer.json["details"]["causes"][0]["field"] == "metadata.finalizers"


async def test_a_collection_is_deleted_by_selector(client: Client, configs):
    for name in "abc":
        await client.post(configs, config(name, labels={"name": name}))
    await client.delete(f"{configs}?labelSelector=name in (a,b)")
    assert [i["metadata"]["name"] for i in (await client.get(configs))["items"]] == ["c"]


async def test_a_pod_without_a_node_goes_at_once(client: Client, namespace):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await client.post(pods, pod("p"))
    await client.delete(f"{pods}/p")
    assert (await client.call("GET", f"{pods}/p")).code == 404


async def test_a_pod_on_a_node_gets_its_grace(client: Client, namespace):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await client.post(pods, pod("p", nodeName="n1", terminationGracePeriodSeconds=7))
    marked = await client.delete(f"{pods}/p")
    assert (marked["kind"], marked["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 7)
    assert (await client.delete(f"{pods}/p?gracePeriodSeconds=3"))["metadata"]["deletionGracePeriodSeconds"] == 3
    assert (await client.delete(f"{pods}/p?gracePeriodSeconds=9"))["metadata"]["deletionGracePeriodSeconds"] == 3
    await client.delete(f"{pods}/p?gracePeriodSeconds=0")
    assert (await client.call("GET", f"{pods}/p")).code == 404


async def test_an_evicted_pod_is_a_deleted_pod(client: Client, namespace):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await client.post(pods, pod("p"))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": namespace}}
    assert (await client.call("POST", f"{pods}/p/eviction", body)).code == 201
    assert (await client.call("GET", f"{pods}/p")).code == 404


# --- owners ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("controllers")
async def test_background_takes_dependents_along(client: Client, jobs, configs):
    made = await client.post(jobs, job("j"))
    await client.post(configs, config("child", ownerReferences=[owner("Job", "batch/v1", made)]))
    await client.delete(f"{jobs}/j?propagationPolicy=Background")
    await client.gone(configs, "child")


@pytest.mark.usefixtures("controllers")
async def test_orphan_leaves_them(client: Client, jobs, configs):
    made = await client.post(jobs, job("j"))
    await client.post(configs, config("child", ownerReferences=[owner("Job", "batch/v1", made)]))
    await client.delete(f"{jobs}/j", {"propagationPolicy": "Orphan"})
    await client.gone(jobs, "j")
    assert "ownerReferences" not in (await client.get(f"{configs}/child"))["metadata"]


@pytest.mark.usefixtures("controllers")
async def test_foreground_waits_for_those_that_block(client: Client, jobs, configs):
    made = await client.post(jobs, job("j"))
    references = [owner("Job", "batch/v1", made, blocks=True)]
    await client.post(configs, config("child", ownerReferences=references, finalizers=["x.io/keep"]))
    await client.delete(f"{jobs}/j?propagationPolicy=Foreground")
    await client.until(configs, "child", lambda e: "deletionTimestamp" in e["object"]["metadata"])
    assert (await client.get(f"{jobs}/j"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    await client.patch(f"{configs}/child", {"metadata": {"finalizers": None}})
    await client.gone(jobs, "j")


@pytest.mark.usefixtures("controllers")
async def test_an_object_whose_owner_is_not_there_is_collected(client: Client, configs):
    ghost = {"metadata": {"name": "ghost", "uid": "00000000-0000-4000-a000-000000000000"}}
    await client.post(configs, config("child", ownerReferences=[owner("ConfigMap", "v1", ghost)]))
    await client.gone(configs, "child")


# --- namespaces --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("controllers")
async def test_a_namespace_goes_after_its_contents(client: Client, namespace, configs):
    await client.post(configs, config("held", finalizers=["x.io/keep"]))
    await client.post(configs, config("free"))
    marked = await client.delete(f"/api/v1/namespaces/{namespace}")
    assert marked["status"]["phase"] == "Terminating"
    answer = await client.call("POST", configs, config("late"))
    assert answer.refusal == (403, "Forbidden")
    assert answer.json["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    await client.gone(configs, "free")
    await client.patch(f"{configs}/held", {"metadata": {"finalizers": None}})
    await client.gone("/api/v1/namespaces", namespace)
