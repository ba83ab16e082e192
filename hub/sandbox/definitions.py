"""CustomResourceDefinitions: served the moment they are applied, gone with everything they defined when deleted."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from hub.kueue.api.meta import Resource, format_time
from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, invalid_value, not_supported, required
from hub.sandbox.jsonpath import PathError, compile_path
from hub.sandbox.schemas import read_schema
from hub.sandbox.served import BASE_FIELDS, Column, Registry, Rules, Scale, Served
from hub.sandbox.shapes import crd_shape
from hub.sandbox.tables import AGE, NAME, age

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
COLLECTION = "customresourcedefinitions.apiextensions.k8s.io"


# --- the definition as an object -----------------------------------------------------------------------------------------


def _default_definition(draft: Document) -> None:
    spec = draft.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def _prepare_definition(draft: Document) -> None:
    stored = [v["name"] for v in draft["spec"].get("versions") or () if v.get("storage")]
    no_names: Document = {"plural": "", "kind": ""}
    draft["status"] = {"conditions": [], "acceptedNames": no_names, "storedVersions": stored}


def _validate_definition(draft: Document) -> list[FieldError]:
    spec = draft["spec"]
    wrong = [required(f"spec.{name}") for name in ("group", "scope", "versions") if not spec.get(name)]
    wrong += [required(f"spec.names.{name}") for name in ("plural", "kind") if not spec["names"].get(name)]
    if wrong:
        return wrong
    name = draft["metadata"]["name"]
    if name != f"{spec['names']['plural']}.{spec['group']}":
        wrong.append(invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if spec["scope"] not in ("Namespaced", "Cluster"):
        wrong.append(not_supported("spec.scope", spec["scope"], ("Cluster", "Namespaced")))
    if sum(bool(v.get("storage")) for v in spec["versions"]) != 1:
        wrong.append(
            invalid_value(
                "spec.versions", len(spec["versions"]), "must have exactly one version marked as storage version"
            )
        )
    if spec["conversion"].get("strategy") != "None":
        wrong.append(not_supported("spec.conversion.strategy", spec["conversion"].get("strategy"), ("None",)))
    for place, version in enumerate(spec["versions"]):
        wrong += _version_errors(version, f"spec.versions[{place}]")
    return wrong


def _version_errors(version: Document, at: str) -> Iterator[FieldError]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if not schema:
        yield required(f"{at}.schema.openAPIV3Schema", "schemas are required")
    elif schema.get("type") != "object":
        yield invalid_value(f"{at}.schema.openAPIV3Schema.type", schema.get("type", ""), "must be object at the root")
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        try:
            compile_path(column.get("jsonPath", ""))
        except PathError as error:
            yield invalid_value(f"{at}.additionalPrinterColumns[{index}].jsonPath", column.get("jsonPath"), str(error))


def _definition_update(draft: Document, old: Document) -> list[FieldError]:
    fixed = (("group",), ("scope",), ("names", "kind"), ("names", "plural"))
    return [
        invalid_value("spec." + ".".join(path), _at(draft["spec"], path), "field is immutable")
        for path in fixed
        if _at(draft["spec"], path) != _at(old["spec"], path)
    ]


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        obj = obj.get(step) if isinstance(obj, Mapping) else None
    return obj


DEFINITION_RULES = Rules(
    default=_default_definition,
    prepare_create=_prepare_definition,
    validate=_validate_definition,
    validate_update=_definition_update,
    deletion_finalizers=(CLEANUP_FINALIZER,),
)


# --- what it defines -----------------------------------------------------------------------------------------------------


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


#: Column type -> the cell for a value that was found.
CELLS: dict[str, Callable[[Any, float], Any]] = {
    "integer": lambda value, now: value if isinstance(value, int) else None,
    "number": lambda value, now: value if isinstance(value, int | float) else None,
    "boolean": lambda value, now: value if isinstance(value, bool) else None,
    "string": lambda value, now: _shown(value),
    "date": lambda value, now: age(value, now) if isinstance(value, str) else None,
}


def printer_column(column: Mapping[str, Any]) -> Column:
    """One of additionalPrinterColumns. A path that finds several values shows the first, as kube-apiserver does."""
    find, kind = compile_path(column.get("jsonPath", "")), column.get("type", "string")

    def cell(obj: Document, now: float) -> Any:
        for value in find(obj):
            return None if value is None else CELLS.get(kind, CELLS["string"])(value, now)
        return None

    description = (
        column.get("description") or f"Custom resource definition column (in JSONPath format): {column.get('jsonPath')}"
    )
    return Column(column["name"], cell, kind, column.get("format", ""), description, column.get("priority", 0))


def _columns(version: Mapping[str, Any]) -> tuple[Column, ...]:
    own = tuple(printer_column(c) for c in version.get("additionalPrinterColumns") or ())
    return (NAME, *own) if own else (NAME, AGE)


def _scale(version: Mapping[str, Any]) -> Scale | None:
    if not (paths := (version.get("subresources") or {}).get("scale")):
        return None
    return Scale(
        paths["specReplicasPath"].removeprefix("."),
        paths["statusReplicasPath"].removeprefix("."),
        (paths.get("labelSelectorPath") or "").removeprefix("."),
    )


def _selectable(version: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    paths = [f["jsonPath"].removeprefix(".") for f in version.get("selectableFields") or ()]
    return BASE_FIELDS | {path: tuple(path.split(".")) for path in paths}


def served_versions(definition: Mapping[str, Any]) -> list[Served]:
    """Every version of a definition that is to be served."""
    spec = definition["spec"]
    storage = next(v["name"] for v in spec["versions"] if v.get("storage"))
    return [_served(spec, version, storage) for version in spec["versions"] if version.get("served")]


def _served(spec: Mapping[str, Any], version: Mapping[str, Any], storage: str) -> Served:
    names, group = spec["names"], spec["group"]
    document = version["schema"]["openAPIV3Schema"]
    namespaced = spec["scope"] == "Namespaced"
    return Served(
        resource=Resource(group, version["name"], names["plural"], names["kind"], namespaced),
        api_version=f"{group}/{version['name']}",
        singular=names["singular"],
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=frozenset(version.get("subresources") or ()),
        generation=True,
        unconditional_update=False,
        collection=f"{names['plural']}.{group}",
        fields=_selectable(version),
        columns=_columns(version),
        scale=_scale(version),
        custom=True,
        schema=read_schema(document),
        schema_json=orjson.dumps(document),
        shape=crd_shape(document),
        storage_api_version=f"{group}/{storage}",
        list_kind=names["listKind"],
    )


# --- keeping the registry in step ----------------------------------------------------------------------------------------


def _condition(kind: str, status: str, reason: str, message: str) -> Document:
    return {"type": kind, "status": status, "reason": reason, "message": message}


ACCEPTED = (
    _condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
    _condition("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
)
TERMINATING = _condition("Terminating", "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")


def _refused(conflict: str) -> tuple[Document, ...]:
    return (
        _condition("NamesAccepted", "False", "NamesConflict", conflict),
        _condition("Established", "False", "NotAccepted", "not all names are accepted"),
    )


def name_conflict(registry: Registry, definition: Mapping[str, Any]) -> str:
    """Which of the names another resource of the group has already; "" when none."""
    spec, name = definition["spec"], definition["metadata"]["name"]
    names = spec["names"]
    wanted = {names["plural"], names["singular"], *(names.get("shortNames") or ())}
    for other in registry:
        if other.group != spec["group"] or other.collection == name:
            continue
        if both := wanted & {other.plural, other.singular, *other.short_names}:
            return f'"{min(both)}" is already in use by {other.collection}'
        if {names["kind"], names["listKind"]} & {other.resource.kind, other.list_kind}:
            return f'"{names["kind"]}" is already in use by {other.collection}'
    return ""


def status_of(definition: Document, conflict: str, now: float) -> Document:
    """The status after the names were looked at. Times move only when a condition does."""
    old = definition.get("status") or {}
    wanted = [*(_refused(conflict) if conflict else ACCEPTED)]
    if definition["metadata"].get("deletionTimestamp"):
        wanted.append(TERMINATING)
    before = {c["type"]: c for c in old.get("conditions") or ()}
    conditions = []
    for condition in wanted:
        known = before.get(condition["type"], {})
        moved = known.get("status") != condition["status"]
        conditions.append(
            {**condition, "lastTransitionTime": format_time(now) if moved else known["lastTransitionTime"]}
        )
    storage = next(v["name"] for v in definition["spec"]["versions"] if v.get("storage"))
    stored = old.get("storedVersions") or []
    return {
        "conditions": conditions,
        "acceptedNames": old.get("acceptedNames", {}) if conflict else definition["spec"]["names"],
        "storedVersions": stored if storage in stored else [*stored, storage],
    }
