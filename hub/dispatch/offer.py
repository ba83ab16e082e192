"""From a choice to the placement that is stored and the intent that is sent."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from hub.dispatch.nominate import Choice
from hub.dispatch.placement import LIVE, Placement, Withdraw
from hub.dispatch.request import Request
from hub.kueue.api.meta import Instant
from hub.kueue.api.v1beta2 import PodSet, Workload, encode, names
from hub.kueue.wire import Action, Intent

#: Annotations of the management cluster's Workload that mean nothing on a worker.
_OURS = frozenset({names.CLUSTERS, names.LOST_POLICY, names.POSSIBLE_FLAVORS})


class Payload(Struct, frozen=True, kw_only=True):
    """What the agent creates: the Workload's spec and annotations, and the job as its integration cleans it for a worker."""

    workload_spec: dict[str, Any]
    annotations: dict[str, str]
    job: dict[str, Any]


def payload(workload: Workload, counts: Mapping[str, int], job: dict[str, Any]) -> Payload:
    """`counts`: pods per pod set as admitted, which partial admission may have made fewer than the spec has."""
    spec = msgspec.structs.replace(
        workload.spec, pod_sets=[_counted(p, counts.get(p.name, p.count)) for p in workload.spec.pod_sets]
    )
    whole = encode(msgspec.structs.replace(workload, spec=spec))
    annotations = {k: v for k, v in workload.metadata.annotations.items() if k not in _OURS}
    return Payload(workload_spec=whole["spec"], annotations=annotations, job=job)


def _counted(pod_set: PodSet, count: int) -> PodSet:
    return pod_set if pod_set.count == count else msgspec.structs.replace(pod_set, count=count)


def offer(
    request: Request, choice: Choice, what: Payload, past: Sequence[Placement], *, placement_id: str, now: Instant
) -> Placement:
    """The placement that offers the workload to the chosen cluster. Its generation is above all earlier ones of the workload."""
    generation = max((p.generation for p in past), default=0) + 1
    attempt = max((p.attempt for p in past), default=0) + 1
    previous = past[-1].cluster if past else ""
    intent = Intent(
        placement=placement_id,
        generation=generation,
        action=Action.RUN,
        namespace=request.workload.namespace,
        workload=request.workload.name,
        workload_uid=request.uid,
        local_queue=request.local_queue,
        cluster_queue=choice.queue,
        workload_spec=what.workload_spec,
        workload_annotations=what.annotations,
        job=what.job,
        pod_sets=list(choice.pod_sets),
        lost_policy=request.lost_policy,
        attempt=attempt,
        previous_cluster=previous,
    )
    return Placement(
        id=placement_id,
        workload=request.workload,
        workload_uid=request.uid,
        cluster=choice.cluster,
        generation=generation,
        reason="Offered",
        message=f"offered to {choice.cluster}, ClusterQueue {choice.queue}",
        intent=intent,
        charges=choice.charges,
        attempt=attempt,
        previous_cluster=previous,
        offered_at=now,
    )


class Wish(Struct, frozen=True, kw_only=True):
    """What the management cluster says about a workload now, as far as its placements are concerned."""

    #: It exists, under this uid, is active and has quota reserved, is not evicted and not finished.
    wanted: bool
    reason: str = ""
    message: str = ""


def withdrawals(placements: Sequence[Placement], wish: Wish, now: Instant) -> list[tuple[Placement, Withdraw]]:
    """Which live placements must go, because nobody wants them (any more)."""
    if wish.wanted:
        return []
    return [
        (p, Withdraw(generation=p.generation, now=now, reason=wish.reason, message=wish.message))
        for p in placements
        if p.state in LIVE
    ]
