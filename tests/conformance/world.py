"""The world around the engine while a vector is replayed: objects, a clock, and jobs that stop at once.

It plays the edge: what the engine wants written is written into the objects and comes back as an event, and an evicted job
gives its reservation back in no time. All of it goes through the engine's own messages.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from hub.kueue.admission import messages as m
from hub.kueue.admission.policy import FairSharing, Policy, Topology
from hub.kueue.admission.state import AdmissionState
from hub.kueue.api.meta import Condition, Instant, ObjectKey, parse_time, set_condition
from hub.kueue.api.v1beta2 import RequeueState, Workload, decode, decode_as, encode, kind_of
from tests.conformance.vectors import Vector

START = parse_time("2026-01-01T00:00:00Z")
replace = msgspec.structs.replace


def policy_of(config: dict[str, Any], rules: str = "kueue") -> Policy:
    """The vector's feature gates and settings as a policy."""
    gates = {"TASProfileMixed": True, **config["featureGates"]}

    def on(gate: str, default: bool = True) -> bool:
        return gates.get(gate, default)

    fair = config["fairSharing"]
    sharing = None
    if fair is not None:
        sharing = FairSharing(
            strategies=tuple(fair["preemptionStrategies"]) or FairSharing().strategies,
            preempt_within_nominal=on("FairSharingPreemptWithinNominal"),
            prioritize_non_borrowing=on("FairSharingPrioritizeNonBorrowing"),
        )
    topology = Topology(
        mixed_profile=on("TASProfileMixed"),
        balanced=on("TASBalancedPlacement", False),
        recompute_within_cycle=on("TASRecomputeAssignmentWithinSchedulingCycle"),
        overlapping_flavors=on("TASHandleOverlappingFlavors"),
        preferred_affinity=on("TASRespectNodeAffinityPreferred", False),
    )
    return Policy(
        rules=rules,
        fair_sharing=sharing,
        pods_ready=None,
        topology=topology if on("TopologyAwareScheduling") else None,
        flavor_fungibility=on("FlavorFungibility"),
        preserve_scan_progress=on("FlavorFungibilityPreserveScanProgress"),
        priority_sorting=on("PrioritySortingWithinCohort"),
        prioritize_preemptors=on("PrioritizePreemptorWorkloads", False),
        recompute_overlap=on("RecomputeAssignmentUponPreemptionTargetsOverlap"),
        shape_hashing=on("SchedulingEquivalenceHashing"),
        partial_admission=on("PartialAdmission"),
        reclaimable_pods=on("ReclaimablePods"),
        priority_boost=on("PriorityBoost", False),
        ignore_undeclared=config.get("quotaCheckStrategy") == "IgnoreUndeclared",
    )


class World:
    def __init__(self, vector: Vector, rules: str = "kueue") -> None:
        self.engine = AdmissionState(policy_of(vector["config"], rules))
        self.now: Instant = START
        self.workloads: dict[str, Workload] = {}
        self.finished: set[str] = set()
        self._events: deque[m.Event] = deque()
        #: Evictions since it was last taken.
        self.evictions: list[m.Evict] = []
        self.cohorts: set[str] = set()
        for manifest in vector["objects"]:
            self.put(manifest)

    # --- objects -------------------------------------------------------------------------------------------------------

    def put(self, manifest: dict[str, Any]) -> None:
        meta = manifest["metadata"]
        if manifest["kind"] == "Namespace":
            self.send(m.NamespaceChanged(now=self.now, name=meta["name"], labels=meta.get("labels", {})))
        elif manifest["kind"] == "Node":
            self.send(m.NodeChanged(now=self.now, node=manifest))
        else:
            obj = decode(manifest)
            if kind_of(obj) == "Cohort":
                self.cohorts.add(meta["name"])
            self.send(m.ConfigChanged(now=self.now, object=obj))

    def create(self, manifest: dict[str, Any]) -> None:
        self.change(decode_as(Workload, manifest))

    @staticmethod
    def manifest(workload: Workload) -> dict[str, Any]:
        return encode(workload)

    def change(self, workload: Workload) -> None:
        self.workloads[workload.metadata.name] = workload
        self.send(m.WorkloadChanged(now=self.now, workload=workload))

    def delete(self, name: str) -> None:
        workload = self.workloads.pop(name, None)
        if workload is not None:
            self.send(m.WorkloadDeleted(now=self.now, key=workload.metadata.key))

    def finish(self, name: str) -> None:
        workload = self.workloads.get(name)
        if workload is None or workload.status.admission is None:
            return
        self.finished.add(name)
        self.change(self._conditioned(workload, ("Finished", "True", "Succeeded")))

    def set(self, change: dict[str, Any]) -> None:
        workload = self.workloads.get(change["workload"])
        if workload is None:
            return
        if "priority" in change:
            workload = replace(workload, spec=replace(workload.spec, priority=change["priority"]))
        if "active" in change:
            workload = replace(workload, spec=replace(workload.spec, active=change["active"]))
            if change["active"]:
                workload = self._conditioned(workload, ("Requeued", "True", "Reactivated"))
        if "reclaimablePods" in change:
            if workload.status.admission is None:
                return
            pods = msgspec.convert(change["reclaimablePods"], list[m.Any])
            document = msgspec.to_builtins(workload)
            document.setdefault("status", {})["reclaimablePods"] = pods
            workload = msgspec.convert(document, Workload)
        self.change(workload)

    # --- events and what comes of them -----------------------------------------------------------------------------------

    def send(self, event: m.Event) -> list[m.AnyInstruction]:
        """Let the engine see the event and everything that follows from it. Returns the instructions it gave first."""
        first = self.engine.handle(event)
        self._carry_out(first)
        while self._events:
            self._carry_out(self.engine.handle(self._events.popleft()))
        return first

    def cycle(self) -> list[m.AnyInstruction]:
        return self.send(m.CycleDue(now=self.now))

    def _carry_out(self, instructions: list[m.AnyInstruction]) -> None:
        for instruction in instructions:
            writer = _WRITERS.get(type(instruction))
            if writer is not None and (workload := self.workloads.get(instruction.key.name)) is not None:
                for state in writer(self, workload, instruction):
                    self.workloads[state.metadata.name] = state
                    self._events.append(m.WorkloadChanged(now=self.now, workload=state))

    def _conditioned(self, workload: Workload, *conditions: tuple[str, str, str]) -> Workload:
        found = workload.status.conditions
        for kind, status, reason in conditions:
            found = set_condition(found, Condition(type=kind, status=status, reason=reason), self.now)
        return replace(workload, status=replace(workload.status, conditions=found))

    def _reserve(self, workload: Workload, order: m.ReserveQuota) -> list[Workload]:
        written = [("QuotaReserved", "True", "QuotaReserved")]
        written += [("Admitted", "True", "Admitted")] if not order.checks else []
        written += [(c.type, "False", "QuotaReserved") for c in workload.status.conditions
                    if c.type in ("Evicted", "Preempted") and c.status == "True"]  # fmt: skip
        workload = self._conditioned(workload, *written)
        return [replace(workload, status=replace(workload.status, admission=order.admission))]

    def _evict(self, workload: Workload, order: m.Evict) -> list[Workload]:
        """The condition is written, then the job stops and gives its reservation back."""
        self.evictions.append(order)
        evicted = self._conditioned(workload, ("Evicted", "True", order.reason))
        if order.preemption_reason:
            evicted = self._conditioned(evicted, ("Preempted", "True", order.preemption_reason))
        comes_back = order.reason in ("Preempted", "NodeFailures")
        stopped = self._conditioned(
            evicted,
            ("Requeued", "True" if comes_back else "False", order.reason),
            ("QuotaReserved", "False", "PendingEvaluation"),
            ("Admitted", "False", "NoReservation"),
        )
        back = RequeueState(count=order.requeue_count, requeue_at=order.requeue_at)
        return [evicted, replace(stopped, status=replace(stopped.status, admission=None, requeue_state=back))]

    def _report(self, workload: Workload, order: m.ReportPending) -> list[Workload]:
        written = self._conditioned(workload, ("QuotaReserved", "False", order.reason))
        return [replace(written, status=replace(written.status, admission=None))]

    def _place(self, workload: Workload, order: m.Place) -> list[Workload]:
        return [replace(workload, status=replace(workload.status, admission=order.admission, unhealthy_nodes=[]))]

    def _requeue(self, workload: Workload, order: m.Requeue) -> list[Workload]:
        return [self._conditioned(workload, ("Requeued", "True", order.reason))]

    def _finish(self, workload: Workload, order: m.Finish) -> list[Workload]:
        return [self._conditioned(workload, ("Finished", "True", order.reason))]


_WRITERS: dict[type[Any], Callable[[World, Workload, Any], list[Workload]]] = {
    m.ReserveQuota: World._reserve,
    m.Evict: World._evict,
    m.Place: World._place,
    m.ReportPending: World._report,
    m.Requeue: World._requeue,
    m.Finish: World._finish,
}


def key(name: str) -> ObjectKey:
    return ObjectKey("", name)
