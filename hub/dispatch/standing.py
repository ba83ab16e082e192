"""What MultiKueueClusters and MultiKueue's AdmissionChecks say about themselves: their Active conditions.

A check is what makes ClusterQueues active, so a fleet without a usable cluster stops admission on the management cluster.
Suspect and cordoned clusters count as usable: work may go on there, and new work waits rather than being turned away.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from hub.dispatch.clusters import Cluster, ClusterState
from hub.dispatch.routes import config_of, is_multikueue
from hub.kueue.api.decoding import document
from hub.kueue.api.meta import Condition, Instant, ObjectKey, Resource, set_condition
from hub.kueue.api.resources import ADMISSION_CHECKS, MULTI_KUEUE_CLUSTERS
from hub.kueue.api.v1beta2 import AdmissionCheck, MultiKueueCluster, MultiKueueConfig, names
from hub.kueue.operations import Patch

_USABLE = frozenset({ClusterState.ACTIVE, ClusterState.SUSPECT, ClusterState.CORDONED, ClusterState.DRAINING})
_CONNECTED = frozenset({ClusterState.ACTIVE, ClusterState.CORDONED, ClusterState.DRAINING})
_Reason = names.AdmissionCheckActiveReason


def of_cluster(obj: MultiKueueCluster, clusters: Mapping[str, Cluster], now: Instant) -> Patch | None:
    """The Active condition of a MultiKueueCluster: the registered cluster of its name."""
    cluster = clusters.get(obj.metadata.name)
    if cluster is None:
        reason, message = "NotRegistered", "No cluster of this name is registered: hubctl clusters register"
        condition = _active("False", reason, message)
    elif cluster.state in _CONNECTED:
        condition = _active("True", _Reason.ACTIVE, "Connected")
    else:
        condition = _active("False", cluster.state.value, cluster.message or f"The cluster is {cluster.state}")
    return _patch(MULTI_KUEUE_CLUSTERS, obj.metadata.name, obj.metadata.uid, obj.status.conditions, condition, now)


def of_check(
    check: AdmissionCheck, configs: Mapping[str, MultiKueueConfig], clusters: Mapping[str, Cluster], now: Instant
) -> Patch | None:
    """The Active condition of an AdmissionCheck of MultiKueue; None for checks of other controllers."""
    if not is_multikueue(check):
        return None
    config, problem = config_of(check, configs)
    condition = _active("False", _Reason.BAD_CONFIG, problem) if config is None else _of_config(config, clusters)
    return _patch(ADMISSION_CHECKS, check.metadata.name, check.metadata.uid, check.status.conditions, condition, now)


def _of_config(config: MultiKueueConfig, clusters: Mapping[str, Cluster]) -> Condition:
    missing = [n for n in config.spec.clusters if n not in clusters]
    inactive = [n for n in config.spec.clusters if n in clusters and clusters[n].state not in _USABLE]
    usable = len(config.spec.clusters) - len(missing) - len(inactive)
    if usable and not missing and not inactive:
        return _active("True", _Reason.ACTIVE, "The admission check is active")
    lacks = "; ".join(
        f"{word} clusters: {', '.join(found)}"
        for word, found in (("Missing", missing), ("Inactive", inactive))
        if found
    )
    if usable:
        return _active("True", _Reason.SOME_ACTIVE_CLUSTERS, lacks)
    return _active("False", _Reason.NO_USABLE_CLUSTERS, lacks)


def _active(status: Literal["True", "False"], reason: str, message: str) -> Condition:
    return Condition(type=names.ACTIVE, status=status, reason=reason, message=message)


def _patch(
    resource: Resource, name: str, uid: str, before: Sequence[Condition], condition: Condition, now: Instant
) -> Patch | None:
    after = set_condition(before, condition, now)
    if after == list(before):
        return None
    body = {"status": {"conditions": [document(c) for c in after]}}
    return Patch(resource=resource, key=ObjectKey("", name), body=body, subresource="status", uid=uid)
