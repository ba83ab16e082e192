"""What kube-apiserver fills into a pod spec that leaves it open, in place (core/v1 defaults, and one admission plugin)."""

from typing import Any

from hub.sandbox.documents import Document
from hub.sandbox.resources import normalize

DEFAULT_GRACE_S = 30
#: Seconds a pod stays on a node that is not ready or out of reach (admission plugin DefaultTolerationSeconds).
TOLERATED_S = 300
#: Mode of the files of a volume: 0644.
FILE_MODE = 420
TOKEN_LIFE_S = 3600

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def _fill(target: Document, defaults: Document) -> None:
    for name, value in defaults.items():
        target.setdefault(name, value)


def default_container(container: Document) -> None:
    tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
    container.setdefault("imagePullPolicy", "IfNotPresent" if tag not in ("", "latest") else "Always")
    normalize(container.setdefault("resources", {}))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        _default_field_ref(variable.get("valueFrom"))
    for name in _PROBES:
        if probe := container.get(name):
            _fill(probe, _PROBE)
            _default_http_get(probe)
    for hook in (container.get("lifecycle") or {}).values():
        _default_http_get(hook)


def _default_http_get(action: Any) -> None:
    if isinstance(action, dict) and (get := action.get("httpGet")):
        _fill(get, {"path": "/", "scheme": "HTTP"})


def _default_field_ref(source: Any) -> None:
    if isinstance(source, dict) and (ref := source.get("fieldRef")):
        ref.setdefault("apiVersion", "v1")


def _default_volume(volume: Document) -> None:
    if not any(name != "name" for name in volume):
        volume["emptyDir"] = {}
    for kind in ("configMap", "downwardAPI", "projected", "secret"):
        if isinstance(source := volume.get(kind), dict):
            source.setdefault("defaultMode", FILE_MODE)
    if isinstance(path := volume.get("hostPath"), dict):
        path.setdefault("type", "")
    projections = (volume.get("projected") or {}).get("sources") or ()
    for projection in projections:
        if token := projection.get("serviceAccountToken"):
            token.setdefault("expirationSeconds", TOKEN_LIFE_S)
    for source in (volume, *projections):
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            _default_field_ref(item)


def default_pod_spec(spec: Document) -> None:
    _fill(
        spec,
        {
            "dnsPolicy": "ClusterFirst",
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "terminationGracePeriodSeconds": DEFAULT_GRACE_S,
        },
    )
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or ():
            default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def default_template(template: Any) -> None:
    if isinstance(template, dict):
        template.setdefault("metadata", {})
        default_pod_spec(template.setdefault("spec", {}))


def default_tolerations(spec: Document) -> None:
    """A pod waits some minutes for a node that went silent, unless it says what it tolerates there."""
    tolerations = spec.get("tolerations") or []
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            own = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_S}
            tolerations = [*tolerations, own]
    spec["tolerations"] = tolerations


def _tolerates(toleration: Document, key: str) -> bool:
    return toleration.get("key", key) in (key, "") and toleration.get("effect") in (None, "", "NoExecute")
