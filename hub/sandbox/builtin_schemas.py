"""OpenAPI schemas of the built-in kinds, read from the sources of kubernetes-asyncio's models when first asked for.

    "batch/v1 Job" ──▶ V1Job ──▶ models/v1_job.py ──▶ fields, types, texts ──▶ definitions["io.k8s.api.batch.v1.Job"]
                         └──▶ V1JobSpec, V1PodTemplateSpec, ... and so on, each file once per process

The files are read, not imported: importing the package takes seconds, reading the 130 models below a Job takes a tenth
of one. What the models do not tell, small tables here add: which numbers are 64 bits wide, which texts are quantities,
and (from `shapes.py`) how lists are merged.
"""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hub.sandbox.schemas import Schema, read_schema
from hub.sandbox.shapes import PLAIN, Shape, builtin_shape, type_shape

PREFIX = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_CORE = "io.k8s.api.core.v1."
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"

#: Types that every group shares.
_META_TYPES = frozenset(
    {
        "Condition",
        "DeleteOptions",
        "FieldSelectorRequirement",
        "LabelSelector",
        "LabelSelectorRequirement",
        "ListMeta",
        "ManagedFieldsEntry",
        "ObjectMeta",
        "OwnerReference",
        "Preconditions",
    }
)
#: Types of core/v1 that other groups use. What is below them is core/v1 as well.
_CORE_TYPES = frozenset(
    {
        "EventSource",
        "LocalObjectReference",
        "NodeSelector",
        "ObjectReference",
        "PersistentVolumeClaim",
        "PersistentVolumeSpec",
        "PodTemplateSpec",
        "Toleration",
        "TopologySelectorTerm",
        "TypedLocalObjectReference",
    }
)
_PACKAGES = {
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
    "apiregistration.k8s.io": "io.k8s.kube-aggregator.pkg.apis.apiregistration",
}
#: Models whose name says their group, because two groups have a type of that name.
_PREFIXED = {
    ("", "Event"): "CoreV1Event",
    ("events.k8s.io", "Event"): "EventsV1Event",
    ("authentication.k8s.io", "TokenRequest"): "AuthenticationV1TokenRequest",
}

#: Fields that are quantities, by type ("*": in every type) and name, as single values or as values of a map.
_QUANTITIES = {
    "*": {
        "allocatable",
        "allocatedResources",
        "capacity",
        "hard",
        "limits",
        "overhead",
        "podFixed",
        "requests",
        "used",
    },
    "EmptyDirVolumeSource": {"sizeLimit"},
    "HPAScalingRules": {"tolerance"},
    "LimitRangeItem": {"default", "defaultRequest", "max", "maxLimitRequestRatio", "min"},
    "MetricTarget": {"averageValue", "value"},
    "MetricValueStatus": {"averageValue", "value"},
    "NodeAllocatableResourceClaimStatus": {"resources"},
    "ResourceFieldSelector": {"divisor"},
}
_INT_OR_STRING_FIELDS = {"maxSurge", "maxUnavailable", "minAvailable", "port", "targetPort"}
_MICRO_TIMES = {"acquireTime", "eventTime", "lastObservedTime", "renewTime"}
_BYTES = {"binaryData", "caBundle", "data"}
_INT64 = frozenset(
    {
        "capacity",
        "activeDeadlineSeconds",
        "deletionGracePeriodSeconds",
        "expirationSeconds",
        "fsGroup",
        "generation",
        "gid",
        "gracePeriodSeconds",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minItems",
        "minLength",
        "minProperties",
        "nodeAllocatableUpdatePeriodSeconds",
        "observedGeneration",
        "remainingItemCount",
        "revision",
        "runAsGroup",
        "runAsUser",
        "seconds",
        "sizeBytes",
        "startingDeadlineSeconds",
        "supplementalGroups",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
        "uid",
    }
)

_SCALARS: dict[str, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "date": {"type": "string", "format": "date"},
    "float": {"type": "number", "format": "double"},
    "str": {"type": "string"},
}
_ANY = {"x-kubernetes-preserve-unknown-fields": True}
#: Definitions that are no models.
_EXTRA: dict[str, dict[str, Any]] = {
    QUANTITY: {
        "description": "An amount of a resource, such as 500m, 2Gi or 1e3.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
    INT_OR_STRING: {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]},
    _META + "Time": {"type": "string", "format": "date-time"},
    _META + "MicroTime": {"type": "string", "format": "date-time"},
    _META + "Patch": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}

#: What people read first in `kubectl explain`; the models have no text about whole kinds.
_ABOUT = {
    "ClusterRole": "A set of permissions that counts in all namespaces and for cluster-scoped resources.",
    "ConfigMap": "Configuration data for pods to read.",
    "CronJob": "A Job that is created again and again by a schedule.",
    "CustomResourceDefinition": "A kind of object that the API server is to serve.",
    "DaemonSet": "One pod per node.",
    "Deployment": "A number of equal pods that is kept up while their template changes.",
    "Event": "Something that happened to an object.",
    "Job": "Pods that run until a number of them has succeeded.",
    "Lease": "Who holds something, and until when.",
    "Namespace": "A scope for names and permissions.",
    "Node": "A machine that runs pods.",
    "Pod": "Containers that run together on one node.",
    "PriorityClass": "A name for a priority of pods.",
    "ReplicaSet": "A number of equal pods that is kept up.",
    "Role": "A set of permissions in one namespace.",
    "Secret": "Confidential data for pods to read.",
    "Service": "One address for a set of pods.",
    "ServiceAccount": "An identity for what runs in pods.",
    "StatefulSet": "Pods with names and volumes of their own.",
}

#: Texts for fields about which the models say nothing because their type says it.
_ABOUT_FIELDS = {
    "metadata": "Standard object's metadata: name, labels, annotations and what the server adds.",
    "spec": "What is wanted.",
    "status": "What is, as far as it was observed.",
    "template": "What the pods that are made look like.",
}


# --- models ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """One class of kubernetes-asyncio: its fields by their JSON names."""

    types: dict[str, str]
    texts: dict[str, str]
    required: tuple[str, ...]


_PAIRS = re.compile(r"'(\w+)': '([^']*)'")
_TYPES = re.compile(r"\n    openapi_types = \{\n(.*?)\n    \}", re.DOTALL)
_NAMES = re.compile(r"\n    attribute_map = \{\n(.*?)\n    \}", re.DOTALL)
_TEXTS = re.compile(r'"""Gets the (\w+) of this \w+\.  # noqa: E501\n\n        (\S.*?)  # noqa: E501\n', re.DOTALL)
_REQUIRED = re.compile(r"client_side_validation and (\w+) is None")
_IMPORTS = re.compile(r"^from (?:\w+\.)+(\w+) import (\w+)$", re.MULTILINE)


@cache
def _model_files() -> dict[str, Path]:
    """Class name -> file, without importing the package."""
    spec = importlib.util.find_spec("kubernetes_asyncio")
    assert spec is not None, "kubernetes-asyncio is a dependency"
    assert spec.submodule_search_locations, "kubernetes-asyncio is a package"
    folder = Path(spec.submodule_search_locations[0]) / "client" / "models"
    imports = _IMPORTS.findall((folder / "__init__.py").read_text(encoding="utf-8"))
    return {class_name: folder / f"{module}.py" for module, class_name in imports}


@cache
def read_model(class_name: str) -> Model:
    source = _model_files()[class_name].read_text(encoding="utf-8")
    names = dict(_PAIRS.findall(_group(_NAMES, source))) | _odd_names(_group(_NAMES, source))
    types = dict(re.findall(r"'(\w+)': '([^']*)'", _group(_TYPES, source)))
    texts = {attribute: text for attribute, text in _TEXTS.findall(source) if not text.startswith(":return")}
    return Model(
        types={names[attribute]: kind for attribute, kind in types.items()},
        texts={names[a]: t.replace('\\"', '"').replace("\\\\", "\\") for a, t in texts.items() if a in names},
        required=tuple(names[attribute] for attribute in _REQUIRED.findall(source)),
    )


def _group(pattern: re.Pattern[str], source: str) -> str:
    found = pattern.search(source)
    return found[1] if found else ""


def _odd_names(block: str) -> dict[str, str]:
    """JSON names that are no identifiers, such as $ref and x-kubernetes-list-type."""
    return dict(re.findall(r"'(\w+)': '([^'\w]?[^']*)'", block))


# --- definitions -----------------------------------------------------------------------------------------------------------


def class_of(group: str, version: str, kind: str) -> str | None:
    """The model of a kind; None when kubernetes-asyncio has none."""
    name = _PREFIXED.get((group, kind), f"{version[:1].upper()}{version[1:]}{kind}")
    return name if name in _model_files() else None


def _package(group: str, version: str) -> str:
    if group in _PACKAGES:
        return f"{_PACKAGES[group]}.{version}."
    return f"io.k8s.api.{group.partition('.')[0] or 'core'}.{version}."


_VERSIONED = re.compile(r"^(?:[A-Z][a-z]+)?V\d+(?:alpha\d+|beta\d+)?(?=[A-Z])")


def _short(class_name: str) -> str:
    """V1JobSpec -> JobSpec, CoreV1Event -> Event."""
    return _VERSIONED.sub("", class_name, count=1)


def definition_name(class_name: str, package: str) -> str:
    """The name under which a model stands in the document of a group that lives in `package`."""
    short = _short(class_name)
    if short in _META_TYPES:
        return _META + short
    return (_CORE if short in _CORE_TYPES else package) + short


@dataclass(slots=True)
class _Definer:
    """Collects the definitions below some kinds."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def define(self, class_name: str, package: str, shape: Shape) -> str:
        name = definition_name(class_name, package)
        if name not in self.found:
            self.found[name] = {}
            package = _CORE if name.startswith(_CORE) else package
            model, short = read_model(class_name), _short(class_name)
            shape = shape if shape.fields else type_shape(short)
            schema: dict[str, Any] = {"type": "object"}
            if short in _ABOUT:
                schema["description"] = _ABOUT[short]
            if model.required:
                schema["required"] = list(model.required)
            schema["properties"] = {
                json_name: self._property(short, json_name, model, package, shape.child(json_name))
                for json_name in model.types
            }
            if short == "JSONSchemaProps":
                schema |= _ANY
            self.found[name] = schema
        return name

    def _property(self, owner: str, name: str, model: Model, package: str, shape: Shape) -> dict[str, Any]:
        schema = self._value(owner, name, model.types[name], package, shape)
        text = model.texts.get(name) or _ABOUT_FIELDS.get(name, "")
        part = {"default": {}} if shape.inline and shape.form == "struct" else {}
        if "$ref" in schema and (text or part):
            schema = {"allOf": [schema]}
        if text:
            schema = {"description": text, **schema}
        return schema | part | _marks(shape, schema)

    def _value(self, owner: str, name: str, kind: str, package: str, shape: Shape) -> dict[str, Any]:
        if kind.startswith("list["):
            inner = self._value(owner, name, kind[5:-1], package, shape.items or PLAIN)
            return {"type": "array", "items": inner}
        if kind.startswith("dict("):
            inner = self._value(owner, name, kind[5:-1].partition(", ")[2], package, shape.items or PLAIN)
            return {"type": "object", "additionalProperties": inner}
        if (scalar := self._scalar(owner, name, kind)) is not None:
            return scalar
        return {"$ref": PREFIX + self.define(kind, package, shape)}

    def _scalar(self, owner: str, name: str, kind: str) -> dict[str, Any] | None:
        if kind == "str" and name in _QUANTITIES["*"] | _QUANTITIES.get(owner, set()):
            return self._extra(QUANTITY)
        if kind == "object":
            wanted = name in _INT_OR_STRING_FIELDS
            return (
                self._extra(INT_OR_STRING)
                if wanted
                else {"type": "object", **_ANY}
                if owner != "JSONSchemaProps"
                else dict(_ANY)
            )
        if kind == "datetime":
            return self._extra(_META + ("MicroTime" if name in _MICRO_TIMES else "Time"))
        if kind == "int":
            return {"type": "integer", "format": "int64" if name in _INT64 else "int32"}
        if (
            kind == "str"
            and name in _BYTES
            and owner in ("ConfigMap", "Secret", "WebhookClientConfig")
            and (owner, name) != ("ConfigMap", "data")
        ):
            return {"type": "string", "format": "byte"}
        return dict(_SCALARS[kind]) if kind in _SCALARS else None

    def _extra(self, name: str) -> dict[str, Any]:
        self.found.setdefault(name, _EXTRA[name])
        return {"$ref": PREFIX + name}


def _marks(shape: Shape, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The x-kubernetes-* marks that say how a value is merged."""
    marks: dict[str, Any] = {}
    if shape.form == "keyed":
        marks |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(shape.keys)}
    elif shape.form == "set":
        marks["x-kubernetes-list-type"] = "set"
    elif schema.get("type") == "array":
        marks["x-kubernetes-list-type"] = "atomic"
    elif shape.form == "atomic":
        marks["x-kubernetes-map-type"] = "atomic"
    if shape.strategy:
        marks["x-kubernetes-patch-strategy"] = ",".join(sorted(shape.strategy))
    if shape.merge_key:
        marks["x-kubernetes-patch-merge-key"] = shape.merge_key
    return marks


def define(kinds: list[tuple[str, str, str]]) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str, str], str]]:
    """(definitions of the kinds and of all below them, name of each kind's own). A kind is (group, version, kind)."""
    definer = _Definer()
    names: dict[tuple[str, str, str], str] = {}
    for group, version, kind in kinds:
        if (class_name := class_of(group, version, kind)) is None:
            continue
        name = definer.define(class_name, _package(group, version), builtin_shape(kind))
        names[group, version, kind] = name
        gvk = {"group": group, "kind": kind, "version": version}
        definer.found[name].setdefault("x-kubernetes-group-version-kind", []).append(gvk)
    return definer.found, names


@cache
def builtin_schema(group: str, version: str, kind: str) -> Schema | None:
    """The schema of a built-in kind for `drop_unknown`; None when it is not known."""
    definitions, names = define([(group, version, kind)])
    name = names.get((group, version, kind))
    return read_schema({"$ref": PREFIX + name}, definitions) if name else None
