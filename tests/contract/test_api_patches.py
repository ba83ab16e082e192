"""The four patches, conflicts between appliers, strictness about unknown fields."""

import pytest

from tests.contract.client import APPLY, JSON_PATCH, MERGE, STRATEGIC, Client
from tests.contract.manifests import config, job, pod


def apply_path(collection: str, name: str, manager: str, *, force: bool = False) -> str:
    return f"{collection}/{name}?fieldManager={manager}" + ("&force=true" if force else "")


def owners(obj: dict) -> set[tuple[str, str]]:
    return {(entry["manager"], entry["operation"]) for entry in obj["metadata"].get("managedFields", ())}


async def test_a_merge_patch_removes_with_null_and_replaces_lists(client: Client, configs):
    await client.post(configs, config("a", data={"a": "1", "b": "2"}, finalizers=["x.io/a", "x.io/b"]))
    patched = await client.patch(
        f"{configs}/a", {"data": {"a": None, "c": "3"}, "metadata": {"finalizers": ["x.io/c"]}}
    )
    assert patched["data"] == {"b": "2", "c": "3"}
    assert patched["metadata"]["finalizers"] == ["x.io/c"]


async def test_a_json_patch_is_done_step_by_step(client: Client, configs):
    await client.post(configs, config("a", labels={"a": "1"}))
    steps = [
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "add", "path": "/metadata/labels/x.io~1b", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/a"},
    ]
    assert (await client.patch(f"{configs}/a", steps, JSON_PATCH))["metadata"]["labels"] == {"x.io/b": "2"}


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        pytest.param([{"op": "test", "path": "/data/a", "value": "9"}], 422, id="a test that fails"),
        pytest.param([{"op": "remove", "path": "/data/none"}], 422, id="a path that is not there"),
        pytest.param({"op": "add"}, 400, id="no list"),
    ],
)
async def test_a_json_patch_that_cannot_be_done_changes_nothing(client: Client, configs, steps, want):
    await client.post(configs, config("a"))
    assert (await client.call("PATCH", f"{configs}/a", steps, media=JSON_PATCH)).code == want
    assert (await client.get(f"{configs}/a"))["data"] == {"a": "1"}


async def test_a_strategic_merge_patch_knows_containers_by_name(client: Client, jobs):
    await client.post(jobs, job("j"))
    change = {"spec": {"template": {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}}}
    patched = await client.patch(f"{jobs}/j", change, STRATEGIC)
    assert [t["key"] for t in patched["spec"]["template"]["spec"]["tolerations"]] == ["gpu"]
    assert [c["name"] for c in patched["spec"]["template"]["spec"]["containers"]] == ["c"]


async def test_a_strategic_merge_patch_changes_one_container_of_two(client: Client, namespace):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await client.post(pods, pod("p", {"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}))
    patched = await client.patch(f"{pods}/p", {"spec": {"containers": [{"name": "b", "image": "b:2"}]}}, STRATEGIC)
    assert {c["name"]: c["image"] for c in patched["spec"]["containers"]} == {"a": "a:1", "b": "b:2"}


async def test_a_patch_of_nothing_is_not_found(client: Client, configs):
    assert (await client.call("PATCH", f"{configs}/none", {}, media=MERGE)).refusal == (404, "NotFound")


async def test_a_patch_type_nobody_knows_is_415(client: Client, configs):
    await client.post(configs, config("a"))
    assert (await client.call("PATCH", f"{configs}/a", {}, media="application/json")).refusal[0] == 415


async def test_a_patch_with_an_old_version_is_a_conflict(client: Client, configs):
    old = await client.post(configs, config("a"))
    await client.patch(f"{configs}/a", {"data": {"a": "2"}})
    stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"a": "3"}}
    assert (await client.call("PATCH", f"{configs}/a", stale, media=MERGE)).refusal == (409, "Conflict")


# --- server-side apply -----------------------------------------------------------------------------------------------


async def test_apply_creates_what_is_not_there(client: Client, configs):
    answer = await client.call("PATCH", apply_path(configs, "a", "me"), config("a"), media=APPLY)
    assert answer.code == 201
    assert owners(answer.json) == {("me", "Apply")}
    again = await client.call("PATCH", apply_path(configs, "a", "me"), config("a"), media=APPLY)
    assert again.code == 200
    assert again.json["metadata"]["resourceVersion"] == answer.json["metadata"]["resourceVersion"]


async def test_apply_needs_a_manager(client: Client, configs):
    assert (await client.call("PATCH", f"{configs}/a", config("a"), media=APPLY)).code in (400, 422)


async def test_what_an_applier_states_no_more_goes_unless_somebody_else_has_it(client: Client, configs):
    await client.patch(apply_path(configs, "a", "one"), config("a", data={"x": "1", "y": "1"}), APPLY)
    await client.patch(apply_path(configs, "a", "two"), config("a", data={"y": "1"}), APPLY)
    now = await client.patch(apply_path(configs, "a", "one"), config("a", data={"z": "1"}), APPLY)
    assert now["data"] == {"y": "1", "z": "1"}


async def test_another_value_for_a_field_that_somebody_owns_is_a_conflict_until_forced(client: Client, configs):
    await client.patch(apply_path(configs, "a", "one"), config("a"), APPLY)
    other = config("a", data={"a": "2"})
    answer = await client.call("PATCH", apply_path(configs, "a", "two"), other, media=APPLY)
    assert answer.refusal == (409, "Conflict")
    causes = answer.json["details"]["causes"]
    assert [(c["reason"], c["field"]) for c in causes] == [("FieldManagerConflict", ".data.a")]
    assert 'conflict with "one"' in causes[0]["message"]
    forced = await client.patch(apply_path(configs, "a", "two", force=True), other, APPLY)
    assert forced["data"] == {"a": "2"}


async def test_an_update_takes_the_fields_it_changes(client: Client, configs):
    await client.patch(apply_path(configs, "a", "one"), config("a"), APPLY)
    patched = await client.patch(f"{configs}/a?fieldManager=editor", {"data": {"a": "2"}})
    assert owners(patched) >= {("editor", "Update")}
    answer = await client.call("PATCH", apply_path(configs, "a", "one"), config("a"), media=APPLY)
    assert answer.refusal == (409, "Conflict")


async def test_the_manager_is_the_user_agent_unless_it_is_named(client: Client, configs):
    made = await client.post(f"{configs}?fieldManager=builder", config("a"))
    assert owners(made) == {("builder", "Update")}


async def test_status_has_owners_of_its_own(client: Client, jobs):
    await client.patch(apply_path(jobs, "j", "spec-owner"), job("j"), APPLY)
    status = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "status": {"active": 1}}
    await client.patch(
        apply_path(f"{jobs}/j", "status", "status-owner").replace("/j/status?", "/j/status?"), status, APPLY
    )
    now = await client.get(f"{jobs}/j")
    assert now["status"]["active"] == 1
    entries = {e["manager"]: e.get("subresource", "") for e in now["metadata"]["managedFields"]}
    assert entries == {"spec-owner": "", "status-owner": "status"}


# --- unknown fields ----------------------------------------------------------------------------------------------------


async def test_unknown_fields_are_refused_when_strict(client: Client, jobs):
    answer = await client.call("POST", f"{jobs}?fieldValidation=Strict", job("j", paralelism=2))
    assert answer.refusal == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.paralelism"' in answer.json["message"]


async def test_unknown_fields_are_dropped_with_a_warning_by_default(client: Client, jobs):
    answer = await client.call("POST", jobs, job("j", paralelism=2))
    assert answer.code == 201
    assert answer.headers.getall("Warning") == ['299 - "unknown field \\"spec.paralelism\\""']
    assert "paralelism" not in answer.json["spec"]


async def test_unknown_fields_are_dropped_in_silence_when_ignored(client: Client, jobs):
    answer = await client.call("POST", f"{jobs}?fieldValidation=Ignore", job("j", paralelism=2))
    assert (answer.code, "Warning" in answer.headers) == (201, False)
