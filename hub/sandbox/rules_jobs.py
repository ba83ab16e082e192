"""batch/v1 Jobs: defaults, generated selector, and which fields are fixed when (as in Kubernetes' job strategy).

`managedBy` never changes; the pod template may change only while the job is suspended and has not started, and then
only what steers pods to nodes (KEP-2926). Kueue relies on both.
"""

import re
from collections.abc import Iterator

from hub.sandbox.documents import Document, dig
from hub.sandbox.errors import FieldError, invalid_value, not_supported, required, too_long
from hub.sandbox.rules_pods import default_template, validate_pod_spec
from hub.sandbox.served import Rules

JOB_CONTROLLER = "kubernetes.io/job-controller"
PREFIX = "batch.kubernetes.io/"
INT32_MAX = 2**31 - 1
_DOMAIN_PATH = re.compile(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$")


def _default_job(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    spec.setdefault("backoffLimit", INT32_MAX if spec.get("backoffLimitPerIndex") is not None else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("manualSelector", False)
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
    default_template(spec.get("template"))


def _prepare_job(draft: Document) -> None:
    spec = draft["spec"]
    draft["status"] = {}
    if spec.get("manualSelector") or not isinstance(spec.get("template"), dict):
        return
    uid, name = draft["metadata"]["uid"], draft["metadata"]["name"]
    template_meta = spec["template"].setdefault("metadata", {})
    own = {"controller-uid": uid, "job-name": name, PREFIX + "controller-uid": uid, PREFIX + "job-name": name}
    template_meta["labels"] = {**(template_meta.get("labels") or {}), **own}
    spec.setdefault("selector", {"matchLabels": {PREFIX + "controller-uid": uid}})


def _validate_job(draft: Document) -> list[FieldError]:
    spec = draft["spec"]
    template = spec.get("template")
    if not isinstance(template, dict):
        return [required("spec.template")]
    wrong = [*_count_errors(spec), *_mode_errors(spec), *_managed_by_errors(spec)]
    pod_spec = template.get("spec") or {}
    wrong += validate_pod_spec(pod_spec, "spec.template.spec")
    if pod_spec.get("restartPolicy") == "Always":
        wrong.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    return wrong


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
        yield not_supported("spec.completionMode", mode, ("Indexed", "NonIndexed"))
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
    "podReplacementPolicy",
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


def _condition(job: Document, kind: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions)


def _job_status(draft: Document, old: Document) -> list[FieldError]:
    """The checks that catch a controller which mirrors a status wrongly (Kubernetes' ValidateJobStatusUpdate, in part)."""
    status = draft.get("status") or {}
    complete, failed = _condition(draft, "Complete"), _condition(draft, "Failed")
    wrong: list[FieldError] = []
    if complete and failed:
        wrong.append(
            invalid_value(
                "status.conditions", "Complete, Failed", "cannot set Complete=True and Failed=true conditions"
            )
        )
    if status.get("completionTime") and not complete:
        wrong.append(
            invalid_value(
                "status.completionTime",
                status["completionTime"],
                "cannot set completionTime when there is no Complete=True condition",
            )
        )
    if complete and not status.get("completionTime"):
        wrong.append(required("status.completionTime", "completionTime is required for Complete jobs"))
    if complete and not status.get("startTime"):
        wrong.append(required("status.startTime", "startTime is required for finished job"))
    wrong += _status_moves(draft, old)
    for name in ("active", "ready", "succeeded", "failed", "terminating"):
        if (value := status.get(name)) is not None and value < 0:
            wrong.append(invalid_value(f"status.{name}", value, "must be greater than or equal to 0"))
    return wrong


def _status_moves(draft: Document, old: Document) -> Iterator[FieldError]:
    for kind in ("Complete", "Failed"):
        if _condition(old, kind) and not _condition(draft, kind):
            yield invalid_value("status.conditions", kind, f"cannot disable the terminal {kind}=True condition")
    before, after = (old.get("status") or {}).get("startTime"), (draft.get("status") or {}).get("startTime")
    if before and before != after and not draft["spec"].get("suspend"):
        yield required("status.startTime", "startTime cannot be changed or removed for unsuspended job")


JOB_RULES = Rules(
    default=_default_job,
    prepare_create=_prepare_job,
    validate=_validate_job,
    validate_update=_job_update,
    validate_status=_job_status,
)
