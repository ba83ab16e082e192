"""One look at a job and its Workload: what to do next, so that both agree. Level-triggered: the same look, the same answer.

     1  job being deleted            let its Workload go, once nothing runs
     2  not ours                     no queue name, a namespace left out, part of a job that is managed as a whole
     3  management cluster only      a job that another controller runs is not dispatched: say so
     4  one Workload                 find it, adopt it (prebuilt), delete doubles, or create it while the job rests
     5  Workload finished            nothing may run any more; the finalizer goes
     6  Workload being deleted       stop the job, then the finalizer goes
     7  job finished                 Workload Finished
     8  out of step                  pods that are not what was admitted: stop first, then update, replace or finish
     9  what the user may change     queue, priority, execution time
    10  reclaimable pods, PodsReady
    11  evicted                      stop; give the quota back only when nothing is active (kueue#14395)
    12  admitted and suspended       start
    13  running and not admitted     stop

The first rule that has something to do ends the look; its writes come back as a change and cause the next one.

On the management cluster nothing ever runs: the job's managedBy keeps its own controller away, `started` only lifts the
suspension, and what is active is what has been placed on a worker and not been seen stopped there.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from hub.kueue.api.decoding import document
from hub.kueue.api.errors import DecodeError
from hub.kueue.api.meta import Instant, key_of
from hub.kueue.api.resources import WORKLOADS
from hub.kueue.api.v1beta2 import PodSet, ResourceFlavor, Workload, WorkloadPriorityClass, WorkloadStatus, encode, names
from hub.kueue.integrations import compose
from hub.kueue.integrations.interface import Integration, Manifest
from hub.kueue.integrations.templates import annotations_of, first_difference
from hub.kueue.operations import (
    Create,
    Delete,
    EmitEvent,
    EventType,
    Operation,
    Patch,
    RequeueAfter,
    merge_patch_between,
)
from hub.kueue.workloads import lifecycle
from hub.kueue.workloads.lifecycle import State, state_of, status_patch
from hub.kueue.workloads.pod_sets import Clash, PodSetInfo, infos_of_admission, infos_of_spec, merged

#: How soon to look again for something that will appear without telling us.
RETRY_S = 5.0

#: Reason of the event that comes with the first write of every stop.
STOPPED = "Stopped"

Operations = list[Operation | RequeueAfter]


class Policy(StrEnum):
    #: The management cluster: jobs are dispatched to workers.
    MANAGER = "Manager"
    #: A worker: jobs run here.
    WORKER = "Worker"


class Context(Struct, frozen=True, kw_only=True):
    """What else is known on this cluster."""

    policy: Policy
    flavors: Mapping[str, ResourceFlavor] = {}
    priority_classes: Mapping[str, WorkloadPriorityClass] = {}
    pod_priority_classes: Mapping[str, Manifest] = {}
    #: (apiVersion, kind) of every enabled integration.
    managed_kinds: frozenset[tuple[str, str]] = frozenset()
    excluded_namespaces: frozenset[str] = frozenset({"kube-system"})
    manage_jobs_without_queue_name: bool = False
    label_keys_to_copy: tuple[str, ...] = ()
    #: Write PodsReady, which the time limits of waitForPodsReady go by.
    reports_pods_ready: bool = True
    #: MANAGER: the Workload is placed on a worker, and has not been seen stopped there.
    placed: bool = False


class _Look(Struct, frozen=True, kw_only=True):
    """One job with all that is looked at."""

    integration: Integration
    job: Manifest
    context: Context
    now: Instant

    @property
    def suspended(self) -> bool:
        return self.integration.suspended(self.job)

    @property
    def active(self) -> bool:
        if self.context.policy is Policy.MANAGER:
            return self.context.placed
        return self.integration.active(self.job)

    def event(self, kind: EventType, reason: str, message: str) -> EmitEvent:
        return EmitEvent(
            resource=self.integration.resource,
            key=key_of(self.job),
            uid=self.job["metadata"].get("uid", ""),
            type=kind,
            reason=reason,
            message=message,
        )

    def again(self) -> RequeueAfter:
        return RequeueAfter(resource=self.integration.resource, key=key_of(self.job), delay_s=RETRY_S)


def reconcile(
    integration: Integration, job: Manifest, workloads: Sequence[Workload], context: Context, now: Instant
) -> Operations:
    """What to do about this job. `workloads`: those that it controls, and the one that it names as prebuilt."""
    look = _Look(integration=integration, job=job, context=context, now=now)
    if job["metadata"].get("deletionTimestamp"):
        return _let_go(look, workloads)
    if not is_managed(job, context):
        return []
    if context.policy is Policy.MANAGER and integration.managed_by(job) != names.MANAGED_BY_MULTIKUEUE:
        return _not_dispatched(look)
    mine, doubles = _own(look, workloads)
    if doubles:
        return [step for double in doubles for step in _removed(double)]
    if mine is None:
        return _missing(look)
    return _together(look, mine)


def is_managed(job: Manifest, context: Context) -> bool:
    """Is the job for us to queue? A copy that a hub placed here is not: it has its quota, and who placed it looks after it."""
    if names.PLACEMENT in annotations_of(job):
        return False
    if job["metadata"].get("namespace", "") in context.excluded_namespaces:
        return False
    if compose.managed_ancestor(job, context.managed_kinds):
        return False
    return bool(compose.queue_name(job)) or context.manage_jobs_without_queue_name


def orphaned(workload: Workload, now: Instant, *, placed: bool = False) -> Operations:
    """What to do about a Workload whose job does not exist (any more).

    `placed`: its copy on a worker has not been seen stopped yet; until then its quota stays taken.
    """
    if placed:
        return []
    if workload.metadata.deletion_timestamp:
        return _without_finalizer(workload)
    state = state_of(workload)
    if state is State.FINISHED:
        return _without_finalizer(workload)
    if compose.controller_of(workload) is not None or names.JOB_UID in workload.metadata.labels:
        reason = names.FinishedReason.OWNER_NOT_FOUND
        return _wrote(workload, lifecycle.finish(workload, reason, "The job of this workload does not exist", now))
    if state is State.EVICTED:  # nothing was ever started for it
        return _wrote(workload, lifecycle.release(workload, now))
    return []


# --- rules 1 to 4 --------------------------------------------------------------------------------------------------------


def _let_go(look: _Look, workloads: Sequence[Workload]) -> Operations:
    if look.active:
        return []
    return [step for workload in workloads if _owned_by(workload, look.job) for step in _without_finalizer(workload)]


def _not_dispatched(look: _Look) -> Operations:
    """ManagedBy cannot be changed any more, so the user has to create the job again."""
    if look.integration.finished(look.job) is not None:
        return []
    message = (
        f"The job is not dispatched: spec.managedBy is {look.integration.managed_by(look.job)!r} and not "
        f"{names.MANAGED_BY_MULTIKUEUE}. Create it with that value, or install the hub's webhook, which sets it"
    )
    warning = look.event("Warning", "NotDispatched", message)
    return [*_stopped(look, []), warning]


def _own(look: _Look, workloads: Sequence[Workload]) -> tuple[Workload | None, list[Workload]]:
    """The one Workload of this job, and those that it controls besides."""
    mine = [w for w in workloads if _owned_by(w, look.job)]
    if prebuilt := compose.prebuilt_name(look.job):
        chosen = next((w for w in workloads if w.metadata.name == prebuilt), None)
        return chosen, [w for w in mine if w is not chosen] if chosen else []
    expected = compose.name_for(look.integration, look.job)
    mine.sort(key=lambda w: (w.metadata.name != expected, w.metadata.creation_timestamp or "", w.metadata.name))
    return (mine[0], mine[1:]) if mine else (None, [])


def _missing(look: _Look) -> Operations:
    if look.integration.finished(look.job):
        return []
    if not look.suspended:
        return _stopped(look, [])
    if compose.prebuilt_name(look.job) or look.active:
        return []  # its appearance, or the end of the last pod, is the next look
    try:
        pod_sets = look.integration.pod_sets(look.job)
    except DecodeError as error:
        return [look.event("Warning", "ErrWorkloadCompose", f"No Workload can be made of this job: {error}")]
    priority = _priority(look, pod_sets)
    if isinstance(priority, compose.MissingClass):
        reason = f"{priority.ref.kind}NotFound"
        return [look.event("Warning", reason, f"No Workload is made of this job: {priority}"), look.again()]
    workload = compose.compose(look.integration, look.job, pod_sets, priority, look.context.label_keys_to_copy)
    key = workload.metadata.key
    return [
        Create(resource=WORKLOADS, key=key, manifest=encode(workload)),
        look.event("Normal", "CreatedWorkload", f"Created Workload {key}"),
    ]


def _priority(look: _Look, pod_sets: Sequence[PodSet]) -> compose.Priority | compose.MissingClass:
    context = look.context
    return compose.priority_of(
        look.integration, look.job, pod_sets, context.priority_classes, context.pod_priority_classes
    )


# --- rules 5 to 13 -------------------------------------------------------------------------------------------------------


def _together(look: _Look, workload: Workload) -> Operations:
    state = state_of(workload)
    if not _owned_by(workload, look.job):
        return _adopted(look, workload)
    if state is State.FINISHED:
        return _stopped(look, infos_of_spec(workload)) or _without_finalizer(workload)
    if workload.metadata.deletion_timestamp:
        return _stopped(look, infos_of_spec(workload)) or ([] if look.active else _without_finalizer(workload))
    if (outcome := look.integration.finished(look.job)) is not None:
        reason = names.FinishedReason.SUCCEEDED if outcome.succeeded else names.FinishedReason.FAILED
        return [
            *_wrote(workload, lifecycle.finish(workload, reason, outcome.message, look.now)),
            look.event("Normal", "FinishedWorkload", f"Workload {workload.metadata.key} is finished"),
        ]
    if look.integration.stopping(look.job):  # a stop that has begun ends before anything else is decided
        return _stopped(look, infos_of_spec(workload))
    for rule in (_in_step, _as_the_user_says, _progress):
        if (found := rule(look, workload)) is not None:
            return found
    if state is State.EVICTED:
        return _evicted(look, workload)
    if state is State.ADMITTED and look.suspended:
        return _started(look, workload)
    if state is not State.ADMITTED and not look.suspended:
        return _stopped(look, infos_of_spec(workload), "The workload is not admitted")
    return _forgotten(look)


def _adopted(look: _Look, workload: Workload) -> Operations:
    """A prebuilt Workload becomes the job's own, unless it is somebody else's."""
    other = compose.controller_of(workload)
    if other is not None:
        message = f"Workload {workload.metadata.key} belongs to {other.kind} {other.name}"
        return [*_stopped(look, []), look.event("Warning", "WorkloadNameConflict", message)]
    owners = [*workload.metadata.owner_references, compose.owner_reference(look.integration, look.job)]
    body = {
        "ownerReferences": [document(owner) for owner in owners],
        "labels": {names.JOB_UID: look.job["metadata"].get("uid", "")},
    }
    return [_patch(workload, {"metadata": body})]


def _in_step(look: _Look, workload: Workload) -> Operations | None:
    """None: nothing is out of step."""
    difference = _difference(look, workload)
    if not difference:
        return None
    if compose.prebuilt_name(look.job):
        stop = _stopped(look, infos_of_spec(workload), f"The job differs from its workload: {difference}")
        if stop or look.active:
            return stop
        message = f"The job differs from its workload: {difference}"
        return _wrote(workload, lifecycle.finish(workload, names.FinishedReason.OUT_OF_SYNC, message, look.now))
    if state_of(workload) is State.PENDING and look.suspended:
        pod_sets = [document(pod_set) for pod_set in look.integration.pod_sets(look.job)]
        message = f"Updated Workload {workload.metadata.key}: {difference}"
        return [
            _patch(workload, {"spec": {"podSets": pod_sets}}),
            look.event("Normal", "UpdatedWorkload", message),
        ]
    stop = _stopped(look, infos_of_spec(workload), f"The job was changed: {difference}")
    if stop or look.active:
        return stop
    message = f"Deleted Workload {workload.metadata.key}: the job was changed, {difference}"
    return [*_removed(workload), look.event("Normal", "DeletedWorkload", message)]


def _difference(look: _Look, workload: Workload) -> str:
    """The first field in which the job's pods are not those of the Workload; "" when none is, or nobody can say."""
    want = _expected(look, workload)
    try:
        have = look.integration.pod_sets(look.job)
    except DecodeError:
        return ""
    if want is None:
        return ""
    if [p.name for p in want] != [p.name for p in have]:
        return f"podSets: {[p.name for p in have]} instead of {[p.name for p in want]}"
    return next((found for pair in zip(want, have, strict=True) if (found := first_difference(*pair))), "")


def _expected(look: _Look, workload: Workload) -> list[PodSet] | None:
    """The pod sets that the job should have now. None: not to be told, it must stop anyway or a flavor is missing."""
    spec = workload.spec.pod_sets
    if look.context.policy is Policy.MANAGER or look.suspended:
        return spec
    if state_of(workload) is not State.ADMITTED:
        return None
    infos, problems = infos_of_admission(workload, look.context.flavors)
    if problems:
        return None
    return [
        structs.replace(pod_set, template=merged(pod_set.template, info)[0], count=info.count)
        for pod_set, info in zip(spec, infos, strict=True)
    ]


def _as_the_user_says(look: _Look, workload: Workload) -> Operations | None:
    """Queue, priority and execution time follow the job's labels, as far as they may change in this state."""
    if compose.prebuilt_name(look.job):
        return None
    spec, changes = workload.spec, dict[str, Any]()
    pending = state_of(workload) is State.PENDING
    if pending and spec.queue_name != (queue := compose.queue_name(look.job)):
        changes["queueName"] = queue
    if pending and spec.maximum_execution_time_seconds != (limit_s := compose.max_exec_time_s(look.job)):
        changes["maximumExecutionTimeSeconds"] = limit_s
    priority = _priority(look, spec.pod_sets)
    if isinstance(priority, compose.Priority) and (pending or _same_kind_of_class(priority, workload)):
        if spec.priority != priority.value:
            changes["priority"] = priority.value
        if spec.priority_class_ref != priority.ref:
            changes["priorityClassRef"] = document(priority.ref) if priority.ref else None
    return [_patch(workload, {"spec": changes})] if changes else None


def _same_kind_of_class(priority: compose.Priority, workload: Workload) -> bool:
    """With quota reserved only the name and value of a WorkloadPriorityClass may change."""
    before = workload.spec.priority_class_ref
    kind = names.WORKLOAD_PRIORITY_CLASS_REF[1]
    return priority.ref is not None and before is not None and priority.ref.kind == before.kind == kind


def _progress(look: _Look, workload: Workload) -> Operations | None:
    integration, job, now = look.integration, look.job, look.now
    after = lifecycle.reclaim(workload, integration.reclaimable(job))
    if look.context.reports_pods_ready:
        ready = not look.suspended and integration.pods_ready(job)
        after = lifecycle.pods_ready(structs.replace(workload, status=after), ready, now)
    return _wrote(workload, after) or None


def _evicted(look: _Look, workload: Workload) -> Operations:
    evicted = next(c for c in workload.status.conditions if c.type == names.EVICTED)
    stop = _stopped(look, infos_of_spec(workload), evicted.message)
    if stop or look.active:
        return stop
    return _wrote(workload, lifecycle.release(workload, look.now))


def _started(look: _Look, workload: Workload) -> Operations:
    problems: Sequence[object]
    if look.context.policy is Policy.MANAGER:
        infos = [PodSetInfo(name=p.name, count=p.count) for p in workload.spec.pod_sets]
        problems = []
    else:
        infos, problems = infos_of_admission(workload, look.context.flavors)
    after, clashes = look.integration.started(look.job, infos)
    problems = [*problems, *clashes]
    if any(isinstance(problem, Clash) for problem in problems):
        message = "The job cannot start: " + "; ".join(str(problem) for problem in problems)
        reason = names.FinishedReason.FAILED_TO_START
        return [
            *_wrote(workload, lifecycle.finish(workload, reason, message, look.now)),
            look.event("Warning", reason, message),
        ]
    if problems:
        return [look.event("Warning", "FlavorNotFound", "; ".join(str(p) for p in problems)), look.again()]
    admission = workload.status.admission
    queue = admission.cluster_queue if admission else ""
    return [
        _changed(look, after),
        look.event("Normal", "Started", f"Admitted by ClusterQueue {queue}"),
    ]


def _forgotten(look: _Look) -> Operations:
    """MANAGER: a status that tells of pods on a worker which has none of this job any more."""
    if look.context.policy is Policy.WORKER or look.context.placed or not look.suspended:
        return []
    patch = look.integration.withdrawn(look.job)
    return [patch] if patch else []


# --- the words of it -----------------------------------------------------------------------------------------------------


def _owned_by(workload: Workload, job: Manifest) -> bool:
    owner = compose.controller_of(workload)
    return owner is not None and owner.uid == job["metadata"].get("uid", "")


def _stopped(look: _Look, infos: Sequence[PodSetInfo], why: str = "") -> Operations:
    """The next write of a stop; empty when the job rests, or has ended by itself."""
    if look.suspended or look.integration.finished(look.job) is not None:
        return []
    patch = look.integration.stop(look.job, infos)
    if patch is None:
        return []
    if look.integration.stopping(look.job):
        return [patch]
    return [patch, look.event("Normal", STOPPED, why or "The job has no workload")]


def _changed(look: _Look, after: Manifest) -> Patch:
    meta = look.job["metadata"]
    return Patch(
        resource=look.integration.resource,
        key=key_of(look.job),
        body=merge_patch_between(look.job, after),
        resource_version=meta.get("resourceVersion"),
        uid=meta.get("uid"),
    )


def _wrote(workload: Workload, after: WorkloadStatus) -> Operations:
    patch = status_patch(workload, after)
    return [patch] if patch else []


def _removed(workload: Workload) -> Operations:
    """Delete it; the finalizer goes with the look that sees it being deleted."""
    if workload.metadata.deletion_timestamp:
        return _without_finalizer(workload)
    return [Delete(resource=WORKLOADS, key=workload.metadata.key, uid=workload.metadata.uid)]


def _without_finalizer(workload: Workload) -> Operations:
    finalizers = workload.metadata.finalizers
    if names.RESOURCE_IN_USE not in finalizers:
        return []
    rest = [name for name in finalizers if name != names.RESOURCE_IN_USE]
    return [_patch(workload, {"metadata": {"finalizers": rest or None}})]


def _patch(workload: Workload, body: dict[str, Any]) -> Patch:
    meta = workload.metadata
    return Patch(
        resource=WORKLOADS,
        key=meta.key,
        body=body,
        resource_version=meta.resource_version or None,
        uid=meta.uid or None,
    )
