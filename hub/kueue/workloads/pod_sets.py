"""What pods get when their workload is admitted, and how a pod template gets it and loses it again.

admission (flavors, counts) ─┐
flavors (labels, tolerations)├──▶ [PodSetInfo] ──merged──▶ the job's pod templates
checks (podSetUpdates) ──────┘
the Workload's own pod sets ─────▶ [PodSetInfo] ──restored──▶ the templates as the user wrote them
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from hub.kueue.api.core import pod_requests, pod_template
from hub.kueue.api.decoding import document, part_of
from hub.kueue.api.quantity import multiply
from hub.kueue.api.v1beta2 import PodSet, PodSetAssignment, PodSetUpdate, ResourceFlavor, Workload, names

Manifest = dict[str, Any]


class PodSetInfo(Struct, frozen=True, kw_only=True):
    """Additions to the pods of one pod set, and how many pods there are."""

    name: str
    count: int
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[Manifest] = []
    scheduling_gates: list[Manifest] = []


class Clash(Struct, frozen=True, kw_only=True):
    """Two sides want different values for one key: no pod can have both, so the job can never start like this."""

    pod_set: str
    field: str
    key: str
    have: str
    want: str

    def __str__(self) -> str:
        return f"pod set {self.pod_set}: {self.field} {self.key} is {self.have!r} already, the admission needs {self.want!r}"


class MissingFlavor(Struct, frozen=True, kw_only=True):
    """A flavor of the admission is not there (any more). It may come (back): try again later."""

    pod_set: str
    flavor: str

    def __str__(self) -> str:
        return f"pod set {self.pod_set}: there is no ResourceFlavor {self.flavor}"


Problem = Clash | MissingFlavor


def totals(pod_sets: Iterable[PodSet]) -> dict[str, int]:
    """What all pods of all pod sets ask for together, in engine units. Raises DecodeError, QuantityError."""
    total: dict[str, int] = {}
    for pod_set in pod_sets:
        for resource, amount in pod_requests(pod_template(pod_set.template).spec).items():
            total[resource] = total.get(resource, 0) + multiply(amount, pod_set.count)
    return total


def infos_of_admission(
    workload: Workload, flavors: Mapping[str, ResourceFlavor]
) -> tuple[list[PodSetInfo], list[Problem]]:
    """What the pods of an admitted workload get, pod set by pod set, in the order of the spec.

    From the flavors: node labels as node selector, tolerations; from every Ready check: its podSetUpdates; from us: the
    labels by which pods are found. Problems make the infos incomplete: do not start the job with them.
    """
    admission = workload.status.admission
    if admission is None:
        return [], []
    assigned = {assignment.name: assignment for assignment in admission.pod_set_assignments}
    infos: list[PodSetInfo] = []
    problems: list[Problem] = []
    for pod_set in workload.spec.pod_sets:
        assignment = assigned.get(pod_set.name) or PodSetAssignment(name=pod_set.name)
        info = PodSetInfo(
            name=pod_set.name,
            count=pod_set.count if assignment.count is None else assignment.count,
            labels=_labels(workload, pod_set.name, admission.cluster_queue),
            annotations=_annotations(workload, assignment),
        )
        for addition in _additions(workload, assignment, flavors, problems):
            info, clashes = _joined(info, addition)
            problems += clashes
        infos.append(info)
    return infos, problems


def infos_of_spec(workload: Workload) -> list[PodSetInfo]:
    """The pod sets as the user wrote them: what `restored` takes a template back to."""
    return [_of_template(pod_set.name, pod_set.count, pod_set.template) for pod_set in workload.spec.pod_sets]


def merged(template: Manifest, info: PodSetInfo) -> tuple[Manifest, list[Clash]]:
    """A copy of the template with the additions in it. Whatever clashes is left as it was."""
    after, clashes = _joined(_of_template(info.name, info.count, template), info)
    return restored(template, after), clashes


def restored(template: Manifest, info: PodSetInfo) -> Manifest:
    """A copy of the template that has exactly these labels, annotations, node selector, tolerations and gates."""
    meta = _set(part_of(template, "metadata"), labels=info.labels, annotations=info.annotations)
    spec = _set(
        part_of(template, "spec"),
        nodeSelector=info.node_selector,
        tolerations=info.tolerations,
        schedulingGates=info.scheduling_gates,
    )
    return _set(template, metadata=meta, spec=spec)


# --- parts -------------------------------------------------------------------------------------------------------------


def _labels(workload: Workload, pod_set: str, cluster_queue: str) -> dict[str, str]:
    labels = {names.POD_SET: pod_set, names.CLUSTER_QUEUE_NAME: cluster_queue}
    if workload.spec.queue_name:
        labels[names.LOCAL_QUEUE_NAME] = workload.spec.queue_name
    if names.MULTIKUEUE_ORIGIN in workload.metadata.labels:
        labels[names.MULTIKUEUE_WORKER_WORKLOAD_POD] = "true"
    # A label value has at most 63 characters; a queue's name may have more, and then there is no such label.
    return {key: value for key, value in labels.items() if len(value) <= 63}


def _annotations(workload: Workload, assignment: PodSetAssignment) -> dict[str, str]:
    """Pods with a place name their workload: admission counts them there already, as part of it."""
    return {names.WORKLOAD: workload.metadata.name} if assignment.topology_assignment is not None else {}


def _additions(
    workload: Workload,
    assignment: PodSetAssignment,
    flavors: Mapping[str, ResourceFlavor],
    problems: list[Problem],
) -> list[PodSetInfo]:
    found: list[PodSetInfo] = []
    for name in dict.fromkeys(assignment.flavors.values()):
        if (flavor := flavors.get(name)) is None:
            problems.append(MissingFlavor(pod_set=assignment.name, flavor=name))
        else:
            found.append(_of_flavor(assignment.name, flavor))
    updates = [
        update
        for check in workload.status.admission_checks
        if check.state == "Ready"
        for update in check.pod_set_updates
        if update.name == assignment.name
    ]
    return [*found, *(_of_update(update) for update in updates)]


def _of_template(name: str, count: int, template: Mapping[str, Any]) -> PodSetInfo:
    meta, spec = part_of(template, "metadata"), part_of(template, "spec")
    return PodSetInfo(
        name=name,
        count=count,
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        node_selector=spec.get("nodeSelector") or {},
        tolerations=spec.get("tolerations") or [],
        scheduling_gates=spec.get("schedulingGates") or [],
    )


def _of_flavor(pod_set: str, flavor: ResourceFlavor) -> PodSetInfo:
    tolerations = [document(toleration) for toleration in flavor.spec.tolerations]
    return PodSetInfo(name=pod_set, count=0, node_selector=flavor.spec.node_labels, tolerations=tolerations)


def _of_update(update: PodSetUpdate) -> PodSetInfo:
    return PodSetInfo(
        name=update.name,
        count=0,
        labels=update.labels,
        annotations=update.annotations,
        node_selector=update.node_selector,
        tolerations=[document(toleration) for toleration in update.tolerations],
    )


def _joined(info: PodSetInfo, more: PodSetInfo) -> tuple[PodSetInfo, list[Clash]]:
    clashes = [
        Clash(pod_set=info.name, field=field, key=key, have=have[key], want=value)
        for field, have, want in (
            ("label", info.labels, more.labels),
            ("annotation", info.annotations, more.annotations),
            ("nodeSelector", info.node_selector, more.node_selector),
        )
        for key, value in want.items()
        if have.get(key, value) != value
    ]
    after = structs.replace(
        info,
        labels={**more.labels, **info.labels},
        annotations={**more.annotations, **info.annotations},
        node_selector={**more.node_selector, **info.node_selector},
        tolerations=_united(info.tolerations, more.tolerations),
        scheduling_gates=_united(info.scheduling_gates, more.scheduling_gates),
    )
    return after, clashes


def _united(have: Sequence[Manifest], more: Sequence[Manifest]) -> list[Manifest]:
    return [*have, *(item for item in more if item not in have)]


def _set(document: Mapping[str, Any], **fields: Any) -> Manifest:
    """A copy with these fields; empty ones are left out."""
    kept = {name: value for name, value in document.items() if name not in fields}
    return {**kept, **{name: value for name, value in fields.items() if value}}
