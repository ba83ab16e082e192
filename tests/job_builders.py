"""Jobs and Workloads that read like the YAML a user would write: `make_job("train").queue("main").pods(4).gpus(1).obj()`."""

import copy
from typing import Any

from msgspec import structs

from hub.kueue.api.meta import Condition, ObjectMeta, OwnerReference, set_condition
from hub.kueue.api.v1beta2 import (
    Admission,
    PodSet,
    PodSetAssignment,
    ResourceFlavor,
    ResourceFlavorSpec,
    Workload,
    WorkloadSpec,
    names,
)

NOW = 1_800_000_000.0


class JobBuilder:
    """A batch/v1 Job as an API server has it: created, suspended, with defaults."""

    def __init__(self, name: str, namespace: str = "team-a") -> None:
        self._job: dict[str, Any] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": f"uid-{name}",
                "resourceVersion": "10",
                "labels": {},
                "annotations": {},
            },
            "spec": {
                "parallelism": 1,
                "completions": 1,
                "suspend": True,
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": "train:1", "resources": {"requests": {"cpu": "1"}}}],
                    },
                },
            },
            "status": {},
        }

    def _changed(self, *path: str, **fields: Any) -> "JobBuilder":
        """A builder with these fields at that path; this one stays as it is."""
        other = copy.copy(self)
        other._job = copy.deepcopy(self._job)
        at = other._job
        for name in path:
            at = at.setdefault(name, {})
        at |= fields
        return other

    def label(self, name: str, value: str) -> "JobBuilder":
        return self._changed("metadata", "labels", **{name: value})

    def note(self, name: str, value: str) -> "JobBuilder":
        return self._changed("metadata", "annotations", **{name: value})

    def queue(self, name: str) -> "JobBuilder":
        return self.label(names.QUEUE_NAME, name)

    def pods(self, count: int, *, completions: int | None = -1) -> "JobBuilder":
        """So many at a time; `completions` -1: as many."""
        return self.spec(parallelism=count, completions=count if completions == -1 else completions)

    def spec(self, **fields: Any) -> "JobBuilder":
        return self._changed("spec", **fields)

    def pod_spec(self, **fields: Any) -> "JobBuilder":
        return self._changed("spec", "template", "spec", **fields)

    def pod_note(self, name: str, value: str) -> "JobBuilder":
        return self._changed("spec", "template", "metadata", "annotations", **{name: value})

    def status(self, **fields: Any) -> "JobBuilder":
        return self._changed("status", **fields)

    def ended(self, kind: str = "Complete", message: str = "") -> "JobBuilder":
        return self.status(conditions=[{"type": kind, "status": "True", "message": message}])

    def running(self) -> "JobBuilder":
        return self.spec(suspend=False)

    def managed(self) -> "JobBuilder":
        return self.spec(managedBy=names.MANAGED_BY_MULTIKUEUE)

    def meta(self, **fields: Any) -> "JobBuilder":
        return self._changed("metadata", **fields)

    def obj(self) -> dict[str, Any]:
        return copy.deepcopy(self._job)


def make_job(name: str, namespace: str = "team-a") -> JobBuilder:
    return JobBuilder(name, namespace)


class WorkloadBuilder:
    def __init__(self, name: str, namespace: str = "team-a") -> None:
        self._workload = Workload(
            metadata=ObjectMeta(namespace=namespace, name=name, uid=f"uid-{name}", resource_version="20"),
            spec=WorkloadSpec(pod_sets=[PodSet(name="main", template={"spec": {"containers": []}})], queue_name="main"),
        )

    def _changed(self, part: str, **fields: Any) -> "WorkloadBuilder":
        other = copy.copy(self)
        changed = structs.replace(getattr(self._workload, part), **fields)
        other._workload = structs.replace(self._workload, **{part: changed})
        return other

    def meta(self, **fields: Any) -> "WorkloadBuilder":
        return self._changed("metadata", **fields)

    def spec(self, **fields: Any) -> "WorkloadBuilder":
        return self._changed("spec", **fields)

    def status(self, **fields: Any) -> "WorkloadBuilder":
        return self._changed("status", **fields)

    def owned_by(self, job: dict[str, Any]) -> "WorkloadBuilder":
        meta = job["metadata"]
        owner = OwnerReference(
            api_version=job["apiVersion"],
            kind=job["kind"],
            name=meta["name"],
            uid=meta["uid"],
            controller=True,
            block_owner_deletion=True,
        )
        return self.meta(owner_references=[owner], labels={names.JOB_UID: meta["uid"]})

    def condition(self, kind: str, status: str, reason: str, message: str = "so", at: float = NOW) -> "WorkloadBuilder":
        new = Condition(type=kind, status=status, reason=reason, message=message)  # type: ignore[arg-type]
        return self.status(conditions=set_condition(self._workload.status.conditions, new, at))

    def reserved(self, queue: str = "cq", *, count: int | None = None, flavor: str = "default") -> "WorkloadBuilder":
        """Quota reserved for every pod set, cpu from `flavor`."""
        assignments = [
            PodSetAssignment(name=p.name, flavors={"cpu": flavor}, resource_usage={"cpu": "1"}, count=count or p.count)
            for p in self._workload.spec.pod_sets
        ]
        admission = Admission(cluster_queue=queue, pod_set_assignments=assignments)
        return self.status(admission=admission).condition(names.QUOTA_RESERVED, "True", "QuotaReserved")

    def admitted(self, queue: str = "cq", *, count: int | None = None, flavor: str = "default") -> "WorkloadBuilder":
        return self.reserved(queue, count=count, flavor=flavor).condition(names.ADMITTED, "True", "Admitted")

    def evicted(self, reason: str = "Preempted") -> "WorkloadBuilder":
        return self.condition(names.EVICTED, "True", reason, "had to go")

    def finished(self, reason: str = "Succeeded") -> "WorkloadBuilder":
        return self.condition(names.FINISHED, "True", reason)

    def obj(self) -> Workload:
        return self._workload


def make_workload(name: str, namespace: str = "team-a") -> WorkloadBuilder:
    return WorkloadBuilder(name, namespace)


def make_flavor(name: str = "default", **spec: Any) -> ResourceFlavor:
    return ResourceFlavor(metadata=ObjectMeta(name=name), spec=ResourceFlavorSpec(**spec))


def conditions_of(status: Any) -> dict[str, str]:
    """type -> "status/reason", for comparing."""
    return {c.type: f"{c.status}/{c.reason}" for c in status.conditions}
