"""What the agent does about one placement: every case that the objects of a worker cluster can be in."""

from copy import deepcopy
from typing import Any

import pytest
from msgspec import structs

from hub.kueue.api import resources
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import ResourceFlavor, Workload, decode_as, names
from hub.kueue.integrations.batch_job import BATCH_JOB
from hub.kueue.operations import Create, Delete, Operation, Patch
from hub.kueue.wire import Action, Intent, Phase, PlacementReport, PodSetFlavors, Refusal
from worker_agent import mirror
from worker_agent.mirror import Copy, Policy, Scene, Step

NOW = 1_790_000_100.0
CREATED = "2026-09-21T14:13:20Z"  # NOW - 100 s
POLICY = Policy(
    origin="multikueue",
    create_namespaces=True,
    create_local_queues=True,
    default_cluster_queue="from-hub",
    admit_within_s=300,
)
H100 = decode_as(
    ResourceFlavor,
    {
        "apiVersion": resources.KUEUE_API_VERSION,
        "kind": "ResourceFlavor",
        "metadata": {"name": "h100"},
        "spec": {"nodeLabels": {"gpu": "H100"}},
    },
)
SCENE = Scene(
    namespaces=frozenset({"ns"}),
    local_queues={ObjectKey("ns", "gpus"): "from-hub"},
    cluster_queues=frozenset({"from-hub"}),
    flavors={"h100": H100},
    kinds=frozenset({"batch/v1, Job"}),
)
TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "train:1"}]}}
JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "namespace": "ns", "labels": {names.QUEUE_NAME: "gpus"}},
    "spec": {"parallelism": 2, "completions": 2, "suspend": True, "ttlSecondsAfterFinished": 0, "template": TEMPLATE},
}
RUN = Intent(
    placement="p1",
    generation=3,
    action=Action.RUN,
    namespace="ns",
    workload="job-train-1a2b3",
    workload_uid="uid-m",
    local_queue="gpus",
    cluster_queue="research",
    workload_spec={"podSets": [{"name": "main", "count": 2, "template": TEMPLATE}]},
    job=JOB,
    pod_sets=[PodSetFlavors(name="main", count=2, flavors={"nvidia.com/gpu": "h100"})],
)
WITHDRAW = structs.replace(RUN, action=Action.WITHDRAW, generation=4)


def workload(*conditions: tuple[str, str, str], deleting: bool = False) -> dict[str, Any]:
    """Our copy of the Workload with these (type, status, reason); with an admission when quota is reserved."""
    created = mirror.remote_workload(RUN, POLICY)
    full = {"apiVersion": resources.KUEUE_API_VERSION, "kind": "Workload", **deepcopy(created)}
    full["metadata"] |= {"uid": "uid-w", "resourceVersion": "7", "creationTimestamp": CREATED}
    if deleting:
        full["metadata"]["deletionTimestamp"] = CREATED
    status = {
        "conditions": [
            {"type": t, "status": s, "reason": r, "message": f"{r}!", "lastTransitionTime": CREATED}
            for t, s, r in conditions
        ]
    }
    if ("QuotaReserved", "True") in {(t, s) for t, s, _ in conditions}:
        assignment = {"name": "main", "count": 2, "flavors": {"nvidia.com/gpu": "h100"}}
        status["admission"] = {"clusterQueue": "from-hub", "podSetAssignments": [assignment]}
    return {**full, "status": status}


ADMITTED = (("QuotaReserved", "True", "QuotaReserved"), ("Admitted", "True", "Admitted"))


def job(*, deleting: bool = False, status: dict[str, Any] | None = None, image: str = "train:1") -> dict[str, Any]:
    """Our copy of the Job, as it was created when the Workload had been admitted."""
    created, problem = mirror.remote_job(RUN, admitted(), SCENE.flavors, BATCH_JOB, POLICY)
    assert problem is None
    full = deepcopy(created)
    full["metadata"] |= {"uid": "uid-j", "creationTimestamp": CREATED}
    full["spec"]["template"]["spec"]["containers"][0]["image"] = image
    if deleting:
        full["metadata"]["deletionTimestamp"] = CREATED
    return {**full, "status": status or {}}


def admitted() -> Workload:
    return decode_as(Workload, workload(*ADMITTED))


COMPLETE = {"succeeded": 2, "conditions": [{"type": "Complete", "status": "True", "message": "done"}]}
FAILED = {
    "failed": 1,
    "conditions": [{"type": "Failed", "status": "True", "message": "exit 1", "reason": "BackoffLimitExceeded"}],
}
FOREIGN = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "namespace": "ns", "uid": "x"},
    "spec": {},
}


def step(
    intent: Intent,
    copy: Copy,
    *,
    scene: Scene = SCENE,
    policy: Policy = POLICY,
    now: float = NOW,
    ending: PlacementReport | None = None,
) -> Step:
    return mirror.step(intent, copy, scene, BATCH_JOB, policy, now, ending)


def words(operations: tuple[Operation, ...]) -> list[str]:
    """Operations as a table reads them: create workloads, delete jobs, patch workloads/status."""
    verbs = {Create: "create", Delete: "delete", Patch: "patch"}
    return [
        f"{verbs[type(o)]} {o.resource.plural}{'/status' if getattr(o, 'subresource', '') else ''}" for o in operations
    ]


def said(found: Step) -> tuple[str, str] | None:
    return (found.report.phase, found.report.reason) if found.report else None


@pytest.mark.parametrize(
    ("copy", "want_operations", "want_said"),
    [
        pytest.param(
            Copy(), ["create workloads"], (Phase.PENDING, ""), id="nothing here yet: the Workload is created first"
        ),
        pytest.param(Copy(workload=workload()), [], (Phase.PENDING, ""), id="local admission has not decided: wait"),
        pytest.param(
            Copy(workload=workload(*ADMITTED)),
            ["create jobs"],
            (Phase.ADMITTED, ""),
            id="admitted: the Job is created, already started",
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED), job=job()), [], (Phase.ADMITTED, ""), id="created, no pod runs yet"
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED), job=job(status={"active": 2})), [], (Phase.RUNNING, ""), id="pods run"
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED), job=job(status=COMPLETE)),
            ["patch workloads/status"],
            (Phase.FINISHED, "Succeeded"),
            id="complete: local quota is released and the end is told",
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED, ("Finished", "True", "Failed")), job=job(status=FAILED)),
            [],
            (Phase.FINISHED, "Failed"),
            id="a failure is an end too, and is written once",
        ),
        pytest.param(
            Copy(job=job(status=COMPLETE)),
            [],
            (Phase.FINISHED, "Succeeded"),
            id="finished stays finished though somebody deleted the Workload",
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED), job=job(status=COMPLETE, deleting=True)),
            ["patch workloads/status"],
            (Phase.FINISHED, "Succeeded"),
            id="finished stays finished though somebody deleted the Job: our finalizer held it",
        ),
        pytest.param(
            Copy(job=FOREIGN),
            [],
            (Phase.REFUSED, Refusal.NAME_TAKEN),
            id="a foreign Job of the same name is left alone",
        ),
        pytest.param(
            Copy(workload=workload(("QuotaReserved", "False", "WaitingForQuota"))),
            ["delete workloads", "patch workloads"],
            None,
            id="no quota: everything is taken away before the word Refused",
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED, ("Evicted", "True", "Preempted")), job=job(status={"active": 2})),
            ["delete workloads", "delete jobs", "patch jobs"],
            None,
            id="evicted by local admission: the Job goes first, and nothing is said yet",
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED), job=job(deleting=True, status={"active": 2})),
            ["delete workloads", "patch jobs"],
            None,
            id="somebody deleted the Job in mid-run: the finalizer goes so that its pods can",
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED), job=job(image="other:1")),
            ["delete workloads", "delete jobs", "patch jobs"],
            None,
            id="a policy engine rewrote the image: not run here",
        ),
        pytest.param(
            Copy(job=job(status={"active": 2})),
            ["delete jobs", "patch jobs"],
            None,
            id="the Workload was deleted under a running Job",
        ),
        pytest.param(
            Copy(workload=workload(*ADMITTED, deleting=True)),
            ["patch workloads"],
            None,
            id="a Workload on its way out gets no Job any more",
        ),
    ],
)
def test_run(copy: Copy, want_operations: list[str], want_said: tuple[str, str] | None):
    found = step(RUN, copy)
    assert (words(found.operations), said(found)) == (want_operations, want_said)


@pytest.mark.parametrize(
    ("scene", "policy", "want_operations", "want_reason"),
    [
        pytest.param(
            {"namespaces": frozenset()},
            {},
            ["create namespaces", "create workloads"],
            "",
            id="a missing namespace is created when allowed",
        ),
        pytest.param(
            {"namespaces": frozenset()}, {"create_namespaces": False}, [], Refusal.NAMESPACE_MISSING, id="or refused"
        ),
        pytest.param(
            {"local_queues": {}},
            {},
            ["create localqueues", "create workloads"],
            "",
            id="a missing LocalQueue is created when allowed",
        ),
        pytest.param(
            {"local_queues": {}}, {"create_local_queues": False}, [], Refusal.LOCAL_QUEUE_MISSING, id="or refused, too"
        ),
        pytest.param(
            {"local_queues": {}},
            {"default_cluster_queue": "none"},
            [],
            Refusal.LOCAL_QUEUE_MISSING,
            id="or refused for want of a ClusterQueue",
        ),
        pytest.param(
            {"kinds": frozenset()}, {}, [], Refusal.KIND_NOT_SERVED, id="a kind that this cluster does not serve"
        ),
    ],
)
def test_begin(scene: dict, policy: dict, want_operations: list[str], want_reason: str):
    found = step(RUN, Copy(), scene=structs.replace(SCENE, **scene), policy=structs.replace(POLICY, **policy))
    assert found.report is not None
    assert (words(found.operations), found.report.reason) == (want_operations, want_reason)


def test_a_created_local_queue_prefers_the_managers_cluster_queue():
    scene = structs.replace(SCENE, local_queues={}, cluster_queues=frozenset({"from-hub", "research"}))
    created = step(RUN, Copy(), scene=scene).operations[0]
    assert isinstance(created, Create)
    assert created.manifest["spec"] == {"clusterQueue": "research"}


def test_local_admission_that_never_decides_is_a_refusal():
    found = step(RUN, Copy(workload=workload()), now=NOW + 300)
    assert found.ending is not None
    assert found.ending.reason == Refusal.NOT_ADMITTED_IN_TIME


@pytest.mark.parametrize(
    ("copy", "want_operations", "want_said"),
    [
        pytest.param(
            Copy(workload=workload(*ADMITTED), job=job(status={"active": 1}), pods=2),
            ["delete workloads", "delete jobs", "patch jobs"],
            None,
            id="all of it is there",
        ),
        pytest.param(
            Copy(workload=workload(deleting=True), pods=1), [], None, id="the Job is gone, a pod still stops: wait"
        ),
        pytest.param(
            Copy(workload=workload(deleting=True)),
            ["patch workloads"],
            None,
            id="the pods are gone: the Workload may go",
        ),
        pytest.param(Copy(), [], (Phase.GONE, ""), id="nothing is left"),
        pytest.param(Copy(job=FOREIGN), [], (Phase.GONE, ""), id="what is left is foreign and stays"),
    ],
)
def test_withdraw(copy: Copy, want_operations: list[str], want_said: tuple[str, str] | None):
    found = step(WITHDRAW, copy)
    assert (words(found.operations), said(found)) == (want_operations, want_said)


def test_a_job_that_finished_before_it_was_withdrawn_has_finished():
    copy = Copy(workload=workload(*ADMITTED), job=job(status=COMPLETE))
    first = step(WITHDRAW, copy)
    assert (words(first.operations), said(first)) == (["patch workloads/status"], (Phase.FINISHED, "Succeeded"))
    assert first.report is not None
    assert first.report.generation == WITHDRAW.generation
    after = mirror.step(WITHDRAW, copy, SCENE, BATCH_JOB, POLICY, NOW, end_is_known=True)
    assert words(after.operations) == ["delete workloads", "delete jobs", "patch jobs"]


def test_an_ending_is_said_when_nothing_is_left_and_not_before():
    began = step(RUN, Copy(workload=workload(*ADMITTED, ("Evicted", "True", "Preempted")), job=job()))
    waits = step(RUN, Copy(workload=workload(*ADMITTED, deleting=True), pods=1), ending=began.ending)
    ends = step(RUN, Copy(), ending=waits.ending)
    assert (began.report, waits.report) == (None, None)
    assert said(ends) == (Phase.EVICTED, "Preempted")


def test_a_copy_from_before_a_restart_is_told_from_its_objects_alone():
    copy = Copy(workload=workload(*ADMITTED), job=job(status={"active": 2}))
    intent = mirror.adopted(copy, POLICY)
    assert intent is not None
    assert (intent.placement, intent.generation) == ("p1", 3)
    assert said(step(intent, copy)) == (Phase.RUNNING, "")
    done = Copy(workload=workload(*ADMITTED), job=job(status=COMPLETE))
    assert said(step(intent, done)) == (Phase.FINISHED, "Succeeded")


def test_a_copy_whose_job_was_not_created_before_a_restart_is_taken_away():
    copy = Copy(workload=workload(*ADMITTED))
    intent = mirror.adopted(copy, POLICY)
    assert intent is not None
    assert words(step(intent, copy).operations) == ["delete workloads", "patch workloads"]


def test_a_copy_of_another_placement_has_to_go_first():
    later = structs.replace(RUN, placement="p2", generation=5)
    found = step(later, Copy(workload=workload(*ADMITTED), job=job()))
    assert (found.operations, said(found)) == ((), (Phase.PENDING, "WaitingForRemoval"))


def test_the_remote_job_is_started_marked_and_held_by_our_finalizer():
    created = job()
    assert created["spec"]["suspend"] is False
    assert created["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "H100"}
    assert created["spec"]["template"]["metadata"]["labels"][names.PLACEMENT] == "p1"
    assert created["metadata"]["finalizers"] == [names.PLACEMENT]
    assert created["metadata"]["labels"][names.MULTIKUEUE_ORIGIN] == "multikueue"
    assert created["metadata"]["annotations"][names.PREBUILT_WORKLOAD_NAME] == RUN.workload
    assert "ttlSecondsAfterFinished" not in created["spec"], "its end must not vanish before the hub has it"


def test_the_remote_workload_is_held_to_the_flavors_that_were_charged():
    created = mirror.remote_workload(RUN, POLICY)
    assert created["metadata"]["annotations"][names.ALLOWED_RESOURCE_FLAVORS] == "h100"
    assert created["spec"]["queueName"] == "gpus"


def test_a_node_selector_that_contradicts_the_flavor_is_refused_in_words():
    template = {"spec": {**TEMPLATE["spec"], "nodeSelector": {"gpu": "L4"}}}
    wrong = structs.replace(RUN, job={**JOB, "spec": {**JOB["spec"], "template": template}})
    found = step(wrong, Copy(workload=workload(*ADMITTED)))
    assert found.ending is not None
    assert found.ending.reason == Refusal.INVALID_OBJECT
    assert "'L4'" in found.ending.message
