"""Pod templates of jobs: topology requests in their annotations, and where two templates differ."""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from hub.kueue.api.decoding import part_of
from hub.kueue.api.errors import DecodeError, QuantityError
from hub.kueue.api.quantity import nanos
from hub.kueue.api.rules.field_errors import FieldError, invalid, unsupported
from hub.kueue.api.v1beta2 import PodSet, PodsetSliceRequiredTopologyConstraint, PodSetTopologyRequest, names

Manifest = dict[str, Any]

_MODES = (names.REQUIRED_TOPOLOGY, names.PREFERRED_TOPOLOGY, names.UNCONSTRAINED_TOPOLOGY)


def annotations_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    return part_of(manifest, "metadata", "annotations")


def labels_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    return part_of(manifest, "metadata", "labels")


# --- topology ----------------------------------------------------------------------------------------------------------


def topology_request(template: Mapping[str, Any], *, index_label: str = "") -> PodSetTopologyRequest | None:
    """The topology request that a pod template's annotations make; None when they make none. Raises DecodeError.

    `index_label`: the pod label that holds a pod's rank, where the kind has one.
    """
    notes = annotations_of(template)
    asks = any(mode in notes for mode in _MODES) or names.SLICE_REQUIRED_TOPOLOGY in notes
    if not asks and names.SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS not in notes:
        return None
    return PodSetTopologyRequest(
        required=notes.get(names.REQUIRED_TOPOLOGY),
        preferred=notes.get(names.PREFERRED_TOPOLOGY),
        unconstrained=True if notes.get(names.UNCONSTRAINED_TOPOLOGY) == "true" else None,
        pod_index_label=index_label or None,
        pod_set_group_name=notes.get(names.POD_SET_GROUP_NAME),
        pod_set_slice_required_topology=notes.get(names.SLICE_REQUIRED_TOPOLOGY),
        pod_set_slice_size=_size(notes),
        podset_slice_required_topology_constraints=_constraints(notes),
    )


def topology_errors(template: Mapping[str, Any], at: str) -> list[FieldError]:
    """What is wrong with the topology annotations of a template; `at` is the path of the template."""
    notes = annotations_of(template)
    where = f"{at}.metadata.annotations"
    errors: list[FieldError] = []
    if len(modes := [mode for mode in _MODES if mode in notes]) > 1:
        errors.append(invalid(where, modes, "at most one of these may be set"))
    if (text := notes.get(names.UNCONSTRAINED_TOPOLOGY, "true")) not in ("true", "false"):
        errors.append(unsupported(f"{where}[{names.UNCONSTRAINED_TOPOLOGY}]", text, ("true", "false")))
    pair = [key for key in (names.SLICE_REQUIRED_TOPOLOGY, names.SLICE_SIZE) if key in notes]
    if len(pair) == 1:
        errors.append(invalid(where, pair, f"{names.SLICE_REQUIRED_TOPOLOGY} and {names.SLICE_SIZE} go together"))
    try:
        topology_request(template)
    except DecodeError as error:
        errors.append(invalid(f"{where}[{error.path}]", notes.get(error.path), error.message))
    return errors


def _size(notes: Mapping[str, str]) -> int | None:
    text = notes.get(names.SLICE_SIZE)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise DecodeError(names.SLICE_SIZE, f"is {text!r} and must be a whole number of at least 1")
    return int(text)


def _constraints(notes: Mapping[str, str]) -> list[PodsetSliceRequiredTopologyConstraint]:
    text = notes.get(names.SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS)
    if text is None:
        return []
    try:
        return msgspec.json.decode(text, type=list[PodsetSliceRequiredTopologyConstraint])
    except msgspec.DecodeError as error:
        raise DecodeError(names.SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS, f"is no list of slices: {error}") from None


# --- differences -------------------------------------------------------------------------------------------------------

#: What of a pod template decides about quota and placement. Labels and the like may change without harm.
_COMPARED = ("containers", "initContainers", "nodeSelector", "tolerations", "overhead", "resources", "schedulingGates")


def first_difference(want: PodSet, have: PodSet) -> str:
    """The first field in which a pod set is not what it should be, with both values; "" when there is none.

    Fields that were added do no harm: an API server of another version may know more defaults. A container more does.
    """
    if want.count != have.count:
        return f"podSets[{want.name}].count: {have.count} instead of {want.count}"
    want_spec, have_spec = part_of(want.template, "spec"), part_of(have.template, "spec")
    for field in _COMPARED:
        found = _difference(f"podSets[{want.name}].template.spec.{field}", want_spec.get(field), have_spec.get(field))
        if found:
            return found
    return ""


def _difference(path: str, want: Any, have: Any) -> str:
    if want in (None, {}, []):
        # Nothing was asked for. A list that is there all the same adds pods or containers; anything else is a default.
        return f"{path}: was added" if isinstance(have, list) and have and path.endswith("ontainers") else ""
    if isinstance(want, dict) and isinstance(have, dict):
        return _first(
            _difference(f"{path}.{key}", value, cast("Manifest", have).get(key))
            for key, value in cast("Manifest", want).items()
        )
    if isinstance(want, list) and isinstance(have, list):
        return _list_difference(path, cast("list[Any]", want), cast("list[Any]", have))
    return "" if _same(path, want, have) else f"{path}: {_short(have)} instead of {_short(want)}"


def _list_difference(path: str, want: list[Any], have: list[Any]) -> str:
    if path.endswith(".tolerations"):
        missing = [item for item in want if item not in have]
        return f"{path}: {_short(missing[0])} is missing" if missing else ""
    if len(want) != len(have):
        return f"{path}: {len(have)} items instead of {len(want)}"
    return _first(_difference(f"{path}[{place}]", *pair) for place, pair in enumerate(zip(want, have, strict=True)))


def _first(found: Any) -> str:
    return next((text for text in found if text), "")


def _same(path: str, want: Any, have: Any) -> bool:
    if want == have:
        return True
    if "requests." not in path and "limits." not in path and "overhead." not in path:
        return False
    try:
        return nanos(want) == nanos(have)
    except (QuantityError, TypeError):
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
