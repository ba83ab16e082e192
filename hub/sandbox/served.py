"""What a cluster serves: one `Served` per resource and version, found by path or by kind."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import Resource
from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, no_such_resource
from hub.sandbox.schemas import Schema
from hub.sandbox.shapes import PLAIN, Shape

BASE_FIELDS = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}

READ_VERBS = ("get", "list", "watch")
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
REVIEW_VERBS = ("create",)


class Column(Struct, frozen=True):
    """A column of Table output. `cell(object, now)` gives a JSON value; priority above 0 shows with `-o wide` only."""

    name: str
    cell: Callable[[Document, float], Any]
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


class Scale(Struct, frozen=True):
    """Where a resource keeps what autoscaling/v1 Scale shows, as dotted paths."""

    replicas: str = "spec.replicas"
    status_replicas: str = "status.replicas"
    selector: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is special about a kind. Drafts belong to the writer, so `prepare_*` and `default` change them in place."""

    #: Fill in what the user left out, whenever a body comes in.
    default: Callable[[Document], None] = lambda draft: None
    #: Set what only the server decides: status of a new object, generated selectors.
    prepare_create: Callable[[Document], None] = lambda draft: None
    prepare_update: Callable[[Document, Document], None] = lambda draft, old: None
    validate: Callable[[Document], list[FieldError]] = lambda draft: []
    #: (draft, old): only what an update may not do; `validate` has run.
    validate_update: Callable[[Document, Document], list[FieldError]] = lambda draft, old: []
    validate_status: Callable[[Document, Document], list[FieldError]] = lambda draft, old: []
    #: Put on an object by its deletion: whoever cleans up after it takes them off.
    deletion_finalizers: tuple[str, ...] = ()
    #: Kubelets register a node together with its status; other new objects start without one.
    status_on_create: bool = False
    #: Seconds between the delete call and the end, given what the caller asked for. 0: at once.
    grace_s: Callable[[Document, int | None], int] = lambda obj, asked: 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One resource in one version."""

    resource: Resource
    #: "group/version", or "v1" for core.
    api_version: str
    singular: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: frozenset[str] = frozenset()
    #: Does metadata.generation count the changes of the spec?
    generation: bool = False
    #: An update without a resourceVersion overwrites whatever is there (kube-apiserver refuses it for some kinds).
    unconditional_update: bool = True
    #: Where the objects are; versions of one resource share it.
    collection: str
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: Sequence[Column] = ()
    scale: Scale | None = None
    rules: Rules = Rules()
    #: Delete answers with the object instead of a Status.
    returns_deleted: bool = False
    #: From a CustomResourceDefinition.
    custom: bool = False
    #: What its fields are; None: not known, everything is taken as it comes.
    schema: Schema | None = None
    #: The same as the JSON that the definition has, for OpenAPI documents.
    schema_json: bytes | None = None
    #: How its values are put together, for patches and field ownership.
    shape: Shape = PLAIN
    #: Stored form -> this version and back. None: only apiVersion differs, or nothing.
    from_storage: Callable[[Document], Document] | None = None
    to_storage: Callable[[Document], Document] | None = None
    storage_api_version: str = ""
    list_kind: str = ""

    @property
    def group(self) -> str:
        return self.resource.group

    @property
    def plural(self) -> str:
        return self.resource.plural

    def read(self, stored: Document) -> Document:
        """The stored object in this version."""
        if self.from_storage is not None:
            return self.from_storage(stored)
        if stored["apiVersion"] != self.api_version:
            return {**stored, "apiVersion": self.api_version}
        return stored

    def store(self, obj: Document) -> Document:
        """An object of this version in stored form."""
        if self.to_storage is not None:
            return self.to_storage(obj)
        if self.storage_api_version != self.api_version:
            return {**obj, "apiVersion": self.storage_api_version}
        return obj


class Registry:
    """Everything a cluster serves now. `epoch` rises with every change, so that discovery knows when to be made anew."""

    def __init__(self, builtin: Sequence[Served]) -> None:
        self.epoch = 0
        self._by_path: dict[tuple[str, str, str], Served] = {}
        self._by_kind: dict[tuple[str, str, str], Served] = {}
        for served in builtin:
            self.add(served)

    def add(self, served: Served) -> None:
        resource = served.resource
        self._by_path[resource.group, resource.version, resource.plural] = served
        self._by_kind[resource.group, resource.version, resource.kind] = served
        self.epoch += 1

    def remove(self, served: Served) -> None:
        resource = served.resource
        self._by_path.pop((resource.group, resource.version, resource.plural), None)
        self._by_kind.pop((resource.group, resource.version, resource.kind), None)
        self.epoch += 1

    def at(self, group: str, version: str, plural: str) -> Served | None:
        return self._by_path.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> Served | None:
        group, _, version = api_version.rpartition("/")
        return self._by_kind.get((group, version, kind))

    def any_version(self, group: str, plural: str) -> Served | None:
        return next((s for s in self._by_path.values() if (s.group, s.plural) == (group, plural)), None)

    def find(self, resource: Resource) -> Served:
        """Raises ApiError 404 when the resource is not served."""
        if (found := self.at(resource.group, resource.version, resource.plural)) is None:
            raise no_such_resource()
        return found

    def has_group(self, group: str) -> bool:
        return any(g == group for g, _, _ in self._by_path)

    def group_versions(self) -> dict[str, list[str]]:
        """Groups and their versions, in the order in which they came; "" is core."""
        found: dict[str, list[str]] = {}
        for group, version, _ in self._by_path:
            versions = found.setdefault(group, [])
            if version not in versions:
                versions.append(version)
        return found

    def in_group_version(self, group: str, version: str) -> list[Served]:
        return [s for (g, v, _), s in self._by_path.items() if (g, v) == (group, version)]

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._by_path.values()))
