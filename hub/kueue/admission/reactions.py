"""What follows for workloads when administrators change something: queues, cohorts, flavors, checks, namespaces, nodes.

After Kueue's event handlers. In short: whatever could let a parked workload in wakes the trees concerned; queues that stop
give their workloads back or evict them; queues that start take their own workloads in anew.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hub.kueue.admission import messages as m
from hub.kueue.admission import second_look
from hub.kueue.admission.config import LocalQ, Queue
from hub.kueue.admission.records import Spot
from hub.kueue.api.core import limit_range
from hub.kueue.api.errors import ApiError
from hub.kueue.api.v1beta2 import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Topology,
    WorkloadPriorityClass,
)

if TYPE_CHECKING:
    from hub.kueue.admission.state import AdmissionState


def config_changed(state: "AdmissionState", event: m.ConfigChanged) -> None:
    state.stir()
    _CHANGED[type(event.object)](state, event.object)


def config_deleted(state: "AdmissionState", event: m.ConfigDeleted) -> None:
    state.stir()
    _DELETED[event.kind](state, event)


# --- ClusterQueues -------------------------------------------------------------------------------------------------------


def _queue_changed(state: "AdmissionState", obj: ClusterQueue) -> None:
    is_new = obj.metadata.name not in state.config.queues
    queue = state.config.set_queue(obj)
    if queue is None:
        return
    state.config.judge(queue)
    state.share_by_history(queue)
    if is_new:
        state.take_homeless_in(queue)
        for local in state.config.locals_of(queue.name):
            _enlist(state, local)
    _review_all(state, queue)
    if queue.active:
        state.watch(queue)
        for work in list(queue.pending.aside.values()):
            state.when_due(work)
    state.wake(queue)


def _queue_deleted(state: "AdmissionState", event: m.ConfigDeleted) -> None:
    queue = state.config.remove_queue(event.key.name)
    if queue is None:
        return
    state.unwatch(queue)
    _review_all(state, queue)
    state.make_homeless(queue)
    for work in list(queue.pending.everyone()):
        state.take_out(work)
        state.enqueue(work)
    if queue.parent is not None:
        state.wake_node(queue.parent)


def _review_all(state: "AdmissionState", queue: Queue) -> None:
    for work in list(queue.running):
        state.review(work)


def _judge_all(state: "AdmissionState", queues: Iterable[Queue], *, wake: bool = False) -> None:
    """Something that these queues refer to changed."""
    for queue in queues:
        turned = state.config.judge(queue)
        if queue.active:
            state.watch(queue)
        if wake or (turned and queue.active):
            state.wake(queue)


# --- LocalQueues ---------------------------------------------------------------------------------------------------------


def _local_changed(state: "AdmissionState", obj: LocalQueue) -> None:
    before = state.config.locals.get(obj.metadata.key)
    was_open = before is not None and before.exists and before.stop == "None"
    local = state.config.set_local(obj)
    if local is None:
        return
    if local.stop != "None" and was_open:
        _dismiss(state, local)
    else:
        _enlist(state, local)
    for work in list(local.members.values()):
        state.review(work)


def _local_deleted(state: "AdmissionState", event: m.ConfigDeleted) -> None:
    local = state.config.remove_local(event.key)
    if local is None:
        return
    _dismiss(state, local)
    for work in list(local.members.values()):
        state.review(work)


def _enlist(state: "AdmissionState", local: LocalQ) -> None:
    """Take in the workloads of a LocalQueue that wait outside."""
    for work in list(local.members.values()):
        if work.spot is Spot.OUT and not work.facts.reserved:
            state.enqueue(work)


def _dismiss(state: "AdmissionState", local: LocalQ) -> None:
    """Its workloads leave the ClusterQueue."""
    for work in list(local.members.values()):
        if work.reservation is None:
            state.take_out(work)
            state.enqueue(work)


# --- cohorts, flavors, topologies, checks ----------------------------------------------------------------------------------


def _cohort_changed(state: "AdmissionState", obj: Cohort) -> None:
    node = state.config.set_cohort(obj)
    if node is not None:
        state.wake_node(node)


def _cohort_deleted(state: "AdmissionState", event: m.ConfigDeleted) -> None:
    state.wake_node(state.config.remove_cohort(event.key.name))


def _flavor_changed(state: "AdmissionState", obj: ResourceFlavor) -> None:
    users, differs = state.config.set_flavor(obj)
    _judge_all(state, users, wake=differs)


def _flavor_deleted(state: "AdmissionState", event: m.ConfigDeleted) -> None:
    _judge_all(state, state.config.remove_flavor(event.key.name))


def _topology_changed(state: "AdmissionState", obj: Topology) -> None:
    _judge_all(state, state.config.set_topology(obj))


def _topology_deleted(state: "AdmissionState", event: m.ConfigDeleted) -> None:
    _judge_all(state, state.config.remove_topology(event.key.name))


def _check_changed(state: "AdmissionState", obj: AdmissionCheck) -> None:
    _judge_all(state, state.config.set_check(obj))


def _check_deleted(state: "AdmissionState", event: m.ConfigDeleted) -> None:
    _judge_all(state, state.config.remove_check(event.key.name))


def _priority_class(state: "AdmissionState", change: object) -> None:
    """Workloads carry their priority themselves; whoever edits a class re-prices them."""


_CHANGED: dict[type[Any], Callable[["AdmissionState", Any], None]] = {
    ClusterQueue: _queue_changed,
    LocalQueue: _local_changed,
    Cohort: _cohort_changed,
    ResourceFlavor: _flavor_changed,
    Topology: _topology_changed,
    AdmissionCheck: _check_changed,
    WorkloadPriorityClass: _priority_class,
}
_DELETED: dict[m.ConfigKind, Callable[["AdmissionState", m.ConfigDeleted], None]] = {
    "ClusterQueue": _queue_deleted,
    "LocalQueue": _local_deleted,
    "Cohort": _cohort_deleted,
    "ResourceFlavor": _flavor_deleted,
    "Topology": _topology_deleted,
    "AdmissionCheck": _check_deleted,
    "WorkloadPriorityClass": _priority_class,
}

# --- namespaces, limit ranges ----------------------------------------------------------------------------------------------


def namespace_changed(state: "AdmissionState", event: m.NamespaceChanged) -> None:
    config = state.config
    if config.namespaces.get(event.name) == event.labels:
        return
    state.stir()
    matched = {q.name for q in config.queues.values() if config.matches(q, event.name)}
    config.set_namespace(event.name, dict(event.labels))
    for queue in config.queues.values():
        if queue.name not in matched and config.matches(queue, event.name):
            state.wake_queue(queue)


def namespace_deleted(state: "AdmissionState", event: m.NamespaceDeleted) -> None:
    state.config.set_namespace(event.name, None)


def limits_changed(state: "AdmissionState", event: m.LimitRangeChanged) -> None:
    try:
        items = limit_range(event.spec).limits
    except ApiError:
        return  # an API server's own schema is stricter; what we cannot read limits nobody
    state.config.set_limits(event.namespace, event.name, items)
    _reshape(state, event.namespace)


def limits_deleted(state: "AdmissionState", event: m.LimitRangeDeleted) -> None:
    state.config.remove_limits(event.namespace, event.name)
    _reshape(state, event.namespace)


def _reshape(state: "AdmissionState", namespace: str) -> None:
    """Defaults of the namespace changed, and with them what its waiting workloads ask for."""
    state.stir()
    limits = state.config.limits(namespace)
    for local in [q for q in state.config.locals.values() if q.key.namespace == namespace]:
        for work in list(local.members.values()):
            if work.reservation is not None:
                continue
            shape = state.shapes.again(work.shape, limits)
            if shape is not work.shape:
                if work.queue is not None:
                    work.queue.pending.withdraw(work)
                work.shape = shape
                state.enqueue(work)


# --- nodes -----------------------------------------------------------------------------------------------------------------


def node_changed(state: "AdmissionState", event: m.NodeChanged) -> None:
    if state.config.scene.places.set_node(event.node):
        _wake_all(state)


def node_deleted(state: "AdmissionState", event: m.NodeDeleted) -> None:
    if state.config.scene.places.remove_node(event.name):
        _wake_all(state)
        second_look.look_all(state)


def foreign_usage(state: "AdmissionState", event: m.ForeignPodUsage) -> None:
    if state.config.scene.places.set_foreign_usage(event.node, event.requests):
        _wake_all(state)


def _wake_all(state: "AdmissionState") -> None:
    for queue in state.config.queues.values():
        state.wake(queue)
