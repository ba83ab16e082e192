"""Pure: what the hub wants and what is here -> operations on this cluster, and what to tell the hub.

    Run, generation g    nothing here ──▶ Workload ──▶ admitted ──▶ Job, already started ──▶ finished
                             │ foreign name, no queue       │ local admission says no, or takes it back
                             ▼                              ▼
                          Refused                    Job away, pods gone, Workload away ──▶ Refused | Evicted
    Withdraw | unknown   Job away, pods gone, Workload away ──▶ Gone

The objects are the agent's memory. Both carry the origin mark, the placement and its generation; anything without our
mark is foreign and is never touched. The Job carries a finalizer of ours, so it cannot vanish unseen: whoever deletes it,
and whenever the agent was down meanwhile, its end is still there to be read. Hence a Job that is not there was never
created, and creating it is safe. Taking a copy away begins with the deletion of its Workload, which our finalizer holds
until the rest is gone: a Workload on its way out means that no Job may be created for it any more.

"Nothing is left" means no Job, no pod and no Workload: only then does the agent say Gone, Refused or Evicted, because
that word lets the hub start the work elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from hub.kueue.api import resources
from hub.kueue.api.meta import Condition, Instant, ObjectKey, Resource, find_condition, is_true, key_of, parse_time
from hub.kueue.api.v1beta2 import ResourceFlavor, Workload, decode_as, encode, names
from hub.kueue.integrations.interface import Integration, Outcome
from hub.kueue.integrations.registry import integration_for
from hub.kueue.integrations.templates import first_difference
from hub.kueue.operations import Create, Delete, Operation, Patch
from hub.kueue.wire import Action, Intent, Phase, PlacementReport, PodSetFlavors, Refusal
from hub.kueue.workloads import lifecycle, pod_sets

#: Reasons of QuotaReserved=False that will not change by themselves soon: the hub should look elsewhere at once.
NO_FOR_GOOD = {
    "NoMatchingFlavor": Refusal.FLAVOR_MISSING,
    "ExceedsMaxQuota": Refusal.NO_QUOTA,
    "Misconfigured": Refusal.INVALID_OBJECT,
    "TopologyPlacementFailed": Refusal.HOLE_TOO_SMALL,
    "OnHold": Refusal.NO_QUOTA,
    "Deactivated": Refusal.NO_QUOTA,
    "WaitingForQuota": Refusal.NO_QUOTA,
}


_WORKLOAD_DELETED = "the Workload was deleted on this cluster"


class Policy(Struct, frozen=True, kw_only=True):
    origin: str
    create_namespaces: bool = False
    create_local_queues: bool = False
    default_cluster_queue: str = ""
    #: How long local admission may leave a copy undecided before the agent refuses it.
    admit_within_s: float = 60.0


class Scene(Struct, frozen=True, kw_only=True):
    """The cluster around one placement. `synced` is false until every cache is complete."""

    namespaces: frozenset[str]
    #: LocalQueue -> its ClusterQueue.
    local_queues: Mapping[ObjectKey, str]
    cluster_queues: frozenset[str]
    flavors: Mapping[str, ResourceFlavor]
    kinds: frozenset[str]


class Copy(Struct, frozen=True, kw_only=True):
    """What carries the names of one placement here: ours or not."""

    workload: dict[str, Any] | None = None
    job: dict[str, Any] | None = None
    #: Pods with this placement's label that still exist.
    pods: int = 0


class Step(Struct, frozen=True, kw_only=True):
    """One look at one placement: what to do now and what to tell the hub."""

    operations: tuple[Operation, ...] = ()
    report: PlacementReport | None = None
    #: The copy is being taken away; this is to be said when nothing is left of it. Hand it to the next `step`.
    ending: PlacementReport | None = None
    #: Look again after so many seconds even if nothing changes.
    again_s: float | None = None


def kind_text(resource: Resource) -> str:
    """As capacity reports name kinds: "batch/v1, Job"."""
    return f"{resource.api_version}, {resource.kind}"


def mark_of(manifest: Mapping[str, Any] | None, origin: str) -> tuple[str, int] | None:
    """(placement, generation) of an object of ours; None for a foreign one, or none at all."""
    if manifest is None:
        return None
    meta = manifest["metadata"]
    placement = (meta.get("annotations") or {}).get(names.PLACEMENT)
    if (meta.get("labels") or {}).get(names.MULTIKUEUE_ORIGIN) != origin or not placement:
        return None
    return placement, int(meta["annotations"].get(names.GENERATION, "0"))


def step(
    intent: Intent,
    copy: Copy,
    scene: Scene,
    integration: Integration | None,
    policy: Policy,
    now: Instant,
    ending: PlacementReport | None = None,
    *,
    end_is_known: bool = False,
) -> Step:
    """Bring the copy of one placement nearer to its intent. Level-triggered: call it again whenever something changed.

    `end_is_known`: the hub has stored that this placement finished.
    """
    if intent.action is Action.WITHDRAW:
        return _withdraw(intent, copy, policy, now, end_is_known=end_is_known)
    if ending is not None and ending.generation == intent.generation:
        return _take_away(ending, copy, policy)
    if "spec" not in intent.job and copy.job is None:
        lost = "the agent restarted before it had created the Job"
        return _take_away(_report(intent, Phase.EVICTED, Refusal.DISAPPEARED, lost), copy, policy)
    if integration is None or kind_text(integration.resource) not in scene.kinds:
        kind = intent.job.get("kind", "?")
        return _refuse(
            intent, Refusal.KIND_NOT_SERVED, f"this cluster does not serve {intent.job.get('apiVersion')} {kind}"
        )
    if foreign := _foreign(intent, copy, policy):
        return _refuse(intent, Refusal.NAME_TAKEN, foreign)
    if _leftover(intent, copy, policy):
        return Step(
            report=_report(intent, Phase.PENDING, "WaitingForRemoval", "an earlier copy is still being removed")
        )
    if copy.job is not None and (finished := integration.finished(copy.job)):
        return _finish(intent, copy, finished, now)
    if copy.workload is None:
        return _begin(intent, copy, scene, policy)
    if copy.workload["metadata"].get("deletionTimestamp"):
        return _take_away(_report(intent, Phase.EVICTED, Refusal.DISAPPEARED, _WORKLOAD_DELETED), copy, policy)
    workload = decode_as(Workload, copy.workload)
    if copy.job is None:
        return _before_the_job(intent, workload, scene, integration, policy, now)
    return _with_the_job(intent, workload, copy, scene, integration, policy)


def adopted(copy: Copy, policy: Policy) -> Intent | None:
    """The intent behind a copy that was here before this process: as much of it as its objects tell.

    The hub does not send an acknowledged intent again, and it was acknowledged only once the Job stood here. What such
    an intent lacks is the job as submitted, so nothing can be created from it.
    """
    marked = copy.workload or copy.job
    mark = mark_of(marked, policy.origin)
    if mark is None or marked is None:
        return None
    job = copy.job or {}
    return Intent(
        placement=mark[0],
        generation=mark[1],
        action=Action.RUN,
        namespace=marked["metadata"].get("namespace", ""),
        workload=copy.workload["metadata"]["name"] if copy.workload else "",
        job={part: job[part] for part in ("apiVersion", "kind") if part in job},
    )


def _withdraw(intent: Intent, copy: Copy, policy: Policy, now: Instant, *, end_is_known: bool) -> Step:
    """A job that finished before the hub's withdrawal came has finished: say so, or the hub would start it once more."""
    job = copy.job if _is_of(copy.job, intent.placement, policy) else None
    integration = integration_for(job["apiVersion"], job["kind"]) if job is not None else None
    outcome = integration.finished(job) if integration is not None and job is not None else None
    if outcome is not None and not end_is_known:
        return _finish(intent, copy, outcome, now)
    return withdraw(intent.placement, intent.generation, copy, policy)


def withdraw(placement: str, generation: int, copy: Copy, policy: Policy) -> Step:
    """Remove what is ours of this placement: the Job, then its pods, then the Workload. Gone when nothing is left."""
    operations, nothing_left = _remove(placement, copy, policy)
    if nothing_left:
        return Step(report=PlacementReport(placement=placement, generation=generation, phase=Phase.GONE))
    return Step(operations=operations)


# --- running ---------------------------------------------------------------------------------------------------------


def _begin(intent: Intent, copy: Copy, scene: Scene, policy: Policy) -> Step:
    if copy.job is not None:
        # Somebody deleted the Workload: the Job runs without quota here, so it goes, and the hub places it anew.
        return _take_away(_report(intent, Phase.EVICTED, Refusal.DISAPPEARED, _WORKLOAD_DELETED), copy, policy)
    operations: list[Operation] = []
    if intent.namespace not in scene.namespaces:
        if not policy.create_namespaces:
            return _refuse(intent, Refusal.NAMESPACE_MISSING, f"namespace {intent.namespace} does not exist here")
        operations.append(_create(resources.NAMESPACES, {"metadata": {"name": intent.namespace}}))
    if ObjectKey(intent.namespace, intent.local_queue) not in scene.local_queues:
        target = intent.cluster_queue if intent.cluster_queue in scene.cluster_queues else policy.default_cluster_queue
        if not policy.create_local_queues or target not in scene.cluster_queues:
            return _refuse(intent, Refusal.LOCAL_QUEUE_MISSING, _no_queue(intent, target, policy))
        operations.append(_create(resources.LOCAL_QUEUES, _local_queue(intent, target)))
    operations.append(_create(resources.WORKLOADS, remote_workload(intent, policy)))
    return Step(operations=tuple(operations), report=_report(intent, Phase.PENDING))


def _before_the_job(
    intent: Intent, workload: Workload, scene: Scene, integration: Integration, policy: Policy, now: Instant
) -> Step:
    copy = Copy(workload=encode(workload))
    conditions = workload.status.conditions
    if is_true(conditions, names.EVICTED):
        evicted = _condition(workload, names.EVICTED)
        return _take_away(_report(intent, Phase.EVICTED, evicted.reason, evicted.message), copy, policy)
    if is_true(conditions, names.ADMITTED):
        job, problem = remote_job(intent, workload, scene.flavors, integration, policy)
        if isinstance(problem, pod_sets.MissingFlavor):
            return Step(report=_report(intent, Phase.PENDING, Refusal.FLAVOR_MISSING, str(problem)))
        if problem is not None:
            return _take_away(_report(intent, Phase.REFUSED, Refusal.INVALID_OBJECT, str(problem)), copy, policy)
        report = _report(intent, Phase.ADMITTED, pod_sets=_assigned(workload))
        return Step(operations=(_create(integration.resource, job),), report=report)
    return _undecided(intent, workload, copy, policy, now)


def _undecided(intent: Intent, workload: Workload, copy: Copy, policy: Policy, now: Instant) -> Step:
    reserved = _condition(workload, names.QUOTA_RESERVED)
    if reserved.status == "False" and (refusal := NO_FOR_GOOD.get(reserved.reason)):
        return _take_away(_report(intent, Phase.REFUSED, refusal, reserved.message), copy, policy)
    waited_s = now - parse_time(workload.metadata.creation_timestamp or "1970-01-01T00:00:00Z")
    if waited_s >= policy.admit_within_s:
        message = f"local admission did not decide within {policy.admit_within_s:g} s: {reserved.message or 'no reason given'}"
        return _take_away(_report(intent, Phase.REFUSED, Refusal.NOT_ADMITTED_IN_TIME, message), copy, policy)
    report = _report(intent, Phase.PENDING, reserved.reason, reserved.message)
    return Step(report=report, again_s=policy.admit_within_s - waited_s)


def _with_the_job(
    intent: Intent, workload: Workload, copy: Copy, scene: Scene, integration: Integration, policy: Policy
) -> Step:
    job = copy.job
    assert job is not None
    if job["metadata"].get("deletionTimestamp"):
        return _take_away(
            _report(intent, Phase.EVICTED, Refusal.DISAPPEARED, "the Job was deleted on this cluster"), copy, policy
        )
    if is_true(workload.status.conditions, names.EVICTED) or not is_true(workload.status.conditions, names.ADMITTED):
        evicted = _condition(workload, names.EVICTED)
        return _take_away(
            _report(intent, Phase.EVICTED, evicted.reason or "NoReservation", evicted.message), copy, policy
        )
    if changed := _changed(intent, workload, job, scene, integration, policy):
        message = f"changed by cluster policy: {changed}"
        return _take_away(_report(intent, Phase.REFUSED, Refusal.CHANGED_BY_POLICY, message), copy, policy)
    phase = Phase.RUNNING if integration.active(job) else Phase.ADMITTED
    return Step(report=_report(intent, phase, job_status=job.get("status"), pod_sets=_assigned(workload)))


def _finish(intent: Intent, copy: Copy, outcome: Outcome, now: Instant) -> Step:
    """What finished stays finished, whatever becomes of the Workload: its end is told until the hub takes the copy back."""
    assert copy.job is not None
    reason = names.FinishedReason.SUCCEEDED if outcome.succeeded else names.FinishedReason.FAILED
    workload = decode_as(Workload, copy.workload) if copy.workload else None
    operations: tuple[Operation, ...] = ()
    if workload is not None and not is_true(workload.status.conditions, names.FINISHED):
        patch = lifecycle.status_patch(workload, lifecycle.finish(workload, reason, outcome.message, now))
        operations = (patch,) if patch is not None else ()
    report = PlacementReport(
        placement=intent.placement,
        generation=intent.generation,
        phase=Phase.FINISHED,
        reason=reason,
        message=outcome.message,
        job_status=copy.job.get("status"),
        pod_sets=list(_assigned(workload)) if workload is not None else [],
        succeeded=outcome.succeeded,
    )
    return Step(operations=operations, report=report)


def _changed(
    intent: Intent,
    workload: Workload,
    job: dict[str, Any],
    scene: Scene,
    integration: Integration,
    policy: Policy,
) -> str:
    """The first field that a policy engine of this cluster rewrote; defaults that it added do not count."""
    if "spec" not in intent.job:
        return ""
    wanted, problem = remote_job(intent, workload, scene.flavors, integration, policy)
    if problem is not None:
        return ""
    pairs = zip(integration.pod_sets(wanted), integration.pod_sets(job), strict=True)
    return next((text for want, have in pairs if (text := first_difference(want, have))), "")


# --- taking away -----------------------------------------------------------------------------------------------------


def _take_away(ending: PlacementReport, copy: Copy, policy: Policy) -> Step:
    """Remove everything, and say `ending` once nothing is left. Until then the hub keeps what it last heard."""
    operations, nothing_left = _remove(ending.placement, copy, policy)
    return Step(report=ending) if nothing_left else Step(operations=operations, ending=ending)


def _remove(placement: str, copy: Copy, policy: Policy) -> tuple[tuple[Operation, ...], bool]:
    job = copy.job if _is_of(copy.job, placement, policy) else None
    workload = copy.workload if _is_of(copy.workload, placement, policy) else None
    first = _delete_workload(workload) if workload is not None else ()
    if job is not None:
        return (*first, *_remove_job(job)), False
    if copy.pods:
        return first, False
    if workload is not None:
        return (*first, *_release_workload(workload)), False
    return (), True


def _remove_job(job: dict[str, Any]) -> tuple[Operation, ...]:
    integration = integration_for(job["apiVersion"], job["kind"])
    assert integration is not None, f"{job['kind']} was never created by us"
    resource, key, uid = integration.resource, key_of(job), job["metadata"]["uid"]
    kept = [f for f in job["metadata"].get("finalizers", []) if f != names.PLACEMENT]
    release = Patch(resource=resource, key=key, uid=uid, body={"metadata": {"finalizers": kept}})
    if job["metadata"].get("deletionTimestamp"):
        return (release,) if kept != job["metadata"].get("finalizers", []) else ()
    return (Delete(resource=resource, key=key, uid=uid), release)


def _delete_workload(workload: dict[str, Any]) -> tuple[Operation, ...]:
    if workload["metadata"].get("deletionTimestamp"):
        return ()
    return (Delete(resource=resources.WORKLOADS, key=key_of(workload), uid=workload["metadata"]["uid"]),)


def _release_workload(workload: dict[str, Any]) -> tuple[Operation, ...]:
    if not workload["metadata"].get("finalizers"):
        return ()
    body = {"metadata": {"finalizers": []}}
    return (Patch(resource=resources.WORKLOADS, key=key_of(workload), uid=workload["metadata"]["uid"], body=body),)


def _refuse(intent: Intent, reason: Refusal, message: str) -> Step:
    return Step(report=_report(intent, Phase.REFUSED, reason, message))


# --- whose is it -----------------------------------------------------------------------------------------------------


def _is_of(manifest: dict[str, Any] | None, placement: str, policy: Policy) -> bool:
    mark = mark_of(manifest, policy.origin)
    return mark is not None and mark[0] == placement


def _foreign(intent: Intent, copy: Copy, policy: Policy) -> str:
    for what in (copy.workload, copy.job):
        if what is not None and mark_of(what, policy.origin) is None:
            return f"{what['kind']} {key_of(what)} on this cluster belongs to somebody else and is left alone"
    return ""


def _leftover(intent: Intent, copy: Copy, policy: Policy) -> bool:
    marks = (mark_of(what, policy.origin) for what in (copy.workload, copy.job) if what is not None)
    return any(mark is not None and mark[0] != intent.placement for mark in marks)


# --- objects ---------------------------------------------------------------------------------------------------------


def _create(resource: Resource, manifest: dict[str, Any]) -> Create:
    full = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
    return Create(resource=resource, key=key_of(full), manifest=full)


def _marks(intent: Intent, policy: Policy) -> tuple[dict[str, str], dict[str, str]]:
    labels = {names.MULTIKUEUE_ORIGIN: policy.origin}
    annotations = {
        names.PLACEMENT: intent.placement,
        names.GENERATION: str(intent.generation),
        names.ORIGIN_UID: intent.workload_uid,
    }
    return labels, annotations


def remote_workload(intent: Intent, policy: Policy) -> dict[str, Any]:
    """The Workload as MultiKueue copies it, held to the flavors that the hub charged."""
    labels, annotations = _marks(intent, policy)
    flavors = sorted({flavor for pod_set in intent.pod_sets for flavor in pod_set.flavors.values()})
    if flavors:
        annotations[names.ALLOWED_RESOURCE_FLAVORS] = ",".join(flavors)
    return {
        "metadata": {
            "name": intent.workload,
            "namespace": intent.namespace,
            "labels": labels,
            "annotations": {**intent.workload_annotations, **annotations},
            "finalizers": [names.RESOURCE_IN_USE],
        },
        "spec": {**intent.workload_spec, "queueName": intent.local_queue},
    }


def remote_job(
    intent: Intent,
    workload: Workload,
    flavors: Mapping[str, ResourceFlavor],
    integration: Integration,
    policy: Policy,
) -> tuple[dict[str, Any], pod_sets.Problem | None]:
    """The user's job with our marks, started with what local admission assigned; and the first reason why it can't be."""
    infos, problems = pod_sets.infos_of_admission(workload, flavors)
    marked = [_with_pod_marks(info, intent) for info in infos]
    started, clashes = integration.started(integration.clean_for_worker(intent.job), marked)
    labels, annotations = _marks(intent, policy)
    meta = started["metadata"]
    marked_meta = {
        **meta,
        "labels": {**meta.get("labels", {}), **labels},
        "annotations": {**meta.get("annotations", {}), **annotations, names.PREBUILT_WORKLOAD_NAME: intent.workload},
        "finalizers": [names.PLACEMENT],
    }
    spec = {name: value for name, value in started["spec"].items() if name != _LIFE_AFTER_END}
    return {**started, "metadata": marked_meta, "spec": spec}, next(iter([*problems, *clashes]), None)


#: The management cluster's own controller removes a finished job in time; here the hub does, once it has the final status.
_LIFE_AFTER_END = "ttlSecondsAfterFinished"


def _with_pod_marks(info: pod_sets.PodSetInfo, intent: Intent) -> pod_sets.PodSetInfo:
    """By the label pods are counted; from the annotations a run knows of the one before it."""
    history = {names.ATTEMPT: str(intent.attempt), names.PREVIOUS_CLUSTER: intent.previous_cluster}
    known = {**history, names.CHECKPOINT: intent.checkpoint} if intent.attempt > 1 else {}
    return structs.replace(
        info,
        labels={**info.labels, names.PLACEMENT: intent.placement},
        annotations={**info.annotations, **{name: value for name, value in known.items() if value}},
    )


def _local_queue(intent: Intent, cluster_queue: str) -> dict[str, Any]:
    return {
        "metadata": {"name": intent.local_queue, "namespace": intent.namespace},
        "spec": {"clusterQueue": cluster_queue},
    }


def _no_queue(intent: Intent, target: str, policy: Policy) -> str:
    missing = f"LocalQueue {intent.namespace}/{intent.local_queue} does not exist here"
    if not policy.create_local_queues:
        return f"{missing} and this agent may not create it (AGENT_CREATE_LOCAL_QUEUES)"
    return f"{missing} and there is no ClusterQueue {target or intent.cluster_queue!r} that it could point to"


def _condition(workload: Workload, kind: str) -> Condition:
    return find_condition(workload.status.conditions, kind) or Condition(type=kind, status="Unknown")


def _assigned(workload: Workload) -> Sequence[PodSetFlavors]:
    admission = workload.status.admission
    if admission is None:
        return ()
    return [PodSetFlavors(name=a.name, count=a.count or 0, flavors=a.flavors) for a in admission.pod_set_assignments]


def _report(
    intent: Intent,
    phase: Phase,
    reason: str = "",
    message: str = "",
    *,
    job_status: dict[str, Any] | None = None,
    pod_sets: Sequence[PodSetFlavors] = (),
) -> PlacementReport:
    return PlacementReport(
        placement=intent.placement,
        generation=intent.generation,
        phase=phase,
        reason=str(reason),
        message=message,
        job_status=job_status,
        pod_sets=list(pod_sets),
    )
