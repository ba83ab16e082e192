"""What may not change any more in a Workload, as its life goes on."""

import msgspec

from hub.kueue.api.meta import is_true
from hub.kueue.api.rules.field_errors import FieldErrors, forbidden, immutable, invalid
from hub.kueue.api.rules.workload import gates_of, is_elastic
from hub.kueue.api.v1beta2.names import (
    ADMISSION_GATED_BY,
    ADMITTED,
    POD_PRIORITY_CLASS_REF,
    QUOTA_RESERVED,
    WORKLOAD_SLICE_REPLACEMENT_FOR,
)
from hub.kueue.api.v1beta2.workload import Admission, PodSet, Workload

_RESERVED = "while quota is reserved"


def workload_update(new: Workload, old: Workload) -> FieldErrors:
    was_reserved = is_true(old.status.conditions, QUOTA_RESERVED)
    stays_reserved = was_reserved and is_true(new.status.conditions, QUOTA_RESERVED)
    yield from _gates(new, old)
    if was_reserved:
        yield from _pod_sets(new, old)
        yield from _priority_class(new, old)
    if stays_reserved:
        if new.spec.queue_name != old.spec.queue_name:
            yield immutable("spec.queueName", new.spec.queue_name, _RESERVED)
        yield from _reclaimable(new, old)
    yield from _execution_time(new, old)
    yield from _admission(new.status.admission, old.status.admission)
    yield from _checks(new, old)
    yield from _cluster(new, old)


def _gates(new: Workload, old: Workload) -> FieldErrors:
    added = [gate for gate in gates_of(new) if gate not in gates_of(old)]
    if added:
        path = f"metadata.annotations[{ADMISSION_GATED_BY}]"
        yield forbidden(path, f"gates may only be removed after creation; new: {', '.join(added)}")


def _pod_sets(new: Workload, old: Workload) -> FieldErrors:
    """Frozen; those of an elastic job may shrink."""
    if is_elastic(new) and len(new.spec.pod_sets) == len(old.spec.pod_sets):
        pairs = zip(new.spec.pod_sets, old.spec.pod_sets, strict=True)
        if all(_same_or_smaller(after, before) for after, before in pairs):
            return
    elif new.spec.pod_sets == old.spec.pod_sets:
        return
    yield immutable("spec.podSets", [pod_set.name for pod_set in new.spec.pod_sets], _RESERVED)


def _same_or_smaller(new: PodSet, old: PodSet) -> bool:
    return new.count <= old.count and msgspec.structs.replace(new, count=old.count) == old


def _priority_class(new: Workload, old: Workload) -> FieldErrors:
    """The class stays the class; only its name may change, and that of a PriorityClass may not."""
    before, after, path = old.spec.priority_class_ref, new.spec.priority_class_ref, "spec.priorityClassRef"
    if before is None or after is None:
        if before is not after:
            yield immutable(path, after and after.name, _RESERVED)
        return
    if (after.group, after.kind) != (before.group, before.kind):
        yield immutable(f"{path}.kind", after.kind, _RESERVED)
    elif (after.group, after.kind) == POD_PRIORITY_CLASS_REF and after.name != before.name:
        yield immutable(f"{path}.name", after.name, _RESERVED)


def _execution_time(new: Workload, old: Workload) -> FieldErrors:
    admitted = all(is_true(one.status.conditions, ADMITTED) for one in (new, old))
    seconds = new.spec.maximum_execution_time_seconds
    if admitted and seconds != old.spec.maximum_execution_time_seconds:
        yield immutable("spec.maximumExecutionTimeSeconds", seconds, "while the workload is admitted")


def _admission(new: Admission | None, old: Admission | None) -> FieldErrors:
    """Set or removed, never altered; only where the pods go within a topology may be decided later."""
    if new and old and _without_topology(new) != _without_topology(old):
        yield immutable("status.admission", new.cluster_queue, "once it is set; remove it first")


def _without_topology(admission: Admission) -> Admission:
    assignments = [
        msgspec.structs.replace(one, topology_assignment=None, delayed_topology_request=None)
        for one in admission.pod_set_assignments
    ]
    return msgspec.structs.replace(admission, pod_set_assignments=assignments)


def _reclaimable(new: Workload, old: Workload) -> FieldErrors:
    """Pods that were given back are not taken again; an elastic job that shrinks may have fewer to give back."""
    if is_elastic(new):
        return
    counts = {one.name: one.count for one in new.status.reclaimable_pods}
    for index, before in enumerate(old.status.reclaimable_pods):
        after = counts.get(before.name, 0)
        if after < before.count:
            path = f"status.reclaimablePods[{index}].count"
            yield invalid(path, after, f"must not fall below {before.count} {_RESERVED}")


def _checks(new: Workload, old: Workload) -> FieldErrors:
    ready = {check.name: check for check in old.status.admission_checks if check.state == "Ready"}
    for index, check in enumerate(new.status.admission_checks):
        before = ready.get(check.name)
        if before and check.state == "Ready" and check.pod_set_updates != before.pod_set_updates:
            path = f"status.admissionChecks[{index}].podSetUpdates"
            yield immutable(path, check.name, "while the check is Ready")


def _cluster(new: Workload, old: Workload) -> FieldErrors:
    """A cluster is chosen once, out of those nominated before; a replacement slice inherits its own."""
    before, after, path = old.status.cluster_name, new.status.cluster_name, "status.clusterName"
    if before and after and before != after:
        yield immutable(path, after, "once it is set")
    if before or not after or WORKLOAD_SLICE_REPLACEMENT_FOR in new.metadata.annotations:
        return
    if after not in old.status.nominated_cluster_names:
        nominated = ", ".join(old.status.nominated_cluster_names) or "none"
        yield invalid(path, after, f"must be one of the nominatedClusterNames, {nominated}")
