"""What is special about each built-in kind: a literal table from collection to its rules."""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

from hub.sandbox.builtin_rules import (
    cluster_role_errors,
    cron_job_errors,
    default_cron_job,
    default_daemon_set,
    default_limit_range,
    default_node,
    default_stateful_set,
    lease_errors,
    node_errors,
    node_status_errors,
    quota_errors,
    role_errors,
)
from hub.sandbox.definitions import COLLECTION as DEFINITIONS
from hub.sandbox.definitions import DEFINITION_RULES
from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, forbidden_field, invalid_value, not_supported, required
from hub.sandbox.events import default_event
from hub.sandbox.pod_checks import template_errors
from hub.sandbox.pod_defaults import default_template
from hub.sandbox.rules_jobs import JOB_RULES
from hub.sandbox.rules_pods import POD_RULES
from hub.sandbox.served import Rules
from hub.sandbox.webhooks import MUTATING, VALIDATING

# --- namespaces and nodes --------------------------------------------------------------------------------------------


def _prepare_namespace(draft: Document) -> None:
    draft["spec"] = {"finalizers": ["kubernetes"]}
    draft["status"] = {"phase": "Active"}


def _default_namespace(draft: Document) -> None:
    meta = draft["metadata"]
    if name := meta.get("name"):
        meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": name}


def _keep_spec(draft: Document, old: Document) -> None:
    """Only the finalize subresource may change the spec of a namespace."""
    draft["spec"] = old.get("spec", {})


# --- configuration ---------------------------------------------------------------------------------------------------


def _fold_string_data(draft: Document) -> None:
    """`stringData` is write-only: it goes, encoded, into `data`."""
    for name, text in (draft.pop("stringData", None) or {}).items():
        draft.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
    draft.setdefault("type", "Opaque")


_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
CONFIG_KEY_RULE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def _config_map_errors(draft: Document) -> list[FieldError]:
    twice = [key for key in draft.get("data") or () if key in (draft.get("binaryData") or ())]
    why = "duplicate of key present in binaryData"
    return _key_errors(draft) + [invalid_value(f"data[{key}]", key, why) for key in twice]


def _key_errors(draft: Document) -> list[FieldError]:
    keys = [(field, key) for field in ("data", "binaryData") for key in draft.get(field) or ()]
    return [invalid_value(f"{f}[{key}]", key, CONFIG_KEY_RULE) for f, key in keys if not _CONFIG_KEY.fullmatch(key)]


def _validate_secret(draft: Document) -> list[FieldError]:
    return _key_errors(draft) + [
        invalid_value(f"data[{name}]", "<redacted>", "must be base64 text")
        for name, text in (draft.get("data") or {}).items()
        if not _is_base64(text)
    ]


def _is_base64(text: Any) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return False
    return True


def _immutable_when_marked(draft: Document, old: Document) -> list[FieldError]:
    """ConfigMaps and Secrets with `immutable: true` keep their data."""
    if not old.get("immutable"):
        return []
    wrong = [
        forbidden_field(f, "field is immutable when `immutable` is set")
        for f in ("data", "binaryData")
        if draft.get(f) != old.get(f)
    ]
    if not draft.get("immutable"):
        wrong.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
    return wrong


def _secret_update(draft: Document, old: Document) -> list[FieldError]:
    wrong = _immutable_when_marked(draft, old)
    if draft.get("type") != old.get("type"):
        wrong.append(invalid_value("type", draft.get("type"), "field is immutable"))
    return wrong


# --- scheduling and access -------------------------------------------------------------------------------------------


def _default_priority_class(draft: Document) -> None:
    draft.setdefault("value", 0)
    draft.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _validate_priority_class(draft: Document) -> list[FieldError]:
    if draft["value"] > 1_000_000_000 and not draft["metadata"].get("name", "").startswith("system-"):
        return [forbidden_field("value", "maximum allowed value of a user defined priority is 1000000000")]
    return []


def _priority_class_update(draft: Document, old: Document) -> list[FieldError]:
    fixed = ("value", "preemptionPolicy")
    return [
        forbidden_field(name, "may not be changed in an update.") for name in fixed if draft.get(name) != old.get(name)
    ]


def _default_binding(draft: Document) -> None:
    draft.setdefault("subjects", [])
    role = draft.get("roleRef") or {}
    role.setdefault("apiGroup", "rbac.authorization.k8s.io")
    draft["roleRef"] = role
    for subject in draft["subjects"] or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _validate_binding(draft: Document) -> list[FieldError]:
    role = draft["roleRef"]
    return [required(f"roleRef.{name}") for name in ("kind", "name") if not role.get(name)]


def _binding_update(draft: Document, old: Document) -> list[FieldError]:
    if draft.get("roleRef") != old.get("roleRef"):
        return [invalid_value("roleRef", draft.get("roleRef"), "cannot change roleRef")]
    return []


# --- workloads that nothing here runs, but whose objects must look right --------------------------------------------


def _default_workload(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    default_template(spec.get("template"))


def _default_deployment(draft: Document) -> None:
    _default_workload(draft)
    spec = draft["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    spec.setdefault(
        "strategy", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
    )


def _validate_workload(draft: Document) -> list[FieldError]:
    spec = draft["spec"]
    return [*_selector_errors(spec), *template_errors(spec.get("template") or {}, "spec.template", ("Always",))]


def _selector_errors(spec: Document) -> Iterator[FieldError]:
    if not (selector := spec.get("selector")):
        yield required("spec.selector")
        return
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        yield invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


def _workload_update(draft: Document, old: Document) -> list[FieldError]:
    if draft["spec"].get("selector") != old["spec"].get("selector"):
        return [invalid_value("spec.selector", draft["spec"].get("selector"), "field is immutable")]
    return []


def _default_service(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


# --- webhooks --------------------------------------------------------------------------------------------------------


def _default_webhooks(draft: Document) -> None:
    for hook in draft.get("webhooks") or ():
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        if service := (hook.get("clientConfig") or {}).get("service"):
            service.setdefault("port", 443)


def _default_mutating(draft: Document) -> None:
    _default_webhooks(draft)
    for hook in draft.get("webhooks") or ():
        hook.setdefault("reinvocationPolicy", "Never")


def _validate_webhooks(draft: Document) -> list[FieldError]:
    return [
        error for i, hook in enumerate(draft.get("webhooks") or ()) for error in _webhook_errors(hook, f"webhooks[{i}]")
    ]


def _webhook_errors(hook: Document, at: str) -> Iterator[FieldError]:
    if hook.get("name", "").count(".") < 2:
        yield invalid_value(
            f"{at}.name", hook.get("name", ""), "should be a domain with at least three segments separated by dots"
        )
    client = hook.get("clientConfig") or {}
    if bool(client.get("url")) == bool(client.get("service")):
        yield required(f"{at}.clientConfig", "exactly one of url or service is required")
    elif not client.get("url", "https:").startswith("https:"):
        yield invalid_value(f"{at}.clientConfig.url", client["url"], "'https' is the only allowed URL scheme")
    if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
        yield not_supported(f"{at}.sideEffects", hook.get("sideEffects"), ("None", "NoneOnDryRun"))
    if "v1" not in (hook.get("admissionReviewVersions") or ()):
        yield required(f"{at}.admissionReviewVersions", "must include at least one of v1")
    if not 1 <= hook["timeoutSeconds"] <= 30:
        yield invalid_value(
            f"{at}.timeoutSeconds", hook["timeoutSeconds"], "the timeout value must be between 1 and 30 seconds"
        )


WORKLOAD = Rules(default=_default_workload, validate=_validate_workload, validate_update=_workload_update)
BINDING = Rules(default=_default_binding, validate=_validate_binding, validate_update=_binding_update)

RULES: dict[str, Rules] = {
    "namespaces": Rules(default=_default_namespace, prepare_create=_prepare_namespace, prepare_update=_keep_spec),
    "nodes": Rules(
        default=default_node, validate=node_errors, validate_status=node_status_errors, status_on_create=True
    ),
    "limitranges": Rules(default=default_limit_range),
    "resourcequotas": Rules(validate=quota_errors),
    "pods": POD_RULES,
    "events": Rules(default=default_event),
    "configmaps": Rules(validate=_config_map_errors, validate_update=_immutable_when_marked),
    "secrets": Rules(default=_fold_string_data, validate=_validate_secret, validate_update=_secret_update),
    "services": Rules(default=_default_service),
    "jobs.batch": JOB_RULES,
    "cronjobs.batch": Rules(default=default_cron_job, validate=cron_job_errors),
    "deployments.apps": Rules(
        default=_default_deployment, validate=_validate_workload, validate_update=_workload_update
    ),
    "replicasets.apps": WORKLOAD,
    MUTATING: Rules(default=_default_mutating, validate=_validate_webhooks),
    VALIDATING: Rules(default=_default_webhooks, validate=_validate_webhooks),
    "statefulsets.apps": Rules(
        default=default_stateful_set, validate=_validate_workload, validate_update=_workload_update
    ),
    "daemonsets.apps": Rules(default=default_daemon_set, validate=_validate_workload, validate_update=_workload_update),
    "leases.coordination.k8s.io": Rules(validate=lease_errors),
    "roles.rbac.authorization.k8s.io": Rules(validate=role_errors),
    "clusterroles.rbac.authorization.k8s.io": Rules(validate=cluster_role_errors),
    DEFINITIONS: DEFINITION_RULES,
    "priorityclasses.scheduling.k8s.io": Rules(
        default=_default_priority_class, validate=_validate_priority_class, validate_update=_priority_class_update
    ),
    "rolebindings.rbac.authorization.k8s.io": BINDING,
    "clusterrolebindings.rbac.authorization.k8s.io": BINDING,
}
