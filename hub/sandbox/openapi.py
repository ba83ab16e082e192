"""The OpenAPI documents of a cluster: v3 by group version, with an index whose addresses change when a document does,
and the one big v2 document for older clients.

They are what `kubectl explain` shows and what `kubectl apply` asks two things: does the server validate fields itself
(a `fieldValidation` parameter on PATCH), and how are lists merged. Documents are made when first asked for and kept as
bytes; those of built-in groups are shared by all clusters of the process.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct

from hub.kueue.api.meta import Resource
from hub.sandbox.builtin_schemas import INT_OR_STRING, PREFIX, QUANTITY, class_of, define
from hub.sandbox.served import Served

Document = dict[str, Any]

VERSION = "v1.36.1"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
PATCH = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch"
_JSON = "application/json"
_PATCH_TYPES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
#: Built-in kinds only; kubectl looks here before it chooses the kind of patch that `apply` sends.
_STRATEGIC = "application/strategic-merge-patch+json"


class Documented(Struct, frozen=True, kw_only=True):
    """One resource as the documents show it."""

    resource: Resource
    verbs: tuple[str, ...]
    subresources: tuple[str, ...] = ()
    #: `openAPIV3Schema` of a custom resource, as bytes of JSON; None for a built-in kind.
    schema: bytes | None = None

    @property
    def gv(self) -> str:
        """Where the document of its group version is: api/v1, apis/batch/v1."""
        r = self.resource
        return f"apis/{r.group}/{r.version}" if r.group else f"api/{r.version}"


def documented(registry: Iterable[Served]) -> tuple[Documented, ...]:
    """Everything that a cluster serves now, in the order of its registry."""
    return tuple(
        Documented(
            resource=served.resource,
            verbs=served.verbs,
            subresources=tuple(sorted(served.subresources)),
            schema=served.schema_json,
        )
        for served in registry
    )


# --- what is served --------------------------------------------------------------------------------------------------------


def v3_index(everything: Iterable[Documented]) -> bytes:
    """/openapi/v3: a path for every group version, with a hash that moves when its document does."""
    paths = {
        gv: {"serverRelativeURL": f"/openapi/v3/{gv}?hash={_fingerprint(tuple(group))}"}
        for gv, group in _by_group_version(everything).items()
    }
    return orjson.dumps({"paths": paths})


def v3_document(everything: Iterable[Documented], gv: str) -> bytes | None:
    """/openapi/v3/GV; None when the group version is not served."""
    group = _by_group_version(everything).get(gv)
    return _v3(tuple(group)) if group else None


def v2_document(everything: Iterable[Documented]) -> bytes:
    """/openapi/v2 as JSON."""
    return _v2(tuple(everything))


def _by_group_version(everything: Iterable[Documented]) -> dict[str, list[Documented]]:
    found: dict[str, list[Documented]] = {}
    for one in everything:
        found.setdefault(one.gv, []).append(one)
    return found


@lru_cache(maxsize=256)
def _fingerprint(group: tuple[Documented, ...]) -> str:
    digest = hashlib.sha256(VERSION.encode())
    for one in group:
        r = one.resource
        digest.update(repr((r.group, r.version, r.plural, r.kind, r.namespaced, one.verbs, one.subresources)).encode())
        digest.update(one.schema or b"")
    return digest.hexdigest().upper()


@lru_cache(maxsize=128)
def _v3(group: tuple[Documented, ...]) -> bytes:
    definitions, names = _definitions(group)
    definitions.setdefault(PATCH, {"type": "object", "description": "A patch, in the form that its media type names."})
    return orjson.dumps(
        {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": VERSION},
            "paths": dict(_paths(group, names)),
            "components": {"schemas": definitions},
        }
    )


@lru_cache(maxsize=16)
def _v2(everything: tuple[Documented, ...]) -> bytes:
    definitions: Document = {}
    paths: Document = {}
    for group in _by_group_version(everything).values():
        found, names = _definitions(tuple(group))
        definitions |= {name: _v2_schema(schema) for name, schema in found.items()}
        paths |= {path: _v2_operations(item) for path, item in _paths(tuple(group), names)}
    info = {"title": "Kubernetes", "version": VERSION}
    definitions |= {QUANTITY: {"type": "string"}, INT_OR_STRING: {"type": "string", "format": "int-or-string"}}
    return orjson.dumps({"swagger": "2.0", "info": info, "paths": paths, "definitions": definitions})


# --- schemas ---------------------------------------------------------------------------------------------------------------


def _definitions(group: Sequence[Documented]) -> tuple[Document, dict[Resource, str]]:
    """(definitions by name, name of each resource's own)."""
    resources = [one.resource for one in group]
    kinds = [(r.group, r.version, r.kind) for r in resources if class_of(r.group, r.version, r.kind)]
    if any(one.schema is not None for one in group):
        kinds.append(("", "v1", "ObjectMeta"))
    definitions, kind_names = define(kinds)
    definitions = dict(definitions)
    names = {r: kind_names[r.group, r.version, r.kind] for r in resources if (r.group, r.version, r.kind) in kind_names}
    for one in group:
        if one.schema is not None:
            name = names[one.resource] = custom_name(one.resource)
            definitions[name] = _custom(one.resource, orjson.loads(one.schema))
    return definitions, names


def custom_name(resource: Resource) -> str:
    """kueue.x-k8s.io/v1beta2 Workload -> io.x-k8s.kueue.v1beta2.Workload."""
    reversed_group = ".".join(reversed(resource.group.split(".")))
    return f"{reversed_group}.{resource.version}.{resource.kind}"


def _custom(resource: Resource, schema: Document) -> Document:
    properties = schema.get("properties", {})
    about = {
        "apiVersion": {"type": "string", "description": "The group and version of this object's schema."},
        "kind": {"type": "string", "description": "The kind of this object."},
    }
    meta = {
        "description": "Standard object's metadata: name, labels, annotations and what the server adds.",
        "allOf": [{"$ref": PREFIX + OBJECT_META}],
    }
    gvk = {"group": resource.group, "kind": resource.kind, "version": resource.version}
    return {
        "type": "object",
        **schema,
        "properties": {**properties, **{k: properties.get(k) or v for k, v in about.items()}, "metadata": meta},
        "x-kubernetes-group-version-kind": [gvk],
    }


#: Words that OpenAPI v2 has not, or that its readers stumble over.
_V3_ONLY = frozenset({"nullable", "oneOf", "anyOf", "allOf", "not", "default", "x-kubernetes-validations"})


def _v2_schema(schema: Document) -> Document:
    found = {word: value for word, value in schema.items() if word not in _V3_ONLY}
    if len(parts := schema.get("allOf", ())) == 1 and "$ref" in parts[0]:
        found |= parts[0]
    if "$ref" in found:
        found["$ref"] = found["$ref"].replace(PREFIX, "#/definitions/")
    if "properties" in found:
        found["properties"] = {name: _v2_schema(part) for name, part in found["properties"].items()}
    for word in ("items", "additionalProperties"):
        if isinstance(found.get(word), dict):
            found[word] = _v2_schema(found[word])
    return found


# --- operations ------------------------------------------------------------------------------------------------------------


def _parameter(name: str, kind: str, about: str, where: str = "query") -> Document:
    found = {"name": name, "in": where, "description": about, "schema": {"type": kind, "uniqueItems": True}}
    return found | ({"required": True} if where == "path" else {})


_DRY_RUN = _parameter("dryRun", "string", "All: do everything except storing the result.")
_FIELD_MANAGER = _parameter("fieldManager", "string", "Name under which the written fields are owned.")
_FIELD_VALIDATION = _parameter("fieldValidation", "string", "Unknown and duplicate fields: Ignore, Warn or Strict.")
_FORCE = _parameter("force", "boolean", "Take fields that another manager owns; for apply patches only.")
_WRITE = [_DRY_RUN, _FIELD_MANAGER, _FIELD_VALIDATION]
_LIST = [
    _parameter("allowWatchBookmarks", "boolean", "Send BOOKMARK events."),
    _parameter("continue", "string", "Where the next page starts."),
    _parameter("fieldSelector", "string", "Only objects with these fields."),
    _parameter("labelSelector", "string", "Only objects with these labels."),
    _parameter("limit", "integer", "Objects per page."),
    _parameter("resourceVersion", "string", "The version to read at, or to watch from."),
    _parameter("resourceVersionMatch", "string", "NotOlderThan or Exact."),
    _parameter("sendInitialEvents", "boolean", "Begin a watch with what is there."),
    _parameter("timeoutSeconds", "integer", "End the call after that time."),
    _parameter("watch", "boolean", "Stream the changes."),
]
_DELETE = [
    _DRY_RUN,
    _parameter("gracePeriodSeconds", "integer", "Seconds until the object goes."),
    _parameter("propagationPolicy", "string", "Orphan, Background or Foreground."),
]
_NAMESPACE = _parameter("namespace", "string", "Namespace of the object.", "path")
_NAME = _parameter("name", "string", "Name of the object.", "path")

#: (verb that must be served, HTTP method, action, parameters): on the collection, on one object, on a subresource.
_ON_COLLECTION = (
    ("list", "get", "list", _LIST),
    ("create", "post", "post", _WRITE),
    ("deletecollection", "delete", "deletecollection", [*_LIST, *_DELETE]),
)
_ON_OBJECT = (
    ("get", "get", "get", []),
    ("update", "put", "put", _WRITE),
    ("patch", "patch", "patch", [*_WRITE, _FORCE]),
    ("delete", "delete", "delete", _DELETE),
)


def _paths(group: Sequence[Documented], names: Mapping[Resource, str]) -> Iterator[tuple[str, Document]]:
    for one in group:
        r = one.resource
        base = f"/{one.gv}/namespaces/{{namespace}}/{r.plural}" if r.namespaced else f"/{one.gv}/{r.plural}"
        scope = [_NAMESPACE] if r.namespaced else []
        yield base, {**_operations(one, names, _ON_COLLECTION), "parameters": scope}
        if r.namespaced and "list" in one.verbs:
            yield f"/{one.gv}/{r.plural}", _operations(one, names, _ON_COLLECTION[:1])
        if "get" in one.verbs:
            yield f"{base}/{{name}}", {**_operations(one, names, _ON_OBJECT), "parameters": [*scope, _NAME]}
        for sub in one.subresources:
            operations = _operations(one, names, _ON_OBJECT[:3], sub)
            yield f"{base}/{{name}}/{sub}", {**operations, "parameters": [*scope, _NAME]}


def _operations(
    one: Documented,
    names: Mapping[Resource, str],
    table: Sequence[tuple[str, str, str, list[Document]]],
    sub: str = "",
) -> Document:
    r = one.resource
    name = names.get(r)
    about: Document = {"$ref": PREFIX + name} if name else {"type": "object"}
    return {
        method: {
            "tags": [f"{r.group.partition('.')[0] or 'core'}_{r.version}"],
            "operationId": f"{action}{r.group.partition('.')[0].title() or 'Core'}{r.version.title()}{r.kind}{sub.title()}",
            "parameters": parameters,
            **_body(method, about, built_in=one.schema is None),
            "responses": {"200": {"description": "OK", "content": {_JSON: {"schema": about}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": r.group, "kind": r.kind, "version": r.version},
        }
        for verb, method, action, parameters in table
        if verb in one.verbs or sub
    }


def _body(method: str, about: Document, *, built_in: bool) -> Document:
    if method in ("post", "put"):
        return {"requestBody": {"content": {"*/*": {"schema": about}}, "required": True}}
    if method != "patch":
        return {}
    patch = {"schema": {"$ref": PREFIX + PATCH}}
    accepted = [*_PATCH_TYPES, _STRATEGIC] if built_in else _PATCH_TYPES
    return {"requestBody": {"content": dict.fromkeys(accepted, patch), "required": True}}


def _v2_operations(item: Document) -> Document:
    found: Document = {}
    for method, operation in item.items():
        if method == "parameters":
            found[method] = [_v2_parameter(p) for p in operation]
            continue
        schema = operation["responses"]["200"]["content"][_JSON]["schema"]
        body = [{"name": "body", "in": "body", "required": True, "schema": {"type": "object"}}]
        found[method] = {
            **{k: v for k, v in operation.items() if k not in ("requestBody", "responses", "parameters")},
            "consumes": list(operation["requestBody"]["content"]) if method == "patch" else ["*/*"],
            "produces": [_JSON],
            "parameters": [
                *(body if "requestBody" in operation else []),
                *(_v2_parameter(p) for p in operation["parameters"]),
            ],
            "responses": {"200": {"description": "OK", "schema": _v2_schema(schema)}},
        }
    return found


def _v2_parameter(parameter: Document) -> Document:
    return {**{k: v for k, v in parameter.items() if k != "schema"}, **parameter["schema"]}
