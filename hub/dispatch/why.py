"""Why does this workload wait, or where does it run: one sentence for people, and the data behind it."""

from collections.abc import Sequence

from msgspec import Struct

from hub.dispatch.decide import DecisionRecord, Outcome, Verdict
from hub.dispatch.placement import LIVE, Placement, State
from hub.kueue.admission.messages import Position
from hub.kueue.api.meta import Instant, ObjectKey


class Why(Struct, frozen=True, kw_only=True):
    workload: ObjectKey
    sentence: str
    #: A word for programs: a Position's reason, an Outcome or a placement's state.
    reason: str
    cluster_queue: str = ""
    #: 0 is the head of the queue; None: not queued.
    position: int | None = None
    cluster: str = ""
    since: Instant | None = None
    verdicts: tuple[Verdict, ...] = ()
    others: dict[str, int] = {}


def why(
    workload: ObjectKey,
    position: Position | None,
    record: DecisionRecord | None,
    placements: Sequence[Placement],
    now: Instant,
) -> Why:
    """The most telling of what is known: a live placement, else the queue, else the last decision, else how it ended.

    `position` is the engine's answer while no quota is reserved; `placements` are the workload's, newest last.
    """
    live = next((p for p in reversed(placements) if p.state in LIVE), None)
    if live is not None:
        return _placed(workload, live, record, now)
    if position is not None:
        return _queued(workload, position)
    if placements and placements[-1].state is State.FINISHED:
        return _placed(workload, placements[-1], record, now)
    if record is not None and record.outcome is not Outcome.OFFERED:
        return _undecided(workload, record, placements, now)
    return Why(workload=workload, sentence="quota is reserved; a cluster is being looked for", reason="Dispatching")


_SENTENCES = {
    State.OFFERED: "offered to {cluster} {ago} ago, waiting for its agent's word{detail}",
    State.ADMITTED: "admitted by {cluster} {ago} ago, its pods are being started{detail}",
    State.RUNNING: "running on {cluster} for {ago}{detail}",
    State.FINISHED: "finished on {cluster} {ago} ago{detail}",
}


def _placed(workload: ObjectKey, p: Placement, record: DecisionRecord | None, now: Instant) -> Why:
    since = {State.OFFERED: p.offered_at, State.ADMITTED: p.admitted_at, State.RUNNING: p.running_at}.get(
        p.state, p.ended_at
    )
    detail = f": {p.message}" if p.message and p.state is not State.RUNNING else ""
    ago = _duration(now - since) if since is not None else "an unknown time"
    about_this = record if record is not None and p.cluster in record.clusters else None
    return Why(
        workload=workload,
        sentence=_SENTENCES[p.state].format(cluster=p.cluster, ago=ago, detail=detail),
        reason=p.state.value,
        cluster=p.cluster,
        since=since,
        verdicts=about_this.verdicts if about_this else (),
        others=about_this.others if about_this else {},
    )


def _queued(workload: ObjectKey, position: Position) -> Why:
    place = "" if position.position is None else f", number {position.position + 1} in line"
    queue = f"in ClusterQueue {position.cluster_queue}{place}" if position.cluster_queue else "not queued"
    return Why(
        workload=workload,
        sentence=f"{queue}: {position.message}" if position.message else queue,
        reason=position.reason,
        cluster_queue=position.cluster_queue,
        position=position.position,
    )


def _undecided(workload: ObjectKey, r: DecisionRecord, placements: Sequence[Placement], now: Instant) -> Why:
    last = placements[-1] if placements else None
    before = f"; before that {last.state.value.lower()} on {last.cluster}" if last else ""
    told = f" ({last.message})" if last and last.message else ""
    return Why(
        workload=workload,
        sentence=f"{r.message}{before}{told}",
        reason=r.outcome.value,
        since=r.at,
        verdicts=r.verdicts,
        others=r.others,
    )


def _duration(seconds: float) -> str:
    """Two largest units, as kubectl prints ages."""
    left = int(max(0.0, seconds))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2])
