"""Pods: defaults, what a new one looks like, what may change once it exists."""

from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, forbidden_field
from hub.sandbox.pod_checks import validate_pod_spec
from hub.sandbox.pod_defaults import DEFAULT_GRACE_S, default_pod_spec
from hub.sandbox.served import Rules


def _limits_are_requests(spec: Document) -> None:
    """A limit without a request is also the request; for pods only, templates keep what the user wrote."""
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            resources = container["resources"]
            if limits := resources.get("limits"):
                resources["requests"] = {**limits, **(resources.get("requests") or {})}


def _default_pod(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    _limits_are_requests(spec)


def qos_class(spec: Document) -> str:
    """Guaranteed when every container's cpu and memory limits equal its requests, BestEffort when there are none."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    wanted = [c.get("resources") or {} for c in containers]
    if not any(r.get("requests") or r.get("limits") for r in wanted):
        return "BestEffort"
    for resources in wanted:
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        if any(name not in limits or requests.get(name, limits[name]) != limits[name] for name in ("cpu", "memory")):
            return "Burstable"
    return "Guaranteed"


def _prepare_pod(draft: Document) -> None:
    status: Document = {"phase": "Pending", "qosClass": qos_class(draft["spec"])}
    if draft["spec"].get("schedulingGates"):
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        gated["message"] = "Scheduling is blocked due to non-empty scheduling gates"
        status["conditions"] = [gated]
    draft["status"] = status


def _validate_pod(draft: Document) -> list[FieldError]:
    return validate_pod_spec(draft["spec"], "spec")


def _without(spec: Document, *names: str) -> Document:
    return {k: v for k, v in spec.items() if k not in names}


def _comparable(spec: Document) -> Document:
    """The spec without what may always change: images, deadline, grace, tolerations and gates (checked on their own)."""
    kept = _without(
        spec, "activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates", "nodeName"
    )
    for group in ("initContainers", "containers"):
        if group in kept:
            kept[group] = [_without(c, "image") for c in kept[group]]
    return kept


MUTABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _pod_update(draft: Document, old: Document) -> list[FieldError]:
    new_spec, old_spec = draft["spec"], old["spec"]
    if new_spec == old_spec:
        return []
    wrong: list[FieldError] = []
    before, after = _comparable(old_spec), _comparable(new_spec)
    if old_spec.get("schedulingGates"):
        # A gated pod may still be steered: that is how Kueue injects node selectors (KEP-3838).
        before, after = _without(before, "nodeSelector", "affinity"), _without(after, "nodeSelector", "affinity")
    if before != after or new_spec.get("nodeName") != old_spec.get("nodeName"):
        wrong.append(forbidden_field("spec", MUTABLE))
    missing = [t for t in old_spec.get("tolerations") or () if t not in (new_spec.get("tolerations") or ())]
    if missing:
        wrong.append(
            forbidden_field("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
        )
    before_gates = old_spec.get("schedulingGates") or ()
    for index, gate in enumerate(new_spec.get("schedulingGates") or ()):
        if gate not in before_gates:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            wrong.append(forbidden_field(f"spec.schedulingGates[{index}].name", why))
    return wrong


def _grace_s(pod: Document, asked: int | None) -> int:
    """A pod that runs nowhere, or no longer, needs no grace."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return asked if asked is not None else pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)


POD_RULES = Rules(
    default=_default_pod,
    prepare_create=_prepare_pod,
    validate=_validate_pod,
    validate_update=_pod_update,
    grace_s=_grace_s,
)
