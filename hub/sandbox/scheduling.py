"""Which node a pod goes to, and in kube-scheduler's words why it goes nowhere. No I/O: pods and nodes in, decisions out.

    add(pod) ──▶ its shape ──▶ turn() ──▶ Bind(pod, node)            best fit: GPU nodes are filled one by one
                    ▲                └──▶ Unschedulable(pod, message)
    release(pod), set_node(node): what became free is offered to the shapes that wait

Pods that ask for the same share a *shape*: selectors, affinity and taints are judged once per shape and node, not once
per pod. A shape keeps the nodes with room for it in a heap, and a node tells the shapes only when its free amounts
change. So a pod costs the same on 10 nodes and on 1,000, and 5,000 pods that wait cost nothing until something is freed.

Judged are: requests (init containers, sidecars, overhead), the node's pod limit, nodeSelector, required node affinity,
taints, cordons and scheduling gates. Not judged are: affinity between pods, spreading, ports, volumes, preemption.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from msgspec import Struct

from hub.kueue.api import core, quantity
from hub.kueue.api.decoding import read

PODS = "pods"
#: What a pod that asks for no devices is packed by.
CPU = "cpu"
_COMMON = (PODS, CPU, "memory", "ephemeral-storage")
#: Shapes without waiting pods that are kept for the next pod of that kind.
IDLE_SHAPES = 16


class NodeInfo(Struct, frozen=True, kw_only=True):
    """What the scheduler knows of a node. `allocatable` is in engine units and has `pods`."""

    name: str
    labels: dict[str, str]
    taints: list[core.Taint]
    unschedulable: bool
    allocatable: dict[str, int]


class Needs(Struct, frozen=True, kw_only=True):
    """What a pod asks of a node. `requests` is in engine units and has one of `pods`."""

    spec: core.PodSpec
    requests: dict[str, int]
    #: Equal for pods that any node suits equally.
    shape: bytes

    @property
    def gates(self) -> list[str]:
        return [gate.name for gate in self.spec.scheduling_gates]

    @property
    def priority(self) -> int:
        return self.spec.priority or 0


class Bind(Struct, frozen=True):
    pod: str
    node: str


class Unschedulable(Struct, frozen=True):
    """Said once per pod, and again when the nodes have changed and the message with them."""

    pod: str
    message: str


Decision = Bind | Unschedulable


def node_info(manifest: Mapping[str, Any]) -> NodeInfo:
    """Raises DecodeError or QuantityError."""
    node = core.node(manifest)
    return NodeInfo(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        unschedulable=node.spec.unschedulable,
        allocatable={name: quantity.amount(name, text) for name, text in node.status.allocatable.items()},
    )


def needs(spec: Mapping[str, Any]) -> Needs:
    """What a pod with this `spec` needs. Raises DecodeError or QuantityError."""
    pod = read(core.PodSpec, spec, at="spec")
    requests = {name: n for name, n in core.pod_requests(pod).items() if n > 0} | {PODS: 1}
    required = core.required_node_selector(pod)
    judged = [requests, pod.node_selector, required, pod.tolerations, pod.priority]
    return Needs(spec=pod, requests=requests, shape=orjson.dumps(judged, default=_plain, option=orjson.OPT_SORT_KEYS))


def _plain(part: Struct) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__struct_fields__}


def unsuitable(wanted: Needs, node: NodeInfo) -> str:
    """Why this node is out of question however much is free on it; "" when it is not. In the order of kube-scheduler's filters."""
    cordon = core.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    if node.unschedulable and core.untolerated([cordon], wanted.spec.tolerations):
        return "node(s) were unschedulable"
    if core.untolerated(node.taints, wanted.spec.tolerations):
        return "node(s) had untolerated taint(s)"
    if not core.fits_node_labels(wanted.spec, node.labels, node.name):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def lacking(requests: Mapping[str, int], free: Mapping[str, int]) -> list[str]:
    """The resources of which less is free than asked for."""
    return [name for name, amount in requests.items() if amount > free.get(name, 0)]


def in_words(resource: str) -> str:
    return "Too many pods" if resource == PODS else f"Insufficient {resource}"


def explain(reasons: Iterable[str], nodes: int) -> str:
    """kube-scheduler's sentence: `0/4 nodes are available: 4 Insufficient nvidia.com/gpu.`"""
    if not nodes:
        return "no nodes available to schedule pods"
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    return f"0/{nodes} nodes are available: {', '.join(counted)}."


class _Node:
    """A node and what is left of it. `version` moves with every change of that and is never used twice."""

    __slots__ = ("free", "info", "order", "version")

    def __init__(self, info: NodeInfo, order: int, version: int) -> None:
        self.info, self.order, self.version = info, order, version
        self.free = dict(info.allocatable)


class _Shape:
    """All pods of one shape: the nodes that suit them, those with room (a heap with stale entries), and who waits."""

    __slots__ = ("message", "packed_by", "room", "suits", "untold", "waiting", "wanted")

    def __init__(self, wanted: Needs) -> None:
        self.wanted = wanted
        devices = [name for name in sorted(wanted.requests) if name not in _COMMON]
        self.packed_by = devices[0] if devices else CPU
        self.suits: dict[str, _Node] = {}
        self.room: list[tuple[int, int, int, str]] = []
        #: pod -> its place in line: (-priority, arrival); in line.
        self.waiting: dict[str, tuple[int, int]] = {}
        #: Those who do not know yet that they wait, and why the others were told that they do.
        self.untold: dict[str, None] = {}
        self.message = ""

    def leave(self, pod: str) -> None:
        del self.waiting[pod]
        self.untold.pop(pod, None)

    def judge(self, node: _Node) -> None:
        """The node is new or not what it was."""
        self.suits.pop(node.info.name, None)
        if not unsuitable(self.wanted, node.info):
            self.suits[node.info.name] = node
            self.consider(node)

    def consider(self, node: _Node) -> None:
        """The node's free amounts are not what they were."""
        if lacking(self.wanted.requests, node.free):
            return
        if len(self.room) > 4 * len(self.suits) + 16:
            self.room = [e for e in self.room if (n := self.suits.get(e[3])) is not None and n.version == e[2]]
            heapq.heapify(self.room)
        heapq.heappush(self.room, (node.free.get(self.packed_by, 0), node.order, node.version, node.info.name))

    def best(self) -> str | None:
        """The node that is left fullest. Entries from before the node's last change are dropped on the way."""
        while self.room:
            _, _, version, name = self.room[0]
            node = self.suits.get(name)
            if node is not None and node.version == version:
                return name
            heapq.heappop(self.room)
        return None


class Scheduler:
    """The scheduler's memory: nodes with what is free, bound pods, waiting pods. Pods are named by their uid."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._shapes: dict[bytes, _Shape] = {}
        #: node name -> pod -> requests: what counts against a node, also while that node is unknown.
        self._load: dict[str, dict[str, dict[str, int]]] = {}
        self._bound: dict[str, str] = {}
        self._waiting: dict[str, _Shape] = {}
        self._nodes_changed = False
        self._ticks = 0

    # --- nodes ---

    def set_node(self, info: NodeInfo) -> None:
        """A node is there, or has changed."""
        known = self._nodes.get(info.name)
        if known is not None and known.info == info:
            return
        tick = self._tick()
        node = _Node(info, known.order if known else tick, tick)
        self._nodes[info.name] = node
        for requests in self._load.get(info.name, {}).values():
            _take(node.free, requests)
        self._nodes_changed = True
        for shape in self._shapes.values():
            shape.judge(node)

    def remove_node(self, name: str) -> None:
        """The node is gone. Pods bound to it still count, should it come back."""
        if self._nodes.pop(name, None) is None:
            return
        self._nodes_changed = True
        for shape in self._shapes.values():
            shape.suits.pop(name, None)

    def free(self, node: str) -> dict[str, int]:
        """What is left of a node, in engine units."""
        return dict(self._nodes[node].free)

    # --- pods ---

    def add(self, pod: str, wanted: Needs) -> None:
        """A pod wants a node. One that is gated, waits already or is bound is left as it is."""
        if wanted.gates or pod in self._waiting or pod in self._bound:
            return
        shape = self._shape(wanted)
        shape.waiting[pod] = (-wanted.priority, self._tick())
        shape.untold[pod] = None
        self._waiting[pod] = shape

    def bind(self, pod: str, wanted: Needs, node: str) -> list[str]:
        """Somebody put the pod on the node. Says which resources that node has too little of for it; then nothing is taken."""
        if pod in self._bound:
            return []
        known = self._nodes.get(node)
        if known is not None and (missing := lacking(wanted.requests, known.free)):
            return missing
        self._stop_waiting(pod)
        self._take(pod, node, wanted.requests)
        return []

    def release(self, pod: str) -> None:
        """The pod needs no node any more: finished, failed or deleted."""
        self._stop_waiting(pod)
        if (name := self._bound.pop(pod, None)) is None:
            return
        requests = self._load[name].pop(pod)
        if (node := self._nodes.get(name)) is not None:
            for resource, amount in requests.items():
                node.free[resource] = node.free.get(resource, 0) + amount
            self._changed(node)

    def turn(self) -> list[Decision]:
        """Place what can be placed, the highest priority and then the longest wait first."""
        decisions: list[Decision] = []
        ready = [shape for shape in self._shapes.values() if shape.waiting and shape.best() is not None]
        line = [(*_head(shape), shape) for shape in ready]
        heapq.heapify(line)  # heads differ in their arrival, so shapes are never compared
        while line:
            _, _, pod, shape = heapq.heappop(line)
            if (node := shape.best()) is None:
                continue
            self._stop_waiting(pod)
            self._take(pod, node, shape.wanted.requests)
            decisions.append(Bind(pod, node))
            if shape.waiting:
                heapq.heappush(line, (*_head(shape), shape))
        decisions += self._complaints()
        self._forget_idle_shapes()
        return decisions

    # --- inside ---

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    def _shape(self, wanted: Needs) -> _Shape:
        if (shape := self._shapes.get(wanted.shape)) is None:
            shape = self._shapes[wanted.shape] = _Shape(wanted)
            for node in self._nodes.values():
                shape.judge(node)
        return shape

    def _forget_idle_shapes(self) -> None:
        idle = [key for key, shape in self._shapes.items() if not shape.waiting]
        for key in idle[: max(0, len(idle) - IDLE_SHAPES)]:
            del self._shapes[key]

    def _stop_waiting(self, pod: str) -> None:
        if (shape := self._waiting.pop(pod, None)) is not None:
            shape.leave(pod)

    def _take(self, pod: str, name: str, requests: dict[str, int]) -> None:
        self._bound[pod] = name
        self._load.setdefault(name, {})[pod] = requests
        if (node := self._nodes.get(name)) is not None:
            _take(node.free, requests)
            self._changed(node)

    def _changed(self, node: _Node) -> None:
        node.version = self._tick()
        for shape in self._shapes.values():
            if shape.suits.get(node.info.name) is node:
                shape.consider(node)

    def _complaints(self) -> list[Decision]:
        """Tell those who wait why, where that is news."""
        said: list[Decision] = []
        for shape in self._shapes.values():
            if not shape.untold and not (self._nodes_changed and shape.waiting):
                continue
            message = self.why_not(shape.wanted)
            news = shape.waiting if self._nodes_changed and message != shape.message else shape.untold
            said += [Unschedulable(pod, message) for pod in news]
            shape.message, shape.untold = message, {}
        self._nodes_changed = False
        return said

    def why_not(self, wanted: Needs) -> str:
        """Why no node takes such a pod now."""
        reasons: list[str] = []
        for node in self._nodes.values():
            fixed = unsuitable(wanted, node.info)
            reasons += [fixed] if fixed else [in_words(r) for r in lacking(wanted.requests, node.free)]
        return explain(reasons, len(self._nodes))


def _take(free: dict[str, int], requests: Mapping[str, int]) -> None:
    for resource, amount in requests.items():
        free[resource] = free.get(resource, 0) - amount


def _head(shape: _Shape) -> tuple[int, int, str]:
    """Who of the shape is next: they share their priority, so the one who came first."""
    first = next(iter(shape.waiting))
    return (*shape.waiting[first], first)
