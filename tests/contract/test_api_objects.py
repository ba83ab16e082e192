"""Create, read, replace: what a client may rely on."""

import pytest

from tests.api_servers import Api
from tests.contract.client import Client
from tests.contract.manifests import config, job


async def test_a_new_object_gets_what_only_the_server_decides(client: Client, configs, namespace):
    answer = await client.call("POST", configs, config("a", uid="mine", creationTimestamp="2001-01-01T00:00:00Z"))
    meta = answer.json["metadata"]
    assert answer.code == 201
    assert meta["namespace"] == namespace
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] > "2020"
    assert int(meta["resourceVersion"]) > 0
    assert "generation" not in meta


async def test_generated_names_begin_as_asked_and_differ(client: Client, configs):
    names = {(await client.post(configs, config(generateName="job-")))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == len("job-") + 5 for name in names)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(config("A_b"), (422, "Invalid"), id="a name that is no DNS name"),
        pytest.param(config(), (422, "Invalid"), id="no name at all"),
        pytest.param(config("a", labels={"a b": "c"}), (422, "Invalid"), id="a label key with a space"),
        pytest.param(config("a", labels={"a": "-"}), (422, "Invalid"), id="a label value that ends in a dash"),
        pytest.param(config("a", namespace="elsewhere"), (400, "BadRequest"), id="another namespace than the path's"),
        pytest.param(config("a", resourceVersion="5"), (500, ""), id="a resourceVersion on a new object"),
        pytest.param(config("a") | {"kind": "Secret"}, (400, "BadRequest"), id="another kind than the path's"),
        pytest.param(config("a") | {"apiVersion": "v2"}, (400, "BadRequest"), id="a version that is not served"),
        pytest.param([1], (400, "BadRequest"), id="not an object"),
        pytest.param(b"{", (400, "BadRequest"), id="not JSON"),
    ],
)
async def test_a_create_is_refused_for(client: Client, configs, body, want):
    assert (await client.call("POST", configs, body)).refusal == want


async def test_a_refusal_names_the_fields(client: Client, jobs):
    answer = await client.call("POST", jobs, job("j", parallelism=-1, managedBy="nothing"))
    assert answer.refusal == (422, "Invalid")
    details = answer.json["details"]
    assert (details["group"], details["kind"], details["name"]) == ("batch", "Job", "j")
    assert [(c["field"], c["reason"]) for c in details["causes"]] == [
        ("spec.parallelism", "FieldValueInvalid"),
        ("spec.managedBy", "FieldValueInvalid"),
    ]


async def test_a_second_object_of_the_name_is_a_conflict(client: Client, configs):
    await client.post(configs, config("a"))
    answer = await client.call("POST", configs, config("a"))
    assert answer.refusal == (409, "AlreadyExists")
    assert answer.json["message"] == 'configmaps "a" already exists'


async def test_a_namespace_that_is_not_there_is_named(client: Client):
    answer = await client.call("POST", "/api/v1/namespaces/nowhere/configmaps", config("a"))
    assert answer.refusal == (404, "NotFound")
    assert answer.json["message"] == 'namespaces "nowhere" not found'


@pytest.mark.parametrize(
    ("method", "path", "want"),
    [
        pytest.param("GET", "/api/v1/namespaces/default/configmaps/none", (404, "NotFound"), id="an object"),
        pytest.param(
            "DELETE", "/api/v1/namespaces/default/configmaps/none", (404, "NotFound"), id="an object to delete"
        ),
        pytest.param("GET", "/api/v1/nothings", (404, "NotFound"), id="a resource"),
        pytest.param("GET", "/apis/batch/v9/jobs", (404, "NotFound"), id="a version"),
        pytest.param("GET", "/api/v1/configmaps/a", (404, "NotFound"), id="an object without its namespace"),
        pytest.param("PUT", "/api/v1/namespaces/default/configmaps", (405, "MethodNotAllowed"), id="a verb"),
        pytest.param(
            "POST", "/api/v1/namespaces/default/configmaps/a", (405, "MethodNotAllowed"), id="a create by name"
        ),
    ],
)
async def test_what_is_not_there(client: Client, method, path, want):
    body = config("a") if method in ("PUT", "POST") else None
    assert (await client.call(method, path, body)).refusal == want


async def test_a_path_beside_the_api_is_plain_text(client: Client):
    answer = await client.call("GET", "/apis/nothing.example.com/v1/things")
    assert (answer.code, answer.text) == (404, "404 page not found\n")


async def test_a_replace_from_an_old_version_is_a_conflict(client: Client, configs):
    old = await client.post(configs, config("a"))
    await client.put(f"{configs}/a", old | {"data": {"a": "2"}})
    answer = await client.call("PUT", f"{configs}/a", old | {"data": {"a": "3"}})
    assert answer.refusal == (409, "Conflict")
    assert "the object has been modified; please apply your changes to the latest version" in answer.json["message"]


async def test_a_replace_without_a_version_overwrites(client: Client, configs):
    await client.post(configs, config("a"))
    assert (await client.put(f"{configs}/a", config("a") | {"data": {"b": "2"}}))["data"] == {"b": "2"}


async def test_a_replace_of_another_uid_is_a_conflict(client: Client, configs):
    await client.post(configs, config("a"))
    assert (await client.call("PUT", f"{configs}/a", config("a", uid="not-it"))).refusal == (409, "Conflict")


async def test_a_replace_that_changes_nothing_keeps_the_version(client: Client, configs):
    before = await client.post(configs, config("a"))
    after = await client.put(f"{configs}/a", before)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_replace_of_nothing_is_not_found(client: Client, configs):
    assert (await client.call("PUT", f"{configs}/a", config("a"))).refusal == (404, "NotFound")


async def test_generation_counts_changes_of_the_spec_only(client: Client, jobs):
    await client.post(jobs, job("j"))
    await client.patch(f"{jobs}/j", {"metadata": {"labels": {"a": "b"}}})
    assert (await client.get(f"{jobs}/j"))["metadata"]["generation"] == 1
    await client.patch(f"{jobs}/j", {"spec": {"parallelism": 3}})
    assert (await client.get(f"{jobs}/j"))["metadata"]["generation"] == 2


async def test_the_status_of_a_new_object_is_not_taken_from_the_body(client: Client, jobs):
    made = await client.post(jobs, job("j") | {"status": {"active": 3}})
    assert made.get("status", {}) == {}


async def test_a_status_write_leaves_the_spec_and_a_spec_write_leaves_the_status(client: Client, jobs):
    await client.post(jobs, job("j"))
    await client.patch(f"{jobs}/j/status", {"status": {"active": 1}, "spec": {"parallelism": 9}})
    await client.patch(f"{jobs}/j", {"status": {"active": 7}, "spec": {"parallelism": 2}})
    now = await client.get(f"{jobs}/j")
    assert (now["spec"]["parallelism"], now["status"]["active"]) == (2, 1)


async def test_jobs_are_filled_in(client: Client, jobs):
    spec = (await client.post(jobs, job("j")))["spec"]
    uid = (await client.get(f"{jobs}/j"))["metadata"]["uid"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (1, 1, 6)
    assert (spec["completionMode"], spec["podReplacementPolicy"]) == ("NonIndexed", "TerminatingOrFailed")
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert spec["template"]["metadata"]["labels"]["job-name"] == "j"
    assert spec["template"]["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"managedBy": "kueue.x-k8s.io/multikueue"}, "spec.managedBy", id="managedBy"),
        pytest.param({"completions": 5}, "spec.completions", id="completions"),
        pytest.param({"completionMode": "Indexed"}, "spec.completionMode", id="completionMode"),
        pytest.param({"template": {"spec": {"priorityClassName": "x"}}}, "spec.template.spec", id="the pod template"),
    ],
)
async def test_of_a_job_this_never_changes(client: Client, jobs, change, field):
    await client.post(jobs, job("j"))
    answer = await client.call("PATCH", f"{jobs}/j", {"spec": change}, media="application/merge-patch+json")
    assert answer.refusal == (422, "Invalid")
    assert field in [c["field"] for c in answer.json["details"]["causes"]]


async def test_node_selectors_may_be_given_to_a_job_that_has_not_started(client: Client, jobs):
    await client.post(jobs, job("j"))
    steer = {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "h100"}}}}}
    assert (await client.patch(f"{jobs}/j", steer))["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    await client.patch(f"{jobs}/j", {"spec": {"suspend": False}})
    answer = await client.call(
        "PATCH",
        f"{jobs}/j",
        {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "a100"}}}}},
        media="application/merge-patch+json",
    )
    assert answer.refusal == (422, "Invalid")


async def test_a_dry_run_leaves_nothing_behind(client: Client, configs):
    made = await client.post(f"{configs}?dryRun=All", config("a"))
    assert made["metadata"]["uid"]
    assert (await client.call("GET", f"{configs}/a")).code == 404
    await client.post(configs, config("a"))
    await client.patch(f"{configs}/a?dryRun=All", {"data": {"a": "2"}})
    await client.delete(f"{configs}/a?dryRun=All")
    assert (await client.get(f"{configs}/a"))["data"] == {"a": "1"}


async def test_bodies_may_be_yaml(client: Client, configs):
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: written\ndata:\n  a: '1'\n"
    assert (await client.call("POST", configs, body, media="application/yaml")).code == 201


async def test_answers_may_be_yaml(client: Client, configs):
    await client.post(configs, config("a"))
    answer = await client.call("GET", f"{configs}/a", accept="application/yaml")
    assert answer.headers["Content-Type"] == "application/yaml"
    assert "kind: ConfigMap\n" in answer.text


async def test_an_unknown_encoding_is_415(client: Client, configs):
    answer = await client.call("POST", configs, b"abc", media="application/xml")
    assert answer.refusal == (415, "UnsupportedMediaType")


async def test_an_answer_in_an_unknown_encoding_is_406(client: Client, configs):
    assert (await client.call("GET", configs, accept="application/xml")).refusal == (406, "NotAcceptable")


async def test_a_body_above_three_megabytes_is_413(client: Client, configs):
    big = config("big") | {"data": {"a": "x" * (3 * 1024 * 1024)}}
    assert (await client.call("POST", configs, big)).code == 413


async def test_large_answers_are_compressed_for_those_who_ask(client: Client, configs, api: Api):
    await client.post(configs, config("big") | {"data": {"a": "x" * 200_000}})
    answer = await client.call("GET", f"{configs}/big")
    assert answer.headers.get("Content-Encoding") == "gzip"
    assert len(answer.json["data"]["a"]) == 200_000
