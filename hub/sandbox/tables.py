"""What `kubectl get` shows: columns of the built-in kinds, and Table documents made from them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hub.kueue.api.meta import parse_time
from hub.sandbox.documents import Document, dig
from hub.sandbox.selectors import selector_text
from hub.sandbox.served import Column

NONE = "<none>"
UNKNOWN = "<unknown>"


def human_duration(seconds: float) -> str:
    """A duration in at most two units, as apimachinery's HumanDuration rounds it."""
    s = int(seconds)
    if s < -1:
        return "<invalid>"
    s = max(s, 0)
    if s < 120:
        return f"{s}s"
    if s < 600:
        return _two(s, 60, "m", 1, "s")
    if s < 3 * 3600:
        return f"{s // 60}m"
    if s < 8 * 3600:
        return _two(s, 3600, "h", 60, "m")
    if s < 48 * 3600:
        return f"{s // 3600}h"
    if s < 8 * 86400:
        return _two(s, 86400, "d", 3600, "h")
    return f"{s // 86400}d" if s < 2 * 365 * 86400 else _two(s, 365 * 86400, "y", 86400, "d")


def _two(s: int, unit: int, name: str, small: int, small_name: str) -> str:
    rest = s % unit // small
    return f"{s // unit}{name}{rest}{small_name}" if rest else f"{s // unit}{name}"


def age(text: str | None, now: float) -> str:
    return human_duration(now - parse_time(text)) if text else UNKNOWN


def _path(*path: str, default: Any = "") -> Callable[[Document, float], Any]:
    def cell(obj: Document, now: float) -> Any:
        found = dig(obj, *path)
        return default if found is None else found

    return cell


def _time(*path: str) -> Callable[[Document, float], str]:
    return lambda obj, now: age(dig(obj, *path), now)


def _count(*path: str) -> Callable[[Document, float], int]:
    return lambda obj, now: len(dig(obj, *path) or ())


NAME = Column("Name", _path("metadata", "name"), format="name", description="Name must be unique within a namespace.")
AGE = Column("Age", _time("metadata", "creationTimestamp"), description="Time since the object was created.")
DEFAULT_COLUMNS = (
    NAME,
    Column("Created At", _path("metadata", "creationTimestamp"), "date", description="When the object was created."),
)


def _column(name: str, cell: Callable[[Document, float], Any], kind: str = "string", *, wide: bool = False) -> Column:
    return Column(name, cell, kind, priority=1 if wide else 0)


def _wide(name: str, cell: Callable[[Document, float], Any], kind: str = "string") -> Column:
    return _column(name, cell, kind, wide=True)


# --- pods ------------------------------------------------------------------------------------------------------------


def _ready(pod: Document, now: float) -> str:
    statuses = dig(pod, "status", "containerStatuses") or ()
    return f"{sum(bool(s.get('ready')) for s in statuses)}/{len(dig(pod, 'spec', 'containers') or ())}"


def pod_phase(pod: Document, now: float = 0.0) -> str:
    """The one word that people look at: the reason when there is one, Terminating, or the phase."""
    status = pod.get("status") or {}
    word = status.get("reason") or status.get("phase") or "Unknown"
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in status.get("conditions") or ()
    ):
        word = "SchedulingGated"
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        if reason := dig(state, "waiting", "reason") or dig(state, "terminated", "reason"):
            word = reason
        elif (ended := state.get("terminated")) is not None:
            word = f"ExitCode:{ended.get('exitCode', 0)}"
    return "Terminating" if dig(pod, "metadata", "deletionTimestamp") else word


def _restarts(pod: Document, now: float) -> int:
    return sum(s.get("restartCount", 0) for s in dig(pod, "status", "containerStatuses") or ())


def _gates(pod: Document, now: float) -> str:
    gates = dig(pod, "spec", "readinessGates") or ()
    return f"0/{len(gates)}" if gates else NONE


PODS = (
    NAME,
    _column("Ready", _ready),
    _column("Status", pod_phase),
    _column("Restarts", _restarts, "integer"),
    AGE,
    _wide("IP", _path("status", "podIP", default=NONE)),
    _wide("Node", _path("spec", "nodeName", default=NONE)),
    _wide("Nominated Node", _path("status", "nominatedNodeName", default=NONE)),
    _wide("Readiness Gates", _gates),
)

# --- nodes -----------------------------------------------------------------------------------------------------------


def _condition(obj: Document, kind: str) -> Document:
    return next((c for c in dig(obj, "status", "conditions") or () if c.get("type") == kind), {})


def _node_status(node: Document, now: float) -> str:
    status = _condition(node, "Ready").get("status")
    word = {"True": "Ready", None: "Unknown"}.get(status, "NotReady")
    return f"{word},SchedulingDisabled" if dig(node, "spec", "unschedulable") else word


def _roles(node: Document, now: float) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = dig(node, "metadata", "labels") or {}
    return ",".join(sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))) or NONE


def _address(kind: str) -> Callable[[Document, float], str]:
    def cell(node: Document, now: float) -> str:
        found = (a.get("address") for a in dig(node, "status", "addresses") or () if a.get("type") == kind)
        return next(found, NONE)

    return cell


def _node_info(name: str) -> Callable[[Document, float], Any]:
    return _path("status", "nodeInfo", name, default=UNKNOWN)


NODES = (
    NAME,
    _column("Status", _node_status),
    _column("Roles", _roles),
    AGE,
    _column("Version", _path("status", "nodeInfo", "kubeletVersion")),
    _wide("Internal-IP", _address("InternalIP")),
    _wide("External-IP", _address("ExternalIP")),
    _wide("OS-Image", _node_info("osImage")),
    _wide("Kernel-Version", _node_info("kernelVersion")),
    _wide("Container-Runtime", _node_info("containerRuntimeVersion")),
)

# --- jobs ------------------------------------------------------------------------------------------------------------


def _completions(job: Document, now: float) -> str:
    succeeded = dig(job, "status", "succeeded") or 0
    if (wanted := dig(job, "spec", "completions")) is not None:
        return f"{succeeded}/{wanted}"
    parallelism = dig(job, "spec", "parallelism") or 0
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_status(job: Document, now: float) -> str:
    for kind, word in (("Complete", "Complete"), ("Failed", "Failed")):
        if _condition(job, kind).get("status") == "True":
            return word
    if dig(job, "metadata", "deletionTimestamp"):
        return "Terminating"
    for kind, word in (
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ):
        if _condition(job, kind).get("status") == "True":
            return word
    return "Running"


def _job_duration(job: Document, now: float) -> str:
    if not (started := dig(job, "status", "startTime")):
        return ""
    ended = dig(job, "status", "completionTime")
    return human_duration((parse_time(ended) if ended else now) - parse_time(started))


def _containers(field: str, *to_spec: str) -> Callable[[Document, float], str]:
    def cell(obj: Document, now: float) -> str:
        return ",".join(c.get(field, "") for c in dig(obj, *to_spec, "containers") or ())

    return cell


def _selector(obj: Document, now: float) -> str:
    return selector_text(dig(obj, "spec", "selector")) or NONE


TEMPLATE = ("spec", "template", "spec")
TEMPLATE_COLUMNS = (
    _wide("Containers", _containers("name", *TEMPLATE)),
    _wide("Images", _containers("image", *TEMPLATE)),
    _wide("Selector", _selector),
)
JOBS = (
    NAME,
    _column("Status", _job_status),
    _column("Completions", _completions),
    _column("Duration", _job_duration),
    AGE,
    *TEMPLATE_COLUMNS,
)
CRON_JOBS = (
    NAME,
    _column("Schedule", _path("spec", "schedule")),
    _column("Timezone", _path("spec", "timeZone", default=NONE)),
    _column("Suspend", lambda o, now: str(bool(dig(o, "spec", "suspend")))),
    _column("Active", _count("status", "active"), "integer"),
    _column("Last Schedule", lambda o, now: age(t, now) if (t := dig(o, "status", "lastScheduleTime")) else NONE),
    AGE,
)

# --- events ----------------------------------------------------------------------------------------------------------


def _last_seen(event: Document, now: float) -> str:
    last = dig(event, "series", "lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return age(last or dig(event, "metadata", "creationTimestamp"), now)


def _first_seen(event: Document, now: float) -> str:
    first = event.get("firstTimestamp") or event.get("eventTime") or dig(event, "metadata", "creationTimestamp")
    return age(first, now)


def _event_object(event: Document, now: float) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _event_source(event: Document, now: float) -> str:
    parts = [dig(event, "source", "component") or event.get("reportingComponent"), dig(event, "source", "host")]
    return ", ".join(p for p in parts if p)


def _event_message(event: Document, now: float) -> str:
    return (event.get("message") or "").strip()


EVENTS = (
    _column("Last Seen", _last_seen),
    _column("Type", _path("type")),
    _column("Reason", _path("reason")),
    _column("Object", _event_object),
    _wide("Subobject", _path("involvedObject", "fieldPath")),
    _wide("Source", _event_source),
    _column("Message", _event_message),
    _wide("First Seen", _first_seen),
    _wide("Count", lambda e, now: dig(e, "series", "count") or e.get("count") or 1, "integer"),
    Column("Name", _path("metadata", "name"), format="name", priority=1),
)

# --- the others ------------------------------------------------------------------------------------------------------


def _replicas_ready(obj: Document, now: float) -> str:
    return f"{dig(obj, 'status', 'readyReplicas') or 0}/{dig(obj, 'spec', 'replicas') or 0}"


def _number(*path: str) -> Callable[[Document, float], int]:
    return lambda obj, now: dig(obj, *path) or 0


DEPLOYMENTS = (
    NAME,
    _column("Ready", _replicas_ready),
    _column("Up-to-date", _number("status", "updatedReplicas"), "integer"),
    _column("Available", _number("status", "availableReplicas"), "integer"),
    AGE,
    *TEMPLATE_COLUMNS,
)
REPLICA_SETS = (
    NAME,
    _column("Desired", _number("spec", "replicas"), "integer"),
    _column("Current", _number("status", "replicas"), "integer"),
    _column("Ready", _number("status", "readyReplicas"), "integer"),
    AGE,
    *TEMPLATE_COLUMNS,
)
STATEFUL_SETS = (NAME, _column("Ready", _replicas_ready), AGE, *TEMPLATE_COLUMNS[:2])
DAEMON_SETS = (
    NAME,
    _column("Desired", _number("status", "desiredNumberScheduled"), "integer"),
    _column("Current", _number("status", "currentNumberScheduled"), "integer"),
    _column("Ready", _number("status", "numberReady"), "integer"),
    AGE,
    *TEMPLATE_COLUMNS,
)


def _ports(service: Document, now: float) -> str:
    return ",".join(f"{p.get('port')}/{p.get('protocol', 'TCP')}" for p in dig(service, "spec", "ports") or ()) or NONE


SERVICES = (
    NAME,
    _column("Type", _path("spec", "type")),
    _column("Cluster-IP", _path("spec", "clusterIP", default=NONE)),
    _column("External-IP", lambda o, now: ",".join(dig(o, "spec", "externalIPs") or ()) or NONE),
    _column("Port(s)", _ports),
    AGE,
    _wide("Selector", _selector),
)


def _role_ref(binding: Document, now: float) -> str:
    role = binding.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _subjects(kind: str) -> Callable[[Document, float], str]:
    def cell(binding: Document, now: float) -> str:
        found = [s for s in binding.get("subjects") or () if s.get("kind") == kind]
        return ", ".join(
            f"{s['namespace']}/{s['name']}" if kind == "ServiceAccount" else s.get("name", "") for s in found
        )

    return cell


BINDINGS = (
    NAME,
    _column("Role", _role_ref),
    AGE,
    _wide("Users", _subjects("User")),
    _wide("Groups", _subjects("Group")),
    _wide("ServiceAccounts", _subjects("ServiceAccount")),
)
ROLES = (NAME, Column("Created At", _path("metadata", "creationTimestamp"), "string"))
PRIORITY_CLASSES = (
    NAME,
    _column("Value", _path("value", default=0), "integer"),
    _column("Global-Default", lambda o, now: bool(o.get("globalDefault")), "boolean"),
    AGE,
    _column("PreemptionPolicy", _path("preemptionPolicy")),
)


def _data_size(obj: Document, now: float) -> int:
    return len(obj.get("data") or ()) + len(obj.get("binaryData") or ())


def _claim(*path: str) -> Callable[[Document, float], str]:
    return _path(*path, default="")


#: Collection -> columns. Kinds that are not here show name and creation time.
COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": PODS,
    "nodes": NODES,
    "events": EVENTS,
    "namespaces": (NAME, _column("Status", _path("status", "phase")), AGE),
    "configmaps": (NAME, _column("Data", _data_size), AGE),
    "secrets": (NAME, _column("Type", _path("type")), _column("Data", _data_size, "integer"), AGE),
    "serviceaccounts": (NAME, _column("Secrets", _count("secrets"), "integer"), AGE),
    "services": SERVICES,
    "persistentvolumeclaims": (
        NAME,
        _column("Status", _claim("status", "phase")),
        _column("Volume", _claim("spec", "volumeName")),
        _column("Capacity", _claim("status", "capacity", "storage")),
        _column("StorageClass", _claim("spec", "storageClassName")),
        AGE,
    ),
    "jobs.batch": JOBS,
    "cronjobs.batch": CRON_JOBS,
    "deployments.apps": DEPLOYMENTS,
    "replicasets.apps": REPLICA_SETS,
    "statefulsets.apps": STATEFUL_SETS,
    "daemonsets.apps": DAEMON_SETS,
    "leases.coordination.k8s.io": (NAME, _column("Holder", _path("spec", "holderIdentity")), AGE),
    "roles.rbac.authorization.k8s.io": ROLES,
    "clusterroles.rbac.authorization.k8s.io": ROLES,
    "rolebindings.rbac.authorization.k8s.io": BINDINGS,
    "clusterrolebindings.rbac.authorization.k8s.io": BINDINGS,
    "priorityclasses.scheduling.k8s.io": PRIORITY_CLASSES,
    "runtimeclasses.node.k8s.io": (NAME, _column("Handler", _path("handler")), AGE),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (
        NAME,
        _column("Webhooks", _count("webhooks"), "integer"),
        AGE,
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (
        NAME,
        _column("Webhooks", _count("webhooks"), "integer"),
        AGE,
    ),
}


# --- Table documents -------------------------------------------------------------------------------------------------


def column_definitions(columns: Iterable[Column]) -> list[Document]:
    return [
        {"name": c.name, "type": c.type, "format": c.format, "description": c.description, "priority": c.priority}
        for c in columns
    ]


def partial(obj: Document) -> Document:
    """The object as PartialObjectMetadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


#: `includeObject` parameter -> what a row carries.
ROW_OBJECTS: dict[str, Callable[[Document], Document | None]] = {
    "": partial,
    "Metadata": partial,
    "Object": lambda obj: obj,
    "None": lambda obj: None,
}


def row(obj: Document, columns: Sequence[Column], include: str, now: float) -> Document:
    cells = [c.cell(obj, now) for c in columns]
    if (carried := ROW_OBJECTS[include](obj)) is None:
        return {"cells": cells}
    return {"cells": cells, "object": carried}


def table(rows: list[Document], columns: Sequence[Column], metadata: Document, *, headers: bool = True) -> Document:
    """A meta.k8s.io/v1 Table."""
    definitions = column_definitions(columns) if headers else []
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }
