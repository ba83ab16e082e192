"""What the admission plugins inside kube-apiserver do to new pods: priority, overhead, tolerations for silent nodes."""

from collections.abc import Callable

from hub.sandbox.documents import Document, dig
from hub.sandbox.errors import forbidden
from hub.sandbox.pod_defaults import default_tolerations
from hub.sandbox.storage import Collection, Storage

PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
RUNTIME_CLASSES = "runtimeclasses.node.k8s.io"


def _global_default(classes: Collection) -> Document | None:
    marked = [stored.object for stored in classes.objects.values() if stored.object.get("globalDefault")]
    return min(marked, key=lambda c: c["value"]) if marked else None


def set_priority(storage: Storage, pod: Document) -> None:
    """`spec.priority` comes from the class, or from the class that is the global default. Raises ApiError 403."""
    spec, classes = pod["spec"], storage.collection(PRIORITY_CLASSES)
    name = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
    wanted = spec.get("priorityClassName")
    found = _global_default(classes)
    if wanted:
        if (stored := classes.objects.get(("", wanted))) is None:
            raise forbidden("", "pods", name, f"no PriorityClass with name {wanted} was found")
        found = stored.object
    priority = found["value"] if found else 0
    if (given := spec.get("priority")) is not None and given != priority:
        why = (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority admission controller "
            f"computed {priority} from the given PriorityClass name"
        )
        raise forbidden("", "pods", name, why)
    spec["priority"] = priority
    spec.setdefault("preemptionPolicy", (found or {}).get("preemptionPolicy") or "PreemptLowerPriority")
    if found:
        spec["priorityClassName"] = found["metadata"]["name"]


def set_overhead(storage: Storage, pod: Document) -> None:
    """A pod of a RuntimeClass costs what the class adds. Raises ApiError 403."""
    spec = pod["spec"]
    if not (wanted := spec.get("runtimeClassName")):
        return
    if (stored := storage.collection(RUNTIME_CLASSES).objects.get(("", wanted))) is None:
        name = pod["metadata"].get("name", "")
        raise forbidden("", "pods", name, f'pod rejected: RuntimeClass "{wanted}" not found')
    if overhead := dig(stored.object, "overhead", "podFixed"):
        spec["overhead"] = overhead
    if selector := dig(stored.object, "scheduling", "nodeSelector"):
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **selector}


def admit_pod(storage: Storage, pod: Document) -> None:
    set_priority(storage, pod)
    set_overhead(storage, pod)
    default_tolerations(pod["spec"])


#: Collection -> what is done to a new object, in place.
PLUGINS: dict[str, Callable[[Storage, Document], None]] = {"pods": admit_pod}
