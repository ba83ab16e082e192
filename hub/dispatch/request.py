"""What a workload asks of a cluster: the part of a Workload that decides where it may go."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from hub.kueue.api import core, quantity
from hub.kueue.api.core import Toleration
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import PodSetAssignment, ResourceFlavor, Workload, names

LostPolicy = Literal["Wait", "FenceThenMove", "MoveNow"]
LOST_POLICIES: tuple[LostPolicy, ...] = ("Wait", "FenceThenMove", "MoveNow")


class PodSetNeed(Struct, frozen=True, kw_only=True):
    """Pods that are alike. Amounts in engine units."""

    name: str
    count: int
    #: What one pod takes from a node.
    per_pod: dict[str, int]
    #: What the whole pod set is charged, by resource.
    total: dict[str, int]
    #: resource -> flavor of the management cluster, as quota was reserved.
    flavors: dict[str, str]


class Request(Struct, frozen=True, kw_only=True):
    """One workload that has global quota and looks for a cluster."""

    workload: ObjectKey
    uid: str
    #: "batch/v1, Job", as agents report the kinds that they serve.
    kind: str
    local_queue: str
    cluster_queue: str
    pod_sets: tuple[PodSetNeed, ...]
    #: flavor of the management cluster -> its node labels, to find the worker's flavor of another name.
    flavor_labels: dict[str, dict[str, str]] = {}
    #: Tolerated by every pod of it.
    tolerations: tuple[Toleration, ...] = ()
    #: Clusters of the MultiKueueConfig, in its order. None: every registered cluster.
    configured: tuple[str, ...] | None = None
    #: The user's own list, from an annotation. None: no wish. It narrows `configured` and never widens it.
    wanted: tuple[str, ...] | None = None
    priority: int = 0
    lost_policy: LostPolicy = "Wait"

    def shape(self) -> str:
        """Equal for workloads that every cluster answers alike, whatever their names."""
        parts = (
            self.workload.namespace,
            self.local_queue,
            self.cluster_queue,
            self.kind,
            [(p.name, p.count, sorted(p.per_pod.items()), sorted(p.flavors.items())) for p in self.pod_sets],
            sorted((name, sorted(labels.items())) for name, labels in self.flavor_labels.items()),
            self.tolerations,
            self.configured,
            self.wanted,
        )
        return repr(parts)


def request_of(
    workload: Workload,
    *,
    kind: str,
    flavors: Mapping[str, ResourceFlavor],
    configured: Sequence[str] | None,
    lost_policy: LostPolicy = "Wait",
) -> Request:
    """The request of a workload with quota reserved. Raises DecodeError or QuantityError for a template that nobody can read."""
    admission = workload.status.admission
    assert admission is not None, f"{workload.metadata.key} has no quota reserved"
    assigned = {a.name: a for a in admission.pod_set_assignments}
    pod_sets = tuple(_need(p.name, p.template, p.count, assigned[p.name]) for p in workload.spec.pod_sets)
    used = sorted({flavor for need in pod_sets for flavor in need.flavors.values()})
    return Request(
        workload=workload.metadata.key,
        uid=workload.metadata.uid,
        kind=kind,
        local_queue=workload.spec.queue_name,
        cluster_queue=admission.cluster_queue,
        pod_sets=pod_sets,
        flavor_labels={name: flavors[name].spec.node_labels for name in used if name in flavors},
        tolerations=common_tolerations(workload),
        configured=None if configured is None else tuple(configured),
        wanted=wanted_clusters(workload.metadata.annotations),
        priority=workload.spec.priority or 0,
        lost_policy=lost_policy_of(workload.metadata.annotations, lost_policy),
    )


def _need(name: str, template: Mapping[str, object], spec_count: int, assigned: PodSetAssignment) -> PodSetNeed:
    count = spec_count if assigned.count is None else assigned.count
    return PodSetNeed(
        name=name,
        count=count,
        per_pod=core.pod_requests(core.pod_template(template).spec),
        total={r: quantity.amount(r, q) for r, q in assigned.resource_usage.items()},
        flavors=dict(assigned.flavors),
    )


def common_tolerations(workload: Workload) -> tuple[Toleration, ...]:
    """What every pod of it tolerates. Raises DecodeError."""
    lists = [core.pod_template(p.template).spec.tolerations for p in workload.spec.pod_sets]
    first, others = (lists[0], lists[1:]) if lists else ([], [])
    return tuple(t for t in first if all(t in other for other in others))


def wanted_clusters(annotations: Mapping[str, str]) -> tuple[str, ...] | None:
    """The annotation `multikueue-hub.io/clusters`: names, separated by commas, in the order of preference."""
    text = annotations.get(names.CLUSTERS)
    return None if text is None else tuple(name for part in text.split(",") if (name := part.strip()))


def lost_policy_of(annotations: Mapping[str, str], otherwise: LostPolicy) -> LostPolicy:
    """What its owner wants when the cluster is lost; an unknown word counts as no wish."""
    word = annotations.get(names.LOST_POLICY, "")
    return word if word in LOST_POLICIES else otherwise
