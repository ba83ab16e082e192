"""What pods that the engine does not place itself use on each node, kept up to date pod by pod."""

from collections.abc import Callable
from typing import Any

from hub.kueue.api.core import pod_requests, pod_template
from hub.kueue.api.decoding import part_of
from hub.kueue.api.errors import ApiError
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import PODS
from hub.kueue.api.v1beta2 import names
from hub.kueue.runtime.informers import Informers

_KEPT_OF_CONTAINER = ("name", "resources", "restartPolicy")
_KEPT_OF_SPEC = ("nodeName", "overhead", "resources", "schedulingGates", "nodeSelector", "tolerations")
_KEPT_OF_META = (
    "namespace",
    "name",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
)


def essential(pod: dict[str, Any]) -> dict[str, Any]:
    """What is read of a pod, a tenth of it: a worker cluster has more pods than anything else."""
    spec = pod.get("spec") or {}
    kept = {field: spec[field] for field in _KEPT_OF_SPEC if field in spec}
    for field in ("containers", "initContainers"):
        if containers := spec.get(field):
            kept[field] = [{f: c[f] for f in _KEPT_OF_CONTAINER if f in c} for c in containers]
    meta = {field: pod["metadata"][field] for field in _KEPT_OF_META if field in pod["metadata"]}
    status = {field: value for field, value in (pod.get("status") or {}).items() if field in ("phase", "conditions")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": kept, "status": status}


class ForeignPods:
    """Pods with an assigned place are counted by the engine through their workload's admission; all others count here."""

    def __init__(self, informers: Informers) -> None:
        self._pods = informers.of(PODS, keep=essential)
        self._usage: dict[str, dict[str, int]] = {}
        self._counted: dict[ObjectKey, tuple[str, dict[str, int]]] = {}
        self._handlers: list[Callable[[str], None]] = []
        self._pods.on_change(self._changed)

    def usage_on(self, node: str) -> dict[str, int]:
        """In engine units; `pods` counts them."""
        return dict(self._usage.get(node, {}))

    def on_change(self, handler: Callable[[str], None]) -> Callable[[], None]:
        """Call `handler(node)` for every node with such pods and for every change."""
        self._handlers.append(handler)
        for node in list(self._usage):
            handler(node)
        return lambda: self._handlers.remove(handler)

    def _changed(self, key: ObjectKey, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        before = self._counted.pop(key, None)
        after = _counts(new) if new is not None else None
        if after is not None:
            self._counted[key] = after
        if before == after:
            return
        for sign, part in ((-1, before), (1, after)):
            if part is not None:
                self._add(part[0], part[1], sign)
        for node in {part[0] for part in (before, after) if part is not None}:
            for handler in tuple(self._handlers):
                handler(node)

    def _add(self, node: str, requests: dict[str, int], sign: int) -> None:
        usage = self._usage.setdefault(node, {})
        for resource, amount in requests.items():
            usage[resource] = usage.get(resource, 0) + sign * amount
        if not any(usage.values()):
            del self._usage[node]


def _counts(pod: dict[str, Any]) -> tuple[str, dict[str, int]] | None:
    """(node, requests) of a pod that takes room there; None for one that does not, or that the engine knows of."""
    node = part_of(pod, "spec").get("nodeName")
    if not node or part_of(pod, "status").get("phase") in ("Succeeded", "Failed"):
        return None
    if names.WORKLOAD in part_of(pod, "metadata", "annotations"):
        return None
    try:
        requests = pod_requests(pod_template({"spec": pod["spec"]}).spec)
    except ApiError:
        requests = {}
    return node, {**requests, "pods": 1}
