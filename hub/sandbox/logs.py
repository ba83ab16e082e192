"""What the containers of a simulated pod write: where they run, their environment, how they ended. Pure."""

from collections.abc import Mapping
from typing import Any

Manifest = Mapping[str, Any]


def logs(pod: Manifest, container: str) -> list[str]:
    """The lines that the container wrote so far; none before it started."""
    kind = (
        "initContainers"
        if any(c["name"] == container for c in pod["spec"].get("initContainers") or ())
        else "containers"
    )
    status = pod.get("status") or {}
    known = status.get("initContainerStatuses" if kind == "initContainers" else "containerStatuses") or ()
    seen: Manifest | None = next((c for c in known if c["name"] == container), None)
    spec: Manifest | None = next((c for c in pod["spec"][kind] if c["name"] == container), None)
    if seen is None or spec is None:
        return []
    # While it waits to be started again, what is there is what the last one wrote.
    state = seen["state"] if "waiting" not in seen["state"] else seen.get("lastState") or {}
    run = state.get("running") or state.get("terminated") or {}
    lines = [
        f"{run.get('startedAt', '')} {container} ({spec.get('image', '')}) started on node {pod['spec'].get('nodeName')}"
    ]
    lines += [f"{entry['name']}={_value(pod, entry)}" for entry in spec.get("env") or ()]
    if (end := state.get("terminated")) is not None:
        lines.append(f"{end['finishedAt']} exit code {end['exitCode']}")
    return lines


def _value(pod: Manifest, entry: Manifest) -> str:
    """The value of an environment variable. Fields of the pod are looked up; secrets and ConfigMaps are not shown."""
    if "valueFrom" not in entry:
        return str(entry.get("value", ""))
    path = (entry["valueFrom"].get("fieldRef") or {}).get("fieldPath", "")
    table, bracket, name = path.removeprefix("metadata.").partition("[")
    if bracket:
        return (pod["metadata"].get(table) or {}).get(name.strip("]'\""), "")
    part, _, field = path.partition(".")
    return str((pod.get(part) or {}).get(field) or "")
