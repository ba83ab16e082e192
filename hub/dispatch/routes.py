"""Where the workloads of a ClusterQueue may go, and which admission check stands for "a worker has admitted it".

    ClusterQueue ──▶ AdmissionCheck of MultiKueue ──▶ MultiKueueConfig ──▶ clusters, in its order
         └── none ──▶ the built-in check ──▶ every registered cluster

The built-in check exists inside the hub only. Without it, a workload of a queue without checks would be Admitted as soon as it
has quota, before any worker has said so.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from hub.kueue.api.meta import Condition, ObjectMeta
from hub.kueue.api.v1beta2 import (
    AdmissionCheck,
    AdmissionChecksStrategy,
    AdmissionCheckStrategyRule,
    ClusterQueue,
    MultiKueueConfig,
    names,
)
from hub.kueue.api.v1beta2.checks import AdmissionCheckSpec, AdmissionCheckStatus

BUILT_IN = "multikueue-hub"
#: Not MultiKueue's controller, of which a queue may have one check only.
BUILT_IN_CONTROLLER = "multikueue-hub.io/dispatch"
CONFIG_KIND = "MultiKueueConfig"


class Route(Struct, frozen=True, kw_only=True):
    #: Name of the admission check that dispatch answers.
    check: str
    #: None: every registered cluster.
    clusters: tuple[str, ...] | None = None
    #: Why nothing can be dispatched this way; empty when it can.
    problem: str = ""


def is_multikueue(check: AdmissionCheck) -> bool:
    return check.spec.controller_name == names.CONTROLLER_MULTIKUEUE


def _own_check(queue: ClusterQueue, checks: Mapping[str, AdmissionCheck]) -> AdmissionCheck | None:
    strategy = queue.spec.admission_checks_strategy
    rules = strategy.admission_checks if strategy else []
    found = (checks.get(rule.name) for rule in rules)
    return next((check for check in found if check is not None and is_multikueue(check)), None)


def route_of(
    queue: ClusterQueue, checks: Mapping[str, AdmissionCheck], configs: Mapping[str, MultiKueueConfig]
) -> Route:
    check = _own_check(queue, checks)
    if check is None:
        return Route(check=BUILT_IN)
    name = check.metadata.name
    config, problem = config_of(check, configs)
    return Route(check=name, clusters=tuple(config.spec.clusters) if config else (), problem=problem)


def config_of(check: AdmissionCheck, configs: Mapping[str, MultiKueueConfig]) -> tuple[MultiKueueConfig | None, str]:
    """The config that a MultiKueue check points to, or why there is none."""
    parameters = check.spec.parameters
    if parameters is None or parameters.kind != CONFIG_KIND:
        return None, f"AdmissionCheck {check.metadata.name} has no parameters of kind {CONFIG_KIND}"
    config = configs.get(parameters.name)
    return config, "" if config else f"{CONFIG_KIND} {parameters.name} does not exist"


def with_built_in_check(queue: ClusterQueue, checks: Mapping[str, AdmissionCheck]) -> ClusterQueue:
    """The queue as the engine is to see it: every queue has a check that dispatch answers."""
    if _own_check(queue, checks) is not None:
        return queue
    before = queue.spec.admission_checks_strategy
    rules = [*(before.admission_checks if before else []), AdmissionCheckStrategyRule(name=BUILT_IN)]
    strategy = AdmissionChecksStrategy(admission_checks=rules)
    return msgspec.structs.replace(queue, spec=msgspec.structs.replace(queue.spec, admission_checks_strategy=strategy))


def built_in_check() -> AdmissionCheck:
    """Always active: whether a cluster is there is said workload by workload."""
    active = Condition(type=names.ACTIVE, status="True", reason=names.AdmissionCheckActiveReason.ACTIVE)
    return AdmissionCheck(
        metadata=ObjectMeta(name=BUILT_IN),
        spec=AdmissionCheckSpec(controller_name=BUILT_IN_CONTROLLER),
        status=AdmissionCheckStatus(conditions=[active]),
    )


class BuiltInCheck:
    """What the admission loop of the management cluster is told beyond the objects that are there."""

    def check(self) -> AdmissionCheck:
        return built_in_check()

    def on(self, queue: ClusterQueue, checks: Mapping[str, AdmissionCheck]) -> ClusterQueue:
        return with_built_in_check(queue, checks)
