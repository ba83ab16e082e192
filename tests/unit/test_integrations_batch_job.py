"""batch/v1 Job: its pods, its start and stop, its end, and what of it crosses to another cluster."""

import copy

import pytest

from hub.kueue.api.v1beta2 import PodSetTopologyRequest, names
from hub.kueue.integrations.batch_job import BATCH_JOB, INDEX_LABEL
from hub.kueue.integrations.interface import Outcome
from hub.kueue.integrations.registry import INTEGRATIONS, integration_for
from hub.kueue.operations import Patch
from hub.kueue.workloads.pod_sets import PodSetInfo
from tests.job_builders import make_job

ADMITTED = [PodSetInfo(name="main", count=4, labels={names.POD_SET: "main"}, node_selector={"gpu": "h100"})]
OWN_LABELS = {"controller-uid": "u", "batch.kubernetes.io/controller-uid": "u", "batch.kubernetes.io/job-name": "j"}
PARTIAL = make_job("j").pods(4).note(names.JOB_MIN_PARALLELISM, "2")


def merge(document: dict, patch: dict) -> dict:
    """RFC 7386, as the API server would do it."""
    result = dict(document)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


def labelled(job: dict, labels: dict) -> dict:
    job["spec"]["template"]["metadata"]["labels"] |= labels
    return job


def test_the_registry_knows_it():
    assert integration_for("batch/v1", "Job") is BATCH_JOB is INTEGRATIONS["batch/job"]
    assert integration_for("batch/v1", "CronJob") is None


@pytest.mark.parametrize(
    ("job", "want_count", "want_min"),
    [
        pytest.param(make_job("j").pods(4).obj(), 4, None, id="as many as run in parallel"),
        pytest.param(make_job("j").pods(4, completions=2).obj(), 2, None, id="no more than are to complete"),
        pytest.param(make_job("j").pods(4, completions=None).obj(), 4, None, id="a work queue has no completions"),
        pytest.param(PARTIAL.obj(), 4, 2, id="partial admission allows fewer"),
        pytest.param(
            make_job("j").pods(4).note(names.JOB_MIN_PARALLELISM, "x").obj(), 4, None, id="nonsense is ignored"
        ),
    ],
)
def test_pod_sets(job, want_count, want_min):
    (pod_set,) = BATCH_JOB.pod_sets(job)
    assert (pod_set.name, pod_set.count, pod_set.min_count) == ("main", want_count, want_min)


def test_labels_of_the_controller_are_no_part_of_the_workload():
    job = labelled(make_job("j").obj(), OWN_LABELS)
    (pod_set,) = BATCH_JOB.pod_sets(job)
    assert pod_set.template["metadata"]["labels"] == {"app": "j"}
    assert job["spec"]["template"]["metadata"]["labels"] == {"app": "j", **OWN_LABELS}, "the job itself is left alone"


def test_topology_requests_come_from_the_template_with_the_rank_of_indexed_jobs():
    job = make_job("j").spec(completionMode="Indexed").pod_note(names.REQUIRED_TOPOLOGY, "rack").obj()
    (pod_set,) = BATCH_JOB.pod_sets(job)
    assert pod_set.topology_request == PodSetTopologyRequest(required="rack", pod_index_label=INDEX_LABEL)


def test_start_adapts_the_pods_and_lifts_the_suspension():
    after, clashes = BATCH_JOB.started(make_job("j").pods(4).obj(), ADMITTED)
    assert not clashes
    assert (after["spec"]["suspend"], after["spec"]["parallelism"]) == (False, 4)
    assert after["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert after["spec"]["template"]["metadata"]["labels"] == {"app": "j", names.POD_SET: "main"}


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(PARTIAL, (2, 4), id="fewer at a time"),
        pytest.param(PARTIAL.note(names.JOB_COMPLETIONS_EQUAL_PARALLELISM, "true"), (2, 2), id="fewer in all"),
    ],
)
def test_partial_admission_resizes(job, want):
    after, _ = BATCH_JOB.started(job.obj(), [PodSetInfo(name="main", count=2)])
    assert (after["spec"]["parallelism"], after["spec"]["completions"]) == want


def test_stop_takes_three_writes_and_leaves_the_job_as_it_was():
    before = labelled(make_job("j").pods(4).obj(), OWN_LABELS)
    job, _ = BATCH_JOB.started(copy.deepcopy(before), ADMITTED)
    job["status"] = {"startTime": "2026-01-01T00:00:00Z", "active": 4}
    original = [PodSetInfo(name="main", count=4, labels={"app": "j"})]
    writes = []
    while (patch := BATCH_JOB.stop(job, original)) is not None:
        writes.append((patch.subresource, sorted(patch.body)))
        job = merge(job, patch.body)
        assert not BATCH_JOB.suspended(job) or BATCH_JOB.stop(job, original) is None
    assert writes == [("", ["metadata", "spec"]), ("status", ["status"]), ("", ["metadata", "spec"])]
    assert job == {**before, "status": {"active": 4}}


def test_stop_gives_a_partially_admitted_job_its_size_back():
    job, _ = BATCH_JOB.started(PARTIAL.obj(), [PodSetInfo(name="main", count=2)])
    while (patch := BATCH_JOB.stop(job, [PodSetInfo(name="main", count=4, labels={"app": "j"})])) is not None:
        job = merge(job, patch.body)
    assert job["spec"]["parallelism"] == 4


def test_a_job_without_its_workload_is_suspended_all_the_same():
    job = make_job("j").running().obj()
    while (patch := BATCH_JOB.stop(job, [])) is not None:
        assert isinstance(patch, Patch)
        job = merge(job, patch.body)
    assert BATCH_JOB.suspended(job)


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(make_job("j").obj(), None, id="still at it"),
        pytest.param(
            make_job("j").ended().obj(), Outcome(succeeded=True, message="Job finished successfully"), id="complete"
        ),
        pytest.param(
            make_job("j").ended("Failed", "no luck").obj(), Outcome(succeeded=False, message="no luck"), id="failed"
        ),
        pytest.param(make_job("j").ended("SuccessCriteriaMet").obj(), None, id="pods are still being cleaned up"),
    ],
)
def test_finished(job, want):
    assert BATCH_JOB.finished(job) == want


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param({"ready": 3}, False, id="one is missing"),
        pytest.param(
            {"ready": 2, "succeeded": 1, "uncountedTerminatedPods": {"succeeded": ["u"]}}, True, id="all but some done"
        ),
    ],
)
def test_pods_ready(status, want):
    assert BATCH_JOB.pods_ready(make_job("j").pods(4).running().status(**status).obj()) is want


@pytest.mark.parametrize(
    ("job", "want"),
    [
        pytest.param(make_job("j").pods(4, completions=10).status(succeeded=6).obj(), {}, id="enough left for all"),
        pytest.param(make_job("j").pods(4, completions=10).status(succeeded=8).obj(), {"main": 2}, id="two left"),
        pytest.param(make_job("j").pods(4).status(succeeded=1).obj(), {"main": 1}, id="one of four is done"),
        pytest.param(
            make_job("j")
            .pods(4)
            .spec(completionMode="Indexed")
            .status(completedIndexes="0,2-3", failedIndexes="1")
            .obj(),
            {"main": 4},
            id="failed indexes are not tried again either",
        ),
        pytest.param(make_job("j").pods(4).obj(), {}, id="nothing done"),
    ],
)
def test_reclaimable(job, want):
    assert BATCH_JOB.reclaimable(job) == want


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("", names.MANAGED_BY_MULTIKUEUE),
        ("kubernetes.io/job-controller", names.MANAGED_BY_MULTIKUEUE),
        ("example.org/mine", "example.org/mine"),
    ],
)
def test_managed_by_is_set_where_nobody_else_was_named(given, want):
    job = make_job("j").spec(**({"managedBy": given} if given else {})).running().obj()
    after = BATCH_JOB.defaulted(job, managed_by=names.MANAGED_BY_MULTIKUEUE)
    assert (after["spec"]["suspend"], after["spec"]["managedBy"]) == (True, want)


def test_a_copy_for_a_worker_has_nothing_of_this_cluster_in_it():
    job = labelled(make_job("j").managed().queue("main").note("mine", "1").obj(), OWN_LABELS)
    job["metadata"] |= {"ownerReferences": [{"uid": "x"}], "finalizers": ["f"], "generation": 3}
    job["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
    job["spec"]["selector"] = {"matchLabels": {"controller-uid": "u"}}
    before = copy.deepcopy(job)
    assert BATCH_JOB.clean_for_worker(job) == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": "team-a",
            "name": "j",
            "labels": {names.QUEUE_NAME: "main"},
            "annotations": {"mine": "1"},
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "suspend": True,
            "template": {
                "metadata": {"labels": {"app": "j", "batch.kubernetes.io/job-name": "j"}},
                "spec": before["spec"]["template"]["spec"],
            },
        },
    }
    assert job == before


SUSPENDED, RUNNING = make_job("j"), make_job("j").running()
HELD_BACK = {"type": "Suspended", "status": "True", "reason": "MultiKueueAdapter"}


@pytest.mark.parametrize(
    ("local", "remote", "want"),
    [
        pytest.param(
            make_job("j").running().obj(),
            make_job("j").running().status(active=2).obj(),
            {"active": 2},
            id="both run: copied",
        ),
        pytest.param(
            make_job("j").obj(), make_job("j").status(active=0).obj(), {"active": 0}, id="both suspended: copied"
        ),
        pytest.param(
            make_job("j").obj(),
            make_job("j").running().ended().obj(),
            {"conditions": [{"type": "Complete", "status": "True", "message": ""}]},
            id="the remote one ended: copied whatever the local one is",
        ),
        pytest.param(
            make_job("j").running().ended().obj(),
            make_job("j").running().status(active=1).obj(),
            None,
            id="an end stays",
        ),
        pytest.param(
            make_job("j").running().status(active=2).obj(),
            make_job("j").running().status(active=2).obj(),
            None,
            id="nothing new: nothing written",
        ),
    ],
)
def test_status_for_manager(local, remote, want):
    assert BATCH_JOB.status_for_manager(local, remote) == want


def test_a_running_status_is_held_back_from_a_suspended_job_once():
    local, remote = make_job("j").obj(), make_job("j").running().status(active=2).obj()
    status = BATCH_JOB.status_for_manager(local, remote)
    assert status is not None
    ((condition,),) = status.values()
    assert HELD_BACK.items() <= condition.items()
    assert "active" not in status
    assert BATCH_JOB.status_for_manager({**local, "status": status}, remote) is None


def test_pods_on_a_worker_that_has_none_any_more_leave_the_status():
    job = make_job("j").status(active=2, ready=1, succeeded=3).obj()
    patch = BATCH_JOB.withdrawn(job)
    assert patch is not None
    after = merge(job, patch.body)
    assert after["status"] == {"succeeded": 3}
    assert BATCH_JOB.withdrawn(after) is None


@pytest.mark.parametrize(
    ("job", "old", "want_path"),
    [
        pytest.param(PARTIAL.obj(), None, None, id="fewer than all is fine"),
        pytest.param(
            make_job("j").pods(2).note(names.JOB_MIN_PARALLELISM, "2").obj(),
            None,
            f"metadata.annotations[{names.JOB_MIN_PARALLELISM}]",
            id="not as many as all",
        ),
        pytest.param(
            make_job("j").pods(2).note(names.JOB_MIN_PARALLELISM, "0").obj(),
            None,
            f"metadata.annotations[{names.JOB_MIN_PARALLELISM}]",
            id="not none",
        ),
        pytest.param(
            make_job("j")
            .pods(3)
            .note(names.JOB_MIN_PARALLELISM, "1")
            .note(names.JOB_COMPLETIONS_EQUAL_PARALLELISM, "true")
            .obj(),
            None,
            "spec.completionMode",
            id="equal completions need an indexed job",
        ),
        pytest.param(
            make_job("j").pods(4).running().note(names.JOB_MIN_PARALLELISM, "1").obj(),
            PARTIAL.running().obj(),
            f"metadata.annotations[{names.JOB_MIN_PARALLELISM}]",
            id="not changed while it runs",
        ),
        pytest.param(
            make_job("j").pod_note(names.REQUIRED_TOPOLOGY, "a").pod_note(names.PREFERRED_TOPOLOGY, "b").obj(),
            None,
            "spec.template.metadata.annotations",
            id="one topology request at most",
        ),
        pytest.param(
            make_job("j").pod_note(names.SLICE_SIZE, "2").obj(),
            None,
            "spec.template.metadata.annotations",
            id="a slice has a level and a size",
        ),
    ],
)
def test_validate(job, old, want_path):
    assert [error.path for error in BATCH_JOB.validate(job, old)] == ([want_path] if want_path else [])


def test_a_job_admitted_in_part_stays_valid():
    small, _ = BATCH_JOB.started(PARTIAL.obj(), [PodSetInfo(name="main", count=2)])
    assert BATCH_JOB.validate(small, PARTIAL.obj()) == []
