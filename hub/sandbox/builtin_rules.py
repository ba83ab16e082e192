"""Rules of built-in kinds whose objects only have to look right here: nodes, leases, roles, quotas, workloads.

Each pair of functions is what kube-apiserver's strategy of the kind does: fill in what is open, in place, and name what
is wrong. `rules.py` says which kind has which.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hub.kueue.api.quantity import nanos
from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, duplicate, invalid_value, not_supported, required
from hub.sandbox.metadata import key_errors, value_errors
from hub.sandbox.pod_checks import EFFECTS
from hub.sandbox.pod_defaults import default_template
from hub.sandbox.resources import canonical

_NANO = 10**9
NOT_NEGATIVE = "must be greater than or equal to 0"


# --- nodes -----------------------------------------------------------------------------------------------------------------


def default_node(draft: Document) -> None:
    """A node offers all it has unless its kubelet keeps something back."""
    status = draft.get("status") or {}
    for name in ("capacity", "allocatable"):
        if listed := status.get(name):
            status[name] = {resource: canonical(amount) for resource, amount in listed.items()}
    if "capacity" in status and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def node_errors(draft: Document) -> list[FieldError]:
    status, spec = draft.get("status") or {}, draft.get("spec") or {}
    wrong = list(_taint_errors(spec.get("taints") or ()))
    for name in ("capacity", "allocatable"):
        wrong += _amount_errors(status.get(name) or {}, f"status.{name}")
    return wrong


def node_status_errors(draft: Document, old: Document) -> list[FieldError]:
    return node_errors(draft)


def _taint_errors(taints: Iterable[Mapping[str, Any]]) -> Iterator[FieldError]:
    seen: set[tuple[Any, Any]] = set()
    for index, taint in enumerate(taints):
        at, effect = f"metadata.taints[{index}]", taint.get("effect")
        yield from key_errors(taint.get("key", ""), f"{at}.key")
        yield from value_errors(taint.get("value") or "", f"{at}.value")
        if not effect:
            yield required(f"{at}.effect")
        elif effect not in EFFECTS:
            yield not_supported(f"{at}.effect", effect, EFFECTS)
        if (taint.get("key"), effect) in seen:
            yield duplicate(at, dict(taint))
        seen.add((taint.get("key"), effect))


def _amount_errors(listed: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for name, amount in listed.items():
        if nanos(amount) < 0:
            yield invalid_value(f"{path}.{name}", str(amount), NOT_NEGATIVE)
        elif "/" in name and nanos(amount) % _NANO:
            yield invalid_value(f"{path}.{name}", str(amount), "must be an integer")


# --- leases, quotas and limits ---------------------------------------------------------------------------------------------


def lease_errors(draft: Document) -> list[FieldError]:
    spec = draft.get("spec") or {}
    wrong: list[FieldError] = []
    if (duration := spec.get("leaseDurationSeconds")) is not None and duration <= 0:
        wrong.append(invalid_value("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    if (transitions := spec.get("leaseTransitions")) is not None and transitions < 0:
        wrong.append(invalid_value("spec.leaseTransitions", transitions, NOT_NEGATIVE))
    return wrong


def quota_errors(draft: Document) -> list[FieldError]:
    wrong: list[FieldError] = []
    for name, amount in ((draft.get("spec") or {}).get("hard") or {}).items():
        if nanos(amount) < 0:
            wrong.append(invalid_value(f"spec.hard[{name}]", str(amount), NOT_NEGATIVE))
        wrong += key_errors(name, f"spec.hard[{name}]")
    return wrong


def default_limit_range(draft: Document) -> None:
    """For containers, what is the most is the default, and the default limit is the default request."""
    for item in (draft.get("spec") or {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        most, least = item.get("max") or {}, item.get("min") or {}
        if limits := {**most, **(item.get("default") or {})}:
            item["default"] = limits
        requests = {**least, **(item.get("defaultRequest") or {})}
        if requests := {**(item.get("default") or {}), **requests}:
            item["defaultRequest"] = requests


# --- roles -----------------------------------------------------------------------------------------------------------------


def role_errors(draft: Document) -> list[FieldError]:
    return [
        e for i, rule in enumerate(draft.get("rules") or ()) for e in _rule_errors(rule, f"rules[{i}]", scoped=True)
    ]


def cluster_role_errors(draft: Document) -> list[FieldError]:
    rules = enumerate(draft.get("rules") or ())
    return [e for i, rule in rules for e in _rule_errors(rule, f"rules[{i}]", scoped=False)]


def _rule_errors(rule: Mapping[str, Any], at: str, *, scoped: bool) -> Iterator[FieldError]:
    if not rule.get("verbs"):
        yield required(f"{at}.verbs", "verbs must contain at least one value")
    if urls := rule.get("nonResourceURLs"):
        if scoped:
            yield invalid_value(f"{at}.nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs")
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            yield invalid_value(f"{at}.nonResourceURLs", urls, why)
        return
    if not rule.get("apiGroups"):
        yield required(f"{at}.apiGroups", "resource rules must supply at least one api group")
    if not rule.get("resources"):
        yield required(f"{at}.resources", "resource rules must supply at least one resource")


# --- workloads that nothing here runs --------------------------------------------------------------------------------------


def default_stateful_set(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    update = spec.setdefault("updateStrategy", {})
    update.setdefault("type", "RollingUpdate")
    if update["type"] == "RollingUpdate":
        update.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    default_template(spec.get("template"))


def default_daemon_set(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    update = spec.setdefault("updateStrategy", {})
    update.setdefault("type", "RollingUpdate")
    if update["type"] == "RollingUpdate":
        rolling = update.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    default_template(spec.get("template"))


def default_cron_job(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    if isinstance(job := spec.get("jobTemplate"), dict):
        job.setdefault("metadata", {})
        default_template((job.get("spec") or {}).get("template"))


CONCURRENCY_POLICIES = ("Allow", "Forbid", "Replace")


def cron_job_errors(draft: Document) -> list[FieldError]:
    spec = draft["spec"]
    schedule, policy = spec.get("schedule"), spec["concurrencyPolicy"]
    wrong: list[FieldError] = []
    if not schedule:
        wrong.append(required("spec.schedule"))
    elif not schedule.startswith("@") and len(parts := schedule.split()) != 5:
        why = f"expected exactly 5 fields, found {len(parts)}: [{' '.join(parts)}]"
        wrong.append(invalid_value("spec.schedule", schedule, why))
    if policy not in CONCURRENCY_POLICIES:
        wrong.append(not_supported("spec.concurrencyPolicy", policy, CONCURRENCY_POLICIES))
    return wrong
