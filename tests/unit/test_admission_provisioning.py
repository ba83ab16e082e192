"""What the conditions of a ProvisioningRequest mean for the admission check, row by row."""

from typing import Any

import pytest

from hub.kueue.admission.provisioning import NAME_MAX, Request, attempt_for, check_state, manifest, request_name
from hub.kueue.api.meta import Condition
from hub.kueue.api.v1beta2 import AdmissionCheckState, ProvisioningRequestConfig, Workload, decode_as
from tests.admission_builders import pods

NOW = 1_767_225_600.0
API = "kueue.x-k8s.io/v1beta2"


def config(**spec: Any) -> ProvisioningRequestConfig:
    body = {"provisioningClassName": "queued", **spec}
    return decode_as(
        ProvisioningRequestConfig,
        {"apiVersion": API, "kind": "ProvisioningRequestConfig", "metadata": {"name": "c"}, "spec": body},
    )


def workload(
    *, admitted: bool = False, retries: int | None = None, annotations: dict[str, str] | None = None
) -> Workload:
    assigned = {"name": "main", "flavors": {"gpu": "f"}, "resourceUsage": {"gpu": "4"}, "count": 4}
    conditions = [{"type": "QuotaReserved", "status": "True"}, {"type": "Admitted", "status": str(admitted)}]
    check = {"name": "prov", "state": "Pending", "lastTransitionTime": "", "message": "", "retryCount": retries or 0}
    return decode_as(
        Workload,
        {
            "apiVersion": API,
            "kind": "Workload",
            "metadata": {"name": "train", "namespace": "team", "annotations": annotations or {}},
            "spec": {"podSets": [pods("main", 4, {"gpu": "1"})]},
            "status": {
                "admission": {"clusterQueue": "q", "podSetAssignments": [assigned]},
                "conditions": conditions,
                "admissionChecks": [check],
            },
        },
    )


def request(*true: str, attempt: int = 1) -> Request:
    conditions = [Condition(type=t, status="True", message=f"{t} it is") for t in true]
    return Request(name="train-prov-1", attempt=attempt, conditions=conditions, details={"pool": "nodes-7"})


@pytest.mark.parametrize(
    ("given", "found", "want"),
    [
        pytest.param(workload(), None, ("Pending", None), id="no request yet: wait"),
        pytest.param(workload(), request("Accepted"), ("Pending", None), id="accepted: wait"),
        pytest.param(workload(), request("Provisioned"), ("Ready", None), id="provisioned: ready"),
        pytest.param(workload(), request("Failed"), ("Retry", 60), id="failed once: try again in a minute"),
        pytest.param(workload(retries=2), request("Failed", attempt=3), ("Retry", 240), id="the wait doubles"),
        pytest.param(workload(retries=3), request("Failed", attempt=4), ("Rejected", None), id="no attempt is left"),
        pytest.param(workload(), request("BookingExpired"), ("Retry", 60), id="expired before it ran: as failed"),
        pytest.param(
            workload(admitted=True),
            request("BookingExpired", "Provisioned"),
            ("Ready", None),
            id="expired while it runs: nothing",
        ),
        pytest.param(
            workload(admitted=True), request("CapacityRevoked"), ("Rejected", None), id="the nodes were taken away"
        ),
    ],
)
def test_check_state(given: Workload, found: Request | None, want: tuple[str, int | None]) -> None:
    state = check_state(given, config(), "prov", found, NOW)
    assert (state.state, state.requeue_after_seconds) == want


def test_without_a_managed_resource_no_request_is_needed() -> None:
    state = check_state(workload(), config(managedResources=["tpu"]), "prov", None, NOW)
    assert (state.state, state.message) == ("Ready", "no ProvisioningRequest is needed")


def test_pods_carry_what_leads_them_to_their_nodes() -> None:
    updates = {"nodeSelector": [{"key": "pool", "valueFromProvisioningClassDetail": "pool"}]}
    state = check_state(workload(), config(podSetUpdates=updates), "prov", request("Provisioned"), NOW)
    assert state.pod_set_updates[0].node_selector == {"pool": "nodes-7"}
    assert "train-prov-1" in state.pod_set_updates[0].annotations.values()


def test_the_workload_overrides_parameters_and_empty_pod_sets_are_left_out() -> None:
    given = workload(annotations={"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"})
    made = manifest(given, config(parameters={"maxRunDurationSeconds": "60", "zone": "a"}), "prov", 2)
    assert made["spec"]["parameters"] == {"maxRunDurationSeconds": "600", "zone": "a"}
    assert (made["metadata"]["name"], [p["count"] for p in made["spec"]["podSets"]]) == ("train-prov-2", [4])


@pytest.mark.parametrize(
    ("state", "last", "want"),
    [
        pytest.param(None, None, 1, id="the first"),
        pytest.param("Pending", request("Failed", attempt=2), 3, id="the last one failed and the check waits again"),
        pytest.param("Pending", request("Accepted", attempt=2), 1, id="the last one is still good"),
    ],
)
def test_attempt(state: Any, last: Request | None, want: int) -> None:
    check = AdmissionCheckState(name="prov", state=state, last_transition_time="", message="") if state else None
    assert attempt_for(check, last) == want


def test_long_names_are_cut_and_stay_apart() -> None:
    one, two = request_name("w" * 260, "prov", 1), request_name("w" * 260, "prov", 2)
    assert (len(one), len(two)) == (NAME_MAX, NAME_MAX)
    assert one != two
