"""From a job to its Workload: the name, the links between the two, the priority, the object.

The name is Kueue's, letter by letter, so that a Workload made by either is found by the other.
"""

import hashlib
from collections.abc import Iterable, Mapping

from msgspec import Struct

from hub.kueue.api.decoding import list_of, part_of
from hub.kueue.api.meta import ObjectMeta, OwnerReference
from hub.kueue.api.v1beta2 import (
    PodSet,
    PriorityClassRef,
    Workload,
    WorkloadPriorityClass,
    WorkloadSpec,
    names,
)
from hub.kueue.integrations.interface import Integration, Manifest
from hub.kueue.integrations.templates import annotations_of, labels_of

NAME_MAX = 253
HASH_DIGITS = 5
LABEL_VALUE_MAX = 63


def workload_name(kind: str, group: str, owner_name: str, owner_uid: str) -> str:
    """Kueue's rule: lower-case kind, owner's name, five digits of a hash; a long name loses its end, never the hash."""
    said = f"{kind}\n{group}\n{owner_name}\n{owner_uid}"
    digest = hashlib.sha1(said.encode(), usedforsecurity=False).hexdigest()[:HASH_DIGITS]
    return f"{kind.lower()}-{owner_name}"[: NAME_MAX - HASH_DIGITS - 1] + f"-{digest}"


def name_for(integration: Integration, job: Manifest) -> str:
    resource, meta = integration.resource, job["metadata"]
    return workload_name(resource.kind, resource.group, meta["name"], meta.get("uid", ""))


def queue_name(job: Manifest) -> str:
    return labels_of(job).get(names.QUEUE_NAME, "")


def prebuilt_name(job: Manifest) -> str:
    """The Workload that the job says it belongs to; "" when it is to get one of its own.

    A label where the name fits into one, else an annotation: a label's value ends at 63 characters (kueue#13636).
    """
    key = names.PREBUILT_WORKLOAD_NAME
    return annotations_of(job).get(key) or labels_of(job).get(key, "")


def with_prebuilt_name(job: Manifest, workload: str) -> Manifest:
    """The job, marked as belonging to that Workload."""
    meta = dict(job["metadata"])
    field = "labels" if len(workload) <= LABEL_VALUE_MAX else "annotations"
    meta[field] = {**part_of(meta, field), names.PREBUILT_WORKLOAD_NAME: workload}
    return {**job, "metadata": meta}


def owner_reference(integration: Integration, job: Manifest) -> OwnerReference:
    return OwnerReference(
        api_version=integration.resource.api_version,
        kind=integration.resource.kind,
        name=job["metadata"]["name"],
        uid=job["metadata"].get("uid", ""),
        controller=True,
        block_owner_deletion=True,
    )


def controller_of(workload: Workload) -> OwnerReference | None:
    return next((owner for owner in workload.metadata.owner_references if owner.controller), None)


def managed_ancestor(job: Manifest, kinds: Iterable[tuple[str, str]]) -> bool:
    """Is the job a part of another one that is managed as a whole? `kinds`: (apiVersion, kind) of all integrations."""
    known = set(kinds)
    owners = list_of(job, "metadata", "ownerReferences")
    return any(o.get("controller") and (o.get("apiVersion"), o.get("kind")) in known for o in owners)


# --- priority ----------------------------------------------------------------------------------------------------------


class Priority(Struct, frozen=True, kw_only=True):
    value: int = 0
    ref: PriorityClassRef | None = None


class MissingClass(Struct, frozen=True):
    """A class that the job names is not there (yet)."""

    ref: PriorityClassRef

    def __str__(self) -> str:
        return f"there is no {self.ref.kind} {self.ref.name}"


def priority_of(
    integration: Integration,
    job: Manifest,
    pod_sets: Iterable[PodSet],
    classes: Mapping[str, WorkloadPriorityClass],
    pod_classes: Mapping[str, Manifest],
) -> Priority | MissingClass:
    """Who comes first: the label's WorkloadPriorityClass, else the pods' PriorityClass, else the cluster's default, else 0."""
    if label := labels_of(job).get(names.PRIORITY_CLASS):
        group, kind = names.WORKLOAD_PRIORITY_CLASS_REF
        ref = PriorityClassRef(group=group, kind=kind, name=label)
        found = classes.get(label)
        return Priority(value=found.value, ref=ref) if found else MissingClass(ref)
    named = integration.priority_class(job) or next(
        (name for p in pod_sets if (name := part_of(p.template, "spec").get("priorityClassName"))), ""
    )
    name = named or _global_default(pod_classes)
    if not name:
        return Priority()
    group, kind = names.POD_PRIORITY_CLASS_REF
    ref = PriorityClassRef(group=group, kind=kind, name=name)
    if (pod_class := pod_classes.get(name)) is None:
        return MissingClass(ref)
    return Priority(value=pod_class.get("value", 0), ref=ref)


def _global_default(pod_classes: Mapping[str, Manifest]) -> str:
    """The lowest of several, as the priority admission plug-in has it."""
    marked = [(c.get("value", 0), name) for name, c in pod_classes.items() if c.get("globalDefault")]
    return min(marked)[1] if marked else ""


# --- the object --------------------------------------------------------------------------------------------------------


def max_exec_time_s(job: Manifest) -> int | None:
    text = labels_of(job).get(names.MAX_EXEC_TIME_SECONDS, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


def compose(
    integration: Integration,
    job: Manifest,
    pod_sets: list[PodSet],
    priority: Priority,
    label_keys_to_copy: Iterable[str] = (),
) -> Workload:
    """The Workload of a job, as it is created."""
    meta = job["metadata"]
    labels = {key: value for key in label_keys_to_copy if (value := labels_of(job).get(key)) is not None}
    return Workload(
        metadata=ObjectMeta(
            namespace=meta.get("namespace", ""),
            name=name_for(integration, job),
            labels={**labels, names.JOB_UID: meta.get("uid", "")},
            annotations=_copied_annotations(job),
            finalizers=[names.RESOURCE_IN_USE],
            owner_references=[owner_reference(integration, job)],
        ),
        spec=WorkloadSpec(
            pod_sets=pod_sets,
            queue_name=queue_name(job),
            priority_class_ref=priority.ref,
            priority=priority.value,
            maximum_execution_time_seconds=max_exec_time_s(job),
        ),
    )


_COPIED = (names.ADMISSION_GATED_BY, names.LOST_POLICY, names.CLUSTERS, names.ALLOWED_RESOURCE_FLAVORS)


def _copied_annotations(job: Manifest) -> dict[str, str]:
    """What the user says to Kueue about the job as a whole; and to the hub: where it may go, and what if that is lost."""
    return {
        key: value
        for key, value in annotations_of(job).items()
        if key in _COPIED or key.startswith(names.PROVISIONING_PARAMETER_PREFIX)
    }
