"""Which groups, versions and resources there are: /version, /api, /apis, per group and version, and all in one document."""

import platform
from collections.abc import Iterable

from hub.sandbox.builtin import SUBRESOURCES
from hub.sandbox.documents import Document
from hub.sandbox.served import Registry, Served

MAJOR, MINOR, PATCH = 1, 35, 2
GIT_VERSION = f"v{MAJOR}.{MINOR}.{PATCH}+sandbox"

#: Groups whose versions sort before the others, as kube-apiserver orders them; the rest follow by name.
FIRST_GROUPS = ("", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling", "batch")


def version_info() -> Document:
    return {
        "major": str(MAJOR),
        "minor": str(MINOR),
        "emulationMajor": str(MAJOR),
        "emulationMinor": str(MINOR),
        "minCompatibilityMajor": str(MAJOR),
        "minCompatibilityMinor": str(MINOR - 1),
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": "cpython",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


def ordered_groups(registry: Registry) -> list[tuple[str, list[str]]]:
    groups = registry.group_versions()

    def rank(group: str) -> tuple[int, str]:
        return (FIRST_GROUPS.index(group) if group in FIRST_GROUPS else len(FIRST_GROUPS), group)

    return [(group, by_preference(groups[group])) for group in sorted(groups, key=rank)]


def by_preference(versions: Iterable[str]) -> list[str]:
    """GA before beta before alpha, higher numbers first (KEP: version priority of CustomResourceDefinitions)."""

    def rank(version: str) -> tuple[int, int, int]:
        text = version.removeprefix("v")
        for level, word in ((1, "beta"), (2, "alpha")):
            major, found, minor = text.partition(word)
            if found and major.isdecimal():
                return (level, -int(major), -int(minor or 0))
        return (0, -int(text), 0) if text.isdecimal() else (3, 0, 0)

    return sorted(versions, key=rank)


# --- legacy documents ------------------------------------------------------------------------------------------------


def api_versions(address: str) -> Document:
    """/api."""
    regions = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": regions}


def _group_version(group: str, version: str) -> Document:
    return {"groupVersion": f"{group}/{version}", "version": version}


def api_group(registry: Registry, group: str) -> Document | None:
    """/apis/GROUP."""
    versions = by_preference(registry.group_versions().get(group, ()))
    if not versions:
        return None
    listed = [_group_version(group, v) for v in versions]
    return {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": listed, "preferredVersion": listed[0]}


def api_group_list(registry: Registry) -> Document:
    """/apis."""
    found = [api_group(registry, group) for group, _ in ordered_groups(registry) if group]
    groups = [{k: v for k, v in g.items() if k not in ("kind", "apiVersion")} for g in found if g]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_resource_list(registry: Registry, group: str, version: str) -> Document | None:
    """/api/v1 and /apis/GROUP/VERSION."""
    if not (served := registry.in_group_version(group, version)):
        return None
    resources = [entry for s in sorted(served, key=lambda s: s.plural) for entry in _resources(s)]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _resources(served: Served) -> list[Document]:
    resource = served.resource
    entry: Document = {
        "name": resource.plural,
        "singularName": served.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(served.verbs),
    }
    if served.short_names:
        entry["shortNames"] = list(served.short_names)
    if served.categories:
        entry["categories"] = list(served.categories)
    return [entry, *(_subresource(served, name) for name in sorted(served.subresources))]


def _subresource(served: Served, name: str) -> Document:
    group, version, kind, verbs = SUBRESOURCES[name]
    entry: Document = {
        "name": f"{served.plural}/{name}",
        "singularName": "",
        "namespaced": served.resource.namespaced,
        "kind": kind or served.resource.kind,
        "verbs": list(verbs),
    }
    if kind:
        entry |= {"group": group, "version": version}
    return entry


# --- aggregated discovery (apidiscovery.k8s.io/v2) ---------------------------------------------------------------------


def aggregated(registry: Registry, *, core: bool) -> Document:
    """/api (core) or /apis with every resource in it."""
    groups = [(g, versions) for g, versions in ordered_groups(registry) if (g == "") is core]
    items = [_aggregated_group(registry, group, versions) for group, versions in groups]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated_group(registry: Registry, group: str, versions: list[str]) -> Document:
    metadata: Document = {"creationTimestamp": None}
    if group:
        metadata = {"name": group} | metadata
    listed = [
        {
            "version": version,
            "resources": [
                _aggregated_resource(s)
                for s in sorted(registry.in_group_version(group, version), key=lambda s: s.plural)
            ],
            "freshness": "Current",
        }
        for version in versions
    ]
    return {"metadata": metadata, "versions": listed}


def _aggregated_resource(served: Served) -> Document:
    resource = served.resource
    entry: Document = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": served.singular,
        "verbs": list(served.verbs),
    }
    if served.short_names:
        entry["shortNames"] = list(served.short_names)
    if served.categories:
        entry["categories"] = list(served.categories)
    if served.subresources:
        entry["subresources"] = [_aggregated_subresource(served, name) for name in sorted(served.subresources)]
    return entry


def _aggregated_subresource(served: Served, name: str) -> Document:
    group, version, kind, verbs = SUBRESOURCES[name]
    response = served.resource if not kind else None
    shown = {
        "group": response.group if response else group,
        "version": response.version if response else version,
        "kind": response.kind if response else kind,
    }
    return {"subresource": name, "responseKind": shown, "verbs": list(verbs)}
