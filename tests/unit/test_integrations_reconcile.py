"""A job and its Workload: every rule of the look, and that looking again at what has not changed does nothing."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hub.kueue.api.decoding import document, read
from hub.kueue.api.meta import ObjectMeta
from hub.kueue.api.resources import JOBS
from hub.kueue.api.v1beta2 import Admission, PodSetAssignment, Workload, WorkloadPriorityClass, encode, names
from hub.kueue.integrations.batch_job import BATCH_JOB
from hub.kueue.integrations.compose import name_for, prebuilt_name, with_prebuilt_name, workload_name
from hub.kueue.integrations.reconcile import Context, Policy, is_managed, orphaned, reconcile
from hub.kueue.operations import Create, Delete, EmitEvent, Patch, RequeueAfter
from hub.kueue.workloads import lifecycle
from hub.kueue.workloads.lifecycle import State, state_of
from hub.kueue.workloads.pod_sets import infos_of_admission
from tests.job_builders import NOW, make_flavor, make_job, make_workload

H100 = make_flavor("h100", node_labels={"gpu": "h100"})
WORKER = Context(policy=Policy.WORKER, flavors={"h100": H100})
MANAGER = Context(policy=Policy.MANAGER)


def merge(document: dict, patch: dict) -> dict:
    """RFC 7386, as the API server would do it."""
    result = dict(document)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


class World:
    """A job, its Workloads, and an API server's rules for them."""

    def __init__(self, job: dict, *workloads: Workload, context: Context = WORKER) -> None:
        self.job: dict | None = copy.deepcopy(job)
        self.workloads = {w.metadata.name: encode(w) for w in workloads}
        self.context = context
        self.events: list[str] = []
        self._version = 100

    def look(self) -> list:
        """One look, applied. What it returned, without events."""
        assert self.job is not None
        found = reconcile(BATCH_JOB, self.job, self.all(), self.context, NOW)
        self.events += [op.reason for op in found if isinstance(op, EmitEvent)]
        writes = [op for op in found if not isinstance(op, EmitEvent | RequeueAfter)]
        for write in writes:
            self._apply(write)
        return writes

    def settle(self, most: int = 12) -> int:
        """Look until nothing is left to do; how many looks wrote something."""
        for looks in range(most):
            if not self.look():
                return looks
        raise AssertionError(f"still writing after {most} looks: {self.look()}")

    def all(self) -> list[Workload]:
        return [read(Workload, w) for w in self.workloads.values()]

    @property
    def workload(self) -> Workload:
        (only,) = self.all()
        return only

    def set_status(self, status) -> None:
        self.workloads[self.workload.metadata.name]["status"] = document(status)

    def _apply(self, write) -> None:
        self._version += 1
        if isinstance(write, Create):
            meta = write.manifest["metadata"]
            made = {**meta, "uid": f"uid-{self._version}", "resourceVersion": str(self._version)}
            self.workloads[meta["name"]] = {**write.manifest, "metadata": made}
        elif isinstance(write, Delete):
            self._delete(write.key.name)
        elif isinstance(write, Patch) and write.resource == JOBS:
            assert self.job is not None
            assert write.resource_version == self.job["metadata"]["resourceVersion"]
            self.job = merge(self.job, write.body)
            self.job["metadata"]["resourceVersion"] = str(self._version)
        else:
            self._patch_workload(write)

    def _patch_workload(self, write: Patch) -> None:
        before = self.workloads[write.key.name]
        assert write.resource_version == before["metadata"]["resourceVersion"]
        after = merge(before, write.body)
        after["metadata"]["resourceVersion"] = str(self._version)
        self.workloads[write.key.name] = after
        if after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers"):
            del self.workloads[write.key.name]

    def _delete(self, name: str) -> None:
        meta = self.workloads[name]["metadata"]
        if meta.get("finalizers"):
            meta["deletionTimestamp"] = "2027-01-15T08:00:00Z"
        else:
            del self.workloads[name]

    # --- what others do ---

    def admit(self, flavor: str = "h100") -> None:
        pod_sets = self.workload.spec.pod_sets
        assignments = [PodSetAssignment(name=p.name, flavors={"cpu": flavor}, count=p.count) for p in pod_sets]
        admission = Admission(cluster_queue="cq", pod_set_assignments=assignments)
        self.set_status(lifecycle.reserve(self.workload, admission, [], "reserved", NOW))

    def evict(self, reason: str = "Preempted") -> None:
        self.set_status(lifecycle.evict(self.workload, reason, "had to go", NOW))

    def job_status(self, **fields) -> None:
        assert self.job is not None
        self.job["status"] = {**self.job["status"], **fields}


def started() -> World:
    """A job of two pods that is admitted and runs."""
    world = World(make_job("train").queue("main").pods(2).obj())
    world.settle()
    world.admit()
    world.settle()
    world.job_status(active=2, startTime="2027-01-15T08:00:00Z")
    return world


# --- names ---------------------------------------------------------------------------------------------------------------


def test_the_workload_has_the_name_that_kueue_would_give_it():
    """SHA-1 of "Job\\nbatch\\ntrain\\nuid-train" begins with these five digits (checked with sha1sum)."""
    assert workload_name("Job", "batch", "train", "uid-train") == "job-train-3cdf6"


@pytest.mark.parametrize("length", [1, 63, 64, 246, 253])
def test_long_names_lose_their_end_and_stay_unique(length):
    one, other = (workload_name("Job", "batch", "a" * length, uid) for uid in ("u1", "u2"))
    assert len(one) <= 253
    assert one != other


@pytest.mark.parametrize("length", [63, 64])
def test_the_link_to_a_prebuilt_workload_works_for_any_name(length):
    job = with_prebuilt_name(make_job("j").obj(), "w" * length)
    assert prebuilt_name(job) == "w" * length
    assert all(len(value) <= 63 for value in job["metadata"]["labels"].values())


# --- the course of a job ---------------------------------------------------------------------------------------------------


def test_a_queued_job_gets_one_workload_and_then_nothing_more_happens():
    world = World(make_job("train").queue("main").pods(2).label(names.MAX_EXEC_TIME_SECONDS, "60").obj())
    assert world.settle() == 1
    workload = world.workload
    assert workload.metadata.name == name_for(BATCH_JOB, world.job)
    assert workload.metadata.finalizers == [names.RESOURCE_IN_USE]
    assert workload.metadata.labels == {names.JOB_UID: "uid-train"}
    assert workload.metadata.owner_references[0].controller
    assert (workload.spec.queue_name, workload.spec.priority) == ("main", 0)
    assert workload.spec.maximum_execution_time_seconds == 60
    assert world.events == ["CreatedWorkload"]


def test_a_job_that_was_created_running_is_suspended_first():
    world = World(make_job("train").queue("main").running().obj())
    world.settle()
    assert BATCH_JOB.suspended(world.job)
    assert world.events == ["Stopped", "CreatedWorkload"]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(make_job("j").running(), id="no queue name"),
        pytest.param(make_job("j").queue("main").running().meta(namespace="kube-system"), id="a namespace left out"),
        pytest.param(make_job("j").queue("main").ended(), id="ended before anybody looked"),
    ],
)
def test_not_ours(job):
    assert World(job.obj()).look() == []


def test_a_part_of_a_managed_job_is_left_to_the_whole():
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "whole", "uid": "u", "controller": True}
    world = World(
        make_job("part").queue("main").meta(ownerReferences=[owner]).obj(),
        context=structs.replace(WORKER, managed_kinds=frozenset({("batch/v1", "Job")})),
    )
    assert world.look() == []


def test_admitted_job_starts_with_what_its_flavor_says():
    world = started()
    assert world.job["spec"]["suspend"] is False
    assert world.job["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert world.settle() == 0
    assert world.events == ["CreatedWorkload", "Started"]


def test_finished_job_finishes_its_workload_and_lets_it_go():
    world = started()
    world.job_status(active=0, conditions=[{"type": "Complete", "status": "True", "message": "all done"}])
    world.settle()
    (finished,) = [c for c in world.workload.status.conditions if c.type == names.FINISHED]
    assert (finished.reason, finished.message) == ("Succeeded", "all done")
    assert world.workload.metadata.finalizers == []


def test_evicted_job_keeps_its_quota_until_the_last_pod_is_gone():
    world = started()
    before = copy.deepcopy(world.job["spec"]["template"])
    world.evict()
    world.settle()
    assert BATCH_JOB.suspended(world.job)
    assert state_of(world.workload) is State.EVICTED, "two pods are active still"
    world.job_status(active=0)
    world.settle()
    assert state_of(world.workload) is State.PENDING
    assert world.workload.status.admission is None
    assert world.job["spec"]["template"] != before, "the flavor's node selector is taken out again"
    assert "nodeSelector" not in world.job["spec"]["template"]["spec"]


def test_a_started_job_that_is_not_admitted_is_stopped():
    world = World(make_job("train").queue("main").obj())
    world.settle()
    world.job["spec"]["suspend"] = False
    world.settle()
    assert BATCH_JOB.suspended(world.job)


def test_a_clash_between_job_and_flavor_fails_for_good():
    world = World(make_job("train").queue("main").pod_spec(nodeSelector={"gpu": "a100"}).obj())
    world.settle()
    world.admit()
    world.settle()
    (finished,) = [c for c in world.workload.status.conditions if c.type == names.FINISHED]
    assert finished.reason == "FailedToStart"
    assert "nodeSelector gpu is 'a100'" in finished.message
    assert BATCH_JOB.suspended(world.job)


def test_a_flavor_that_is_not_there_is_waited_for():
    world = World(make_job("train").queue("main").obj())
    world.settle()
    world.admit(flavor="unknown")
    found = reconcile(BATCH_JOB, world.job, world.all(), WORKER, NOW)
    assert [type(op) for op in found] == [EmitEvent, RequeueAfter]


# --- changes of the user ---------------------------------------------------------------------------------------------------


def test_a_pending_job_may_be_changed_and_its_workload_follows():
    world = World(make_job("train").queue("main").pods(2).obj())
    world.settle()
    world.job = merge(world.job, make_job("train").queue("other").pods(3).label(names.MAX_EXEC_TIME_SECONDS, "9").obj())
    world.job["metadata"]["resourceVersion"] = "11"
    world.settle()
    spec = world.workload.spec
    assert (spec.pod_sets[0].count, spec.queue_name, spec.maximum_execution_time_seconds) == (3, "other", 9)
    assert "UpdatedWorkload" in world.events


def test_a_running_job_that_is_changed_stops_before_it_is_queued_anew():
    world = started()
    old = world.workload.metadata.uid
    world.job["spec"] |= {"parallelism": 5, "completions": 5}
    world.settle()
    assert BATCH_JOB.suspended(world.job)
    assert [w.metadata.uid for w in world.all()] == [old], "pods are active still"
    world.job_status(active=0)
    world.settle()
    assert world.workload.metadata.uid != old
    assert (state_of(world.workload), world.workload.spec.pod_sets[0].count) == (State.PENDING, 5)


def test_fields_that_a_server_adds_are_no_change():
    world = started()
    world.job["spec"]["template"]["spec"] |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    world.job["spec"]["template"]["spec"]["containers"][0] |= {"imagePullPolicy": "Always", "env": [{"name": "X"}]}
    world.job["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000m"
    world.job["spec"]["template"]["spec"]["tolerations"] = [{"key": "added", "operator": "Exists"}]
    assert world.settle() == 0


# --- priority --------------------------------------------------------------------------------------------------------------


def wpc(name: str, value: int) -> WorkloadPriorityClass:
    return WorkloadPriorityClass(metadata=ObjectMeta(name=name), value=value)


@pytest.mark.parametrize(
    ("job", "pod_classes", "want"),
    [
        pytest.param(make_job("j").label(names.PRIORITY_CLASS, "high"), {}, (100, "high"), id="the label"),
        pytest.param(
            make_job("j").label(names.PRIORITY_CLASS, "high").pod_spec(priorityClassName="p"),
            {"p": {"value": 5}},
            (100, "high"),
            id="the label before the pods' class",
        ),
        pytest.param(
            make_job("j").pod_spec(priorityClassName="p"), {"p": {"value": 5}}, (5, "p"), id="the pods' class"
        ),
        pytest.param(
            make_job("j"),
            {"a": {"value": 9, "globalDefault": True}, "b": {"value": 7, "globalDefault": True}},
            (7, "b"),
            id="the lowest default of the cluster",
        ),
        pytest.param(make_job("j"), {}, (0, None), id="nothing"),
    ],
)
def test_priority(job, pod_classes, want):
    context = structs.replace(WORKER, priority_classes={"high": wpc("high", 100)}, pod_priority_classes=pod_classes)
    world = World(job.queue("main").obj(), context=context)
    world.settle()
    spec = world.workload.spec
    assert (spec.priority, spec.priority_class_ref and spec.priority_class_ref.name) == want


def test_a_priority_class_that_is_missing_is_said_and_waited_for():
    world = World(make_job("j").queue("main").label(names.PRIORITY_CLASS, "high").obj())
    found = reconcile(BATCH_JOB, world.job, [], WORKER, NOW)
    assert [op.reason for op in found if isinstance(op, EmitEvent)] == ["WorkloadPriorityClassNotFound"]
    assert isinstance(found[-1], RequeueAfter)


def test_the_priority_of_a_running_workload_follows_its_class():
    context = structs.replace(WORKER, priority_classes={"high": wpc("high", 100)})
    world = World(make_job("j").queue("main").label(names.PRIORITY_CLASS, "high").obj(), context=context)
    world.settle()
    world.admit()
    world.context = structs.replace(context, priority_classes={"high": wpc("high", 200)})
    world.settle()
    assert (world.workload.spec.priority, state_of(world.workload)) == (200, State.ADMITTED)


# --- prebuilt ----------------------------------------------------------------------------------------------------------------


def copy_on_worker(**changes) -> tuple[dict, Workload]:
    """A Workload that came from elsewhere, admitted here, and the job that names it, created running."""
    job = make_job("train").queue("main").pods(2)
    workload = (
        make_workload("job-train-12345")
        .spec(pod_sets=BATCH_JOB.pod_sets(job.obj()))
        .meta(labels={names.MULTIKUEUE_ORIGIN: "multikueue"})
        .admitted(flavor="h100")
        .obj()
    )
    infos, _ = infos_of_admission(workload, {"h100": H100})
    running, _ = BATCH_JOB.started(job.spec(**changes).obj(), infos)
    return with_prebuilt_name(running, workload.metadata.name), workload


def test_a_prebuilt_workload_is_adopted_and_its_job_goes_on_running():
    job, workload = copy_on_worker()
    world = World(job, workload)
    assert world.settle() == 1
    assert world.workload.metadata.owner_references[0].uid == "uid-train"
    assert world.workload.metadata.labels == {names.MULTIKUEUE_ORIGIN: "multikueue", names.JOB_UID: "uid-train"}
    assert world.job["spec"]["suspend"] is False
    assert world.events == []


def test_a_prebuilt_workload_that_is_missing_stops_its_job():
    job, _ = copy_on_worker()
    world = World(job)
    world.settle()
    assert BATCH_JOB.suspended(world.job)
    assert world.workloads == {}


def test_a_job_that_a_policy_changed_stops_and_then_finishes_out_of_sync_with_the_field_named():
    job, workload = copy_on_worker()
    job["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/train:1"
    job["status"] = {"active": 2}
    world = World(job, workload)
    world.settle()
    assert state_of(world.workload) is State.ADMITTED, "no quota goes back while pods run"
    world.job_status(active=0)
    world.settle()
    (finished,) = [c for c in world.workload.status.conditions if c.type == names.FINISHED]
    assert finished.reason == "OutOfSync"
    want = "podSets[main].template.spec.containers[0].image: 'mirror/train:1' instead of 'train:1'"
    assert want in finished.message


def test_a_sidecar_that_was_injected_is_out_of_sync():
    job, workload = copy_on_worker()
    job["spec"]["template"]["spec"]["containers"].append({"name": "proxy"})
    world = World(job, workload)
    world.settle()
    assert "containers: 2 items instead of 1" in world.workload.status.conditions[-1].message


def test_somebody_elses_workload_is_not_adopted():
    job, workload = copy_on_worker()
    theirs = make_workload(workload.metadata.name).owned_by(make_job("other").obj()).obj()
    world = World(job, theirs)
    world.settle()
    assert BATCH_JOB.suspended(world.job)
    assert world.events[-1] == "WorkloadNameConflict"


# --- more than one, deletion -------------------------------------------------------------------------------------------------


def test_doubles_are_deleted():
    world = World(make_job("train").queue("main").obj())
    world.settle()
    name = world.workload.metadata.name
    world.workloads["double"] = encode(make_workload("double").owned_by(world.job).obj())
    world.settle()
    assert list(world.workloads) == [name]


def test_a_workload_that_is_deleted_stops_its_job_and_comes_back():
    world = started()
    old = world.workload.metadata.uid
    world._delete(world.workload.metadata.name)
    world.settle()
    assert world.workload.metadata.uid == old, "pods are active still"
    world.job_status(active=0)
    world.settle()
    assert world.workload.metadata.uid != old
    assert BATCH_JOB.suspended(world.job)


def test_a_job_being_deleted_lets_its_workload_go_when_nothing_runs():
    world = started()
    world.job["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert world.look() == []
    world.job_status(active=0)
    world.settle()
    assert world.workload.metadata.finalizers == []


owned = make_workload("w").owned_by(make_job("gone").obj()).meta(finalizers=[names.RESOURCE_IN_USE])
DELETED = {"deletion_timestamp": "2027-01-15T08:00:00Z"}


@pytest.mark.parametrize(
    ("workload", "placed", "want"),
    [
        pytest.param(owned.admitted(), False, {"status"}, id="its job is gone: finished"),
        pytest.param(owned.finished(), False, {"metadata"}, id="finished: the finalizer goes"),
        pytest.param(owned.meta(**DELETED), False, {"metadata"}, id="deleted: the finalizer goes"),
        pytest.param(owned.meta(**DELETED), True, set(), id="its copy runs on a worker: it has to wait"),
        pytest.param(make_workload("copy").admitted(), False, set(), id="a copy that waits for its job"),
        pytest.param(
            make_workload("copy").admitted().evicted(), False, {"status"}, id="a copy evicted before it started"
        ),
    ],
)
def test_orphans(workload, placed, want):
    found = orphaned(workload.obj(), NOW, placed=placed)
    assert {field for op in found for field in op.body} == want


# --- the management cluster ----------------------------------------------------------------------------------------------------


def on_manager(*, placed: bool = False, managed: bool = True) -> World:
    job = make_job("train").queue("main").pods(2)
    return World((job.managed() if managed else job).obj(), context=structs.replace(MANAGER, placed=placed))


def test_on_the_manager_a_job_without_managed_by_is_suspended_and_told_why():
    world = on_manager(managed=False)
    world.job["spec"]["suspend"] = False
    world.settle()
    assert BATCH_JOB.suspended(world.job)
    assert world.workloads == {}
    assert set(world.events) == {"Stopped", "NotDispatched"}


def test_on_the_manager_an_admitted_job_is_released_but_not_adapted():
    world = on_manager()
    world.settle()
    template = copy.deepcopy(world.job["spec"]["template"])
    world.admit()
    world.settle()
    assert (world.job["spec"]["suspend"], world.job["spec"]["template"]) == (False, template)


def test_on_the_manager_quota_is_held_until_the_copy_is_seen_stopped():
    world = on_manager()
    world.settle()
    world.admit()
    world.context = structs.replace(MANAGER, placed=True)
    world.settle()
    world.job_status(active=2, startTime="2027-01-15T08:00:00Z")
    world.evict()
    world.settle()
    assert state_of(world.workload) is State.EVICTED
    world.context = MANAGER
    world.settle()
    assert state_of(world.workload) is State.PENDING
    assert "active" not in world.job["status"], "no pods of it are left anywhere"


# --- quiet ---------------------------------------------------------------------------------------------------------------------

ACTIONS = {
    "admit": lambda w: state_of(w.workload) is State.PENDING and w.admit(),
    "evict": lambda w: state_of(w.workload) in (State.QUOTA_RESERVED, State.ADMITTED) and w.evict(),
    "pods start": lambda w: w.job_status(active=2, ready=1, startTime="2027-01-15T08:00:00Z"),
    "pods stop": lambda w: w.job_status(active=0, ready=0),
    "one succeeds": lambda w: w.job_status(succeeded=1),
    "user resumes": lambda w: w.job["spec"].update(suspend=False),
    "user resizes": lambda w: w.job["spec"].update(parallelism=3, completions=3),
    "workload deleted": lambda w: w._delete(w.workload.metadata.name),
    "job ends": lambda w: w.job_status(active=0, conditions=[{"type": "Complete", "status": "True", "message": "ok"}]),
}


@given(st.lists(st.tuples(st.sampled_from(list(ACTIONS)), st.booleans()), max_size=8), st.booleans(), st.booleans())
def test_whatever_happened_the_looks_come_to_rest(history, on_management_cluster, pods_ready):
    """After any history, looked at in between or not: a bounded number of writes, and then none for an unchanged object."""
    base = structs.replace(MANAGER if on_management_cluster else WORKER, reports_pods_ready=pods_ready)
    world = World(make_job("train").queue("main").pods(2).managed().obj(), context=base)
    for action, look in history:
        if not world.workloads:
            world.settle()
        if world.workloads:
            ACTIONS[action](world)
        if look:
            world.look()
    world.settle()
    snapshot = (copy.deepcopy(world.job), copy.deepcopy(world.workloads))
    assert world.look() == []
    assert (world.job, world.workloads) == snapshot
    if not BATCH_JOB.suspended(world.job) and not BATCH_JOB.finished(world.job):
        assert state_of(world.workload) is State.ADMITTED, "what runs is admitted"


def test_a_copy_that_a_hub_placed_here_is_left_to_whoever_placed_it():
    placed = make_job("train").obj()
    placed["metadata"].setdefault("annotations", {})[names.PLACEMENT] = "p1"
    assert not is_managed(placed, Context(policy=Policy.WORKER))
