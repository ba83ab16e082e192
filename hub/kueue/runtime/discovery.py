"""Which kinds an API server offers: aggregated discovery, or group by group where the server is older than 1.27."""

from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import Resource
from hub.kueue.runtime.errors import KubernetesError, Request
from hub.kueue.runtime.transport import JSON, Transport

_AGGREGATED = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,{JSON}"


class ServedKind(Struct, frozen=True, order=True):
    resource: Resource

    def __str__(self) -> str:
        return f"{self.resource.api_version}, {self.resource.kind}"


async def list_served(transport: Transport) -> list[ServedKind]:
    """All kinds, in every version served, sorted. A group whose own server is down is left out."""
    found: set[ServedKind] = set()
    for root in ("/api", "/apis"):
        request = Request(verb="discover", resource=root)
        document = (await transport.call(request, "GET", root, accept=_AGGREGATED)).body
        if document.get("kind") == "APIGroupDiscoveryList":
            found.update(_aggregated(document))
        else:
            for path in _version_paths(root, document):
                found.update(await _group_version(transport, path))
    return sorted(found)


def _aggregated(document: dict[str, Any]) -> list[ServedKind]:
    found: list[ServedKind] = []
    for group in document.get("items") or []:
        for version in group.get("versions") or []:
            for entry in version.get("resources") or []:
                kind = (entry.get("responseKind") or {}).get("kind", "")
                if kind:
                    name = (group.get("metadata") or {}).get("name", "")
                    namespaced = entry.get("scope") == "Namespaced"
                    found.append(ServedKind(Resource(name, version["version"], entry["resource"], kind, namespaced)))
    return found


def _version_paths(root: str, document: dict[str, Any]) -> list[str]:
    if root == "/api":
        return [f"/api/{version}" for version in document.get("versions") or []]
    groups = document.get("groups") or []
    return [f"/apis/{version['groupVersion']}" for group in groups for version in group.get("versions") or []]


async def _group_version(transport: Transport, path: str) -> list[ServedKind]:
    try:
        document = (await transport.call(Request(verb="discover", resource=path), "GET", path)).body
    except KubernetesError:
        return []
    group, _, version = document["groupVersion"].rpartition("/")
    entries = [entry for entry in document.get("resources") or [] if "/" not in entry["name"]]
    return [
        ServedKind(Resource(group, version, entry["name"], entry["kind"], bool(entry.get("namespaced"))))
        for entry in entries
    ]
