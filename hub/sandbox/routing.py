"""Paths of the Kubernetes API taken apart by hand: a router with a table of patterns would cost more than the request."""

from msgspec import Struct

#: What a namespace has below itself besides the resources in it.
NAMESPACE_SUBRESOURCES = ("status", "finalize")


class Target(Struct, frozen=True):
    """What a path under /api or /apis names. `plural` is "" for a discovery document."""

    group: str = ""
    version: str = ""
    namespace: str = ""
    plural: str = ""
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> Target | None:
    """None when the path is not one of the API's."""
    root, *parts = path.strip("/").split("/")
    if root == "apis":
        group, *parts = parts or [""]
    elif root == "api":
        group = ""
    else:
        return None
    version, *rest = parts or [""]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and not (len(rest) == 3 and rest[2] in NAMESPACE_SUBRESOURCES):
        namespace, rest = rest[1], rest[2:]
    plural, name, *subresource = [*rest, "", ""] if len(rest) < 2 else rest
    return Target(group, version, namespace, plural, name, "/".join(filter(None, subresource)))


#: (method, names one object) -> verb as RBAC knows it.
VERBS: dict[tuple[str, bool], str] = {
    ("GET", True): "get",
    ("HEAD", True): "get",
    ("GET", False): "list",
    ("HEAD", False): "list",
    ("POST", False): "create",
    ("POST", True): "create",
    ("PUT", True): "update",
    ("PATCH", True): "patch",
    ("DELETE", True): "delete",
    ("DELETE", False): "deletecollection",
}
