"""batch/v1 Jobs: defaults, generated selector, and which fields are fixed when (as in Kubernetes' job strategy).

`managedBy` never changes; the pod template may change only while the job is suspended and has not started, and then
only what steers pods to nodes (KEP-2926). Kueue relies on both.
"""

import re
from collections.abc import Iterator

from hub.sandbox.documents import Document, dig
from hub.sandbox.errors import FieldError, invalid_value, not_supported, required, too_long
from hub.sandbox.job_status_checks import job_status_errors
from hub.sandbox.pod_checks import template_errors
from hub.sandbox.pod_defaults import default_template
from hub.sandbox.served import Rules

JOB_CONTROLLER = "kubernetes.io/job-controller"
PREFIX = "batch.kubernetes.io/"
INT32_MAX = 2**31 - 1
FAILURE_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_DOMAIN_PATH = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$")


def _default_job(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    spec.setdefault("template", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    spec.setdefault("backoffLimit", INT32_MAX if spec.get("backoffLimitPerIndex") is not None else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("manualSelector", False)
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")
    default_template(spec["template"])
    _label_like_pods(draft)


def _label_like_pods(draft: Document) -> None:
    """A job without labels gets those of its pods."""
    if not draft["metadata"].get("labels") and (labels := dig(draft, "spec", "template", "metadata", "labels")):
        draft["metadata"]["labels"] = dict(labels)


def _prepare_job(draft: Document) -> None:
    draft["status"] = {}
    if not draft["spec"].get("manualSelector"):
        _generate_selector(draft)
    _label_like_pods(draft)


def _generate_selector(draft: Document) -> None:
    """The pods of a job are told apart by its uid; a selector of the user's own does not survive validation."""
    spec = draft["spec"]
    uid, name = draft["metadata"]["uid"], draft["metadata"]["name"]
    template_meta = spec["template"].setdefault("metadata", {})
    own = {"controller-uid": uid, "job-name": name, PREFIX + "controller-uid": uid, PREFIX + "job-name": name}
    template_meta["labels"] = {**(template_meta.get("labels") or {}), **own}
    selector = spec.setdefault("selector", {})
    selector["matchLabels"] = {PREFIX + "controller-uid": uid, **(selector.get("matchLabels") or {})}


def _validate_job(draft: Document) -> list[FieldError]:
    spec = draft["spec"]
    wrong = [*_selector_errors(draft), *_count_errors(spec), *_mode_errors(spec), *_managed_by_errors(spec)]
    wrong += [*_replacement_errors(spec), *_failure_policy_errors(spec)]
    wrong += template_errors(spec["template"], "spec.template")
    if dig(spec, "template", "spec", "restartPolicy") == "Always":
        wrong.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    return wrong


def _selector_errors(draft: Document) -> Iterator[FieldError]:
    spec = draft["spec"]
    if not spec.get("selector"):
        yield required("spec.selector")
        return
    uid = draft["metadata"].get("uid")
    if not spec.get("manualSelector") and spec["selector"] != {"matchLabels": {PREFIX + "controller-uid": uid}}:
        yield invalid_value("spec.selector", spec["selector"], "`selector` not auto-generated")
    labels = dig(spec, "template", "metadata", "labels") or {}
    if any(labels.get(key) != value for key, value in (spec["selector"].get("matchLabels") or {}).items()):
        why = "`selector` does not match template `labels`"
        yield invalid_value("spec.template.metadata.labels", labels or None, why)


def _replacement_errors(spec: Document) -> Iterator[FieldError]:
    allowed = ("Failed",) if spec.get("podFailurePolicy") else ("Failed", "TerminatingOrFailed")
    if spec["podReplacementPolicy"] not in allowed:
        yield not_supported("spec.podReplacementPolicy", spec["podReplacementPolicy"], allowed)


def _failure_policy_errors(spec: Document) -> Iterator[FieldError]:
    for index, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or ()):
        at = f"spec.podFailurePolicy.rules[{index}]"
        if rule.get("action") not in FAILURE_ACTIONS:
            yield not_supported(f"{at}.action", rule.get("action", ""), FAILURE_ACTIONS)
        given = [name for name in ("onExitCodes", "onPodConditions") if rule.get(name)]
        if len(given) != 1:
            how = "specifying both OnExitCodes and OnPodConditions is not supported"
            why = how if given else "specifying one of OnExitCodes and OnPodConditions is required"
            yield FieldError(at, "FieldValueInvalid", f"Invalid value: {why}")


def _count_errors(spec: Document) -> Iterator[FieldError]:
    counts = (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    )
    for name in counts:
        if (value := spec.get(name)) is not None and value < 0:
            yield invalid_value(f"spec.{name}", value, "must be greater than or equal to 0")


def _mode_errors(spec: Document) -> Iterator[FieldError]:
    mode = spec.get("completionMode")
    if mode not in ("NonIndexed", "Indexed"):
        yield not_supported("spec.completionMode", mode, ("NonIndexed", "Indexed"))
    if mode == "Indexed" and spec.get("completions") is None:
        yield required("spec.completions", "when completion mode is Indexed")
    if mode != "Indexed" and spec.get("backoffLimitPerIndex") is not None:
        yield invalid_value(
            "spec.backoffLimitPerIndex", spec["backoffLimitPerIndex"], "requires indexed completion mode"
        )


def _managed_by_errors(spec: Document) -> Iterator[FieldError]:
    if (manager := spec.get("managedBy")) is None:
        return
    if not _DOMAIN_PATH.match(manager):
        yield invalid_value("spec.managedBy", manager, 'must be a domain-prefixed path (such as "acme.io/foo")')
    if len(manager) > 63:
        yield too_long("spec.managedBy", 63)


#: What may change in the template of a suspended job that has not started.
STEERING = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


def _fixed_template(template: Document) -> Document:
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    return {
        "metadata": {k: v for k, v in meta.items() if k not in ("labels", "annotations")},
        "spec": {k: v for k, v in spec.items() if k not in STEERING},
    }


def _may_be_steered(old: Document) -> bool:
    return bool(old["spec"].get("suspend")) and not (old.get("status") or {}).get("startTime")


def _completions_fixed(new: Document, old: Document) -> bool:
    """Indexed jobs are elastic: completions may move together with parallelism (KEP-3715)."""
    elastic = new.get("completionMode") == "Indexed" and new.get("completions") == new.get("parallelism")
    return new.get("completions") != old.get("completions") and not (elastic and new.get("completions") is not None)


FIXED = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)


def _job_update(draft: Document, old: Document) -> list[FieldError]:
    new_spec, old_spec = draft["spec"], old["spec"]
    fixed = [name for name in FIXED if new_spec.get(name) != old_spec.get(name)]
    if _completions_fixed(new_spec, old_spec):
        fixed.insert(0, "completions")
    new_template, old_template = new_spec.get("template") or {}, old_spec.get("template") or {}
    if not _may_be_steered(old):
        fixed += ["template"] if new_template != old_template else []
    elif _fixed_template(new_template) != _fixed_template(old_template):
        fixed.append("template.spec")
    return [invalid_value(f"spec.{name}", dig(new_spec, *name.split(".")), "field is immutable") for name in fixed]


JOB_RULES = Rules(
    default=_default_job,
    prepare_create=_prepare_job,
    validate=_validate_job,
    validate_update=_job_update,
    validate_status=job_status_errors,
)
