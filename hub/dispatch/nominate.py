"""Which of the ranked clusters get an offer: one function per strategy of a MultiKueueConfig."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from hub.dispatch.placement import Charge
from hub.kueue.wire import PodSetFlavors


class Choice(Struct, frozen=True, kw_only=True):
    """Everything that an offer to one cluster consists of, with no choice left open."""

    cluster: str
    #: The worker's ClusterQueue.
    queue: str
    #: In the worker's flavor names.
    pod_sets: tuple[PodSetFlavors, ...]
    charges: tuple[Charge, ...]


Strategy = Callable[[Sequence[Choice]], tuple[Choice, ...]]

CAPACITY = "Capacity"


def capacity(ranked: Sequence[Choice]) -> tuple[Choice, ...]:
    """One offer, to the best cluster that has room now. A refusal brings the next one at once."""
    return tuple(ranked[:1])


STRATEGIES: dict[str, Strategy] = {CAPACITY: capacity}
