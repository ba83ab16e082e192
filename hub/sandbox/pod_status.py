"""What the kubelet writes into the status of a pod, stage by stage. Pure: pod and time in, new status out.

Pending ──▶ Running ──▶ Succeeded | Failed
              ⇅ (restartPolicy)
           CrashLoopBackOff
"""

from collections.abc import Mapping
from typing import Any

from hub.kueue.api.meta import Instant, format_time

Manifest = Mapping[str, Any]
Status = dict[str, Any]

#: In the order in which kubectl shows them.
_KINDS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


def with_condition(status: Manifest, new: Mapping[str, str], now: Instant) -> list[dict[str, Any]]:
    """The status' conditions with `new` (type, status, reason?, message?) in it; the transition time moves with the status."""
    conditions: list[dict[str, Any]] = list(status.get("conditions") or ())
    old = next((c for c in conditions if c["type"] == new["type"]), None)
    moved = old is None or old["status"] != new["status"]
    stamped = {
        "lastProbeTime": None,
        "lastTransitionTime": format_time(now) if moved or old is None else old["lastTransitionTime"],
    }
    stamped |= dict(new)
    if old is None:
        return [*conditions, stamped]
    return [stamped if c is old else c for c in conditions]


def _conditions(status: Manifest, values: Mapping[str, str], reason: str, now: Instant) -> list[dict[str, Any]]:
    merged: Status = {"conditions": list(status.get("conditions") or ())}
    for kind in _KINDS:
        new = {"type": kind, "status": values[kind]}
        if reason and kind in ("Initialized", "Ready", "ContainersReady"):
            new["reason"] = reason
        merged["conditions"] = with_condition(merged, new, now)
    return sorted(merged["conditions"], key=lambda c: _KINDS.index(c["type"]) if c["type"] in _KINDS else len(_KINDS))


def scheduled(pod: Manifest, now: Instant) -> Status:
    status = pod.get("status") or {}
    return {**status, "conditions": with_condition(status, {"type": "PodScheduled", "status": "True"}, now)}


def unschedulable(pod: Manifest, message: str, now: Instant) -> Status:
    status = pod.get("status") or {}
    new = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {**status, "conditions": with_condition(status, new, now)}


def running(pod: Manifest, host_ip: str, pod_ip: str, started: Instant, now: Instant) -> Status:
    """All containers run, since `started`, and are ready."""
    status = pod.get("status") or {}
    when = format_time(started)
    new: Status = {**status, "phase": "Running", "hostIP": host_ip, "hostIPs": [{"ip": host_ip}]}
    new |= {"podIP": pod_ip, "podIPs": [{"ip": pod_ip}], "startTime": status.get("startTime") or when}
    new["conditions"] = _conditions(status, dict.fromkeys(_KINDS, "True"), "", now)
    state = {"running": {"startedAt": when}}
    new["containerStatuses"] = [_container(pod, c, state, ready=True) for c in pod["spec"]["containers"]]
    if inits := pod["spec"].get("initContainers"):
        new["initContainerStatuses"] = [_init_container(pod, c, when) for c in inits]
    return new


def ended(pod: Manifest, exit_code: int, now: Instant, *, reason: str = "", message: str = "") -> Status:
    """All containers ended with `exit_code` and will not run again. `reason` is for pods ended from outside."""
    status = pod.get("status") or {}
    new: Status = {**status, "phase": "Failed" if exit_code or reason else "Succeeded"}
    new |= {"reason": reason} if reason else {}
    new |= {"message": message} if message else {}
    values = dict.fromkeys(_KINDS, "False") | {"Initialized": "True", "PodScheduled": "True"}
    new["conditions"] = _conditions(status, values, "" if exit_code or reason else "PodCompleted", now)
    containers = status.get("containerStatuses") or ()
    new["containerStatuses"] = [_terminated(c, exit_code, now) for c in containers]
    return new


def crashed(pod: Manifest, exit_code: int, now: Instant, *, wait_s: float) -> Status:
    """A container ended and is started again in `wait_s` seconds: the pod stays Running and is not ready meanwhile."""
    status = pod.get("status") or {}
    values = dict.fromkeys(_KINDS, "True") | {"Ready": "False", "ContainersReady": "False"}
    new: Status = {**status, "conditions": _conditions(status, values, "", now)}
    new["containerStatuses"] = [_waiting(c, exit_code, now, wait_s) for c in status.get("containerStatuses") or ()]
    return new


def rejected(pod: Manifest, reason: str, message: str, now: Instant) -> Status:
    """The node does not take the pod: nothing of it ever ran."""
    status = pod.get("status") or {}
    return {**status, "phase": "Failed", "reason": reason, "message": message, "startTime": format_time(now)}


def not_ready(pod: Manifest, now: Instant) -> Status:
    """Nobody hears from the pod's node."""
    status = pod.get("status") or {}
    new = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
    return {**status, "conditions": with_condition(status, new, now)}


def disrupted(pod: Manifest, reason: str, message: str, now: Instant) -> Status:
    """Somebody other than the pod's owner takes it away (KEP-3329)."""
    status = pod.get("status") or {}
    new = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {**status, "conditions": with_condition(status, new, now)}


# --- containers ---


def _container_id(pod: Manifest, container: Manifest, restarts: int) -> str:
    return f"sandbox://{pod['metadata']['uid']}/{container['name']}/{restarts}"


def _container(pod: Manifest, container: Manifest, state: Manifest, *, ready: bool) -> Status:
    known = (pod.get("status") or {}).get("containerStatuses") or ()
    before: Manifest = next((c for c in known if c["name"] == container["name"]), {})
    restarts = before.get("restartCount", 0)
    image = container.get("image", "")
    shown: Status = {"name": container["name"], "image": image, "imageID": f"sandbox://{image}"}
    shown |= {"containerID": _container_id(pod, container, restarts), "restartCount": restarts, "ready": ready}
    return shown | {"started": ready, "state": dict(state), "lastState": before.get("lastState") or {}}


def _init_container(pod: Manifest, container: Manifest, when: str) -> Status:
    if container.get("restartPolicy") == "Always":
        return _container(pod, container, {"running": {"startedAt": when}}, ready=True)
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": when, "finishedAt": when}}
    return _container(pod, container, done, ready=True) | {"started": False}


def _end_state(container: Manifest, exit_code: int, now: Instant) -> Status:
    started = (container["state"].get("running") or {}).get("startedAt") or format_time(now)
    end: Status = {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "startedAt": started}
    return {"terminated": end | {"finishedAt": format_time(now), "containerID": container["containerID"]}}


def _terminated(container: Manifest, exit_code: int, now: Instant) -> Status:
    return {**container, "ready": False, "started": False, "state": _end_state(container, exit_code, now)}


def _waiting(container: Manifest, exit_code: int, now: Instant, wait_s: float) -> Status:
    message = f"back-off {wait_s:g}s restarting failed container={container['name']}"
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    last = _end_state(container, exit_code, now)
    restarts = container["restartCount"] + 1
    return {
        **container,
        "ready": False,
        "started": False,
        "restartCount": restarts,
        "state": waiting,
        "lastState": last,
    }
