"""The batch/v1 Job controller's decision: a Job and its pods in, what to do next out. No I/O, no clock.

    reconcile(job, pods, now) ──▶ Plan   1 create or remove pods
                                         2 interim status: ended pods are listed as uncounted; SuccessCriteriaMet or FailureTarget
                                         3 take the tracking finalizer off the pods that were listed
                                         4 status: they are counted; Complete or Failed once no pod is left that ends

The two status writes are the tracking protocol of Kubernetes 1.35 (KEP-2307): a pod is never counted twice nor forgotten,
whoever deletes it meanwhile, and who mirrors a Job sees the same sequence of statuses as from a real cluster. Also
followed: suspension (KEP-2232, and KEP-5440 for the start time that goes), Indexed (KEP-2214), back-off per index
(KEP-3850), podFailurePolicy (KEP-3329), successPolicy (KEP-3998), podReplacementPolicy (KEP-3939), managedBy (KEP-4368).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from hub.kueue.api.meta import Instant, ObjectKey, format_time, key_of, parse_time
from hub.kueue.operations import EventType
from hub.sandbox import job_policies as rules
from hub.sandbox.job_pods import is_tracked, pod_of
from hub.sandbox.job_state import Backoff, JobPace, JobState, condition

Manifest = Mapping[str, Any]

CONTROLLER = "kubernetes.io/job-controller"
#: Pods created or removed in one turn, and pods listed as uncounted, at most.
PODS_PER_TURN = 500
UNLIMITED = 2**31 - 1


class PodRemoval(Struct, frozen=True):
    """`counted` pods keep their finalizer and count as failures; others were not wanted any more."""

    key: ObjectKey
    counted: bool


class JobEvent(Struct, frozen=True):
    type: EventType
    reason: str
    message: str


class Plan(Struct, frozen=True, kw_only=True):
    """Steps in the order in which they are to be taken. A status of None needs no write."""

    remove: list[PodRemoval] = []
    create: list[dict[str, Any]] = []
    interim: dict[str, Any] | None = None
    release: list[ObjectKey] = []
    status: dict[str, Any] | None = None
    events: list[JobEvent] = []
    backoff: Backoff = Backoff()
    again_in_s: float | None = None


class _Verdict(Struct, frozen=True):
    """Why no more pods are needed. It is written before the pods are gone, and as Complete or Failed after."""

    kind: Literal["SuccessCriteriaMet", "FailureTarget"]
    reason: str
    message: str


def is_ours(job: Manifest) -> bool:
    """Another controller's Job (spec.managedBy) is not touched."""
    return (job["spec"].get("managedBy") or CONTROLLER) == CONTROLLER


def finished(job: Manifest) -> Manifest | None:
    """The Complete or Failed condition."""
    status = job.get("status") or {}
    return condition(status, "Complete") or condition(status, "Failed")


def expires_at(job: Manifest) -> Instant | None:
    """When ttlSecondsAfterFinished has the Job deleted; None: never, or it is not finished."""
    end, ttl_s = finished(job), job["spec"].get("ttlSecondsAfterFinished")
    return None if end is None or ttl_s is None else parse_time(end["lastTransitionTime"]) + ttl_s


def reconcile(
    job: Manifest,
    pods: Sequence[Manifest],
    now: Instant,
    *,
    backoff: Backoff | None = None,
    pace: JobPace | None = None,
) -> Plan:
    """What to do for this Job now. `pods` are those it controls; ended ones without the finalizer may be left out."""
    if not is_ours(job) or finished(job) is not None:
        return Plan()
    if "deletionTimestamp" in job["metadata"]:
        return Plan(release=[key_of(p) for p in pods if is_tracked(p) and _is_leaving(p)])
    turn = _Turn(job, pods, now, backoff or Backoff(), pace or JobPace())
    turn.start()
    turn.judge()
    if turn.verdict is not None:
        turn.remove(turn.active_pods, counted=True)
    else:
        turn.manage_pods()
        turn.judge_completion()
    return turn.plan()


class _Turn(JobState):
    """One reconciliation: what was read, and what is decided so far."""

    def __init__(self, job: Manifest, pods: Sequence[Manifest], now: Instant, backoff: Backoff, pace: JobPace) -> None:
        super().__init__(job, pods, now, backoff)
        self.pace = pace
        self.verdict: _Verdict | None = None
        self.removals: list[PodRemoval] = []
        self.creations: list[dict[str, Any]] = []
        self.events: list[JobEvent] = []
        self.again_in_s: float | None = None

    # --- 1: is it over? ---

    def start(self) -> None:
        if self.start_time is None and not self.suspended:
            self.start_time = format_time(self.now)

    def judge(self) -> None:
        self.verdict = self._earlier_verdict() or self._failure() or self._index_failure() or self._early_success()

    def _earlier_verdict(self) -> _Verdict | None:
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            if (found := condition(self.old, kind)) is not None:
                return _Verdict(kind, found.get("reason", ""), found.get("message", ""))
        return None

    def _failure(self) -> _Verdict | None:
        matches = (rules.match_failure(self.spec.get("podFailurePolicy"), p) for p in self.new_failed)
        if (fatal := next((m for m in matches if m is not None and m.action == "FailJob"), None)) is not None:
            return _Verdict("FailureTarget", "PodFailurePolicy", fatal.message)
        if self._past_backoff_limit():
            message = "Job has reached the specified backoff limit"
            return _Verdict("FailureTarget", "BackoffLimitExceeded", message)
        if self._past_deadline():
            message = "Job was active longer than specified deadline"
            return _Verdict("FailureTarget", "DeadlineExceeded", message)
        return None

    def _past_backoff_limit(self) -> bool:
        limit = self.spec.get("backoffLimit")
        if limit is None:
            limit = UNLIMITED if self.per_index is not None else 6
        if self.failed > limit:
            return True
        if self.spec["template"]["spec"].get("restartPolicy") != "OnFailure":
            return False
        restarted = sum(rules.restarts(p) for p in self.pods if rules.phase(p) in ("Pending", "Running"))
        return restarted > 0 if limit == 0 else restarted >= limit

    def _past_deadline(self) -> bool:
        limit_s = self.spec.get("activeDeadlineSeconds")
        if limit_s is None or self.suspended or self.start_time is None:
            return False
        left_s = parse_time(self.start_time) + limit_s - self.now
        if left_s > 0:
            self._look_again(left_s)
        return left_s <= 0

    def _look_again(self, in_s: float) -> None:
        self.again_in_s = in_s if self.again_in_s is None else min(self.again_in_s, in_s)

    def _index_failure(self) -> _Verdict | None:
        if not self.failed_indexes:
            return None
        most = self.spec.get("maxFailedIndexes")
        if most is not None and len(self.failed_indexes) > most:
            message = "Job has exceeded the specified maximal number of failed indexes"
            return _Verdict("FailureTarget", "MaxFailedIndexesExceeded", message)
        if len(self.failed_indexes) + len(self.succeeded_indexes) >= (self.completions or 0):
            return _Verdict("FailureTarget", "FailedIndexes", "Job has failed indexes")
        return None

    def _early_success(self) -> _Verdict | None:
        policy = self.spec.get("successPolicy")
        if not self.indexed or policy is None:
            return None
        message = rules.match_success(policy, self.completions or 0, self.succeeded_indexes)
        return _Verdict("SuccessCriteriaMet", "SuccessPolicy", message) if message else None

    def judge_completion(self) -> None:
        if self.completions is None:
            complete = self.succeeded > 0 and self.active == 0
        else:
            complete = self.succeeded >= self.completions and self.active == 0
        if complete:
            message = "Reached expected number of succeeded pods"
            self.verdict = _Verdict("SuccessCriteriaMet", "CompletionsReached", message)
        else:
            self._note_suspension()

    def _note_suspension(self) -> None:
        known = next((c for c in self.conditions if c["type"] == "Suspended"), None)
        if not self.suspended and known is None:
            return
        status = "True" if self.suspended else "False"
        if known is not None and known["status"] == status:
            return
        word = "suspended" if self.suspended else "resumed"
        self._set_condition("Suspended", status, f"Job{word.capitalize()}", f"Job {word}")
        self.events.append(JobEvent("Normal", word.capitalize(), f"Job {word}"))
        # The deadline counts from the last resumption.
        self.start_time = None if self.suspended else format_time(self.now)

    def _set_condition(self, kind: str, status: str, reason: str, message: str) -> None:
        when = format_time(self.now)
        new = {"type": kind, "status": status, "lastProbeTime": when, "lastTransitionTime": when}
        new |= {"reason": reason, "message": message}
        if any(c["type"] == kind for c in self.conditions):
            self.conditions = [new if c["type"] == kind else c for c in self.conditions]
        else:
            self.conditions = [*self.conditions, new]

    # --- 2: pods ---

    def manage_pods(self) -> None:
        if self.suspended:
            self.remove(self.active_pods, counted=False)
            return
        wanted = self._wanted()
        surplus = self._surplus(max(0, self.active - wanted))
        if surplus:
            self.remove(surplus, counted=False)
            return
        missing = wanted - self.active - (self.terminating if self.replaces_failed_only else 0)
        if missing > 0:
            self._create(min(missing, PODS_PER_TURN))

    def _wanted(self) -> int:
        parallelism = self.spec.get("parallelism", 1)
        if self.completions is None:
            return self.active if self.succeeded else parallelism
        left = self.completions - self.succeeded - len(self.failed_indexes)
        return max(0, min(parallelism, left))

    def _surplus(self, number: int) -> list[Manifest]:
        """Pods that are too many: wrong or doubled indexes first, then those that have done the least."""
        unwanted: list[Manifest] = []
        if self.indexed:
            unwanted = self._misplaced()
        chosen = {p["metadata"]["uid"] for p in unwanted}
        rest = sorted((p for p in self.active_pods if p["metadata"]["uid"] not in chosen), key=_progress)
        return [*unwanted, *rest[: max(0, number - len(unwanted))]]

    def _misplaced(self) -> list[Manifest]:
        taken = set(self.succeeded_indexes) | self.failed_indexes
        misplaced: list[Manifest] = []
        for pod in sorted(self.active_pods, key=_progress, reverse=True):
            if (index := self.index_of(pod)) is None or index in taken:
                misplaced.append(pod)
            else:
                taken.add(index)
        return misplaced

    def remove(self, pods: Sequence[Manifest], *, counted: bool) -> None:
        for pod in pods[:PODS_PER_TURN]:
            self.removals.append(PodRemoval(key_of(pod), counted))
            self.events.append(JobEvent("Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}"))
            self.active -= 1
            self.terminating += 1
            self.ready -= rules.is_ready(pod)

    def _create(self, number: int) -> None:
        if self.per_index is None and (wait_s := self.backoff.remaining_s(self.now, self.pace)) > 0:
            self._look_again(wait_s)
            return
        if not self.indexed:
            self.creations = [pod_of(self.job) for _ in range(number)]
        elif self.per_index is None:
            self.creations = [pod_of(self.job, index=i) for i in self._pending_indexes(number)]
        else:
            self._create_per_index(number)
        self.active += len(self.creations)

    def _pending_indexes(self, number: int, allowed: Callable[[int], bool] | None = None) -> list[int]:
        unsettled = self.active_pods
        if self.replaces_failed_only:
            unsettled = [p for p in self.pods if rules.phase(p) not in rules.ENDED]
        taken = {self.index_of(p) for p in unsettled} | self.succeeded_indexes | self.failed_indexes
        found: list[int] = []
        for index in range(self.completions or 0):
            if len(found) == number:
                break
            if index not in taken and (allowed is None or allowed(index)):
                found.append(index)
        return found

    def _create_per_index(self, number: int) -> None:
        """Every index has failures and a back-off of its own; its last failed pod remembers how many."""
        failures = {i: self.failures_after(p) for i, p in self.last_failed().items()}

        def due(index: int) -> bool:
            if index not in failures:
                return True
            wait_s = failures[index].remaining_s(self.now, self.pace)
            if wait_s > 0:
                self._look_again(wait_s)
            return wait_s <= 0

        chosen = self._pending_indexes(number, due)
        self.creations = [pod_of(self.job, index=i, failures=failures.get(i, Backoff()).failures) for i in chosen]

    # --- 3 and 4: count ---

    def plan(self) -> Plan:
        gone = self._settle_listed()
        ended = self._list_ended()
        if self.verdict is not None and condition({"conditions": self.conditions}, self.verdict.kind) is None:
            self._set_condition(self.verdict.kind, "True", self.verdict.reason, self.verdict.message)
        interim = self._status(gone, self.listed)
        if self._is_over():
            self._conclude()
        counted = {kind: gone[kind] + len(uids) for kind, uids in self.listed.items()}
        final = self._status(counted, {})
        return Plan(
            remove=self.removals,
            create=self.creations,
            interim=interim if interim != self.old else None,
            release=[key_of(p) for p in ended],
            status=final if final != interim else None,
            events=self.events,
            backoff=self.backoff,
            again_in_s=self.again_in_s,
        )

    def _settle_listed(self) -> dict[str, int]:
        """Pods listed earlier whose finalizer is gone are counted. Returns the new totals."""
        held = {p["metadata"]["uid"] for p in self.pods if is_tracked(p)}
        totals: dict[str, int] = {}
        for kind, uids in self.listed.items():
            kept = [uid for uid in uids if uid in held]
            totals[kind] = self.old.get(kind, 0) + len(uids) - len(kept)
            self.listed[kind] = kept
        return totals

    def _list_ended(self) -> list[Manifest]:
        """List the pods that ended as uncounted; returns all that may lose their finalizer now."""
        fresh = self._to_settle()[:PODS_PER_TURN]
        for pod in fresh:
            if rules.phase(pod) == "Succeeded":
                if not self.indexed:  # an index cannot be counted twice, so it is not listed
                    self.listed["succeeded"].append(pod["metadata"]["uid"])
            elif self._is_loss(pod) and self.counts(pod):
                self.listed["failed"].append(pod["metadata"]["uid"])
        earlier = {uid for uids in self.listed.values() for uid in uids} - {p["metadata"]["uid"] for p in fresh}
        return [*fresh, *(p for p in self.pods if p["metadata"]["uid"] in earlier and is_tracked(p))]

    def _to_settle(self) -> list[Manifest]:
        """Pods that can be settled now: those that ended; all that are left, once no more are needed."""
        if self.verdict is not None:
            return self.fresh
        waiting: set[str] = set()
        if self.per_index is not None:
            waiting = {p["metadata"]["uid"] for p in self.last_failed().values()}
        return [p for p in [*self.new_succeeded, *self.new_failed] if p["metadata"]["uid"] not in waiting]

    def _is_loss(self, pod: Manifest) -> bool:
        """Does it count as failed: it has, or the Job fails while it still runs."""
        failing = self.verdict is not None and self.verdict.kind == "FailureTarget"
        return failing or self.has_failed(pod)

    def _is_over(self) -> bool:
        every = len(self.fresh) <= PODS_PER_TURN
        return self.verdict is not None and every and self.terminating == 0 and self.active == 0

    def _conclude(self) -> None:
        assert self.verdict is not None
        reason, message = self.verdict.reason, self.verdict.message
        if self.verdict.kind == "SuccessCriteriaMet":
            self._set_condition("Complete", "True", reason, message)
            self.events.append(JobEvent("Normal", "Completed", "Job completed"))
        else:
            self._set_condition("Failed", "True", reason, message)
            self.events.append(JobEvent("Warning", reason, message))

    def _status(self, counted: Mapping[str, int], listed: Mapping[str, list[str]]) -> dict[str, Any]:
        status: dict[str, Any] = {k: v for k, v in self.old.items() if k not in _OWN_FIELDS}
        status |= {"ready": self.ready, "terminating": self.terminating}
        succeeded = len(self.succeeded_indexes) if self.indexed else counted["succeeded"]
        for name, number in (("active", self.active), ("succeeded", succeeded), ("failed", counted["failed"])):
            if number:
                status[name] = number
        if self.succeeded_indexes:
            status["completedIndexes"] = rules.indexes_text(self.succeeded_indexes)
        if self.per_index is not None:
            status["failedIndexes"] = rules.indexes_text(self.failed_indexes)
        status["uncountedTerminatedPods"] = {kind: list(uids) for kind, uids in listed.items() if uids}
        if self.conditions:
            status["conditions"] = self.conditions
        if self.start_time is not None:
            status["startTime"] = self.start_time
        if (complete := condition(status, "Complete")) is not None:
            status["completionTime"] = complete["lastTransitionTime"]
        return status


_OWN_FIELDS = {"active", "ready", "terminating", "succeeded", "failed", "completedIndexes", "failedIndexes"}
_OWN_FIELDS |= {"uncountedTerminatedPods", "conditions", "startTime", "completionTime"}


def _is_leaving(pod: Manifest) -> bool:
    return rules.is_terminating(pod) or rules.phase(pod) in rules.ENDED


def _progress(pod: Manifest) -> tuple[bool, bool, bool, str]:
    """Least work lost first: unassigned, not running, not ready."""
    assigned, running = bool(pod["spec"].get("nodeName")), rules.phase(pod) == "Running"
    return assigned, running, rules.is_ready(pod), pod["metadata"]["name"]
