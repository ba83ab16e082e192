import pytest

from hub.kueue.api.meta import ObjectKey, format_time
from hub.sandbox.job_pods import FINALIZER
from hub.sandbox.job_policies import INDEX, INDEX_FAILURES, indexes_text, parse_indexes
from hub.sandbox.job_state import Backoff, JobPace
from hub.sandbox.jobs import expires_at, reconcile

NOW = 1_767_225_600.0
STARTED = format_time(NOW - 100)
PACE = JobPace(backoff_s=10, backoff_max_s=600)


def make_job(*, status=None, meta=None, **spec):
    template = {
        "metadata": {"labels": {"app": "train"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
    }
    full = {"completions": 2, "parallelism": 2, "backoffLimit": 6, "template": template, **spec}
    named = {"name": "train", "namespace": "team-a", "uid": "job-1", **(meta or {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": full, "status": status or {}}


def started(**status):
    return {"startTime": STARTED, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}, **status}


def make_pod(
    name, phase="Running", *, index=None, failures=None, ready=None, deleted=False, tracked=True, code=1, restarts=0
):
    annotations = {} if index is None else {INDEX: str(index)}
    annotations |= {} if failures is None else {INDEX_FAILURES: str(failures)}
    meta = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "annotations": annotations}
    meta |= {"finalizers": [FINALIZER]} if tracked else {}
    meta |= {"deletionTimestamp": format_time(NOW)} if deleted else {}
    is_ready = "True" if (phase == "Running" if ready is None else ready) else "False"
    state = (
        {"terminated": {"exitCode": code, "finishedAt": format_time(NOW - 5)}} if phase == "Failed" else {"running": {}}
    )
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": is_ready}],
        "containerStatuses": [{"name": "main", "state": state, "restartCount": restarts}],
    }
    return {"metadata": meta, "spec": {"nodeName": "n"}, "status": status}


def condition(kind, status="True", reason="", message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": STARTED}


def shown(status):
    """A status as a line: counts that are not 0, then True conditions with their reasons."""
    if status is None:
        return None
    counts = [f"{k}={status[k]}" for k in ("active", "ready", "succeeded", "failed", "terminating") if status.get(k)]
    uncounted = [f"uncounted-{k}={len(v)}" for k, v in status["uncountedTerminatedPods"].items()]
    indexes = [f"{k}={status[k]}" for k in ("completedIndexes", "failedIndexes") if status.get(k)]
    true = [f"{c['type']}({c['reason']})" for c in status.get("conditions", ()) if c["status"] == "True"]
    return " ".join([*counts, *uncounted, *indexes, *true])


LIMIT = {"backoffLimit": 0}
INDEXED = {"completionMode": "Indexed", "completions": 3, "parallelism": 3}
FATAL = {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}}
IGNORED = {
    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "Ready", "status": "False"}]}]}
}
FIRST_WINS = {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}


@pytest.mark.parametrize(
    ("given_job", "given_pods", "want_pods", "want_interim", "want_status"),
    [
        pytest.param(make_job(), [], "+2", "active=2", None, id="a new Job gets its pods"),
        pytest.param(
            make_job(suspend=True), [], "", "Suspended(JobSuspended)", None, id="suspended from the start: none"
        ),
        pytest.param(make_job(completions=5), [], "+2", "active=2", None, id="never more than parallelism"),
        pytest.param(
            make_job(completions=5, status=started(succeeded=4)),
            [],
            "+1",
            "active=1 succeeded=4",
            None,
            id="nor than what is left",
        ),
        pytest.param(
            make_job(managedBy="kueue.x-k8s.io/multikueue"), [], "", None, None, id="somebody else's Job is left alone"
        ),
        pytest.param(
            make_job(managedBy="kubernetes.io/job-controller"), [], "+2", "active=2", None, id="ours by name is ours"
        ),
        pytest.param(
            make_job(status=started(active=2)),
            [make_pod("a"), make_pod("b", ready=False)],
            "",
            "active=2 ready=1",
            None,
            id="ready pods are counted",
        ),
        pytest.param(
            make_job(status=started(active=2, ready=2)),
            [make_pod("a"), make_pod("b")],
            "",
            None,
            None,
            id="no news, no write",
        ),
        pytest.param(
            make_job(status=started(active=2, ready=2)),
            [make_pod("a", "Succeeded"), make_pod("b")],
            "release a",
            "active=1 ready=1 uncounted-succeeded=1",
            "active=1 ready=1 succeeded=1",
            id="a pod that succeeded is listed, released, counted",
        ),
        pytest.param(
            make_job(status=started(active=1, succeeded=1)),
            [make_pod("b", "Succeeded")],
            "release b",
            "succeeded=1 uncounted-succeeded=1 SuccessCriteriaMet(CompletionsReached)",
            "succeeded=2 SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
            id="the last one completes the Job",
        ),
        pytest.param(
            make_job(status=started(succeeded=2)),
            [make_pod("c", deleted=True)],
            "release c",
            "succeeded=2 terminating=1 uncounted-failed=1 SuccessCriteriaMet(CompletionsReached)",
            "succeeded=2 failed=1 terminating=1 SuccessCriteriaMet(CompletionsReached)",
            id="it is not Complete while a pod still ends",
        ),
        pytest.param(
            make_job(status=started(active=2)),
            [make_pod("a", "Failed"), make_pod("b")],
            "release a",
            "active=1 ready=1 uncounted-failed=1",
            "active=1 ready=1 failed=1",
            id="a failed pod is counted; its successor waits for the back-off",
        ),
        pytest.param(
            make_job(**LIMIT, status=started(active=2)),
            [make_pod("a", "Failed"), make_pod("b")],
            "-b! release a release b",
            "terminating=1 uncounted-failed=2 FailureTarget(BackoffLimitExceeded)",
            "failed=2 terminating=1 FailureTarget(BackoffLimitExceeded)",
            id="too many failures: the other pods count as failed, too, and go first",
        ),
        pytest.param(
            make_job(
                **LIMIT,
                status=started(
                    failed=2, terminating=1, conditions=[condition("FailureTarget", reason="BackoffLimitExceeded")]
                ),
            ),
            [],
            "",
            "failed=2 FailureTarget(BackoffLimitExceeded)",
            "failed=2 FailureTarget(BackoffLimitExceeded) Failed(BackoffLimitExceeded)",
            id="then the Job has failed",
        ),
        pytest.param(
            make_job(activeDeadlineSeconds=60, status=started(active=1)),
            [make_pod("a")],
            "-a! release a",
            "terminating=1 uncounted-failed=1 FailureTarget(DeadlineExceeded)",
            "failed=1 terminating=1 FailureTarget(DeadlineExceeded)",
            id="past its deadline",
        ),
        pytest.param(
            make_job(suspend=True, activeDeadlineSeconds=60, status=started(active=1)),
            [make_pod("a")],
            "-a",
            "terminating=1 Suspended(JobSuspended)",
            None,
            id="suspension removes pods without counting them, and stops the deadline",
        ),
        pytest.param(
            make_job(status={"conditions": [condition("Suspended", reason="JobSuspended")]}),
            [],
            "+2",
            "active=2",
            None,
            id="resumed",
        ),
        pytest.param(
            make_job(parallelism=1, status=started(active=2)),
            [make_pod("a"), make_pod("b", "Pending")],
            "-b",
            "active=1 ready=1 terminating=1",
            None,
            id="less parallelism: the pod with the least done goes",
        ),
        pytest.param(
            make_job(status=started(active=2)),
            [make_pod("a", deleted=True), make_pod("b")],
            "release a",
            "active=1 ready=1 terminating=1 uncounted-failed=1",
            "active=1 ready=1 failed=1 terminating=1",
            id="a pod deleted by hand counts as failed at once",
        ),
        pytest.param(
            make_job(podReplacementPolicy="Failed", status=started(active=2)),
            [make_pod("a", deleted=True), make_pod("b")],
            "",
            "active=1 ready=1 terminating=1",
            None,
            id="with podReplacementPolicy Failed its end is awaited",
        ),
        pytest.param(
            make_job(completions=None, status=started(active=2)),
            [make_pod("a", "Succeeded"), make_pod("b")],
            "release a",
            "active=1 ready=1 uncounted-succeeded=1",
            "active=1 ready=1 succeeded=1",
            id="a work queue: after the first success no pod is replaced",
        ),
        pytest.param(
            make_job(completions=None, status=started(active=1, succeeded=1)),
            [make_pod("b", "Succeeded")],
            "release b",
            "succeeded=1 uncounted-succeeded=1 SuccessCriteriaMet(CompletionsReached)",
            "succeeded=2 SuccessCriteriaMet(CompletionsReached) Complete(CompletionsReached)",
            id="a work queue ends when all its pods have",
        ),
        pytest.param(make_job(**INDEXED), [], "+0 +1 +2", "active=3", None, id="indexed: one pod per index"),
        pytest.param(
            make_job(**INDEXED, status=started(active=3)),
            [make_pod("a", "Succeeded", index=1), make_pod("b", index=0), make_pod("c", index=2)],
            "release a",
            "active=2 ready=2 succeeded=1 completedIndexes=1",
            None,
            id="indexed: the index is counted in one write",
        ),
        pytest.param(
            make_job(**INDEXED, status=started(active=2, succeeded=1, completedIndexes="1")),
            [make_pod("a", index=0), make_pod("b", index=0), make_pod("c", index=1)],
            "-c -a",
            "active=1 ready=1 succeeded=1 terminating=2 completedIndexes=1",
            None,
            id="indexed: doubled and finished indexes are removed",
        ),
        pytest.param(
            make_job(**INDEXED, **FIRST_WINS, status=started(active=3)),
            [make_pod("a", "Succeeded", index=0), make_pod("b", index=1)],
            "-b! release a release b",
            "succeeded=1 terminating=1 completedIndexes=0 SuccessCriteriaMet(SuccessPolicy)",
            None,
            id="successPolicy: enough is enough, and what still ran is no failure",
        ),
        pytest.param(
            make_job(**FATAL, status=started(active=2)),
            [make_pod("a", "Failed", code=42), make_pod("b")],
            "-b! release a release b",
            "terminating=1 uncounted-failed=2 FailureTarget(PodFailurePolicy)",
            "failed=2 terminating=1 FailureTarget(PodFailurePolicy)",
            id="podFailurePolicy: a fatal exit code",
        ),
        pytest.param(
            make_job(**IGNORED, **LIMIT, status=started(active=2)),
            [make_pod("a", "Failed"), make_pod("b")],
            "+1 release a",
            "active=2 ready=1",
            None,
            id="podFailurePolicy: an ignored failure is replaced at once and not counted",
        ),
        pytest.param(
            make_job(**INDEXED, backoffLimitPerIndex=1, status=started(active=3)),
            [make_pod("a", "Failed", index=0, failures=1), make_pod("b", index=1), make_pod("c", index=2)],
            "release a",
            "active=2 ready=2 uncounted-failed=1 failedIndexes=0",
            "active=2 ready=2 failed=1 failedIndexes=0",
            id="backoffLimitPerIndex: an index gives up, the others go on",
        ),
        pytest.param(
            make_job(**INDEXED, backoffLimitPerIndex=1, status=started(succeeded=2, completedIndexes="1,2", active=1)),
            [make_pod("a", "Failed", index=0, failures=1)],
            "release a",
            "succeeded=2 uncounted-failed=1 completedIndexes=1,2 failedIndexes=0 FailureTarget(FailedIndexes)",
            "succeeded=2 failed=1 completedIndexes=1,2 failedIndexes=0 FailureTarget(FailedIndexes) Failed(FailedIndexes)",
            id="backoffLimitPerIndex: all others done, the Job has failed",
        ),
        pytest.param(
            make_job(backoffLimit=2, template={"spec": {"restartPolicy": "OnFailure"}}, status=started(active=2)),
            [make_pod("a", restarts=2), make_pod("b")],
            "-a! -b! release a release b",
            "terminating=2 uncounted-failed=2 FailureTarget(BackoffLimitExceeded)",
            "failed=2 terminating=2 FailureTarget(BackoffLimitExceeded)",
            id="restarts in place count when the pods may restart",
        ),
        pytest.param(
            make_job(status=started(uncountedTerminatedPods={"succeeded": ["uid-a"]})),
            [make_pod("a", "Succeeded", tracked=False), make_pod("b")],
            "",
            "active=1 ready=1 succeeded=1",
            None,
            id="a pod that was listed before a restart is counted once",
        ),
        pytest.param(
            make_job(status=started(uncountedTerminatedPods={"succeeded": ["uid-a"]})),
            [make_pod("a", "Succeeded"), make_pod("b")],
            "release a",
            "active=1 ready=1 uncounted-succeeded=1",
            "active=1 ready=1 succeeded=1",
            id="one that was listed and not let go before a restart, too",
        ),
        pytest.param(
            make_job(meta={"deletionTimestamp": STARTED}, status=started(active=1)),
            [make_pod("a", deleted=True)],
            "release a",
            None,
            None,
            id="a Job on its way out lets its pods go and says no more",
        ),
    ],
)
def test_what_is_done_for_a_job(given_job, given_pods, want_pods, want_interim, want_status):
    plan = reconcile(given_job, given_pods, NOW, pace=PACE)
    indexes = [pod["metadata"].get("annotations", {}).get(INDEX) for pod in plan.create]
    created = [f"+{i}" for i in indexes if i is not None] or ([f"+{len(plan.create)}"] if plan.create else [])
    removed = [f"-{r.key.name}{'!' if r.counted else ''}" for r in plan.remove]
    released = [f"release {key.name}" for key in plan.release]
    assert " ".join([*created, *removed, *released]) == want_pods
    assert (shown(plan.interim), shown(plan.status)) == (want_interim, want_status)


def test_a_failed_pod_is_replaced_after_a_back_off_that_doubles():
    job = make_job(status=started(active=1, failed=1))
    first = reconcile(job, [make_pod("a", "Failed")], NOW, pace=PACE)
    assert (first.create, first.again_in_s, first.backoff) == ([], 10, Backoff(1, NOW))
    again = reconcile(job, [make_pod("b", "Failed")], NOW, backoff=first.backoff, pace=PACE)
    assert (again.again_in_s, again.backoff) == (20, Backoff(2, NOW))
    assert len(reconcile(job, [], NOW + 20, backoff=again.backoff, pace=PACE).create) == 2


def test_a_success_ends_the_back_off():
    job = make_job(completions=3, status=started(active=2, failed=1))
    plan = reconcile(job, [make_pod("a", "Succeeded")], NOW, backoff=Backoff(3, NOW), pace=PACE)
    assert (len(plan.create), plan.backoff) == (2, Backoff())


def test_back_off_per_index_delays_its_own_index_only():
    job = make_job(**INDEXED, backoffLimitPerIndex=3, status=started(active=1))
    pods = [make_pod("a", "Failed", index=0, failures=0), make_pod("b", index=1)]
    plan = reconcile(job, pods, NOW, pace=PACE)
    assert [pod["metadata"]["annotations"][INDEX] for pod in plan.create] == ["2"]
    assert (plan.release, plan.again_in_s) == ([], 5)
    later = reconcile(job, [*pods, make_pod("c", index=2)], NOW + 5, pace=PACE)
    assert [pod["metadata"]["annotations"] for pod in later.create] == [{INDEX: "0", INDEX_FAILURES: "1"}]


def test_the_deadline_is_looked_at_when_it_comes():
    job = make_job(activeDeadlineSeconds=160, status=started(active=2, ready=2))
    assert reconcile(job, [make_pod("a"), make_pod("b")], NOW, pace=PACE).again_in_s == 60


def test_the_start_time_goes_with_suspension_and_is_set_anew():
    stopped = reconcile(make_job(suspend=True, status=started(active=1)), [make_pod("a")], NOW, pace=PACE)
    assert "startTime" not in stopped.interim
    assert [e.reason for e in stopped.events] == ["SuccessfulDelete", "Suspended"]
    resumed = reconcile(make_job(status=stopped.interim), [], NOW + 60, pace=PACE)
    assert resumed.interim["startTime"] == format_time(NOW + 60)
    assert [e.reason for e in resumed.events] == ["Resumed"]


def test_a_pod_carries_what_ties_it_to_its_job_and_index():
    (pod, *_) = reconcile(make_job(**INDEXED), [], NOW, pace=PACE).create
    meta, spec = pod["metadata"], pod["spec"]
    assert meta["generateName"] == "train-0-"
    assert meta["labels"]["app"] == "train"
    assert meta["labels"]["batch.kubernetes.io/job-name"] == "train"
    assert meta["labels"]["batch.kubernetes.io/controller-uid"] == "job-1"
    assert meta["labels"][INDEX] == meta["annotations"][INDEX] == "0"
    assert meta["finalizers"] == [FINALIZER]
    assert [(o["uid"], o["controller"]) for o in meta["ownerReferences"]] == [("job-1", True)]
    assert spec["hostname"] == "train-0"
    assert [e["name"] for e in spec["containers"][0]["env"]] == ["JOB_COMPLETION_INDEX"]


def test_a_finished_job_expires():
    done = {"conditions": [condition("Complete")]}
    assert expires_at(make_job(ttlSecondsAfterFinished=30, status=done)) == NOW - 70
    assert expires_at(make_job(status=done)) is None
    assert expires_at(make_job(ttlSecondsAfterFinished=30)) is None
    assert reconcile(make_job(status=done), [make_pod("a")], NOW, pace=PACE).remove == []


def test_removals_name_the_pods():
    plan = reconcile(make_job(suspend=True, status=started(active=1)), [make_pod("a")], NOW, pace=PACE)
    assert [r.key for r in plan.remove] == [ObjectKey("team-a", "a")]


@pytest.mark.parametrize(
    ("given_indexes", "want_text"),
    [(set(), ""), ({3}, "3"), ({0, 1}, "0,1"), ({0, 1, 2}, "0-2"), ({0, 2, 3, 4, 7, 8}, "0,2-4,7,8")],
)
def test_indexes_as_text(given_indexes, want_text):
    assert indexes_text(given_indexes) == want_text
    assert parse_indexes(want_text) == given_indexes
