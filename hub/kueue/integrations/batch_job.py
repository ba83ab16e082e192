"""batch/v1 Job: one pod set, `spec.suspend`, partial admission, and a stop in three writes.

    running ──suspend, annotation `stopping`──▶ ──startTime cleared──▶ ──template restored, annotation gone──▶ suspended

A Job's pod template may change only while the Job is suspended and has no start time. The annotation tells a Job in the
middle of its stop from one that rests, across restarts of ours.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from hub.kueue.api.decoding import list_of, part_of
from hub.kueue.api.meta import key_of
from hub.kueue.api.resources import JOBS
from hub.kueue.api.rules.field_errors import FieldError, immutable, invalid, unsupported
from hub.kueue.api.v1beta2 import PodSet, names
from hub.kueue.integrations.interface import Manifest, Outcome
from hub.kueue.integrations.templates import annotations_of, labels_of, topology_errors, topology_request
from hub.kueue.operations import Patch, merge_patch_between
from hub.kueue.workloads.pod_sets import Clash, PodSetInfo, merged, restored

POD_SET = "main"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
#: Put on pod templates by the Job controller's API; they name this very Job and must not travel.
CONTROLLER_LABELS = frozenset(
    {
        "controller-uid",
        "job-name",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-name",
    }
)
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
_PARTIAL = (names.JOB_MIN_PARALLELISM, names.JOB_COMPLETIONS_EQUAL_PARALLELISM)
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class BatchJob:
    framework = "batch/job"
    resource = JOBS
    native_manager = "kubernetes.io/job-controller"

    def suspended(self, job: Manifest) -> bool:
        return bool(_spec(job).get("suspend")) and not self.stopping(job)

    def stopping(self, job: Manifest) -> bool:
        return names.JOB_STOPPING in annotations_of(job)

    def pod_sets(self, job: Manifest) -> list[PodSet]:
        template = _without_controller_labels(_template(job))
        index_label = INDEX_LABEL if _spec(job).get("completionMode") == "Indexed" else ""
        return [
            PodSet(
                name=POD_SET,
                template=template,
                count=_pods(job),
                min_count=_min_parallelism(job),
                topology_request=topology_request(template, index_label=index_label),
            )
        ]

    def priority_class(self, job: Manifest) -> str:
        return ""

    def started(self, job: Manifest, infos: Sequence[PodSetInfo]) -> tuple[Manifest, list[Clash]]:
        (info,) = infos
        template, clashes = merged(_template(job), info)
        spec = {**_spec(job), **_sized(job, info.count), "suspend": False, "template": template}
        return {**job, "spec": spec}, clashes

    def stop(self, job: Manifest, infos: Sequence[PodSetInfo]) -> Patch | None:
        if not _spec(job).get("suspend"):
            body = {"metadata": {"annotations": {names.JOB_STOPPING: "true"}}, "spec": {"suspend": True}}
            return _patch(job, body)
        if not self.stopping(job):
            return None
        if _status(job).get("startTime"):
            return _patch(job, {"status": {"startTime": None}}, subresource="status")
        after = {**job, "spec": self._restored(job, infos)}
        body = merge_patch_between(job, after)
        return _patch(job, {**body, "metadata": {"annotations": {names.JOB_STOPPING: None}}})

    def _restored(self, job: Manifest, infos: Sequence[PodSetInfo]) -> Manifest:
        spec = _spec(job)
        if not infos:  # the Workload is gone, and with it the knowledge of how the template was
            return spec
        (info,) = infos
        kept = labels_of(_template(job))
        own = {label: kept[label] for label in CONTROLLER_LABELS if label in kept}
        template = restored(_template(job), _labelled(info, own))
        return {**spec, **_sized(job, info.count), "template": template}

    def active(self, job: Manifest) -> bool:
        return bool(_status(job).get("active"))

    def finished(self, job: Manifest) -> Outcome | None:
        for condition in list_of(job, "status", "conditions"):
            if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
                succeeded = condition["type"] == "Complete"
                default = "Job finished successfully" if succeeded else "Job failed"
                return Outcome(succeeded=succeeded, message=condition.get("message") or default)
        return None

    def pods_ready(self, job: Manifest) -> bool:
        status = _status(job)
        uncounted = list_of(status, "uncountedTerminatedPods", "succeeded")
        return (status.get("succeeded") or 0) + (status.get("ready") or 0) + len(uncounted) >= _pods(job)

    def reclaimable(self, job: Manifest) -> dict[str, int]:
        spec, status = _spec(job), _status(job)
        done = status.get("succeeded") or 0
        if spec.get("completionMode") == "Indexed":
            done = max(done, len(_indexes(status.get("completedIndexes")) | _indexes(status.get("failedIndexes"))))
        completions = spec.get("completions")
        remaining = (_parallelism(job) if completions is None else completions) - done
        count = _pods(job) - max(remaining, 0)
        return {POD_SET: count} if done and count > 0 else {}

    def managed_by(self, job: Manifest) -> str:
        return _spec(job).get("managedBy") or ""

    def defaulted(self, job: Manifest, *, managed_by: str = "") -> Manifest:
        spec = {**_spec(job), "suspend": True}
        if managed_by and self.managed_by(job) in ("", self.native_manager):
            spec["managedBy"] = managed_by
        return {**job, "spec": spec}

    def clean_for_worker(self, job: Manifest) -> Manifest:
        meta = job["metadata"]
        notes = {k: v for k, v in annotations_of(job).items() if k not in (names.JOB_STOPPING, LAST_APPLIED)}
        spec = copy.deepcopy(_spec(job))
        spec["suspend"] = True
        spec.pop("managedBy", None)
        if not spec.get("manualSelector"):
            spec.pop("selector", None)
        labels = labels_of(part_of(spec, "template"))
        for label in CONTROLLER_LABELS:
            if label != JOB_NAME_LABEL:
                labels.pop(label, None)
        return {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "metadata": {
                "namespace": meta.get("namespace", ""),
                "name": meta["name"],
                "labels": dict(meta.get("labels") or {}),
                "annotations": notes,
            },
            "spec": spec,
        }

    def status_for_manager(self, job: Manifest, remote: Manifest) -> Manifest | None:
        if self.finished(job) is not None:
            return None
        far = _status(remote)
        if self.finished(remote) or not _spec(job).get("suspend") or _spec(remote).get("suspend"):
            return far if far != _status(job) else None
        return self._held_back(job)

    def _held_back(self, job: Manifest) -> Manifest | None:
        """The remote one runs, the local one is suspended still: a running status on it would be refused.

        Its Suspended condition, which nobody else writes, is what Kubernetes 1.36 wants to see before it takes later edits
        of the template (kueue#11649).
        """
        conditions = list_of(job, "status", "conditions")
        if any(c.get("type") == "Suspended" and c.get("status") == "True" for c in conditions):
            return None
        said = {
            "type": "Suspended",
            "status": "True",
            "reason": "MultiKueueAdapter",
            "message": "The Job is suspended here until its Workload is admitted",
        }
        return {**_status(job), "conditions": [*(c for c in conditions if c.get("type") != "Suspended"), said]}

    def withdrawn(self, job: Manifest) -> Patch | None:
        told = [field for field in ("active", "ready", "terminating") if _status(job).get(field)]
        return _patch(job, {"status": dict.fromkeys(told)}, subresource="status") if told else None

    def validate(self, job: Manifest, old: Manifest | None) -> list[FieldError]:
        errors = topology_errors(_template(job), "spec.template")
        changed = [n for n in _PARTIAL if old is None or annotations_of(old).get(n) != annotations_of(job).get(n)]
        if changed:  # a job that was admitted in part has as few pods as it may: only what people write is looked at
            errors += _partial_errors(job)
        if old is not None and not _spec(old).get("suspend"):
            errors += [immutable(_annotation(n), annotations_of(job).get(n), "while the job runs") for n in changed]
        return errors


BATCH_JOB = BatchJob()


# --- parts -------------------------------------------------------------------------------------------------------------


def _spec(job: Mapping[str, Any]) -> Manifest:
    return part_of(job, "spec")


def _status(job: Mapping[str, Any]) -> Manifest:
    return part_of(job, "status")


def _template(job: Manifest) -> Manifest:
    return part_of(job, "spec", "template")


def _without_controller_labels(template: Manifest) -> Manifest:
    """A copy of the template, sharing what it does not change."""
    own = labels_of(template).keys() & CONTROLLER_LABELS
    if not own:
        return template
    labels = {name: value for name, value in labels_of(template).items() if name not in own}
    return {**template, "metadata": {**part_of(template, "metadata"), "labels": labels}}


def _parallelism(job: Manifest) -> int:
    value = _spec(job).get("parallelism")
    return 1 if value is None else value


def _pods(job: Manifest) -> int:
    """Pods that run at the same time."""
    completions = _spec(job).get("completions")
    return _parallelism(job) if completions is None else min(_parallelism(job), completions)


def _sized(job: Manifest, count: int) -> Manifest:
    """Fields of the spec for so many pods. Only a job that may be admitted in part is ever resized."""
    if names.JOB_MIN_PARALLELISM not in annotations_of(job) or count == _pods(job):
        return {}
    if annotations_of(job).get(names.JOB_COMPLETIONS_EQUAL_PARALLELISM) == "true":
        return {"parallelism": count, "completions": count}
    return {"parallelism": count}


def _min_parallelism(job: Manifest) -> int | None:
    text = annotations_of(job).get(names.JOB_MIN_PARALLELISM, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < _pods(job) else None


def _partial_errors(job: Manifest) -> list[FieldError]:
    notes, spec = annotations_of(job), _spec(job)
    errors: list[FieldError] = []
    if (text := notes.get(names.JOB_MIN_PARALLELISM)) is not None:
        where = _annotation(names.JOB_MIN_PARALLELISM)
        if _min_parallelism(job) is None:
            errors.append(invalid(where, text, f"must be a whole number from 1 to {_pods(job) - 1}"))
        if notes.get(names.ELASTIC_JOB) == "true":
            errors.append(invalid(where, text, "an elastic job is not admitted in part"))
    if (text := notes.get(names.JOB_COMPLETIONS_EQUAL_PARALLELISM)) is not None:
        where = _annotation(names.JOB_COMPLETIONS_EQUAL_PARALLELISM)
        if text not in ("true", "false"):
            errors.append(unsupported(where, text, ("true", "false")))
        if text == "true" and (mode := spec.get("completionMode")) != "Indexed":
            errors.append(invalid("spec.completionMode", mode, f"must be Indexed when {where} is true"))
        if text == "true" and (completions := spec.get("completions")) != _parallelism(job):
            errors.append(invalid("spec.completions", completions, f"must be parallelism when {where} is true"))
    return errors


def _annotation(name: str) -> str:
    return f"metadata.annotations[{name}]"


def _labelled(info: PodSetInfo, labels: Mapping[str, str]) -> PodSetInfo:
    return PodSetInfo(
        name=info.name,
        count=info.count,
        labels={**info.labels, **labels},
        annotations=info.annotations,
        node_selector=info.node_selector,
        tolerations=info.tolerations,
        scheduling_gates=info.scheduling_gates,
    )


def _patch(job: Manifest, body: Manifest, *, subresource: str = "") -> Patch:
    meta = job["metadata"]
    return Patch(
        resource=JOBS,
        key=key_of(job),
        body=body,
        subresource="status" if subresource else "",
        resource_version=meta.get("resourceVersion"),
        uid=meta.get("uid"),
    )


def _indexes(text: str | None) -> set[int]:
    """Completion indexes as a Job's status writes them: 1,3-5."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found
