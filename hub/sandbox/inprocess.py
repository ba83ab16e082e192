"""Writes of the parts that live in the same process as the API server: no validation, no conflicts, one commit each.

They own the fields they set, as kubelet, scheduler and controller manager do. All do nothing when the object is gone.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hub.kueue.api.meta import ObjectKey, Resource, format_time
from hub.kueue.api.resources import PODS
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.writing import missing_namespace

Manifest = Mapping[str, Any]


def write_status(server: ApiServer, resource: Resource, key: ObjectKey, status: Manifest) -> None:
    rewrite(server, resource, key, lambda old: {**old, "status": dict(status)})


def create(server: ApiServer, resource: Resource, manifest: Manifest) -> None:
    """Store a new, namespaced object that is known to be right. Raises ApiError when its namespace is not there or going."""
    served = server.registry.find(resource)
    meta = {**manifest["metadata"], "uid": server.names.uid(), "creationTimestamp": format_time(server.clock())}
    key = (meta["namespace"], meta["name"])
    missing_namespace(served, server.storage.collection("namespaces").objects.get(("", key[0])), key)
    new = {**manifest, "metadata": meta}
    served.rules.default(new)
    server._write(server.collection(served), "ADDED", key, new)


def bind(server: ApiServer, pod: ObjectKey, node: str, status: Manifest) -> None:
    """Put the pod on the node, as the binding subresource does."""
    rewrite(server, PODS, pod, lambda old: {**old, "spec": {**old["spec"], "nodeName": node}, "status": dict(status)})


def drop_finalizer(server: ApiServer, resource: Resource, key: ObjectKey, finalizer: str) -> None:
    def change(old: dict[str, Any]) -> dict[str, Any] | None:
        meta = old["metadata"]
        if finalizer not in (meta.get("finalizers") or ()):
            return None
        kept = [f for f in meta["finalizers"] if f != finalizer]
        rest = {name: value for name, value in meta.items() if name != "finalizers"}
        return {**old, "metadata": rest | {"finalizers": kept} if kept else rest}

    rewrite(server, resource, key, change)


def rewrite(
    server: ApiServer, resource: Resource, key: ObjectKey, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Put `change(object)` in its place; None leaves it."""
    server.rewrite(server.registry.find(resource), (key.namespace, key.name), change)
