"""Every node's kubelet: bound pods start, run as their annotations say, end, and stop when they are deleted.

    bound ──start_s──▶ running ──duration──▶ ended
      │                   │  ▲                 ▲
      │                   │  └─ restart_s ◀────┤ (restartPolicy)
      └──── deleted ──────┴──stop_s────────────┴──▶ object removed

A node that does not answer is cut off (its pods go on, but nobody hears of them) or dead (its pods are gone). Either way
nothing is written for it until it is back. What really ran goes to the observer at the moment it happens.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from hub.kueue.api.meta import ObjectKey, key_of
from hub.kueue.api.resources import NODES, PODS
from hub.sandbox import pod_status
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.inprocess import write_status
from hub.sandbox.job_policies import ENDED, index_of, is_terminating, phase
from hub.sandbox.observer import Observer, Run, Source
from hub.sandbox.recorder import Recorder
from hub.sandbox.script import Pace, Script, ScriptError, script_of
from hub.sandbox.timers import Timer, Timers

Manifest = Mapping[str, Any]

COMPONENT = "kubelet"
#: What a process that is told to stop exits with: 128 + SIGTERM.
STOPPED = 143
#: Likewise after a SIGKILL, or a power cut.
KILLED = 137


class _Pod:
    """A pod that a node has taken on."""

    __slots__ = (
        "exit_code",
        "gpus",
        "key",
        "node",
        "restarts",
        "script",
        "stage",
        "started_at",
        "timer",
        "tries",
        "uid",
    )

    def __init__(self, pod: Manifest, script: Script, gpus: int) -> None:
        self.key, self.uid, self.node = key_of(pod), pod["metadata"]["uid"], pod["spec"]["nodeName"]
        self.script, self.gpus = script, gpus
        #: starting, running, waiting (to be restarted), stopping, ended, dead.
        self.stage = "starting"
        self.restarts = 0
        self.exit_code = 0
        self.started_at = 0.0
        #: Whose tries these are: the pod's topmost owner, and its completion index.
        self.tries: tuple[str, int | None] = (self.uid, None)
        self.timer: Timer | None = None

    def plan(self, timer: Timer | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


class Kubelet:
    """The kubelets of one cluster. `sync` is called with every change of a pod."""

    def __init__(
        self,
        server: ApiServer,
        timers: Timers,
        pace: Pace,
        observer: Observer,
        recorder: Recorder,
        source_of: Callable[[Manifest], Source],
    ) -> None:
        self.server, self.timers, self.pace = server, timers, pace
        self.observer, self.recorder, self._source_of = observer, recorder, source_of
        self._pods: dict[str, _Pod] = {}
        self._on_node: dict[str, dict[str, _Pod]] = defaultdict(dict)
        #: Nodes whose kubelet answers.
        self._heard: set[str] = set()
        #: (job uid or pod uid, index) -> failed tries, for scripts that fail at first.
        self._tries: Counter[tuple[str, int | None]] = Counter()
        self._addresses = 0

    # --- what the API says ---

    def sync(self, pod: Manifest, gpus: int) -> None:
        """The pod is new or has changed. `gpus` is how many devices it asks for."""
        if not pod["spec"].get("nodeName"):
            if is_terminating(pod):
                self._collect(pod)
            return
        if pod["spec"]["nodeName"] not in self._heard:
            return
        mine = self._pods.get(pod["metadata"]["uid"])
        if is_terminating(pod):
            self._stop(pod, mine)
        elif mine is None and phase(pod) not in ENDED:
            self._take_on(pod, gpus)

    def gone(self, pod: Manifest) -> None:
        """The object is no longer there: whatever still runs is killed, where the node hears of it."""
        mine = self._pods.get(pod["metadata"]["uid"])
        if mine is not None and (mine.node in self._heard or mine.stage == "dead"):
            self._quit(mine, "Deleted")
            self._forget(mine.uid)

    def reject(self, pod: Manifest, reason: str, message: str) -> None:
        """The node has no room for it."""
        self.recorder.emit(COMPONENT, pod, "Warning", reason, message)
        write_status(self.server, PODS, key_of(pod), pod_status.rejected(pod, reason, message, self.server.clock()))

    # --- nodes ---

    def silence(self, node: str, *, dead: bool) -> None:
        """The node is cut off, or dead: then its pods end here and now, unseen."""
        self._heard.discard(node)
        for mine in self._on_node[node].values() if dead else ():
            mine.plan(None)
            mine.stage, mine.exit_code = "dead", KILLED
            self._quit(mine, "NodeLost")

    def revive(self, node: str) -> bool:
        """The node is new or heard from again: its pods are to be synced. False when it never went away."""
        if node in self._heard:
            return False
        self._heard.add(node)
        for mine in list(self._on_node[node].values()):
            self._report(mine)
        return True

    def _report(self, mine: _Pod) -> None:
        """What became of the pod while nobody heard of its node."""
        pod = self._current(mine)
        if pod is None:
            self._quit(mine, "Deleted")
            self._forget(mine.uid)
        elif is_terminating(pod):
            return  # the sync that follows stops it
        elif mine.stage == "running":
            self._say_running(mine, pod)
        elif mine.stage in ("ended", "dead"):
            self._after_exit(mine, pod)

    def pods_on(self, node: str) -> list[ObjectKey]:
        return [mine.key for mine in self._on_node[node].values()]

    # --- a pod's life ---

    def _take_on(self, pod: Manifest, gpus: int) -> None:
        try:
            script = script_of(pod, self.pace)
        except ScriptError as error:
            self.reject(pod, "InvalidSandboxAnnotation", str(error))
            return
        mine = _Pod(pod, script, gpus)
        self._pods[mine.uid] = self._on_node[mine.node][mine.uid] = mine
        mine.plan(self.timers.after(self.pace.start_s, lambda: self._start(mine)))

    def _start(self, mine: _Pod) -> None:
        if (pod := self._current(mine)) is None:
            return
        mine.stage, mine.started_at = "running", self.server.clock()
        source, index = self._source_of(pod), index_of(pod)
        mine.tries = (source.uid, index)
        self.observer.started(
            Run(
                source=source,
                pod=mine.key.name,
                pod_uid=mine.uid,
                index=index,
                node=mine.node,
                gpus=mine.gpus,
                start=self.timers.clock(),
            )
        )
        if mine.node in self._heard:
            self._say_running(mine, pod)
            container = pod["spec"]["containers"][0]["name"]
            self.recorder.emit(COMPONENT, pod, "Normal", "Started", f"Container {container} started")
        self._plan_end(mine, pod)

    def _say_running(self, mine: _Pod, pod: Manifest) -> None:
        address = (pod.get("status") or {}).get("podIP")
        if address is None:
            self._addresses += 1
            address = _pod_ip(self._addresses)
        status = pod_status.running(pod, self._host_ip(mine.node), address, mine.started_at, self.server.clock())
        write_status(self.server, PODS, mine.key, status)

    def _plan_end(self, mine: _Pod, pod: Manifest) -> None:
        deadline_s = pod["spec"].get("activeDeadlineSeconds")
        duration_s = mine.script.duration_s
        if deadline_s is not None and (duration_s is None or deadline_s < duration_s):
            mine.plan(self.timers.after(deadline_s, lambda: self._past_deadline(mine)))
        elif duration_s is not None:
            mine.plan(self.timers.after(duration_s, lambda: self._exit(mine)))

    def _past_deadline(self, mine: _Pod) -> None:
        message = "Pod was active on the node longer than the specified deadline"
        if (pod := self._current(mine)) is not None:
            self._end(mine, pod, STOPPED, reason="DeadlineExceeded", message=message)

    def _exit(self, mine: _Pod) -> None:
        """The process ends by itself."""
        if code := mine.script.code_of_try(self._tries[mine.tries]):
            self._tries[mine.tries] += 1
        self._quit(mine, "Failed" if code else "Succeeded")
        mine.stage, mine.exit_code = "ended", code
        if mine.node in self._heard and (pod := self._current(mine)) is not None:
            self._after_exit(mine, pod)

    def _after_exit(self, mine: _Pod, pod: Manifest) -> None:
        policy = pod["spec"].get("restartPolicy", "Always")
        if policy == "Never" or (policy == "OnFailure" and not mine.exit_code):
            self._end(mine, pod, mine.exit_code)
            return
        wait_s = min(self.pace.restart_most_s, self.pace.restart_s * 2 ** min(mine.restarts, 20))
        mine.restarts += 1
        mine.stage = "waiting"
        write_status(
            self.server, PODS, mine.key, pod_status.crashed(pod, mine.exit_code, self.server.clock(), wait_s=wait_s)
        )
        mine.plan(self.timers.after(wait_s, lambda: self._start(mine)))

    def _end(self, mine: _Pod, pod: Manifest, code: int, *, reason: str = "", message: str = "") -> None:
        """The pod is over: nothing of it will run again."""
        self._quit(mine, "Failed" if code else "Succeeded")
        mine.plan(None)
        mine.stage, mine.exit_code = "ended", code
        if mine.node in self._heard:
            status = pod_status.ended(pod, code, self.server.clock(), reason=reason, message=message)
            write_status(self.server, PODS, mine.key, status)
            self._forget(mine.uid)

    # --- deletion ---

    def _stop(self, pod: Manifest, mine: _Pod | None) -> None:
        """The pod is being deleted: tell the process to stop, then remove the object."""
        if mine is None or mine.stage in ("starting", "waiting", "ended", "dead"):
            self._remove(pod, mine)
        elif mine.stage == "running":
            mine.stage = "stopping"
            self.recorder.emit(
                COMPONENT, pod, "Normal", "Killing", f"Stopping container {pod['spec']['containers'][0]['name']}"
            )
            grace_s = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            stop_s = min(mine.script.stop_s, grace_s)
            mine.plan(self.timers.after(stop_s, lambda: self._stopped(mine)))
        elif not pod["metadata"].get("deletionGracePeriodSeconds"):
            self._stopped(mine)  # deleted again, by force

    def _stopped(self, mine: _Pod) -> None:
        self._quit(mine, "Deleted")
        if mine.node not in self._heard:
            mine.stage = "dead"
        elif (pod := self._current(mine)) is not None:
            self._remove(pod, mine)

    def _remove(self, pod: Manifest, mine: _Pod | None) -> None:
        """Nothing of the pod runs: say so, and let the object go."""
        if mine is not None:
            self._quit(mine, "Deleted")
            self._forget(mine.uid)
        if phase(pod) not in ENDED:
            write_status(self.server, PODS, key_of(pod), pod_status.ended(pod, STOPPED, self.server.clock()))
        self.server.delete(PODS, key_of(pod), grace_s=0)

    def _collect(self, pod: Manifest) -> None:
        """A pod that never got a node is being deleted. kube-controller-manager's pod collector ends it, so that its finalizers can go."""
        if phase(pod) not in ENDED:
            write_status(self.server, PODS, key_of(pod), {**(pod.get("status") or {}), "phase": "Failed"})

    # --- inside ---

    def _quit(self, mine: _Pod, outcome: str) -> None:
        self.observer.stopped(mine.uid, outcome, self.timers.clock())

    def _forget(self, uid: str) -> _Pod | None:
        if (mine := self._pods.pop(uid, None)) is not None:
            mine.plan(None)
            self._on_node[mine.node].pop(uid, None)
        return mine

    def _current(self, mine: _Pod) -> dict[str, Any] | None:
        pod = self.server.get(PODS, mine.key)
        return pod if pod is not None and pod["metadata"]["uid"] == mine.uid else None

    def _host_ip(self, node: str) -> str:
        found = self.server.get(NODES, ObjectKey("", node)) or {}
        addresses = (found.get("status") or {}).get("addresses") or ()
        return next((a["address"] for a in addresses if a["type"] == "InternalIP"), "127.0.0.1")


def _pod_ip(number: int) -> str:
    """An address out of 10.64.0.0/10, never one that ends in 0."""
    return f"10.{64 + number // 64_770 % 64}.{number // 254 % 255}.{number % 254 + 1}"
