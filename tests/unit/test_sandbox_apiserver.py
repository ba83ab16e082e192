"""The API of a sandbox cluster in the process: what controllers build on."""

import pytest

from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import CONFIG_MAPS, JOBS, NAMESPACES, PODS
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.errors import ApiError

NOW = 1_700_000_000.0


@pytest.fixture
def api() -> ApiServer:
    return ApiServer("east", lambda: NOW, seed=1)


def config(name: str, namespace: str = "default", **meta) -> dict:
    metadata = {"name": name, "namespace": namespace, **meta}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}


def owned_by(owner: dict, *, blocks: bool = False) -> dict:
    meta = owner["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}
    return {"ownerReferences": [reference | {"blockOwnerDeletion": blocks}]}


def pod(name: str, **spec) -> dict:
    containers = [{"name": "c", "image": "i"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": containers, **spec},
    }


def job(name: str, **spec) -> dict:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, **spec},
    }


def key(name: str) -> ObjectKey:
    return ObjectKey("default", name)


def names(api: ApiServer) -> list[str]:
    return [o["metadata"]["name"] for o in api.list(CONFIG_MAPS)]


def test_every_write_gets_a_higher_version_and_its_event_comes_after_the_commit(api):
    seen = []
    stop = api.subscribe(CONFIG_MAPS, lambda kind, obj: seen.append((kind, obj["metadata"]["name"], names(api))))
    first = api.create(CONFIG_MAPS, config("a"))
    second = api.merge(CONFIG_MAPS, key("a"), {"data": {"a": "2"}})
    api.delete(CONFIG_MAPS, key("a"))
    stop()
    api.create(CONFIG_MAPS, config("b"))
    assert int(first["metadata"]["resourceVersion"]) < int(second["metadata"]["resourceVersion"])
    assert seen == [("ADDED", "a", ["a"]), ("MODIFIED", "a", ["a"]), ("DELETED", "a", [])]


def test_a_listener_that_writes_does_not_change_the_order_for_others(api):
    api.subscribe(
        CONFIG_MAPS, lambda kind, obj: kind == "ADDED" and api.merge(CONFIG_MAPS, key("a"), {"data": {"a": "2"}})
    )
    seen = []
    api.subscribe(CONFIG_MAPS, lambda kind, obj: seen.append(kind))
    api.create(CONFIG_MAPS, config("a"))
    assert seen == ["ADDED", "MODIFIED"]


def test_a_write_from_an_old_version_is_a_conflict(api):
    old = api.create(CONFIG_MAPS, config("a"))
    api.merge(CONFIG_MAPS, key("a"), {"data": {"a": "2"}})
    with pytest.raises(ApiError, match="the object has been modified") as caught:
        api.update(CONFIG_MAPS, old)
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")


def test_an_update_that_changes_nothing_is_no_write(api):
    before = api.create(CONFIG_MAPS, config("a"))
    assert api.update(CONFIG_MAPS, before)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_returned_objects_are_not_changed_by_later_writes(api):
    before = api.create(CONFIG_MAPS, config("a"))
    api.merge(CONFIG_MAPS, key("a"), {"data": {"a": "2"}})
    assert before["data"] == {"a": "1"}


def test_create_in_a_namespace_that_is_not_there_is_404(api):
    with pytest.raises(ApiError, match='namespaces "nowhere" not found'):
        api.create(CONFIG_MAPS, config("a", "nowhere"))


def test_a_status_write_changes_the_status_only_and_a_spec_write_never_does(api):
    made = api.create(JOBS, job("j", suspend=True))
    api.merge(JOBS, key("j"), {"status": {"active": 1}, "spec": {"parallelism": 9}}, subresource="status")
    api.merge(JOBS, key("j"), {"status": {"active": 7}, "spec": {"suspend": False}})
    now = api.get(JOBS, key("j"))
    assert now["status"] == {"active": 1}
    assert (now["spec"]["parallelism"], now["spec"]["suspend"]) == (1, False)
    assert (made["metadata"]["generation"], now["metadata"]["generation"]) == (1, 2)


def test_managed_by_of_a_job_never_changes(api):
    api.create(JOBS, job("j", suspend=True))
    with pytest.raises(ApiError, match=r"spec\.managedBy: Invalid value.*field is immutable"):
        api.merge(JOBS, key("j"), {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}})


def test_a_suspended_job_may_be_steered_until_it_has_started(api):
    api.create(JOBS, job("j", suspend=True))
    steer = {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "h100"}}}}}
    assert api.merge(JOBS, key("j"), steer)["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    api.merge(JOBS, key("j"), {"status": {"startTime": "2023-11-14T22:13:20Z"}}, subresource="status")
    with pytest.raises(ApiError, match=r"spec\.template"):
        api.merge(JOBS, key("j"), {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "a100"}}}}})


def test_finalizers_keep_an_object_until_they_are_gone(api):
    api.create(CONFIG_MAPS, config("a", finalizers=["x.io/keep"]))
    api.delete(CONFIG_MAPS, key("a"))
    assert api.get(CONFIG_MAPS, key("a"))["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:20Z"
    api.merge(CONFIG_MAPS, key("a"), {"metadata": {"finalizers": None}})
    assert api.get(CONFIG_MAPS, key("a")) is None


def test_a_pod_on_a_node_gets_its_grace_and_one_without_a_node_does_not(api):
    api.create(PODS, pod("waiting"))
    api.create(PODS, pod("running", nodeName="n1", terminationGracePeriodSeconds=7))
    api.delete(PODS, key("waiting"))
    api.delete(PODS, key("running"))
    assert api.get(PODS, key("waiting")) is None
    meta = api.get(PODS, key("running"))["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("2023-11-14T22:13:27Z", 7)
    api.delete(PODS, key("running"), grace_s=0)
    assert api.get(PODS, key("running")) is None


def test_background_deletion_takes_dependents_along(api):
    owner = api.create(CONFIG_MAPS, config("owner"))
    api.create(CONFIG_MAPS, config("child", **owned_by(owner)))
    api.delete(CONFIG_MAPS, key("owner"))
    assert names(api) == []


def test_orphaned_dependents_stay_and_forget_their_owner(api):
    owner = api.create(CONFIG_MAPS, config("owner"))
    api.create(CONFIG_MAPS, config("child", **owned_by(owner)))
    api.delete(CONFIG_MAPS, key("owner"), propagation="Orphan")
    assert names(api) == ["child"]
    assert "ownerReferences" not in api.get(CONFIG_MAPS, key("child"))["metadata"]


def test_foreground_deletion_waits_for_the_dependents_that_block_it(api):
    owner = api.create(CONFIG_MAPS, config("owner"))
    api.create(CONFIG_MAPS, config("child", finalizers=["x.io/keep"], **owned_by(owner, blocks=True)))
    api.delete(CONFIG_MAPS, key("owner"), propagation="Foreground")
    assert api.get(CONFIG_MAPS, key("owner"))["metadata"]["finalizers"] == ["foregroundDeletion"]
    api.merge(CONFIG_MAPS, key("child"), {"metadata": {"finalizers": None}})
    assert names(api) == []


def test_an_object_whose_owner_never_was_is_collected(api):
    absent = {"metadata": {"name": "ghost", "uid": "no-such-uid"}}
    api.create(CONFIG_MAPS, config("child", **owned_by(absent)))
    assert names(api) == []


def test_a_controller_may_create_dependents_while_it_hears_of_the_owner(api):
    def controller(kind: str, obj: dict) -> None:
        if kind == "ADDED" and obj["metadata"]["name"] == "owner":
            api.create(CONFIG_MAPS, config("child", **owned_by(obj)))

    api.subscribe(CONFIG_MAPS, controller)
    api.create(CONFIG_MAPS, config("owner"))
    assert names(api) == ["child", "owner"]


def test_a_second_owner_keeps_a_dependent(api):
    first, second = api.create(CONFIG_MAPS, config("first")), api.create(CONFIG_MAPS, config("second"))
    both = owned_by(first)["ownerReferences"] + owned_by(second)["ownerReferences"]
    api.create(CONFIG_MAPS, config("child", ownerReferences=both))
    api.delete(CONFIG_MAPS, key("first"))
    left = api.get(CONFIG_MAPS, key("child"))["metadata"]["ownerReferences"]
    assert [o["name"] for o in left] == ["second"]


def test_a_namespace_goes_when_everything_in_it_has_gone(api):
    api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    api.create(CONFIG_MAPS, config("held", "team", finalizers=["x.io/keep"]))
    api.create(CONFIG_MAPS, config("free", "team"))
    api.delete(NAMESPACES, ObjectKey("", "team"))
    assert names(api) == ["held"]
    terminating = api.get(NAMESPACES, ObjectKey("", "team"))
    assert terminating["status"]["phase"] == "Terminating"
    assert [c["type"] for c in terminating["status"]["conditions"]] == [
        "NamespaceContentRemaining",
        "NamespaceFinalizersRemaining",
    ]
    with pytest.raises(ApiError, match="because it is being terminated"):
        api.create(CONFIG_MAPS, config("late", "team"))
    api.merge(CONFIG_MAPS, ObjectKey("team", "held"), {"metadata": {"finalizers": None}})
    assert api.get(NAMESPACES, ObjectKey("", "team")) is None
