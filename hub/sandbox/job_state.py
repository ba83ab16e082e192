"""A batch/v1 Job and its pods as its controller reads them: who runs, who ended and was not counted yet, which indexes are done.

Nothing is decided here; `hub.sandbox.jobs` does that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hub.kueue.api.meta import Instant, parse_time
from hub.sandbox import job_policies as rules
from hub.sandbox.job_pods import is_tracked

Manifest = Mapping[str, Any]


class JobPace(Struct, frozen=True, kw_only=True):
    """How fast failed pods are replaced. Kubernetes: 10 s, doubling up to 10 minutes."""

    backoff_s: float = 10.0
    backoff_max_s: float = 600.0


class Backoff(Struct, frozen=True):
    """Failures since the last success of this Job, which slow the replacement of pods down."""

    failures: int = 0
    last_failure: Instant = 0.0

    def remaining_s(self, now: Instant, pace: JobPace) -> float:
        if not self.failures:
            return 0.0
        wait_s = min(pace.backoff_max_s, pace.backoff_s * 2 ** min(self.failures - 1, 30))
        return max(0.0, self.last_failure + wait_s - now)


def condition(status: Manifest, kind: str) -> Manifest | None:
    """The condition of that type, if it is True."""
    return next((c for c in status.get("conditions") or () if c["type"] == kind and c["status"] == "True"), None)


class JobState:
    """What is known at the start of a turn. Names are those of the API fields where there is one."""

    def __init__(self, job: Manifest, pods: Sequence[Manifest], now: Instant, backoff: Backoff) -> None:
        self.job, self.spec, self.now = job, job["spec"], now
        self.pods = pods
        self.old: dict[str, Any] = job.get("status") or {}
        self.conditions: list[dict[str, Any]] = list(self.old.get("conditions") or ())
        self.start_time: str | None = self.old.get("startTime")
        self.suspended = bool(self.spec.get("suspend"))
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.completions: int | None = self.spec.get("completions")
        self.per_index: int | None = self.spec.get("backoffLimitPerIndex")
        self._read_pods(backoff)

    def _read_pods(self, backoff: Backoff) -> None:
        uncounted = self.old.get("uncountedTerminatedPods") or {}
        self.listed: dict[str, list[str]] = {k: list(uncounted.get(k) or ()) for k in ("succeeded", "failed")}
        listed = {*self.listed["succeeded"], *self.listed["failed"]}
        running = [p for p in self.pods if rules.phase(p) not in rules.ENDED]
        self.active_pods = [p for p in running if not rules.is_terminating(p)]
        self.active = len(self.active_pods)
        self.ready = sum(rules.is_ready(p) for p in self.active_pods)
        self.terminating = len(running) - self.active
        #: Neither counted nor listed to be.
        self.fresh = [p for p in self.pods if is_tracked(p) and p["metadata"]["uid"] not in listed]
        self.new_succeeded = [p for p in self.fresh if rules.phase(p) == "Succeeded"]
        self.new_failed = [p for p in self.fresh if self.has_failed(p)]
        counted_failures = sum(self.counts(p) for p in self.new_failed)
        self.failed = self.old.get("failed", 0) + counted_failures + len(self.listed["failed"])
        self.succeeded = self.old.get("succeeded", 0) + len(self.new_succeeded) + len(self.listed["succeeded"])
        self._read_indexes()
        self.backoff = _next_backoff(backoff, bool(self.new_succeeded), counted_failures, self.now)

    def _read_indexes(self) -> None:
        self.succeeded_indexes: set[int] = set()
        self.failed_indexes: set[int] = set()
        if not self.indexed:
            return
        self.succeeded_indexes = rules.parse_indexes(self.old.get("completedIndexes") or "")
        ended = [p for p in self.pods if rules.phase(p) == "Succeeded" and is_tracked(p)]
        self.succeeded_indexes |= {i for p in ended if (i := self.index_of(p)) is not None}
        self.succeeded = len(self.succeeded_indexes)
        if self.per_index is not None:
            given_up = [p for p in self.new_failed if self._gives_up(p)]
            self.failed_indexes = rules.parse_indexes(self.old.get("failedIndexes") or "")
            self.failed_indexes |= {i for p in given_up if (i := self.index_of(p)) is not None}

    def index_of(self, pod: Manifest) -> int | None:
        """The pod's completion index; None when it has none or is out of range."""
        index = rules.index_of(pod)
        return index if index is not None and index < (self.completions or 0) else None

    def _gives_up(self, pod: Manifest) -> bool:
        rule = rules.match_failure(self.spec.get("podFailurePolicy"), pod)
        if rule is not None and rule.action in ("FailIndex", "Ignore"):
            return rule.action == "FailIndex"
        return rules.index_failures(pod) >= (self.per_index or 0)

    @property
    def replaces_failed_only(self) -> bool:
        """podReplacementPolicy: wait until a terminating pod has ended before it is replaced and counted."""
        default = "Failed" if self.spec.get("podFailurePolicy") else "TerminatingOrFailed"
        return (self.spec.get("podReplacementPolicy") or default) == "Failed"

    def has_failed(self, pod: Manifest) -> bool:
        phase = rules.phase(pod)
        if phase in rules.ENDED or self.replaces_failed_only:
            return phase == "Failed"
        # A pod that somebody deletes counts as failed at once: it may never reach that phase.
        return rules.is_terminating(pod)

    def counts(self, pod: Manifest) -> bool:
        """Does this failed pod count against the limits?"""
        rule = rules.match_failure(self.spec.get("podFailurePolicy"), pod)
        return rule is None or rule.action != "Ignore"

    def failures_after(self, pod: Manifest) -> Backoff:
        """What the successor of this failed pod has to wait for (backoffLimitPerIndex)."""
        return Backoff(rules.index_failures(pod) + self.counts(pod), _end_of(pod, self.now))

    def last_failed(self) -> dict[int, Manifest]:
        """The failed pods that still wait for a successor: index -> pod."""
        last: dict[int, Manifest] = {}
        for pod in self.new_failed:
            index = self.index_of(pod)
            if index is None or index in self.failed_indexes or index in self.succeeded_indexes:
                continue
            if index not in last or rules.index_failures(pod) >= rules.index_failures(last[index]):
                last[index] = pod
        busy = {self.index_of(p) for p in self.active_pods}
        return {index: pod for index, pod in last.items() if index not in busy}


def _next_backoff(before: Backoff, succeeded: bool, failures: int, now: Instant) -> Backoff:
    if failures:
        return Backoff(failures + (0 if succeeded else before.failures), now)
    return Backoff() if succeeded else before


def _end_of(pod: Manifest, now: Instant) -> Instant:
    """When the last of its containers ended; now, when none says so."""
    states = [c.get("state") or {} for c in (pod.get("status") or {}).get("containerStatuses") or ()]
    ends = [s["terminated"]["finishedAt"] for s in states if (s.get("terminated") or {}).get("finishedAt")]
    return max(map(parse_time, ends), default=now)
