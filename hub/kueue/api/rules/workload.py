"""Rules for Workloads that their schema does not state: what may be written, whatever was there before."""

import re
from collections.abc import Sequence
from itertools import pairwise

from hub.kueue.api.errors import QuantityError
from hub.kueue.api.meta import is_true
from hub.kueue.api.quantity import amount
from hub.kueue.api.rules import pods
from hub.kueue.api.rules.field_errors import (
    FieldErrors,
    duplicate,
    duplicates,
    forbidden,
    invalid,
    not_found,
    required,
)
from hub.kueue.api.v1beta2.fields import QUALIFIED_NAME_PATTERN
from hub.kueue.api.v1beta2.names import (
    ADMISSION_GATED_BY,
    ELASTIC_JOB,
    POD_PRIORITY_CLASS_REF,
    QUOTA_RESERVED,
    WORKLOAD_PRIORITY_CLASS_REF,
)
from hub.kueue.api.v1beta2.workload import (
    AdmissionCheckState,
    PodSet,
    PodSetAssignment,
    PodSetTopologyRequest,
    TopologyAssignment,
    TopologyAssignmentSlice,
    TopologySlicePodCounts,
    Workload,
)

_SPEC, _POD_SETS, _STATUS = "spec", "spec.podSets", "status"
_GATE_MAX, _POD_SETS_PER_GROUP = 63, 2


def is_elastic(workload: Workload) -> bool:
    return workload.metadata.annotations.get(ELASTIC_JOB) == "true"


def workload(new: Workload) -> FieldErrors:
    yield from _gates("metadata.annotations", new)
    yield from _pod_sets(new)
    yield from _priority(new)
    yield from _groups(new.spec.pod_sets)
    yield from _admission(new)
    yield from _checks(new)
    yield from _reclaimable(new)
    yield from _clusters(new)


# --- spec --------------------------------------------------------------------------------------------------------------


def gates_of(workload: Workload) -> list[str]:
    """Names in the admission-gated-by annotation, a comma list."""
    text = workload.metadata.annotations.get(ADMISSION_GATED_BY, "")
    return [part.strip() for part in text.split(",")] if text else []


def _gates(path: str, new: Workload) -> FieldErrors:
    where = f"{path}[{ADMISSION_GATED_BY}]"
    gates = gates_of(new)
    for gate in gates:
        if "/" not in gate or not re.match(QUALIFIED_NAME_PATTERN, gate) or len(gate) > _GATE_MAX:
            yield invalid(where, gate, f"each gate is a name with a domain, at most {_GATE_MAX} characters long")
    if len(set(gates)) != len(gates):
        yield duplicate(where, ",".join(gates))


def _pod_sets(new: Workload) -> FieldErrors:
    sets = new.spec.pod_sets
    if not sets:
        yield required(_POD_SETS, "must have at least 1 item")
    partial = [index for index, pod_set in enumerate(sets) if pod_set.min_count is not None]
    for index in partial[1:]:
        yield forbidden(f"{_POD_SETS}[{index}].minCount", "at most one pod set may have it")
    for index, pod_set in enumerate(sets):
        yield from _pod_set(f"{_POD_SETS}[{index}]", pod_set, elastic=is_elastic(new))


def _pod_set(path: str, pod_set: PodSet, *, elastic: bool) -> FieldErrors:
    yield from pods.template_requests(f"{path}.template", pod_set.template)
    if pod_set.min_count is not None:
        if pod_set.min_count > pod_set.count:
            yield invalid(f"{path}.minCount", pod_set.min_count, f"must not exceed count, {pod_set.count}")
        if elastic:
            yield forbidden(f"{path}.minCount", "does not go with an elastic job")
    if pod_set.topology_request:
        yield from _topology(f"{path}.topologyRequest", pod_set.topology_request, pod_set.count)


def _priority(new: Workload) -> FieldErrors:
    ref = new.spec.priority_class_ref
    if ref is None:
        return
    if (ref.group, ref.kind) not in (WORKLOAD_PRIORITY_CLASS_REF, POD_PRIORITY_CLASS_REF):
        yield invalid(f"{_SPEC}.priorityClassRef.kind", ref.kind, f"there is no such kind in group {ref.group}")
    if new.spec.priority is None:
        yield required(f"{_SPEC}.priority", "when priorityClassRef is set")


def _topology(path: str, request: PodSetTopologyRequest, count: int) -> FieldErrors:
    wishes = ["required", "preferred", "unconstrained"]
    given = [wish for wish in wishes if getattr(request, wish)]
    if len(given) > 1:
        yield invalid(path, given, "at most one of required, preferred and unconstrained may be set")
    for wish in ("required", "preferred"):
        if level := getattr(request, wish):
            yield from pods.label_key(f"{path}.{wish}", level)
    yield from _slice(path, request, count)
    yield from _layers(path, request, count)


def _slice(path: str, request: PodSetTopologyRequest, count: int) -> FieldErrors:
    level, size = request.pod_set_slice_required_topology, request.pod_set_slice_size
    if (level is None) != (size is None):
        missing = "podSetSliceSize" if size is None else "podSetSliceRequiredTopology"
        yield required(f"{path}.{missing}", "podSetSliceRequiredTopology and podSetSliceSize are set together")
    if size is not None and size > count:
        yield invalid(f"{path}.podSetSliceSize", size, f"must not exceed the count of the pod set, {count}")


def _layers(path: str, request: PodSetTopologyRequest, count: int) -> FieldErrors:
    """Slices within slices: from the outside in, each size divides the one before."""
    layers, where = request.podset_slice_required_topology_constraints, f"{path}.podsetSliceRequiredTopologyConstraints"
    if not layers:
        return
    if request.pod_set_slice_size is not None or request.pod_set_slice_required_topology is not None:
        yield forbidden(where, "must not be set beside podSetSliceRequiredTopology and podSetSliceSize")
    if request.pod_set_group_name:
        yield forbidden(where, "must not be set beside podSetGroupName")
    yield from duplicates(where, [layer.topology for layer in layers])
    if layers[0].size > count:
        yield invalid(f"{where}[0].size", layers[0].size, f"must not exceed the count of the pod set, {count}")
    for index, (outer, inner) in enumerate(pairwise(layers), start=1):
        if outer.size % inner.size:
            yield invalid(f"{where}[{index}].size", inner.size, f"must divide the size before it, {outer.size}")


def _groups(sets: Sequence[PodSet]) -> FieldErrors:
    """Pod sets that are placed together: a leader and its workers, with one wish."""
    members: dict[str, list[int]] = {}
    for index, pod_set in enumerate(sets):
        if pod_set.topology_request and pod_set.topology_request.pod_set_group_name:
            members.setdefault(pod_set.topology_request.pod_set_group_name, []).append(index)
    for name, indexes in members.items():
        yield from _group(name, [(f"{_POD_SETS}[{index}]", sets[index]) for index in indexes])


def _group(name: str, members: Sequence[tuple[str, PodSet]]) -> FieldErrors:
    path = f"{members[0][0]}.topologyRequest.podSetGroupName"
    if name.isdecimal():
        yield invalid(path, name, "must not be a number")
    if len(members) != _POD_SETS_PER_GROUP:
        detail = f"a group has exactly {_POD_SETS_PER_GROUP} pod sets, this one has {len(members)}"
        yield invalid(path, name, detail)
        return
    if all(pod_set.count != 1 for _, pod_set in members):
        yield invalid(path, name, "one of the pod sets must have a count of 1")
    requests = [pod_set.topology_request for _, pod_set in members if pod_set.topology_request]
    wishes = {(request.required, request.preferred) for request in requests}
    if len(wishes) > 1:
        yield invalid(path, name, "both pod sets must ask for the same required or preferred topology")
    if (None, None) in wishes:
        yield required(path.replace("podSetGroupName", "required"), "a group needs required or preferred")
    if any(request.pod_set_slice_size is not None for request in requests):
        yield forbidden(path, "a group does not go with slices")


# --- status ------------------------------------------------------------------------------------------------------------


def _admission(new: Workload) -> FieldErrors:
    path, admission = f"{_STATUS}.admission", new.status.admission
    if admission is None:
        if is_true(new.status.conditions, QUOTA_RESERVED):
            yield required(path, "while quota is reserved")
        return
    where = f"{path}.podSetAssignments"
    names, want = [one.name for one in admission.pod_set_assignments], [one.name for one in new.spec.pod_sets]
    if is_true(new.status.conditions, QUOTA_RESERVED) and sorted(names) != sorted(want):
        yield invalid(where, names, f"must have one entry for each of the podSets: {', '.join(want)}")
    for index, assignment in enumerate(admission.pod_set_assignments):
        yield from _usage(f"{where}[{index}].resourceUsage", assignment)
        if assignment.topology_assignment:
            yield from _topology_assignment(f"{where}[{index}].topologyAssignment", assignment.topology_assignment)


def _usage(path: str, assignment: PodSetAssignment) -> FieldErrors:
    """Totals are a whole number of pods' shares, so that pods given back can be taken off exactly."""
    for resource, quantity in assignment.resource_usage.items():
        try:
            total = amount(resource, quantity)
        except QuantityError:
            continue  # the limits of the schema speak of it
        if assignment.count and total % assignment.count:
            yield invalid(f"{path}[{resource}]", quantity, f"must be a multiple of the count, {assignment.count}")


def _topology_assignment(path: str, assignment: TopologyAssignment) -> FieldErrors:
    for index, one in enumerate(assignment.slices):
        yield from _topology_slice(f"{path}.slices[{index}]", one, len(assignment.levels))


def _topology_slice(path: str, one: TopologyAssignmentSlice, levels: int) -> FieldErrors:
    if len(one.values_per_level) != levels:
        yield invalid(f"{path}.valuesPerLevel", len(one.values_per_level), f"must have one entry for {levels} levels")
    for index, values in enumerate(one.values_per_level):
        where = f"{path}.valuesPerLevel[{index}]"
        if (values.universal is None) == (values.individual is None):
            yield invalid(where, None, "exactly one of universal and individual must be set")
        elif values.individual and len(values.individual.roots) != one.domain_count:
            yield invalid(
                f"{where}.individual.roots", len(values.individual.roots), f"must have {one.domain_count} entries"
            )
    yield from _pod_counts(f"{path}.podCounts", one.pod_counts, one.domain_count)


def _pod_counts(path: str, counts: TopologySlicePodCounts, domains: int) -> FieldErrors:
    if (counts.universal is None) == (counts.individual is None):
        yield invalid(path, None, "exactly one of universal and individual must be set")
    elif counts.individual is not None and len(counts.individual) != domains:
        yield invalid(f"{path}.individual", len(counts.individual), f"must have {domains} entries")


def _checks(new: Workload) -> FieldErrors:
    for index, check in enumerate(new.status.admission_checks):
        yield from _pod_set_updates(f"{_STATUS}.admissionChecks[{index}].podSetUpdates", check, new)


def _pod_set_updates(path: str, check: AdmissionCheckState, new: Workload) -> FieldErrors:
    known = [pod_set.name for pod_set in new.spec.pod_sets]
    for index, update in enumerate(check.pod_set_updates):
        if update.name not in known:
            yield not_found(f"{path}[{index}].name", update.name)
        yield from pods.labels(f"{path}[{index}].labels", update.labels)
        yield from pods.labels(f"{path}[{index}].nodeSelector", update.node_selector)
        yield from pods.tolerations(f"{path}[{index}].tolerations", update.tolerations)
    yield from duplicates(path, [update.name for update in check.pod_set_updates])


def _reclaimable(new: Workload) -> FieldErrors:
    counts = {pod_set.name: pod_set.count for pod_set in new.spec.pod_sets}
    for index, given_back in enumerate(new.status.reclaimable_pods):
        path = f"{_STATUS}.reclaimablePods[{index}]"
        if given_back.name not in counts:
            yield not_found(f"{path}.name", given_back.name)
        elif given_back.count > counts[given_back.name]:
            detail = f"must not exceed the count of the pod set, {counts[given_back.name]}"
            yield invalid(f"{path}.count", given_back.count, detail)


def _clusters(new: Workload) -> FieldErrors:
    if new.status.cluster_name and new.status.nominated_cluster_names:
        yield invalid(f"{_STATUS}.clusterName", new.status.cluster_name, "must not be set beside nominatedClusterNames")
