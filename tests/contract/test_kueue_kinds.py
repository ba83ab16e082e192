"""Our CustomResourceDefinitions at work: right manifests are taken, and wrong ones refused without a webhook's help."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from hub.kueue.api.v1beta2 import KINDS, decode
from tests.api_servers import Api
from tests.contract.client import Answer, Client
from tests.unit.validation_cases import FOLDER, MANIFESTS, QUEUE_ALLOWED, QUEUE_CASES, Case
from tests.unit.workload_cases import ALLOWED, WORKLOAD_CASES

CRDS = Path(__file__).resolve().parents[2] / "deploy" / "crds"
CASES = [*QUEUE_CASES, *WORKLOAD_CASES]


@pytest.fixture(scope="module")
def kinds(api: Api) -> None:
    api.kubectl("apply", "--filename", str(CRDS))
    names = [f"crd/{info.resource.plural}.{info.resource.group}" for info in KINDS.values()]
    api.kubectl("wait", "--for=condition=Established", "--timeout=20s", *names)


def collection(manifest: dict[str, Any]) -> str:
    resource = KINDS[manifest["kind"]].resource
    namespace = f"namespaces/{manifest['metadata']['namespace']}/" if resource.namespaced else ""
    return f"/apis/{resource.group}/{resource.version}/{namespace}{resource.plural}"


def item(manifest: dict[str, Any], subresource: str = "") -> str:
    path = f"{collection(manifest)}/{manifest['metadata']['name']}"
    return f"{path}/{subresource}" if subresource else path


def named(case: Case, manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    """A copy with a name of its own and nothing that keeps it from going away."""
    result = copy.deepcopy(manifest)
    result["metadata"] |= {"name": re.sub(r"[^a-z0-9]+", "-", case.id.lower()), "finalizers": []}
    if KINDS[manifest["kind"]].resource.namespaced:
        result["metadata"]["namespace"] = namespace
    return result


async def create(client: Client, manifest: dict[str, Any]) -> Answer:
    """With its status, which is a step of its own."""
    answer = await client.call("POST", collection(manifest), manifest)
    if answer.code < 300 and KINDS[manifest["kind"]].has_status and manifest.get("status"):
        return await client.call("PUT", item(manifest, "status"), answer.json | {"status": manifest["status"]})
    return answer


async def replace(client: Client, new: dict[str, Any], old: dict[str, Any]) -> Answer:
    there = await client.get(item(new))
    there["metadata"]["annotations"] = new["metadata"].get("annotations", {})
    answer = await client.call("PUT", item(new), there | {"spec": new.get("spec", {})})
    if answer.code < 300 and new.get("status") != old.get("status"):
        return await client.call("PUT", item(new, "status"), answer.json | {"status": new.get("status", {})})
    return answer


async def written(client: Client, case: Case, namespace: str) -> Answer:
    """The answer to what the case does."""
    new = named(case, case.new, namespace)
    try:
        if case.old is None:
            return await create(client, new)
        old = named(case, case.old, namespace)
        before = await create(client, old)
        assert before.code < 300, f"what was there before must be right: {before.text}"
        return await replace(client, new, old)
    finally:
        await client.call("DELETE", item(new))


@pytest.mark.kubectl
def test_manifests_apply_and_can_be_listed(api: Api, kinds):
    api.kubectl("apply", "--filename", str(FOLDER))
    printed = api.kubectl("get", "kueue", "--all-namespaces", "--output", "name").split()
    want = {f"{m['kind'].lower()}.kueue.x-k8s.io/{m['metadata']['name']}" for m in MANIFESTS}
    assert want <= set(printed)
    again = api.kubectl("apply", "--filename", str(FOLDER)).splitlines()
    # kubectl sees the defaults in lists of pod sets as differences, for ever: it merges lists of custom resources whole.
    assert [line for line in again if not line.endswith("unchanged") and not line.startswith("workload.")] == []


@pytest.mark.kubectl
def test_columns_are_those_that_users_of_kueue_know(api: Api, kinds):
    api.kubectl("apply", "--filename", str(FOLDER))
    wide = api.kubectl("get", "cq", "team-a", "--output", "wide").splitlines()
    assert wide[0].split() == ["NAME", "COHORT", "STRATEGY", "PENDING", "WORKLOADS", "ADMITTED", "WORKLOADS"]
    assert wide[1].split()[:3] == ["team-a", "research", "StrictFIFO"]
    [header, row] = api.kubectl("get", "kwl", "small").splitlines()
    assert header.split() == ["NAME", "QUEUE", "RESERVED", "IN", "ADMITTED", "FINISHED", "AGE"]
    assert row.split()[:2] == ["small", "training"]


async def test_defaults_are_filled_in_and_templates_kept(client: Client, namespace, kinds):
    template = {"spec": {"containers": [{"name": "c", "novelty": {"deep": [1, None, 0.5]}}]}, "more": "kept"}
    manifest = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": namespace},
        "spec": {"podSets": [{"template": template}], "unheard": "pruned"},
    }
    spec = (await client.post(collection(manifest), manifest))["spec"]
    assert spec == {"active": True, "podSets": [{"name": "main", "count": 1, "template": template}]}


async def test_workloads_are_found_by_their_cluster_queue(client: Client, namespace, kinds):
    [running] = [m for m in MANIFESTS if m["metadata"]["name"] == "running"]
    manifest = copy.deepcopy(running) | {"metadata": {"name": "found", "namespace": namespace}}
    assert (await create(client, manifest)).code == 200
    path = collection(manifest)
    found = await client.get(f"{path}?fieldSelector=status.admission.clusterQueue%3Dteam-a")
    assert [decode(one).metadata.name for one in found["items"]] == ["found"]
    assert (await client.get(f"{path}?fieldSelector=status.admission.clusterQueue%3Dtrial"))["items"] == []


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES if case.by_server])
async def test_wrong_manifests_are_refused(case: Case, client: Client, namespace, kinds):
    answer = await written(client, case, namespace)
    assert answer.refusal == (422, "Invalid"), answer.text


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in [*QUEUE_ALLOWED, *ALLOWED]])
async def test_right_changes_are_taken(case: Case, client: Client, namespace, kinds):
    answer = await written(client, case, namespace)
    assert answer.code < 300, answer.text


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES if not case.by_server])
async def test_what_only_a_webhook_can_refuse_is_known(case: Case, client: Client, namespace, kinds):
    """When one of these is refused, a rule has moved into the schema: say so in the case."""
    answer = await written(client, case, namespace)
    assert answer.code < 300, answer.text
