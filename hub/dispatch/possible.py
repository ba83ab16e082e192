"""With which flavors could a workload ever run: asked before it has quota, so that the answer comes at submit.

The engine assigns flavors by quota alone. A flavor whose nodes are too small for the pods, in every cluster, would only cost
the workload its turn, so it is taken out of the choice (annotation workload-allowed-resource-flavors). When none is left, the
workload is told that it can never fit, and waits outside of the queue until the fleet changes.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from hub.dispatch.capacity import ClusterView, emptied
from hub.dispatch.clusters import ClusterState
from hub.dispatch.decide import Verdict, listed, objection
from hub.dispatch.filters import ROOM_RULES, SETUP_RULES, Candidate
from hub.dispatch.request import PodSetNeed, Request, common_tolerations, wanted_clusters
from hub.dispatch.routes import Route
from hub.kueue.api import core
from hub.kueue.api.v1beta2 import ClusterQueue, ResourceFlavor, Workload


class Judgement(Struct, frozen=True, kw_only=True):
    """What could ever be. `possible` None: nothing to object to, or nothing is known yet."""

    possible: tuple[str, ...] | None = None
    #: When no flavor is possible: why, cluster by cluster.
    message: str = ""

    @property
    def hopeless(self) -> bool:
        return self.possible == ()


NO_OBJECTION = Judgement()


def draft_of(workload: Workload, *, kind: str, queue: str, route: Route) -> Request:
    """The request of a workload that has no flavors yet. Raises DecodeError or QuantityError."""
    needs: list[PodSetNeed] = []
    for pod_set in workload.spec.pod_sets:
        per_pod = core.pod_requests(core.pod_template(pod_set.template).spec)
        count = pod_set.min_count if pod_set.min_count is not None else pod_set.count
        total = {resource: amount * count for resource, amount in per_pod.items()}
        needs.append(PodSetNeed(name=pod_set.name, count=count, per_pod=per_pod, total=total, flavors={}))
    return Request(
        workload=workload.metadata.key,
        uid=workload.metadata.uid,
        kind=kind,
        local_queue=workload.spec.queue_name,
        cluster_queue=queue,
        pod_sets=tuple(needs),
        tolerations=common_tolerations(workload),
        configured=route.clusters,
        wanted=wanted_clusters(workload.metadata.annotations),
    )


def judge(
    draft: Request,
    queue: ClusterQueue,
    flavors: Mapping[str, ResourceFlavor],
    views: Sequence[ClusterView],
    allowed: frozenset[str] | None = None,
) -> Judgement:
    """Which flavors of the queue (of those that the user allows) some cluster could serve the workload with, if it were empty.

    Clusters count as they last reported, even cordoned or lost ones; those that never have are not known.
    """
    known = [v for v in views if v.cluster.capacity is not None and v.cluster.state is not ClusterState.REMOVED]
    if not known:
        return NO_OBJECTION
    empty = [emptied(view) for view in known]
    possible: list[str] = []
    objections: dict[str, Verdict] = {}
    groups = queue.spec.resource_groups
    offered = [(f.name, g.covered_resources) for g in groups for f in g.flavors if allowed is None or f.name in allowed]
    for name, covered in offered:
        request = _assigned(draft, name, covered, flavors.get(name))
        found = [objection(Candidate(request, view), (*SETUP_RULES, *ROOM_RULES)) for view in empty]
        if any(verdict is None for verdict in found):
            possible.append(name)
        for verdict in found:
            if verdict is not None:
                objections[verdict.cluster] = _graver(objections.get(verdict.cluster), verdict)
    if len(possible) == len(offered):
        return NO_OBJECTION
    return Judgement(possible=tuple(possible), message="" if possible else _message(list(objections.values())))


def _assigned(draft: Request, name: str, covered: Sequence[str], flavor: ResourceFlavor | None) -> Request:
    """The draft with every resource of one group from one flavor."""
    needs = tuple(
        msgspec.structs.replace(need, flavors={r: name for r in need.total if r in covered and need.total[r]})
        for need in draft.pod_sets
    )
    labels = {name: flavor.spec.node_labels} if flavor else {}
    return msgspec.structs.replace(draft, pod_sets=needs, flavor_labels=labels)


_ROOM = frozenset(rule.__name__ for rule in ROOM_RULES)


def _graver(known: Verdict | None, new: Verdict) -> Verdict:
    """What the cluster that comes closest lacks: the lack of room says more than the lack of a flavor."""
    return new if known is None or (known.rule not in _ROOM and new.rule in _ROOM) else known


def _message(verdicts: Sequence[Verdict]) -> str:
    too_large = [v for v in verdicts if v.rule in _ROOM]
    if too_large:
        return f"can never fit, not even on an empty cluster: {listed(too_large)}"
    return f"no cluster is set up for it: {listed(verdicts)}"
