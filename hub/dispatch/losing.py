"""What the work on a cluster does when the cluster is lost (its owner's choice) or removed.

Wait            nothing, until the cluster is back or the operator declares it lost
FenceThenMove   moves when the agent's lease, and a margin, have run out: the agent has stopped it by itself by then
MoveNow         moves as soon as the cluster is lost; it may run twice for a while, and the history says so
"""

from collections.abc import Iterable

from hub.dispatch.clusters import DECLARED_LOST, Cluster, ClusterState, HealthPolicy, fenced_at
from hub.dispatch.placement import LIVE, ClusterLost, Placement, State, Withdraw
from hub.kueue.api.meta import Instant

_OVER = frozenset({State.LOST, State.FINISHED, State.REFUSED})


def given_up(
    cluster: Cluster, placements: Iterable[Placement], policy: HealthPolicy, now: Instant
) -> list[tuple[Placement, ClusterLost]]:
    """Placements on the cluster that may start elsewhere now, although the agent has not said that they are gone."""
    if cluster.state is not ClusterState.LOST:
        return []
    found: list[tuple[Placement, ClusterLost]] = []
    for p in placements:
        why = None if p.released or p.state in _OVER else _why(cluster, p, policy, now)
        if why is not None:
            found.append((p, ClusterLost(generation=p.generation, now=now, reason="ClusterLost", message=why)))
    return found


def _why(cluster: Cluster, p: Placement, policy: HealthPolicy, now: Instant) -> str | None:
    if cluster.reason == DECLARED_LOST:
        return f"{cluster.name} was declared lost by the operator"
    if p.intent.lost_policy == "MoveNow":
        return (
            f"{cluster.name} is lost and the workload moves at once: it may run there as well until the cluster is back"
        )
    fenced = fenced_at(cluster, policy) if cluster.capacity is not None and cluster.capacity.fences else None
    if p.intent.lost_policy == "FenceThenMove" and fenced is not None and now >= fenced:
        return f"{cluster.name} is lost and its agent's lease has run out: it has stopped the workload by itself"
    return None


def removed(cluster: Cluster, placements: Iterable[Placement], now: Instant) -> list[tuple[Placement, Withdraw]]:
    """Live placements on a cluster that the operator removes. It is forgotten only when none of them is left there."""
    if cluster.state is not ClusterState.REMOVED:
        return []
    why = f"{cluster.name} is removed from the fleet"
    return [
        (p, Withdraw(generation=p.generation, now=now, reason="ClusterRemoved", message=why))
        for p in placements
        if p.state in LIVE
    ]
