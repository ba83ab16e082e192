"""Small manifests for contract cases."""

from typing import Any


def config(name: str = "", *, data: dict[str, str] | None = None, **meta: Any) -> dict[str, Any]:
    metadata = {"name": name, **meta} if name else meta
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"a": "1"}}


def job(name: str, *, meta: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **(meta or {})},
        "spec": {"suspend": True, "template": template, **spec},
    }


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": list(containers) or [{"name": "c", "image": "i:1"}], **spec},
    }


def owner(kind: str, api_version: str, obj: dict[str, Any], *, blocks: bool = False) -> dict[str, Any]:
    """An ownerReference to `obj`."""
    meta = obj["metadata"]
    reference = {"apiVersion": api_version, "kind": kind, "name": meta["name"], "uid": meta["uid"]}
    return reference | ({"blockOwnerDeletion": True} if blocks else {})
