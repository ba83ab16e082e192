"""The admission check that waits for nodes: a ProvisioningRequest per attempt, and what its conditions mean for the check.

    quota reserved ──▶ request, attempt 1 ──Provisioned──▶ Ready, with what the pods must carry
                            │ Failed, or the booking expired before admission
                            ▼
                       Retry after a back-off ──▶ attempt 2 ... ──▶ Rejected when all attempts are used up

Pure: it reads a Workload, the check's config and the request's conditions, and says what should be there. Upstream's
controller does the same (KEP-1136).
"""

from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import Condition, Instant, format_time, is_true
from hub.kueue.api.v1beta2 import (
    AdmissionCheckState,
    PodSetUpdate,
    ProvisioningRequestConfig,
    ProvisioningRequestRetryStrategy,
    Workload,
)
from hub.kueue.api.v1beta2 import names as n

NAME_MAX = 253


class Request(Struct, frozen=True, kw_only=True):
    """A ProvisioningRequest as the API server has it."""

    name: str
    attempt: int
    conditions: Sequence[Condition] = ()
    #: `status.provisioningClassDetails`.
    details: Mapping[str, str] = {}


def request_name(workload: str, check: str, attempt: int) -> str:
    """`<workload>-<check>-<attempt>`; names that are too long are cut and end in a digest of the whole."""
    return _shortened(f"{workload}-{check}-{attempt}")


def template_name(request: str, pod_set: str) -> str:
    return _shortened(f"ppt-{request}-{pod_set}")


def _shortened(name: str) -> str:
    if len(name) <= NAME_MAX:
        return name
    digest = sha1(name.encode(), usedforsecurity=False).hexdigest()[:5]
    return f"{name[: NAME_MAX - 6]}-{digest}"


def is_needed(workload: Workload, config: ProvisioningRequestConfig) -> bool:
    """Does any admitted pod set ask for a resource that needs nodes to be provisioned?"""
    managed = set(config.spec.managed_resources)
    admission = workload.status.admission
    assigned = {p.name: p for p in admission.pod_set_assignments} if admission else {}
    return any(
        (found := assigned.get(p.name)) is not None
        and found.count
        and (not managed or managed & set(found.resource_usage))
        for p in workload.spec.pod_sets
    )


def attempt_for(state: AdmissionCheckState | None, last: Request | None) -> int:
    """Number of the attempt that is due: one more than the last when that came to nothing and the check waits again."""
    retries = (state.retry_count or 0) if state else 0
    due = retries + 1
    if last is not None and _came_to_nothing(last) and (state is None or state.state == "Pending"):
        due = max(due, last.attempt + 1)
    return due


def _came_to_nothing(request: Request) -> bool:
    return is_true(request.conditions, "Failed") or is_true(request.conditions, "BookingExpired")


def manifest(workload: Workload, config: ProvisioningRequestConfig, check: str, attempt: int) -> dict[str, Any]:
    """The ProvisioningRequest to create. Annotations of the workload with the known prefix override parameters."""
    name = request_name(workload.metadata.name, check, attempt)
    prefix = n.PROVISIONING_PARAMETER_PREFIX
    given = {k.removeprefix(prefix): v for k, v in workload.metadata.annotations.items() if k.startswith(prefix)}
    counts = (
        {p.name: p.count or 0 for p in workload.status.admission.pod_set_assignments}
        if workload.status.admission
        else {}
    )
    pod_sets = [
        {"count": counts[p.name], "podTemplateRef": {"name": template_name(name, p.name)}}
        for p in workload.spec.pod_sets
        if counts.get(p.name)
    ]
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": {"name": name, "namespace": workload.metadata.namespace},
        "spec": {
            "provisioningClassName": config.spec.provisioning_class_name,
            "parameters": {**config.spec.parameters, **given},
            "podSets": pod_sets,
        },
    }


def check_state(
    workload: Workload, config: ProvisioningRequestConfig | None, check: str, request: Request | None, now: Instant
) -> AdmissionCheckState:
    """What the check says, given the newest request. The first row that applies decides."""
    before = next((c for c in workload.status.admission_checks if c.name == check), None)
    if config is None:
        return _said(before, check, now, "Pending", "the check is not active: its configuration is missing")
    if not is_needed(workload, config):
        return _said(before, check, now, "Ready", "no ProvisioningRequest is needed")
    if request is None:
        return _said(before, check, now, "Pending", "")
    admitted = is_true(workload.status.conditions, n.ADMITTED)
    conditions = request.conditions
    if is_true(conditions, "Failed") or (is_true(conditions, "BookingExpired") and not admitted):
        return _failed(before, check, request, config.spec.retry_strategy, now)
    if is_true(conditions, "CapacityRevoked"):
        return _said(before, check, now, "Rejected", _message(conditions, "CapacityRevoked"))
    if is_true(conditions, "Provisioned"):
        updates = [_update(p.name, config, request) for p in workload.spec.pod_sets]
        return _said(before, check, now, "Ready", _message(conditions, "Provisioned"), pod_set_updates=updates)
    told = _message(conditions, "Provisioned") if is_true(conditions, "Accepted") else ""
    return _said(before, check, now, "Pending", told)


def _failed(
    before: AdmissionCheckState | None,
    check: str,
    request: Request,
    strategy: ProvisioningRequestRetryStrategy | None,
    now: Instant,
) -> AdmissionCheckState:
    rules = strategy or ProvisioningRequestRetryStrategy()
    message = _message(request.conditions, "Failed") or _message(request.conditions, "BookingExpired")
    retries = (before.retry_count or 0) if before else 0
    if request.attempt > rules.backoff_limit_count:
        return _said(before, check, now, "Rejected", message)
    if request.attempt <= retries:
        return _said(before, check, now, "Pending", message)
    wait = min(rules.backoff_base_seconds * 2**retries, rules.backoff_max_seconds)
    return _said(before, check, now, "Retry", message, requeue_after_seconds=wait)


def _update(pod_set: str, config: ProvisioningRequestConfig, request: Request) -> PodSetUpdate:
    """What the pods must carry to land on the nodes that were provisioned for them."""
    wanted = config.spec.pod_set_updates.node_selector if config.spec.pod_set_updates else []
    selector = {
        s.key: v for s in wanted if (v := request.details.get(s.value_from_provisioning_class_detail)) is not None
    }
    annotations = {
        n.CONSUME_PROVISIONING_REQUEST: request.name,
        n.PROVISIONING_CLASS_NAME: config.spec.provisioning_class_name,
    }
    return PodSetUpdate(name=pod_set, annotations=annotations, node_selector=selector)


def _message(conditions: Sequence[Condition], kind: str) -> str:
    return next((c.message for c in conditions if c.type == kind), "")


def _said(
    before: AdmissionCheckState | None, check: str, now: Instant, state: Any, message: str, **more: Any
) -> AdmissionCheckState:
    """The new state; the time of transition moves only when the state does."""
    at = before.last_transition_time if before is not None and before.state == state else format_time(now)
    retries = before.retry_count if before is not None else None
    return AdmissionCheckState(
        name=check, state=state, last_transition_time=at, message=message, retry_count=retries, **more
    )
