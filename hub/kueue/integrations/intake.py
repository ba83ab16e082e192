"""What happens to a job before it is stored: defaults, and the rules for what people may write about queues.

Pure: the webhook asks it. What a kind adds of its own is in its integration.
"""

import re

from msgspec import Struct

from hub.kueue.api.decoding import part_of
from hub.kueue.api.rules.field_errors import FieldError, forbidden, immutable, invalid
from hub.kueue.api.v1beta2 import names
from hub.kueue.api.v1beta2.fields import SUBDOMAIN_PATTERN
from hub.kueue.integrations import compose
from hub.kueue.integrations.interface import Integration, Manifest
from hub.kueue.integrations.templates import annotations_of, labels_of

_SUBDOMAIN = re.compile(SUBDOMAIN_PATTERN)
_GATE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
GATE_MAX = 63


class Surroundings(Struct, frozen=True, kw_only=True):
    """What there is where the job is created."""

    #: The namespace has a LocalQueue called `default`.
    has_default_queue: bool = False
    #: There is a WorkloadPriorityClass called `default`.
    has_default_priority_class: bool = False
    #: Controller that runs the jobs instead of their own: kueue.x-k8s.io/multikueue on a management cluster, else "".
    managed_by: str = ""


def defaulted(integration: Integration, job: Manifest, around: Surroundings) -> Manifest:
    """The job as it should be created. One that is not to be queued is returned as it is."""
    queue = compose.queue_name(job) or (names.DEFAULT_LOCAL_QUEUE if around.has_default_queue else "")
    if not queue:
        return job
    labels = {**labels_of(job), names.QUEUE_NAME: queue}
    if around.has_default_priority_class:
        labels.setdefault(names.PRIORITY_CLASS, names.DEFAULT_PRIORITY_CLASS)
    labelled = {**job, "metadata": {**part_of(job, "metadata"), "labels": labels}}
    return integration.defaulted(labelled, managed_by=around.managed_by)


def errors_in(integration: Integration, job: Manifest, old: Manifest | None = None) -> list[FieldError]:
    """What is wrong with a job that is to be created or, with `old`, to replace that one; nothing if it is not queued."""
    if not compose.queue_name(job) and not (old and compose.queue_name(old)):
        return []
    errors = [*_name_errors(job), *_time_errors(job), *_gate_errors(job, old)]
    if old is not None:
        errors += _changes_while_running(integration, job, old)
        errors += _priority_errors(integration, job, old)
    return [*errors, *integration.validate(job, old)]


def _label(name: str) -> str:
    return f"metadata.labels[{name}]"


def _name_errors(job: Manifest) -> list[FieldError]:
    named = {
        _label(names.QUEUE_NAME): compose.queue_name(job),
        _label(names.PREBUILT_WORKLOAD_NAME): compose.prebuilt_name(job),
        _label(names.PRIORITY_CLASS): labels_of(job).get(names.PRIORITY_CLASS, ""),
    }
    detail = "must be a lower-case RFC 1123 subdomain of at most 253 characters: letters, digits, '-' and '.'"
    return [
        invalid(path, name, detail)
        for path, name in named.items()
        if name and (len(name) > compose.NAME_MAX or not _SUBDOMAIN.fullmatch(name))
    ]


def _time_errors(job: Manifest) -> list[FieldError]:
    text = labels_of(job).get(names.MAX_EXEC_TIME_SECONDS)
    if text is None or compose.max_exec_time_s(job) is not None:
        return []
    return [invalid(_label(names.MAX_EXEC_TIME_SECONDS), text, "must be a whole number of seconds above 0")]


def _gates(job: Manifest) -> list[str]:
    text = annotations_of(job).get(names.ADMISSION_GATED_BY, "")
    return [gate.strip() for gate in text.split(",")] if text else []


def _gate_errors(job: Manifest, old: Manifest | None) -> list[FieldError]:
    path, gates = f"metadata.annotations[{names.ADMISSION_GATED_BY}]", _gates(job)
    errors = [
        invalid(path, gate, f"must be a domain, a slash and a name, at most {GATE_MAX} characters in all")
        for gate in gates
        if len(gate) > GATE_MAX or not _GATE.fullmatch(gate)
    ]
    errors += [invalid(path, gate, "must not be listed twice") for gate in sorted(set(gates)) if gates.count(gate) > 1]
    if old is not None:
        added = [gate for gate in gates if gate not in _gates(old)]
        errors += [forbidden(path, f"{gate} cannot be added after the job was created") for gate in added]
    return errors


def _changes_while_running(integration: Integration, job: Manifest, old: Manifest) -> list[FieldError]:
    if integration.suspended(old):
        return []
    fields = (
        (_label(names.QUEUE_NAME), compose.queue_name(old), compose.queue_name(job)),
        (_label(names.PREBUILT_WORKLOAD_NAME), compose.prebuilt_name(old), compose.prebuilt_name(job)),
        (
            _label(names.MAX_EXEC_TIME_SECONDS),
            labels_of(old).get(names.MAX_EXEC_TIME_SECONDS),
            labels_of(job).get(names.MAX_EXEC_TIME_SECONDS),
        ),
    )
    return [immutable(path, new, "while the job runs") for path, before, new in fields if before != new]


def _priority_errors(integration: Integration, job: Manifest, old: Manifest) -> list[FieldError]:
    """The class may be changed at any time; it cannot be taken away, nor given to a running job that had none."""
    path = _label(names.PRIORITY_CLASS)
    before, after = (labels_of(j).get(names.PRIORITY_CLASS, "") for j in (old, job))
    if before and not after:
        return [forbidden(path, "the priority class may be changed and not removed")]
    if after and not before and not integration.suspended(old):
        return [forbidden(path, "a running job that had no priority class cannot get one")]
    return []
