"""What every Kubernetes object has: a resource, a key, metadata, conditions, owners and times."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct

#: Seconds since the Unix epoch, UTC. Decisions take `now` in it.
Instant = float


class Resource(Struct, frozen=True, order=True):
    """A served resource, as a client addresses it. `group` is "" for core/v1."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class ObjectKey(Struct, frozen=True, order=True):
    """Name of an object within its resource; `namespace` is "" for cluster-scoped ones. Prints as kubectl would take it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @staticmethod
    def parse(text: str) -> "ObjectKey":
        namespace, _, name = text.rpartition("/")
        return ObjectKey(namespace, name)


class OwnerReference(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)


class Condition(Struct, frozen=True, kw_only=True, rename="camel"):
    """metav1.Condition. Written whole: API servers refuse one without a message, even an empty one."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


def key_of(manifest: Mapping[str, Any]) -> ObjectKey:
    meta = manifest["metadata"]
    return ObjectKey(meta.get("namespace", ""), meta["name"])


def parse_time(text: str) -> Instant:
    """An RFC 3339 time, with or without a fraction. Raises ValueError with the text in it."""
    return datetime.fromisoformat(text).timestamp()


def format_time(instant: Instant) -> str:
    """RFC 3339 in whole seconds, as metav1.Time is written."""
    return _format_second(int(instant))


@lru_cache(maxsize=4096)  # objects that change together carry the same few seconds, over and over
def _format_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def find_condition(conditions: Sequence[Condition], kind: str) -> Condition | None:
    return next((c for c in conditions if c.type == kind), None)


def is_true(conditions: Sequence[Condition], kind: str) -> bool:
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


def set_condition(conditions: Sequence[Condition], new: Condition, now: Instant) -> list[Condition]:
    """The list with `new` in it. The transition time moves only when the status changes (metav1.Condition's contract)."""
    old = find_condition(conditions, new.type)
    moved = old is None or old.status != new.status
    when = format_time(now) if moved or not old else old.last_transition_time
    stamped = Condition(
        type=new.type,
        status=new.status,
        reason=new.reason,
        message=new.message,
        last_transition_time=when,
        observed_generation=new.observed_generation,
    )
    if old is None:
        return [*conditions, stamped]
    return [stamped if c.type == new.type else c for c in conditions]
