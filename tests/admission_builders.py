"""A little cluster for engine tests that reads like the case it tests.

    c = Cluster()
    c.queue("a", cohort="org", cpu=5)
    c.submit("w", "a", cpu=3)
    c.cycle()                           # {"w": "admitted"}

Amounts are whole cores (or pieces). A queue has a LocalQueue of its own name in the namespace `team`.
"""

from typing import Any

from hub.kueue.admission import messages as m
from hub.kueue.api.meta import ObjectKey, format_time
from tests.conformance.world import START, World

API = "kueue.x-k8s.io/v1beta2"
#: nominal, or (nominal, borrowingLimit, lendingLimit) with None for no limit.
Quota = int | tuple[int, int | None, int | None]


def quota(resource: str, given: Quota) -> dict[str, Any]:
    nominal, borrow, lend = given if isinstance(given, tuple) else (given, None, None)
    found = {"name": resource, "nominalQuota": str(nominal)}
    found |= {"borrowingLimit": str(borrow)} if borrow is not None else {}
    return found | ({"lendingLimit": str(lend)} if lend is not None else {})


def group(flavors: dict[str, dict[str, Quota]]) -> dict[str, Any]:
    resources = list(next(iter(flavors.values())))
    listed = [{"name": f, "resources": [quota(r, q) for r, q in quotas.items()]} for f, quotas in flavors.items()]
    return {"coveredResources": resources, "flavors": listed}


class Cluster:
    def __init__(self, *, fair: list[str] | None = None, rules: str = "kueue", **gates: bool) -> None:
        config = {"featureGates": gates, "fairSharing": None if fair is None else {"preemptionStrategies": fair}}
        namespace = {"kind": "Namespace", "metadata": {"name": "team", "labels": {"team": "a"}}}
        self.world = World({"config": config, "objects": [namespace]}, rules)
        self.engine = self.world.engine
        self._flavors: set[str] = set()
        #: victim -> reason, of everything that was preempted.
        self.preempted: dict[str, str] = {}

    # --- configuration ---------------------------------------------------------------------------------------------------

    def put(self, kind: str, name: str, spec: dict[str, Any], **meta: Any) -> None:
        self.world.put({"apiVersion": API, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec})

    def flavor(self, name: str, **spec: Any) -> None:
        self._flavors.add(name)
        self.put("ResourceFlavor", name, spec)

    def cohort(self, name: str, parent: str = "", cpu: Quota | None = None, **spec: Any) -> None:
        groups = [group({"default": {"cpu": cpu}})] if cpu is not None else []
        self.put("Cohort", name, {"parentName": parent, "resourceGroups": groups, **spec})

    def queue(
        self,
        name: str,
        cohort: str = "",
        cpu: Quota | None = None,
        flavors: dict[str, dict[str, Quota]] | None = None,
        groups: list[dict[str, dict[str, Quota]]] | None = None,
        **spec: Any,
    ) -> None:
        """A ClusterQueue with its LocalQueue. `spec` holds fields as they stand in a manifest."""
        every = groups or [flavors or {"default": {"cpu": cpu if cpu is not None else 0}}]
        for flavor in (f for g in every for f in g):
            if flavor not in self._flavors:
                self.flavor(flavor)
        body = {"cohortName": cohort, "namespaceSelector": {}, "resourceGroups": [group(g) for g in every], **spec}
        self.put("ClusterQueue", name, body)
        self.put("LocalQueue", name, {"clusterQueue": name}, namespace="team")

    # --- workloads -------------------------------------------------------------------------------------------------------

    def submit(
        self, name: str, queue: str, cpu: float = 0, *, count: int = 1, priority: int = 0, at: float = 0,
        pod_sets: list[dict[str, Any]] | None = None, requests: dict[str, str] | None = None, pod: dict[str, Any] | None = None,
        min_count: int | None = None, annotations: dict[str, str] | None = None, local_queue: str = "", **spec: Any,
    ) -> None:  # fmt: skip
        """`at`: seconds after the start when it was created."""
        sets = pod_sets or [
            pods("main", count, requests or {"cpu": f"{int(cpu * 1000)}m"}, min_count=min_count, pod=pod)
        ]
        manifest = {
            "apiVersion": API,
            "kind": "Workload",
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": f"uid-{name}",
                "creationTimestamp": format_time(START + at),
                "annotations": annotations or {},
            },
            "spec": {"queueName": local_queue or queue, "priority": priority, "podSets": sets, **spec},
        }
        self.world.create(manifest)

    def finish(self, name: str) -> None:
        self.world.finish(name)

    # --- cycles ----------------------------------------------------------------------------------------------------------

    def cycle(self, times: int = 1) -> dict[str, str]:
        """Run so many cycles. Head -> outcome, of the last one."""
        for _ in range(times):
            self.world.now += 1
            for order in self.world.cycle():
                if isinstance(order, m.Evict) and order.preemption_reason:
                    self.preempted[order.key.name] = order.preemption_reason
            self.engine.validate()
        return {h.work.key.name: h.outcome.value for h in self.engine.last_cycle}

    def settle(self, limit: int = 100) -> int:
        """Cycles until nothing changes any more. Returns how many it took."""
        for i in range(limit):
            if not self.engine.needs_cycle:
                return i
            self.cycle()
        raise AssertionError(f"still busy after {limit} cycles: {self.engine.last_cycle}")

    # --- questions -------------------------------------------------------------------------------------------------------

    def flavors(self, name: str) -> dict[str, str]:
        """Resource -> flavor of the first pod set; empty when it holds no quota."""
        admission = self.world.workloads[name].status.admission
        return admission.pod_set_assignments[0].flavors if admission else {}

    def counts(self, name: str) -> list[int | None]:
        admission = self.world.workloads[name].status.admission
        return [p.count for p in admission.pod_set_assignments] if admission else []

    def admitted(self) -> set[str]:
        return {n for n, w in self.world.workloads.items() if w.status.admission is not None}

    def reason(self, name: str) -> str:
        position = self.engine.position(ObjectKey("team", name))
        return position.reason if position else ""

    def message(self, name: str) -> str:
        position = self.engine.position(ObjectKey("team", name))
        return position.message if position else ""

    def is_parked(self, name: str) -> bool:
        self.engine.flush_wakes()
        work = self.engine.works[ObjectKey("team", name)]
        return work.queue is not None and work.queue.pending.is_parked(work)

    def cell(self, node: str, flavor: str = "default", resource: str = "cpu") -> Any:
        self.engine.config.settle()
        nodes = {**self.engine.config.forest.cohorts, **self.engine.config.queues}
        return nodes[node].cells[flavor, resource]


def pods(
    name: str,
    count: int,
    requests: dict[str, str],
    *,
    min_count: int | None = None,
    pod: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "resources": {"requests": requests}}], **(pod or {})}
    found = {"name": name, "count": count, "template": {"spec": spec}, **more}
    return found | ({"minCount": min_count} if min_count is not None else {})


PREEMPT_LOWER = {"preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}}
