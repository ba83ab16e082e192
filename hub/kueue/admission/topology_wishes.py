"""What a pod set asks of a topology, with levels as indexes into one tree."""

from collections.abc import Mapping
from typing import NamedTuple

from hub.kueue.admission.topology import Tree
from hub.kueue.api.v1beta2 import PodSetTopologyRequest


class Wish(NamedTuple):
    """Where pods must be together."""

    level: int
    #: One domain of that level must hold all; otherwise wider ones will do.
    required: bool = False
    #: Anywhere: domains with the least free room first.
    unconstrained: bool = False
    #: Every so many pods are together in a domain of this level. Size 1 at the lowest level: no slices.
    slice_level: int = 0
    slice_size: int = 1
    #: Level below the slice level -> size of the slices inside slices.
    inner: Mapping[int, int] = {}


#: Slices from the outermost in: (label of the level, size).
Slices = list[tuple[str, int]]


def slices_of(request: PodSetTopologyRequest) -> Slices:
    if request.podset_slice_required_topology_constraints:
        return [(c.topology, c.size) for c in request.podset_slice_required_topology_constraints]
    if request.pod_set_slice_required_topology:
        return [(request.pod_set_slice_required_topology, request.pod_set_slice_size or 1)]
    return []


def named_levels(request: PodSetTopologyRequest | None) -> list[str]:
    """Levels that a topology must have for the request."""
    if request is None:
        return []
    named = [level for level in (request.required, request.preferred) if level]
    return named + [level for level, _ in slices_of(request)]


def wish_of(tree: Tree, request: PodSetTopologyRequest | None) -> Wish | str:
    """The request in terms of the tree, or why it cannot be served there. None: the queue implies it, anywhere will do."""
    lowest = len(tree.levels) - 1
    if request is None:
        return Wish(lowest, unconstrained=True, slice_level=lowest)
    slices = slices_of(request)
    together = request.required or request.preferred
    level = tree.level_index(together) if together else 0 if slices and not request.unconstrained else lowest
    if level is None:
        return f"no requested topology level: {together}"
    at: list[tuple[int, int]] = []
    for label, size in slices:
        index = tree.level_index(label)
        if index is None:
            return f"no requested topology level for slices: {label}"
        above = at[-1][0] + 1 if at else level
        if index < above:
            return f"slices at {label} must be below {tree.levels[above - 1 if at else above]}"
        at.append((index, size))
    slice_level, size = at[0] if at else (lowest, 1)
    return Wish(
        level,
        required=bool(request.required),
        unconstrained=not together,
        slice_level=slice_level,
        slice_size=size,
        inner=dict(at[1:]),
    )
