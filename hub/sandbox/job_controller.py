"""The batch/v1 Job controller at work: keeps each Job's pods at hand, asks `jobs.reconcile` and does what it says."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from hub.kueue.api.meta import ObjectKey, key_of
from hub.kueue.api.resources import JOBS, PODS
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.errors import ApiError
from hub.sandbox.inprocess import drop_finalizer
from hub.sandbox.job_pods import FINALIZER, is_tracked
from hub.sandbox.job_policies import ENDED, is_ready, is_terminating, phase, restarts
from hub.sandbox.job_state import Backoff, JobPace, condition
from hub.sandbox.jobs import Plan, PodRemoval, expires_at, finished, is_ours, reconcile
from hub.sandbox.observer import Completion, Observer, Source
from hub.sandbox.recorder import Recorder
from hub.sandbox.timers import Timers
from hub.sandbox.worklist import Worklist

log = logging.getLogger(__name__)

Manifest = Mapping[str, Any]

COMPONENT = "job-controller"
#: A Job is looked at again this long after a change of a pod, per pod that it has: a turn costs that much more, too.
BATCH_S_PER_POD = 0.0005
BATCH_MOST_S = 1.0
#: Jobs of so few pods are looked at at once.
BATCH_FROM = 20
RETRY_S = 1.0


class JobController:
    def __init__(
        self,
        server: ApiServer,
        timers: Timers,
        pace: JobPace,
        observer: Observer,
        recorder: Recorder,
        source_of: Callable[[Manifest], Source],
    ) -> None:
        self.server, self.timers, self.pace = server, timers, pace
        self.observer, self.recorder, self._source_of = observer, recorder, source_of
        self.worklist: Worklist[ObjectKey] = Worklist(timers, self._sync)
        self._expiring: Worklist[ObjectKey] = Worklist(timers, self._expire)
        #: uid of each Job -> its key; of Jobs that are there.
        self._jobs: dict[str, ObjectKey] = {}
        #: Job uid -> pod uid -> pod: those that still matter, not those that ended and were counted.
        self._pods: dict[str, dict[str, Manifest]] = defaultdict(dict)
        self._backoff: dict[str, Backoff] = {}
        self._over: set[str] = set()
        #: uid of the Job whose status is being written just now.
        self._writing = ""

    def job_changed(self, change: str, job: Manifest) -> None:
        uid, key = job["metadata"]["uid"], key_of(job)
        if change == "DELETED":
            self._forget(uid)
            return
        self._jobs[uid] = key
        if uid != self._writing:  # our own words are no news
            self.worklist.add(key)
        if uid not in self._over and finished(job) is not None and is_ours(job):
            self._over.add(uid)
            self._note_end(job)

    def pod_changed(self, change: str, pod: Manifest) -> None:
        if (owner := controller_of(pod)) is None or owner["kind"] != "Job":
            return
        uid, pod_uid = owner["uid"], pod["metadata"]["uid"]
        known = self._pods[uid].get(pod_uid)
        if change == "DELETED" or (phase(pod) in ENDED and not is_tracked(pod)):
            self._pods[uid].pop(pod_uid, None)
        else:
            self._pods[uid][pod_uid] = pod
            if known is not None and _what_counts(known) == _what_counts(pod):
                return
        if (job := self._jobs.get(uid)) is not None:
            number = len(self._pods[uid])
            batch_s = min(BATCH_MOST_S, number * BATCH_S_PER_POD) if number > BATCH_FROM else 0.0
            self.worklist.add_later(job, batch_s)
        elif change != "DELETED":
            self._release_orphan(pod)

    # --- inside ---

    def _forget(self, uid: str) -> None:
        self._jobs.pop(uid, None)
        self._backoff.pop(uid, None)
        self._over.discard(uid)
        for pod in list(self._pods.pop(uid, {}).values()):
            self._release_orphan(pod)

    def _release_orphan(self, pod: Manifest) -> None:
        """Nobody will count the pods of a Job that is gone."""
        if is_tracked(pod):
            key = key_of(pod)
            self.timers.soon(lambda: drop_finalizer(self.server, PODS, key, FINALIZER))

    def _note_end(self, job: Manifest) -> None:
        succeeded = condition(job["status"], "Complete") is not None
        self.observer.completed(Completion(source=self._source_of(job), at=self.timers.clock(), succeeded=succeeded))
        if (at := expires_at(job)) is not None:
            self._expiring.add_later(key_of(job), at - self.server.clock())

    def _expire(self, key: ObjectKey) -> None:
        job = self.server.get(JOBS, key)
        if job is None or (at := expires_at(job)) is None:
            return
        if (left_s := at - self.server.clock()) > 0:
            self._expiring.add_later(key, left_s)
        else:
            self.server.delete(JOBS, key, "Foreground")

    def _sync(self, key: ObjectKey) -> None:
        if (job := self.server.get(JOBS, key)) is None:
            return
        uid = job["metadata"]["uid"]
        pods = list(self._pods[uid].values()) if uid in self._pods else []
        plan = reconcile(job, pods, self.server.clock(), backoff=self._backoff.get(uid), pace=self.pace)
        if plan.backoff.failures:
            self._backoff[uid] = plan.backoff
        else:
            self._backoff.pop(uid, None)
        try:
            self._apply(job, plan)
        except ApiError as error:
            log.warning("%s: the Job %s is looked at again in %.0f s: %s", self.server.name, key, RETRY_S, error)
            self.worklist.add_later(key, RETRY_S)

    def _apply(self, job: Manifest, plan: Plan) -> None:
        key = key_of(job)
        for removal in plan.remove:
            self._remove(removal)
        missing = sum(not self._create(job, pod) for pod in plan.create)
        if missing:
            self.worklist.add_later(key, RETRY_S)
        self._write(job, plan.interim, missing)
        for pod in plan.release:
            drop_finalizer(self.server, PODS, pod, FINALIZER)
        self._write(job, plan.status, missing)
        for event in plan.events:
            self.recorder.emit(COMPONENT, job, event.type, event.reason, event.message)
        if plan.again_in_s is not None:
            self.worklist.add_later(key, plan.again_in_s)

    def _remove(self, removal: PodRemoval) -> None:
        if not removal.counted:
            drop_finalizer(self.server, PODS, removal.key, FINALIZER)
        self.server.delete(PODS, removal.key)

    def _create(self, job: Manifest, pod: dict[str, Any]) -> bool:
        try:
            made = self.server.create(PODS, pod)
        except ApiError as error:
            self.recorder.emit(COMPONENT, job, "Warning", "FailedCreate", f"Error creating: {error}")
            return False
        self.recorder.emit(COMPONENT, job, "Normal", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}")
        return True

    def _write(self, job: Manifest, status: dict[str, Any] | None, missing: int) -> None:
        if status is None:
            return
        if missing:
            status = {**status, "active": status.get("active", 0) - missing}
        meta = {name: job["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "status": status}
        self._writing = meta["uid"]
        try:
            self.server.update(JOBS, body, "status")
        finally:
            self._writing = ""


def _what_counts(pod: Manifest) -> tuple[str, bool, bool, bool, int]:
    """All that a Job may be interested in."""
    return phase(pod), is_ready(pod), is_terminating(pod), is_tracked(pod), restarts(pod)


def controller_of(obj: Manifest) -> Manifest | None:
    """The owner reference that is marked as the controller."""
    return next((o for o in obj["metadata"].get("ownerReferences") or () if o.get("controller")), None)
