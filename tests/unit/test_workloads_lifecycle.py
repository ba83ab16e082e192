"""The life of a Workload: every step's conditions, in Kueue's words, and nothing written twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hub.kueue.api.meta import format_time
from hub.kueue.api.v1beta2 import (
    Admission,
    AdmissionCheckState,
    PodSetAssignment,
    PodSetRequest,
    PreemptionGateState,
    ReclaimablePod,
    RequeueState,
    Workload,
)
from hub.kueue.workloads import lifecycle
from hub.kueue.workloads.lifecycle import TRANSITIONS, InvalidTransition, State, Step, state_of, status_patch
from tests.job_builders import NOW, conditions_of, make_workload

ADMISSION = Admission(
    cluster_queue="cq",
    pod_set_assignments=[
        PodSetAssignment(name="main", flavors={"cpu": "default"}, resource_usage={"cpu": "1"}, count=1)
    ],
)
LATER = NOW + 60


def check(**fields) -> AdmissionCheckState:
    return AdmissionCheckState(last_transition_time=format_time(NOW), message="so", **fields)


def after(workload: Workload, status) -> Workload:
    return structs.replace(workload, status=status)


pending = make_workload("w").obj()
reserved = make_workload("w").reserved().obj()
admitted = make_workload("w").admitted().obj()
evicted = make_workload("w").admitted().evicted().obj()
finished = make_workload("w").admitted().finished().obj()

STATES = {
    State.PENDING: pending,
    State.QUOTA_RESERVED: reserved,
    State.ADMITTED: admitted,
    State.EVICTED: evicted,
    State.FINISHED: finished,
}
STEPS = {
    Step.RESERVE: lambda w: lifecycle.reserve(w, w.status.admission or ADMISSION, ["check"], "reserved", LATER),
    Step.ADMIT: lambda w: lifecycle.admit(w, "admitted", LATER),
    Step.EVICT: lambda w: lifecycle.evict(w, "Preempted", "go", LATER),
    Step.RELEASE: lambda w: lifecycle.release(w, LATER),
    Step.REPORT: lambda w: lifecycle.report_pending(w, "WaitingForQuota", "2 more needed", [], LATER),
    Step.PLACE: lambda w: lifecycle.place(w, w.status.admission or ADMISSION),
    Step.FINISH: lambda w: lifecycle.finish(w, "Succeeded", "done", LATER),
}


def test_the_table_is_what_the_steps_do():
    """Every pair of state and step: either the table has it and the step leads there, or the step is refused."""
    for state, workload in STATES.items():
        for step, take in STEPS.items():
            want = TRANSITIONS.get((state, step))
            if want is None:
                with pytest.raises(InvalidTransition, match=f"{step} while {state}"):
                    take(workload)
            else:
                assert state_of(after(workload, take(workload))) is want, (state, step)


def test_the_table_prints():
    assert "Admitted ──Evict──▶ Evicted" in lifecycle.table().splitlines()


def test_an_impossible_step_tells_the_story():
    with pytest.raises(
        InvalidTransition, match="Workload team-a/w has QuotaReserved=True/QuotaReserved, Admitted=True"
    ):
        lifecycle.report_pending(admitted, "WaitingForQuota", "no", [], NOW)


@pytest.mark.parametrize(
    ("workload", "status", "want"),
    [
        pytest.param(
            pending,
            lifecycle.reserve(pending, ADMISSION, [], "reserved", NOW),
            {"QuotaReserved": "True/QuotaReserved", "Admitted": "True/Admitted"},
            id="without checks a reservation admits at once",
        ),
        pytest.param(
            pending,
            lifecycle.reserve(pending, ADMISSION, ["prov"], "reserved", NOW),
            {"QuotaReserved": "True/QuotaReserved"},
            id="with checks a reservation waits for them",
        ),
        pytest.param(
            pending,
            lifecycle.report_pending(pending, "WaitingForQuota", "2 more needed", [], NOW),
            {"QuotaReserved": "False/WaitingForQuota"},
            id="a waiting workload says why, and nothing about admission yet",
        ),
        pytest.param(
            reserved,
            lifecycle.report_pending(reserved, "Suspended", "the queue is stopped", [], NOW),
            {"QuotaReserved": "False/Suspended", "Admitted": "False/NoReservation"},
            id="a held queue takes an unused reservation back",
        ),
        pytest.param(
            admitted,
            lifecycle.evict(admitted, "Preempted", "go", NOW, preemption_reason="InClusterQueue"),
            {
                "QuotaReserved": "True/QuotaReserved",
                "Admitted": "True/Admitted",
                "Evicted": "True/Preempted",
                "Preempted": "True/InClusterQueue",
            },
            id="an evicted workload keeps its quota until it has stopped",
        ),
        pytest.param(
            evicted,
            lifecycle.release(evicted, NOW),
            {
                "QuotaReserved": "False/PendingEvaluation",
                "Admitted": "False/NoReservation",
                "Evicted": "True/Preempted",
                "Requeued": "True/Preempted",
            },
            id="a preempted workload is back in its queue at once",
        ),
        pytest.param(
            make_workload("w").admitted().evicted("ClusterQueueStopped").obj(),
            lifecycle.release(make_workload("w").admitted().evicted("ClusterQueueStopped").obj(), NOW),
            {
                "QuotaReserved": "False/PendingEvaluation",
                "Admitted": "False/NoReservation",
                "Evicted": "True/ClusterQueueStopped",
                "Requeued": "False/ClusterQueueStopped",
            },
            id="a workload of a stopped queue waits for the queue",
        ),
        pytest.param(
            pending,
            lifecycle.evict(pending, "Deactivated", "switched off", NOW),
            {"Evicted": "True/Deactivated", "Requeued": "False/Deactivated"},
            id="a pending workload that is switched off has no quota to give back",
        ),
    ],
)
def test_conditions(workload, status, want):
    assert conditions_of(status) == want


def test_reserving_again_ends_the_eviction_and_keeps_its_story():
    again = after(evicted, lifecycle.release(evicted, NOW))
    status = lifecycle.reserve(again, ADMISSION, [], "reserved", LATER)
    (condition,) = [c for c in status.conditions if c.type == "Evicted"]
    assert (condition.status, condition.reason, condition.message) == (
        "False",
        "QuotaReserved",
        "Previously: had to go",
    )


def test_another_admission_without_a_release_is_refused():
    other = structs.replace(ADMISSION, cluster_queue="other")
    with pytest.raises(InvalidTransition):
        lifecycle.reserve(reserved, other, [], "reserved", NOW)


def test_reserving_makes_the_checks_that_apply_and_no_others():
    was = make_workload("w").status(admission_checks=[check(name="b", state="Ready"), check(name="old", state="Ready")])
    status = lifecycle.reserve(was.obj(), ADMISSION, ["c", "b"], "reserved", NOW)
    assert [(c.name, c.state) for c in status.admission_checks] == [("b", "Ready"), ("c", "Pending")]


def test_eviction_starts_checks_over_and_counts():
    workload = (
        make_workload("w")
        .admitted()
        .status(
            admission_checks=[
                check(name="again", state="Retry", retry_count=1, requeue_after_seconds=30),
                check(name="good", state="Ready", retry_count=4),
            ],
            cluster_name="east",
            preemption_gates=[PreemptionGateState(name="g", position="Open", last_transition_time=format_time(NOW))],
        )
        .obj()
    )
    status = lifecycle.evict(workload, "AdmissionCheck", "retry", NOW)
    assert [(c.name, c.state, c.retry_count, c.requeue_after_seconds) for c in status.admission_checks] == [
        ("again", "Pending", 2, 30),
        ("good", "Pending", None, None),
    ]
    assert (status.cluster_name, [g.position for g in status.preemption_gates]) == (None, ["Closed"])
    assert status.scheduling_stats is not None
    assert [(e.reason, e.underlying_cause, e.count) for e in status.scheduling_stats.evictions] == [
        ("AdmissionCheck", "", 1)
    ]
    again = lifecycle.evict(after(workload, status), "DeactivatedDueToRequeuingLimitExceeded", "off", LATER)
    assert again.scheduling_stats is not None
    assert [(e.reason, e.underlying_cause, e.count) for e in again.scheduling_stats.evictions] == [
        ("AdmissionCheck", "", 1),
        ("Deactivated", "RequeuingLimitExceeded", 1),
    ]


def test_a_deactivation_forgets_the_requeue_state_and_its_target():
    workload = (
        make_workload("w")
        .admitted()
        .condition("DeactivationTarget", "True", "RequeuingLimitExceeded")
        .status(requeue_state=RequeueState(count=3))
        .obj()
    )
    status = lifecycle.evict(workload, "DeactivatedDueToRequeuingLimitExceeded", "off", NOW)
    assert status.requeue_state is None
    assert "DeactivationTarget" not in conditions_of(status)


def test_time_spent_admitted_adds_up():
    workload = structs.replace(
        evicted, status=structs.replace(evicted.status, accumulated_past_execution_time_seconds=5)
    )
    assert lifecycle.release(workload, NOW + 90.7).accumulated_past_execution_time_seconds == 95


@pytest.mark.parametrize(
    ("before", "ready", "want"),
    [
        pytest.param(
            make_workload("w"), True, None, id="not admitted: nothing is ready, and no condition says just that"
        ),
        pytest.param(make_workload("w").admitted(), False, None, id="admitted, pods on their way"),
        pytest.param(
            make_workload("w").condition("PodsReady", "True", "Started"),
            True,
            "False/WaitForStart",
            id="no longer admitted",
        ),
        pytest.param(make_workload("w").admitted(), True, "True/Started", id="all pods ready"),
        pytest.param(
            make_workload("w").admitted().condition("PodsReady", "True", "Started"),
            False,
            "False/WaitForRecovery",
            id="a pod lost",
        ),
        pytest.param(
            make_workload("w").admitted().condition("PodsReady", "False", "WaitForRecovery"),
            False,
            "False/WaitForRecovery",
            id="a lost pod stays lost until all are ready",
        ),
        pytest.param(
            make_workload("w").admitted().condition("PodsReady", "False", "WaitForRecovery"),
            True,
            "True/Recovered",
            id="recovered",
        ),
    ],
)
def test_pods_ready(before, ready, want):
    assert conditions_of(lifecycle.pods_ready(before.obj(), ready, NOW)).get("PodsReady") == want


def test_reclaimable_pods_never_shrink_while_quota_is_reserved():
    workload = make_workload("w").admitted().status(reclaimable_pods=[ReclaimablePod(name="main", count=3)]).obj()
    assert lifecycle.reclaim(workload, {"main": 2}).reclaimable_pods == [ReclaimablePod(name="main", count=3)]
    assert lifecycle.reclaim(workload, {"main": 4}).reclaimable_pods == [ReclaimablePod(name="main", count=4)]


def test_a_check_keeps_its_time_while_its_state_stays():
    first = after(pending, lifecycle.set_check(pending, "mk", "Ready", "on east", NOW))
    second = lifecycle.set_check(first, "mk", "Ready", "on east, running", LATER)
    assert [c.last_transition_time for c in second.admission_checks] == [
        c.last_transition_time for c in first.status.admission_checks
    ]


def test_the_patch_has_only_what_changed_and_is_refused_for_another_object():
    requests = [PodSetRequest(name="main", resources={"cpu": "1"})]
    patch = status_patch(reserved, lifecycle.report_pending(reserved, "Suspended", "held", requests, NOW))
    assert patch is not None
    assert set(patch.body["status"]) == {"conditions", "admission", "resourceRequests"}
    assert patch.body["status"]["admission"] is None
    assert (patch.subresource, patch.resource_version, patch.uid) == ("status", "20", "uid-w")


@given(st.lists(st.sampled_from(list(STEPS)), max_size=10))
def test_taking_a_step_twice_writes_once(steps):
    """From any reachable state: a step that may be repeated changes nothing the second time."""
    workload = pending
    for step in steps:
        if (state_of(workload), step) not in TRANSITIONS:
            continue
        workload = after(workload, STEPS[step](workload))
        if TRANSITIONS.get((state_of(workload), step)) is state_of(workload):
            assert status_patch(workload, STEPS[step](workload)) is None
