"""Nodes: what they look like, and what becomes of their pods when one is lost, drained by a taint, or removed.

lose(dead or cut off) ──▶ Ready=Unknown, taint unreachable ──toleration──▶ pods deleted; they hang until it is back
restore               ──▶ Ready=True, taints off               or removed
remove                ──▶ node object gone ──orphaned_pods_s──▶ its pods fail and are removed, unless they are to stay
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hub.kueue.api import core
from hub.kueue.api.meta import Instant, ObjectKey, format_time, key_of
from hub.kueue.api.resources import NODES, PODS
from hub.sandbox import pod_status
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.inprocess import rewrite, write_status
from hub.sandbox.job_policies import ENDED, is_terminating, phase
from hub.sandbox.kubelet import Kubelet
from hub.sandbox.recorder import Recorder
from hub.sandbox.script import Pace
from hub.sandbox.timers import Timer, Timers

Manifest = Mapping[str, Any]

COMPONENT = "node-controller"
UNREACHABLE = "node.kubernetes.io/unreachable"
#: Taints of nodes that went away by themselves: every pod puts up with them for a while.
GRANTED = (UNREACHABLE, "node.kubernetes.io/not-ready")


class NodeGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` equal nodes, named `name`-0, `name`-1, ..."""

    name: str
    count: int = 1
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    #: Label nvidia.com/gpu.product, e.g. NVIDIA-H100-80GB-HBM3.
    product: str = ""
    cpu: str | int = "64"
    memory: str = "512Gi"
    pods: int = 110
    zone: str = ""
    labels: dict[str, str] = {}
    taints: list[dict[str, str]] = []


def make_nodes(group: NodeGroup, version: str, now: Instant) -> list[dict[str, Any]]:
    return [_make_node(group, number, version, now) for number in range(group.count)]


def _make_node(group: NodeGroup, number: int, version: str, now: Instant) -> dict[str, Any]:
    name = f"{group.name}-{number}"
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels |= {"topology.kubernetes.io/zone": group.zone} if group.zone else {}
    labels |= {"nvidia.com/gpu.product": group.product} if group.product else {}
    labels |= {"nvidia.com/gpu.count": str(group.gpus), "nvidia.com/gpu.present": "true"} if group.gpus else {}
    room: dict[str, str] = {"cpu": str(group.cpu), "memory": group.memory, "pods": str(group.pods)}
    room |= {group.gpu_resource: str(group.gpus)} if group.gpus else {}
    address = f"10.{10 + number // 64_516}.{number // 254 % 254 + 1}.{number % 254 + 1}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | group.labels},
        "spec": {"taints": [dict(t) for t in group.taints]} if group.taints else {},
        "status": {
            "capacity": room,
            "allocatable": dict(room),
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": [ready_condition(now)],
            "nodeInfo": {
                "kubeletVersion": version,
                "osImage": "Sandbox",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def ready_condition(now: Instant) -> dict[str, Any]:
    when = format_time(now)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return ready | {"lastHeartbeatTime": when, "lastTransitionTime": when}


def _unknown_condition(now: Instant) -> dict[str, Any]:
    message = "Kubelet stopped posting node status."
    return ready_condition(now) | {"status": "Unknown", "reason": "NodeStatusUnknown", "message": message}


def eviction_delay_s(
    taints: Sequence[core.Taint], tolerations: Sequence[core.Toleration], granted_s: float
) -> float | None:
    """How long a pod may stay on a node with these NoExecute taints; None: for good. Kubernetes' taint eviction.

    `granted_s` is what every pod is given on nodes that went away (the DefaultTolerationSeconds admission plugin).
    """
    shortest: float | None = None
    for taint in (t for t in taints if t.effect == "NoExecute"):
        matching = [t for t in tolerations if core.tolerates(t, taint)]
        if not matching:
            delay_s = granted_s if taint.key in GRANTED else 0.0
        else:
            limits = [t.toleration_seconds for t in matching if t.toleration_seconds is not None]
            if not limits:
                continue
            delay_s = float(max(0, min(limits)))
        shortest = delay_s if shortest is None else min(shortest, delay_s)
    return shortest


class NodeController:
    """Nodes of one cluster: kubelets that come and go with them, taint eviction, collection of pods whose node is gone."""

    def __init__(self, server: ApiServer, timers: Timers, pace: Pace, kubelet: Kubelet, recorder: Recorder) -> None:
        self.server, self.timers, self.pace = server, timers, pace
        self.kubelet, self.recorder = kubelet, recorder
        self._taints: dict[str, list[core.Taint]] = {}
        self._evictions: dict[str, list[Timer]] = {}
        self._keeps_pods: set[str] = set()
        #: Nodes that are not there, whose pods are going to be collected.
        self._collecting: set[str] = set()

    # --- what people do to nodes ---

    def lose(self, name: str, *, dead: bool = True) -> None:
        """The node stops answering. Dead: whatever ran on it has stopped. Otherwise it goes on, cut off. Raises KeyError."""
        node = self._require(name)
        self.kubelet.silence(name, dead=dead)
        now = self.server.clock()
        taints = [t for t in node["spec"].get("taints") or () if t["key"] != UNREACHABLE]
        lost = {"key": UNREACHABLE, "timeAdded": format_time(now)}
        taints += [lost | {"effect": effect} for effect in ("NoSchedule", "NoExecute")]
        self._rewrite(name, taints, _unknown_condition(now))
        self.recorder.emit(COMPONENT, node, "Normal", "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        for key in self.kubelet.pods_on(name):
            if (pod := self.server.get(PODS, key)) is not None and phase(pod) == "Running":
                write_status(self.server, PODS, key, pod_status.not_ready(pod, now))

    def restore(self, name: str) -> bool:
        """The node answers again: its pods are to be synced. False when it never stopped. Raises KeyError."""
        node = self._require(name)
        taints = [t for t in node["spec"].get("taints") or () if t["key"] != UNREACHABLE]
        self._rewrite(name, taints, ready_condition(self.server.clock()))
        return self.kubelet.revive(name)

    def remove(self, name: str, *, keep_pods: bool = False) -> None:
        """The machine and its node object go. `keep_pods`: nobody cleans its pods up. Raises KeyError."""
        self._require(name)
        if keep_pods:
            self._keeps_pods.add(name)
        self.server.delete(NODES, ObjectKey("", name))

    def cordon(self, name: str, *, on: bool = True) -> None:
        """Raises KeyError."""
        self._require(name)
        self.server.merge(NODES, ObjectKey("", name), {"spec": {"unschedulable": True if on else None}})

    # --- what the API says ---

    def changed(self, node: Manifest) -> bool:
        """A node is there or has changed. True when it is new: pods that are bound to it are to be synced."""
        name = node["metadata"]["name"]
        taints = [t for t in core.node(node).spec.taints if t.effect == "NoExecute"]
        known = self._taints.get(name)
        if known != taints:
            self._taints[name] = taints
            self._plan_evictions(name, taints)
        if known is not None:
            return False
        self._keeps_pods.discard(name)
        if not any(c["type"] == "Ready" for c in (node.get("status") or {}).get("conditions") or ()):
            self._rewrite(name, None, ready_condition(self.server.clock()))
        return self.kubelet.revive(name)

    def gone(self, name: str) -> None:
        self._taints.pop(name, None)
        self._plan_evictions(name, [])
        self.kubelet.silence(name, dead=True)
        self.expect(name)

    def expect(self, name: str) -> None:
        """There are pods on this node. If it is not there soon, they are removed."""
        if name in self._taints or name in self._keeps_pods or name in self._collecting:
            return
        self._collecting.add(name)
        self.timers.after(self.pace.orphaned_pods_s, lambda: self._collect(name))

    # --- inside ---

    def _require(self, name: str) -> dict[str, Any]:
        if (node := self.server.get(NODES, ObjectKey("", name))) is None:
            raise KeyError(f"cluster {self.server.name} has no node {name}")
        return node

    def _rewrite(self, name: str, taints: list[dict[str, Any]] | None, ready: dict[str, Any]) -> None:
        def change(node: dict[str, Any]) -> dict[str, Any]:
            status, spec = node.get("status") or {}, {**(node.get("spec") or {})}
            others = [c for c in status.get("conditions") or () if c["type"] != "Ready"]
            if taints is not None:
                spec.pop("taints", None)
                spec |= {"taints": taints} if taints else {}
            return {**node, "spec": spec, "status": {**status, "conditions": [*others, ready]}}

        rewrite(self.server, NODES, ObjectKey("", name), change)

    def _plan_evictions(self, name: str, taints: list[core.Taint]) -> None:
        for timer in self._evictions.pop(name, ()):
            timer.cancel()
        if not taints:
            return
        planned: list[Timer] = []
        for key in self.kubelet.pods_on(name):
            pod = self.server.get(PODS, key)
            if pod is None or is_terminating(pod) or phase(pod) in ENDED:
                continue
            tolerations = core.pod_template({"spec": pod["spec"]}).spec.tolerations
            delay_s = eviction_delay_s(taints, tolerations, self.pace.unreachable_s)
            if delay_s is not None:
                planned.append(self.timers.after(delay_s, lambda key=key: self._evict(key)))
        self._evictions[name] = planned

    def _evict(self, key: ObjectKey) -> None:
        if (pod := self.server.get(PODS, key)) is None or is_terminating(pod) or phase(pod) in ENDED:
            return
        message = "Taint manager: deleting due to NoExecute taint"
        status = pod_status.disrupted(pod, "DeletionByTaintManager", message, self.server.clock())
        write_status(self.server, PODS, key, status)
        self.recorder.emit(
            "taint-eviction-controller", pod, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {key}"
        )
        self.server.delete(PODS, key)

    def _collect(self, name: str) -> None:
        """The node has not come back: its pods are failed and removed (kube-controller-manager's pod collector)."""
        self._collecting.discard(name)
        if name in self._taints:
            return
        for pod in self.server.list(PODS):
            if pod["spec"].get("nodeName") != name:
                continue
            key, now = key_of(pod), self.server.clock()
            message = "PodGC: node no longer exists"
            status = pod_status.disrupted(pod, "DeletionByPodGC", message, now)
            if phase(pod) not in ENDED:
                status |= {"phase": "Failed"}
            write_status(self.server, PODS, key, status)
            self.server.delete(PODS, key, grace_s=0)
