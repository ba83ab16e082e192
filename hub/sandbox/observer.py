"""What REALLY ran, kept beside the objects: deleting them, restarting an API server or skewing a clock does not erase it.

    kubelet ──started(run)──▶ Observer ◀──completed(job)── Job controller
                                 │
                     runs, completions ──▶ double_runs, gpu_seconds, per_cluster

One observer may serve many clusters; its times come from the one clock that no fault touches, so intervals of different
clusters can be compared. The functions are pure: they also read what another process wrote down.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from hub.kueue.api.meta import Instant


class Source(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whose work it was."""

    cluster: str
    namespace: str
    #: Topmost controller of the pod; the pod itself when nobody owns it.
    kind: str
    name: str
    uid: str
    #: uid of the management cluster's Workload, where the objects carry one.
    origin_uid: str = ""
    placement: str = ""
    generation: str = ""
    attempt: str = ""

    @property
    def workload(self) -> str:
        """Equal for copies of one workload, on whatever cluster."""
        return self.origin_uid or f"{self.namespace}/{self.name}"

    @property
    def copy(self) -> tuple[str, str, str]:
        """Different for every copy of a workload. Pods without an owner belong together by their placement alone."""
        return self.cluster, self.placement, "" if self.kind == "Pod" and self.placement else self.uid


class Run(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One start of one pod's containers. `end` None: still running."""

    source: Source
    pod: str
    pod_uid: str
    index: int | None = None
    node: str
    gpus: int = 0
    start: Instant
    end: Instant | None = None
    #: Succeeded, Failed, Deleted, NodeLost; "" while it runs.
    outcome: str = ""


class Completion(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A job that reached its end."""

    source: Source
    at: Instant
    succeeded: bool


class DoubleRun(Struct, frozen=True, kw_only=True, rename="camel"):
    """Two copies of one workload ran at once, or it completed more than once."""

    workload: str
    name: str
    clusters: list[str]
    #: Seconds for which two copies ran at the same time; 0 when they only completed twice.
    overlap_s: float
    completions: int


class Observer:
    """Takes notes. Runs are told apart by pod uid: a pod has one run at a time."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._runs: list[Run] = []
        self._completions: list[Completion] = []

    def started(self, run: Run) -> None:
        self._running[run.pod_uid] = len(self._runs)
        self._runs.append(run)

    def stopped(self, pod_uid: str, outcome: str, now: Instant) -> None:
        """The pod's containers are gone. Saying so again changes nothing."""
        if (at := self._running.pop(pod_uid, None)) is not None:
            self._runs[at] = structs.replace(self._runs[at], end=now, outcome=outcome)

    def completed(self, completion: Completion) -> None:
        self._completions.append(completion)

    @property
    def runs(self) -> list[Run]:
        return list(self._runs)

    @property
    def completions(self) -> list[Completion]:
        return list(self._completions)


def double_runs(runs: Iterable[Run], completions: Iterable[Completion] = (), *, now: Instant) -> list[DoubleRun]:
    """Workloads of which two copies ran at the same time, or that succeeded in more than one copy."""
    by_workload: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_workload[run.source.workload].append(run)
    successes: dict[str, dict[tuple[str, str, str], Source]] = defaultdict(dict)
    for done in completions:
        if done.succeeded:
            successes[done.source.workload][done.source.copy] = done.source
    found: list[DoubleRun] = []
    for workload in dict.fromkeys([*by_workload, *successes]):
        overlap_s = _overlap_s(by_workload[workload], now)
        copies = successes[workload]
        if overlap_s > 0 or len(copies) > 1:
            sources = [*(run.source for run in by_workload[workload]), *copies.values()]
            clusters = sorted({source.cluster for source in sources})
            found.append(
                DoubleRun(
                    workload=workload,
                    name=sources[0].name,
                    clusters=clusters,
                    overlap_s=overlap_s,
                    completions=len(copies),
                )
            )
    return found


def _overlap_s(runs: Sequence[Run], now: Instant) -> float:
    """Seconds in which runs of at least two copies were under way. A sweep over starts and ends."""
    if len({run.source.copy for run in runs}) < 2:
        return 0.0
    edges: list[tuple[Instant, int, tuple[str, str, str]]] = []
    for run in runs:
        edges += [(run.start, +1, run.source.copy), (now if run.end is None else run.end, -1, run.source.copy)]
    active: dict[tuple[str, str, str], int] = defaultdict(int)
    total, since = 0.0, 0.0
    for at, step, copy in sorted(edges):
        if sum(1 for n in active.values() if n > 0) > 1:
            total += at - since
        active[copy] += step
        since = at
    return total


def gpu_seconds(runs: Iterable[Run], *, now: Instant) -> float:
    return sum(run.gpus * ((now if run.end is None else run.end) - run.start) for run in runs)


class ClusterTally(Struct, frozen=True, kw_only=True, rename="camel"):
    runs: int
    running: int
    workloads: int
    succeeded: int
    gpu_s: float


def per_cluster(
    runs: Iterable[Run], completions: Iterable[Completion] = (), *, now: Instant
) -> dict[str, ClusterTally]:
    """What each cluster did; clusters on which nothing ran are not in it. `succeeded` counts jobs."""
    by_cluster: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_cluster[run.source.cluster].append(run)
    succeeded: dict[str, int] = defaultdict(int)
    for done in completions:
        succeeded[done.source.cluster] += done.succeeded
    return {
        cluster: ClusterTally(
            runs=len(mine),
            running=sum(run.end is None for run in mine),
            workloads=len({run.source.workload for run in mine}),
            succeeded=succeeded[cluster],
            gpu_s=gpu_seconds(mine, now=now),
        )
        for cluster, mine in sorted(by_cluster.items())
    }
