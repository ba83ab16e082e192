"""ObjectMeta: what is valid in it, and which of its fields only the server may set."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from hub.sandbox.errors import FieldError, forbidden_field, invalid_value, required, too_long

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
#: RBAC names and the like may hold anything that fits one path segment.
_PATH_SEGMENT = re.compile(r"(?!\.{1,2}$)[^/%]+")

ANNOTATIONS_MAX_BYTES = 256 * 1024

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SEGMENT_RULE = "may not be '.' or '..' and may not contain '/' or '%'"
QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

#: Kinds whose names follow another rule than the subdomain: pattern, greatest length, rule in words.
NAME_RULES: dict[str, tuple[re.Pattern[str], int, str]] = {
    "namespaces": (_LABEL, 63, LABEL_RULE),
    "services": (_LABEL, 63, LABEL_RULE),
    "roles.rbac.authorization.k8s.io": (_PATH_SEGMENT, 253, SEGMENT_RULE),
    "rolebindings.rbac.authorization.k8s.io": (_PATH_SEGMENT, 253, SEGMENT_RULE),
    "clusterroles.rbac.authorization.k8s.io": (_PATH_SEGMENT, 253, SEGMENT_RULE),
    "clusterrolebindings.rbac.authorization.k8s.io": (_PATH_SEGMENT, 253, SEGMENT_RULE),
}
SUBDOMAIN = (_SUBDOMAIN, 253, SUBDOMAIN_RULE)

#: The server's own fields: an update keeps what is stored, whatever the body says.
SERVER_FIELDS = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "generateName",
)


def validate_metadata(meta: Mapping[str, Any], collection: str) -> list[FieldError]:
    """Field errors of a whole ObjectMeta, with a name already given."""
    pattern, longest, rule = NAME_RULES.get(collection, SUBDOMAIN)
    wrong: list[FieldError] = []
    name = meta["name"]
    if not pattern.fullmatch(name):
        wrong.append(invalid_value("metadata.name", name, rule))
    if len(name) > longest:
        wrong.append(invalid_value("metadata.name", name, f"must be no more than {longest} characters"))
    if labels := meta.get("labels"):
        wrong += label_errors(labels, "metadata.labels")
    if annotations := meta.get("annotations"):
        wrong += _annotation_errors(annotations)
    if owners := meta.get("ownerReferences"):
        wrong += _owner_errors(owners)
    if finalizers := meta.get("finalizers"):
        wrong += _finalizer_errors(finalizers)
    return wrong


def label_errors(labels: Mapping[str, Any], field: str) -> Iterator[FieldError]:
    for key, value in labels.items():
        yield from key_errors(key, field)
        yield from value_errors(value, field)


def value_errors(value: Any, field: str) -> Iterator[FieldError]:
    """What is wrong with the value of a label."""
    if not isinstance(value, str):
        yield invalid_value(field, value, "must be a string")
    elif len(value) > 63:
        yield invalid_value(field, value, "must be no more than 63 characters")
    elif not _LABEL_VALUE.fullmatch(value):
        yield invalid_value(field, value, VALUE_RULE)


def short_name_errors(name: str, field: str) -> Iterator[FieldError]:
    """Names of containers, volumes and the like: one label of the DNS."""
    if not name:
        yield required(field)
    elif not _LABEL.fullmatch(name):
        yield invalid_value(field, name, LABEL_RULE)
    elif len(name) > 63:
        yield invalid_value(field, name, "must be no more than 63 characters")


def key_errors(key: str, field: str) -> Iterator[FieldError]:
    """What is wrong with the key of a label, a resource, a taint or anything else with a qualified name."""
    for rule in _broken_key_rules(key):
        yield invalid_value(field, key, rule)


@lru_cache(maxsize=4096)  # the same few keys stand on thousands of objects
def _broken_key_rules(key: str) -> tuple[str, ...]:
    prefix, slash, name = key.rpartition("/")
    broken: list[str] = []
    if slash and (not _SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
        broken.append(f"prefix part {SUBDOMAIN_RULE}")
    if not name:
        broken.append("name part must be non-empty")
    elif len(name) > 63:
        broken.append("name part must be no more than 63 characters")
    elif not _QUALIFIED.fullmatch(name):
        broken.append(QUALIFIED_RULE)
    return tuple(broken)


def _annotation_errors(annotations: Mapping[str, Any]) -> Iterator[FieldError]:
    total = 0
    for key, value in annotations.items():
        yield from key_errors(key.lower(), "metadata.annotations")
        if not isinstance(value, str):
            yield invalid_value("metadata.annotations", value, "must be a string")
            continue
        total += len(key) + len(value)
    if total > ANNOTATIONS_MAX_BYTES:
        yield too_long("metadata.annotations", ANNOTATIONS_MAX_BYTES)


def _owner_errors(owners: list[Mapping[str, Any]]) -> Iterator[FieldError]:
    for index, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield required(f"metadata.ownerReferences[{index}].{name}", "must not be empty")
    controllers = [o for o in owners if o.get("controller")]
    if len(controllers) > 1:
        names = " and ".join(str(o.get("name")) for o in controllers)
        yield invalid_value("metadata.ownerReferences", names, "Only one reference can have Controller set to true")


def _finalizer_errors(finalizers: list[Any]) -> Iterator[FieldError]:
    for finalizer in finalizers:
        if not isinstance(finalizer, str) or not finalizer:
            yield invalid_value("metadata.finalizers", finalizer, "must be a non-empty string")
        elif "/" in finalizer:
            yield from key_errors(finalizer, "metadata.finalizers")


def validate_metadata_update(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """An object that is being deleted takes no new finalizers."""
    if not old.get("deletionTimestamp"):
        return []
    added = [f for f in new.get("finalizers") or () if f not in (old.get("finalizers") or ())]
    if not added:
        return []
    shown = "{" + ", ".join(f'"{f}"' for f in added) + "}"
    why = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{shown}"
    return [forbidden_field("metadata.finalizers", why)]
