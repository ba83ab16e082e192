"""Is a manifest right? Every error at once, as data, in Kubernetes' words.

    manifest ──decode──▶ object ──▶ limits of its schema ──▶ rules of its kind ──▶ [FieldError]
                                                                  │
                                         and, with the object that was there before, what may not change

An API server with our CRDs enforces the limits and part of the rules by itself (`hub.kueue.api.cel`); a webhook that
calls `check` enforces them all.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hub.kueue.api.decoding import document
from hub.kueue.api.errors import DecodeError
from hub.kueue.api.rules import checks, queues
from hub.kueue.api.rules.bounds import outside_limits
from hub.kueue.api.rules.field_errors import FieldError, FieldErrors
from hub.kueue.api.rules.workload import workload
from hub.kueue.api.rules.workload_update import workload_update
from hub.kueue.api.schema import structural
from hub.kueue.api.v1beta2 import AnyKind, Workload, decode, kind_of

__all__ = ["FieldError", "check", "validate"]


def check(manifest: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[FieldError]:
    """Errors of a manifest that is to be created or, with `old`, to replace that one. Empty: it is right.

    A manifest that cannot be read at all gives one error, about the first field that is in the way. An `old` one that
    cannot be read, written when more was allowed, must not keep anybody from mending it: it is left out of account.
    """
    try:
        new = decode(manifest)
    except DecodeError as error:
        return [FieldError(error.path, None, error.message)]
    return validate(new, _readable(old) if old is not None else None)


def validate(new: AnyKind, old: AnyKind | None = None) -> list[FieldError]:
    """Likewise, of objects that are decoded already. Raises TypeError when the kinds differ."""
    if old is not None and type(old) is not type(new):
        raise TypeError(f"a {kind_of(new)} cannot replace a {kind_of(old)}")
    limits = outside_limits(structural(type(new)), document(new))
    return [*limits, *_rules(new, old)]


def _readable(manifest: Mapping[str, Any]) -> AnyKind | None:
    try:
        return decode(manifest)
    except DecodeError:
        return None


def _rules(new: AnyKind, old: AnyKind | None) -> FieldErrors:
    rules = _RULES.get(kind_of(new))
    return rules(new, old) if rules else iter(())


def _workload(new: Workload, old: Workload | None) -> FieldErrors:
    yield from workload(new)
    if old is not None:
        yield from workload_update(new, old)


#: Kinds that have rules beyond the limits of their schema.
_RULES: dict[str, Callable[[Any, Any], FieldErrors]] = {
    "Workload": _workload,
    "ClusterQueue": queues.cluster_queue,
    "LocalQueue": queues.local_queue,
    "Cohort": queues.cohort,
    "ResourceFlavor": queues.resource_flavor,
    "Topology": queues.topology,
    "AdmissionCheck": checks.admission_check,
    "MultiKueueConfig": checks.multikueue_config,
    "MultiKueueCluster": checks.multikueue_cluster,
}
