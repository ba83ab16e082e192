"""CustomResourceDefinitions of our kinds, made from the types: `python -m hub.kueue.api.crds deploy/crds`."""

import sys
from pathlib import Path
from typing import Any

import yaml

from hub.kueue.api.resources import KUEUE_GROUP, KUEUE_VERSION
from hub.kueue.api.schema import Schema, structural
from hub.kueue.api.v1beta2 import KINDS, Column, KindInfo

#: kind -> paths of fields that `--field-selector` may name, besides those of the metadata.
SELECTABLE_FIELDS = {"Workload": (".status.admission.clusterQueue",)}
_HEADER = "# Made from the types in hub/kueue/api/v1beta2 by `make crds`. Do not edit.\n"


def manifest(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of one of our kinds."""
    info = KINDS[kind]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.resource.plural}.{KUEUE_GROUP}"},
        "spec": {
            "group": KUEUE_GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": info.resource.plural,
                "singular": kind.lower(),
                "shortNames": list(info.short_names),
                "categories": ["kueue"],
            },
            "scope": "Namespaced" if info.resource.namespaced else "Cluster",
            "versions": [_version(kind, info)],
        },
    }


def text(kind: str) -> str:
    """Likewise, as the YAML file that is kept in deploy/crds."""
    return _HEADER + yaml.safe_dump(manifest(kind), sort_keys=False, width=110)


def file_name(kind: str) -> str:
    return f"{KUEUE_GROUP}_{KINDS[kind].resource.plural}.yaml"


def _version(kind: str, info: KindInfo) -> dict[str, Any]:
    version: dict[str, Any] = {"name": KUEUE_VERSION, "served": True, "storage": True}
    if info.has_status:
        version["subresources"] = {"status": {}}
    if paths := SELECTABLE_FIELDS.get(kind):
        version["selectableFields"] = [{"jsonPath": path} for path in paths]
    if info.columns:
        version["additionalPrinterColumns"] = [_column(column) for column in info.columns]
    version["schema"] = {"openAPIV3Schema": _root(structural(info.type, described=True))}
    return version


def _root(schema: Schema) -> Schema:
    named = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    return schema | {"properties": named | schema["properties"]}


def _column(column: Column) -> dict[str, Any]:
    printed: dict[str, Any] = {
        "name": column.name,
        "type": column.type,
        "description": column.description,
        "jsonPath": column.json_path,
    }
    return printed | ({"priority": 1} if column.wide else {})


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        (folder / file_name(kind)).write_text(text(kind))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
