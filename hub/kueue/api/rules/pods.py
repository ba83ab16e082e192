"""Rules for the pieces of core/v1 in our kinds: labels, selectors, taints, tolerations, requests of pod templates."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hub.kueue.api.core import Container, LabelSelector, SelectorRequirement, Taint, Toleration, pod_template
from hub.kueue.api.errors import DecodeError, QuantityError
from hub.kueue.api.quantity import PODS, RawQuantity, nanos
from hub.kueue.api.rules.field_errors import (
    FieldError,
    FieldErrors,
    duplicate,
    forbidden,
    invalid,
    required,
    unsupported,
)
from hub.kueue.api.v1beta2.fields import QUALIFIED_NAME_PATTERN

_QUALIFIED_NAME = re.compile(QUALIFIED_NAME_PATTERN, re.ASCII)
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_NAME_MAX, _PREFIX_MAX, _VALUE_MAX = 63, 253, 63
_WITH_VALUES, _WITHOUT_VALUES = ("In", "NotIn"), ("Exists", "DoesNotExist")


def is_qualified_name(text: str) -> bool:
    """A label key or resource name: a name of at most 63 characters, perhaps after a DNS subdomain and a slash."""
    prefix, _, name = text.rpartition("/")
    return bool(_QUALIFIED_NAME.match(text)) and len(name) <= _NAME_MAX and len(prefix) <= _PREFIX_MAX


def label_key(path: str, key: str) -> FieldErrors:
    if not is_qualified_name(key):
        yield invalid(path, key, "must be a qualified name such as example.com/rack")


def label_value(path: str, value: str) -> FieldErrors:
    if len(value) > _VALUE_MAX or not _LABEL_VALUE.fullmatch(value):
        yield invalid(path, value, f"a label value has at most {_VALUE_MAX} letters, digits, '-', '_' and '.'")


def labels(path: str, given: Mapping[str, str]) -> FieldErrors:
    for key, value in given.items():
        yield from label_key(path, key)
        yield from label_value(f"{path}[{key}]", value)


def label_selector(path: str, selector: LabelSelector | None) -> FieldErrors:
    if selector is None:
        return
    yield from labels(f"{path}.matchLabels", selector.match_labels)
    for index, requirement in enumerate(selector.match_expressions):
        yield from _requirement(f"{path}.matchExpressions[{index}]", requirement)


def _requirement(path: str, requirement: SelectorRequirement) -> FieldErrors:
    yield from label_key(f"{path}.key", requirement.key)
    if requirement.operator in _WITH_VALUES and not requirement.values:
        yield required(f"{path}.values", "must be specified when operator is In or NotIn")
    elif requirement.operator in _WITHOUT_VALUES and requirement.values:
        yield forbidden(f"{path}.values", "may not be specified when operator is Exists or DoesNotExist")
    elif requirement.operator not in (*_WITH_VALUES, *_WITHOUT_VALUES):
        yield unsupported(f"{path}.operator", requirement.operator, (*_WITH_VALUES, *_WITHOUT_VALUES))


def taints(path: str, given: Sequence[Taint]) -> FieldErrors:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(given):
        yield from label_key(f"{path}[{index}].key", taint.key)
        yield from label_value(f"{path}[{index}].value", taint.value)
        if (taint.key, taint.effect) in seen:
            yield duplicate(f"{path}[{index}]", f"{taint.key}:{taint.effect}")
        seen.add((taint.key, taint.effect))


def tolerations(path: str, given: Sequence[Toleration]) -> FieldErrors:
    for index, toleration in enumerate(given):
        yield from _toleration(f"{path}[{index}]", toleration)


def _toleration(path: str, toleration: Toleration) -> FieldErrors:
    if toleration.key:
        yield from label_key(f"{path}.key", toleration.key)
    elif toleration.operator != "Exists":
        yield invalid(f"{path}.operator", toleration.operator, "must be Exists when key is empty")
    if toleration.operator == "Exists" and toleration.value:
        yield invalid(f"{path}.value", toleration.value, "must be empty when operator is Exists")
    else:
        yield from label_value(f"{path}.value", toleration.value)
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield invalid(f"{path}.effect", toleration.effect, "must be NoExecute when tolerationSeconds is set")


def template_requests(path: str, raw: Mapping[str, Any]) -> FieldErrors:
    """Requests and limits of a pod template. `pods` is counted by the engine and nobody may ask for it."""
    try:
        spec = pod_template(raw, at=path).spec
    except DecodeError as error:
        yield FieldError(error.path, None, f"Invalid value: {error.message}")
        return
    yield from _containers(f"{path}.spec.initContainers", spec.init_containers)
    yield from _containers(f"{path}.spec.containers", spec.containers)
    yield from _amounts(f"{path}.spec.overhead", spec.overhead)
    if spec.resources:
        yield from _amounts(f"{path}.spec.resources.requests", spec.resources.requests)
        yield from _amounts(f"{path}.spec.resources.limits", spec.resources.limits)


def _containers(path: str, containers: Iterable[Container]) -> FieldErrors:
    for index, container in enumerate(containers):
        where = f"{path}[{index}].resources"
        yield from _amounts(f"{where}.requests", container.resources.requests)
        yield from _amounts(f"{where}.limits", container.resources.limits)


def _amounts(path: str, given: Mapping[str, RawQuantity]) -> FieldErrors:
    for resource, quantity in given.items():
        where = f"{path}[{resource}]"
        if resource == PODS:
            yield invalid(where, resource, f"the key is reserved for internal use; {PODS} cannot be requested")
            continue
        try:
            negative = nanos(quantity) < 0
        except QuantityError as error:
            yield invalid(where, quantity, str(error))
            continue
        if negative:
            yield invalid(where, quantity, "must be greater than or equal to 0")
