"""Everything that lives on top of one simulated API server: nodes, scheduler, kubelets, the Job controller.

        ApiServer ──subscribe──▶ worklists ──▶ pods:  scheduler ──bind──▶ kubelet ──status──┐
            ▲                              ──▶ nodes: readiness, taints, evictions          │
            │                              ──▶ jobs:  reconcile ──▶ pods, status            │
            └───────────────────────────────────────────────────────────────────────────────┘

Handlers of the API server only note what changed; the work is done by the timers, one portion at a time. With
VirtualTimers a test lets an hour pass in a moment: `timers.advance(3600)`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from hub.kueue.api.errors import ApiError as BadManifest
from hub.kueue.api.meta import ObjectKey, Resource, key_of
from hub.kueue.api.resources import JOBS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from hub.kueue.api.v1beta2 import names
from hub.sandbox import pod_status
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.errors import ApiError
from hub.sandbox.inprocess import bind, write_status
from hub.sandbox.job_controller import JobController, controller_of
from hub.sandbox.job_policies import ENDED, is_terminating, phase
from hub.sandbox.job_state import JobPace
from hub.sandbox.kubelet import Kubelet
from hub.sandbox.logs import logs
from hub.sandbox.nodes import NodeController, NodeGroup, make_nodes
from hub.sandbox.observer import Observer, Source
from hub.sandbox.recorder import Recorder
from hub.sandbox.scheduling import Bind, Needs, Scheduler, needs, node_info
from hub.sandbox.script import Pace
from hub.sandbox.timers import Timers
from hub.sandbox.worklist import Worklist

Manifest = Mapping[str, Any]
Part = Literal["scheduler", "kubelet", "jobs"]

SCHEDULER = "default-scheduler"
GPU_SUFFIX = "/gpu"
#: How far up owners are looked for: pod, Job, JobSet, and one more.
OWNERS_MOST = 4


class Simulation:
    def __init__(
        self, server: ApiServer, timers: Timers, pace: Pace | None = None, observer: Observer | None = None
    ) -> None:
        self.server, self.timers = server, timers
        self.pace = pace or Pace()
        self.observer = observer or Observer()
        self.recorder = Recorder(server)
        self.scheduler = Scheduler()
        self.kubelet = Kubelet(server, timers, self.pace, self.observer, self.recorder, self.source_of)
        self.nodes = NodeController(server, timers, self.pace, self.kubelet, self.recorder)
        job_pace = JobPace(backoff_s=self.pace.restart_s, backoff_max_s=self.pace.restart_most_s)
        self.jobs = JobController(server, timers, job_pace, self.observer, self.recorder, self.source_of)
        server.logs = logs
        self._pods: Worklist[ObjectKey] = Worklist(timers, self._sync_pod)
        self._turns: Worklist[None] = Worklist(timers, lambda _: self._schedule())
        self._accounts: Worklist[str] = Worklist(timers, self._make_account)
        #: Pods that are there: uid -> key; and what those with a node were charged for.
        self._keys: dict[str, ObjectKey] = {}
        self._needs: dict[str, Needs] = {}
        self._ends: list[Callable[[], None]] = []

    def start(self) -> None:
        """Take over what is there, and follow what comes."""
        table: list[tuple[Resource, Callable[[str, dict[str, Any]], None]]] = [
            (NAMESPACES, self._namespace_changed),
            (NODES, self._node_changed),
            (JOBS, self._job_changed),
            (PODS, self._pod_changed),
        ]
        for resource, handler in table:
            self._ends.append(self.server.subscribe(resource, handler))
            for obj in self.server.list(resource):
                handler("ADDED", obj)

    def stop(self) -> None:
        """Follow nothing any more. What runs is not ended."""
        for end in self._ends:
            end()
        self._ends = []

    def add_nodes(self, group: NodeGroup, version: str = "v1.35.0") -> None:
        for node in make_nodes(group, version, self.server.clock()):
            self.server.create(NODES, node)
            write_status(self.server, NODES, key_of(node), node["status"])

    def freeze(self, part: Part, *, on: bool = True) -> None:
        """Stop one part from doing anything, as if its process hung; `on=False` lets it go on where it stopped."""
        held: dict[Part, Worklist[Any]] = {"scheduler": self._turns, "kubelet": self._pods, "jobs": self.jobs.worklist}
        held[part].hold(on)

    def restore_node(self, name: str) -> None:
        """A lost node answers again. Raises KeyError."""
        if self.nodes.restore(name):
            self._sync_pods_on(name)

    # --- what changed ---

    def _namespace_changed(self, change: str, namespace: dict[str, Any]) -> None:
        if change == "ADDED":
            self._accounts.add(namespace["metadata"]["name"])

    def _node_changed(self, change: str, node: dict[str, Any]) -> None:
        name = node["metadata"]["name"]
        if change == "DELETED":
            self.scheduler.remove_node(name)
            self.nodes.gone(name)
        else:
            self.scheduler.set_node(node_info(node))
            if self.nodes.changed(node):
                self._sync_pods_on(name)
        self._turns.add(None)

    def _job_changed(self, change: str, job: dict[str, Any]) -> None:
        self.jobs.job_changed(change, job)

    def _pod_changed(self, change: str, pod: dict[str, Any]) -> None:
        self.jobs.pod_changed(change, pod)
        if change != "DELETED":
            self._keys[pod["metadata"]["uid"]] = key_of(pod)
            self._pods.add(key_of(pod))
            return
        self._release(pod["metadata"]["uid"])
        self._keys.pop(pod["metadata"]["uid"], None)
        self.kubelet.gone(pod)

    def _sync_pods_on(self, node: str) -> None:
        for pod in self.server.list(PODS):
            if pod["spec"].get("nodeName") == node:
                self._pods.add(key_of(pod))

    # --- pods ---

    def _sync_pod(self, key: ObjectKey) -> None:
        if (pod := self.server.get(PODS, key)) is None:
            return
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if phase(pod) in ENDED:
            self._release(uid)
        elif node is None:
            self._queue(uid, pod)
        elif not self._charge(uid, pod, node):
            return
        if node is not None:
            self.nodes.expect(node)
        wanted = self._needs.get(uid)
        self.kubelet.sync(pod, _gpus(wanted) if wanted else 0)

    def _queue(self, uid: str, pod: dict[str, Any]) -> None:
        """The pod has no node yet."""
        if is_terminating(pod):
            self._release(uid)
            return
        if pod["spec"].get("schedulerName", SCHEDULER) != SCHEDULER:
            return
        if (wanted := self._read_needs(pod)) is not None:
            self.scheduler.add(uid, wanted)
            self._turns.add(None)

    def _charge(self, uid: str, pod: dict[str, Any], node: str) -> bool:
        """The pod has a node, by our scheduler or by somebody else's word. False when the node has no room for it."""
        if uid not in self._needs:
            if (wanted := self._read_needs(pod)) is None:
                return False
            if missing := self.scheduler.bind(uid, wanted, node):
                resource = missing[0]
                message = f"Pod was rejected: Node didn't have enough resource: {resource}"
                self.kubelet.reject(pod, f"OutOf{resource}", message)
                return False
            self._needs[uid] = wanted
        return True

    def _read_needs(self, pod: dict[str, Any]) -> Needs | None:
        try:
            return needs(pod["spec"])
        except BadManifest as error:
            self.recorder.emit(SCHEDULER, pod, "Warning", "FailedScheduling", f"the pod cannot be read: {error}")
            return None

    def _release(self, uid: str) -> None:
        self._needs.pop(uid, None)
        self.scheduler.release(uid)
        self._turns.add(None)

    def _schedule(self) -> None:
        for decision in self.scheduler.turn():
            key = self._keys[decision.pod]
            if (pod := self.server.get(PODS, key)) is None:
                continue
            now = self.server.clock()
            if isinstance(decision, Bind):
                bind(self.server, key, decision.node, pod_status.scheduled(pod, now))
                message = f"Successfully assigned {key} to {decision.node}"
                self.recorder.emit(SCHEDULER, pod, "Normal", "Scheduled", message)
            else:
                write_status(self.server, PODS, key, pod_status.unschedulable(pod, decision.message, now))
                self.recorder.emit(SCHEDULER, pod, "Warning", "FailedScheduling", decision.message)

    # --- namespaces ---

    def _make_account(self, namespace: str) -> None:
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": namespace},
        }
        if self.server.get(SERVICE_ACCOUNTS, ObjectKey(namespace, "default")) is None:
            try:
                self.server.create(SERVICE_ACCOUNTS, account)
            except ApiError:
                return  # the namespace is on its way out

    # --- whose pod ---

    def source_of(self, obj: Manifest) -> Source:
        """Whose work a pod or job is: its topmost owner, and the marks on any of them, the nearest first."""
        top, marks = obj, dict(obj["metadata"].get("annotations") or {})
        for _ in range(OWNERS_MOST):
            if (above := self._owner(top)) is None:
                break
            top, marks = above, {**(above["metadata"].get("annotations") or {}), **marks}
        meta = top["metadata"]
        return Source(
            cluster=self.server.name,
            namespace=meta.get("namespace", ""),
            kind=top["kind"],
            name=meta["name"],
            uid=meta["uid"],
            origin_uid=marks.get(names.ORIGIN_UID, ""),
            placement=marks.get(names.PLACEMENT, ""),
            generation=marks.get(names.GENERATION, ""),
            attempt=marks.get(names.ATTEMPT, ""),
        )

    def _owner(self, obj: Manifest) -> dict[str, Any] | None:
        if (owner := controller_of(obj)) is None:
            return None
        if (served := self.server.registry.of_kind(owner["apiVersion"], owner["kind"])) is None:
            return None
        found = self.server.get(served.resource, ObjectKey(obj["metadata"].get("namespace", ""), owner["name"]))
        return found if found is not None and found["metadata"]["uid"] == owner["uid"] else None


def _gpus(wanted: Needs) -> int:
    return sum(amount for name, amount in wanted.requests.items() if name.endswith(GPU_SUFFIX))
