"""All that administrators configure: queues, cohorts, flavors, topologies, checks, namespaces, limit ranges.

It takes changes in and says which ClusterQueues they concern; what follows for workloads is for the state to decide.
"""

from collections.abc import Iterable, Sequence

from hub.kueue.admission.config import Flavor, LocalQ, Queue, set_cohort
from hub.kueue.admission.forest import Forest
from hub.kueue.admission.policy import Policy
from hub.kueue.admission.quota import Node
from hub.kueue.admission.scene import Scene
from hub.kueue.api.core import LimitRangeItem, selects
from hub.kueue.api.meta import ObjectKey, is_true
from hub.kueue.api.v1beta2 import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Topology,
)
from hub.kueue.api.v1beta2 import names as n

_Reason = n.ClusterQueueActiveReason


class Configuration:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.scene = Scene(policy)
        self.forest = Forest()
        self.locals: dict[ObjectKey, LocalQ] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self._locals_of: dict[str, dict[ObjectKey, LocalQ]] = {}
        self._limits: dict[str, dict[str, Sequence[LimitRangeItem]]] = {}
        self._checks: dict[str, AdmissionCheck] = {}
        self._specs: dict[tuple[str, str], object] = {}

    @property
    def queues(self) -> dict[str, Queue]:
        return self.forest.queues

    def local(self, key: ObjectKey) -> LocalQ:
        """The LocalQueue of this name, whether the object is there or not."""
        found = self.locals.get(key)
        if found is None:
            found = self.locals[key] = LocalQ(key)
        return found

    def locals_of(self, queue: str) -> list[LocalQ]:
        """LocalQueues that point to this ClusterQueue."""
        return list(self._locals_of.get(queue, {}).values())

    def queue_of(self, local: LocalQ) -> Queue | None:
        return self.queues.get(local.cluster_queue) if local.exists else None

    def limits(self, namespace: str) -> Sequence[LimitRangeItem]:
        found = self._limits.get(namespace)
        return [item for items in found.values() for item in items] if found else ()

    def matches(self, queue: Queue, namespace: str) -> bool:
        """Does the ClusterQueue take workloads of this namespace?"""
        known = queue.takes.get(namespace)
        if known is None:
            labels = self.namespaces.get(namespace)
            known = queue.takes[namespace] = labels is not None and selects(queue.selector, labels)
        return known

    def set_namespace(self, name: str, labels: dict[str, str] | None) -> None:
        """None: it is gone."""
        if labels is None:
            self.namespaces.pop(name, None)
        else:
            self.namespaces[name] = labels
        for queue in self.queues.values():
            queue.takes.pop(name, None)

    def _unchanged(self, kind: str, name: str, spec: object) -> bool:
        """Status alone changed. Remembers the spec for the next time."""
        key = (kind, name)
        same = self._specs.get(key) == spec
        self._specs[key] = spec
        return same

    # --- queues and cohorts ----------------------------------------------------------------------------------------------

    def set_queue(self, obj: ClusterQueue) -> Queue | None:
        """A ClusterQueue is new or changed. None: nothing that matters changed."""
        name = obj.metadata.name
        if self._unchanged("ClusterQueue", name, (obj.spec, obj.metadata.deletion_timestamp)):
            return None
        queue = self.queues.get(name) or Queue(name, hashing=self.policy.shape_hashing)
        queue.set(obj)
        self.forest.put_queue(queue, obj.spec.cohort_name)
        return queue

    def remove_queue(self, name: str) -> Queue | None:
        self._specs.pop(("ClusterQueue", name), None)
        queue = self.queues.get(name)
        if queue is not None:
            queue.exists = False
            self.forest.remove_queue(queue)
        return queue

    def set_cohort(self, obj: Cohort) -> Node | None:
        name = obj.metadata.name
        if self._unchanged("Cohort", name, obj.spec):
            return None
        node = self.forest.put_cohort(name, obj.spec.parent_name)
        set_cohort(node, obj)
        return node

    def remove_cohort(self, name: str) -> Node:
        self._specs.pop(("Cohort", name), None)
        node = self.forest.remove_cohort(name)
        set_cohort(node, None)
        return node

    def set_local(self, obj: LocalQueue) -> LocalQ | None:
        key = obj.metadata.key
        if self._unchanged("LocalQueue", str(key), obj.spec):
            return None
        local = self.local(key)
        self._locals_of.get(local.cluster_queue, {}).pop(key, None)
        local.set(obj)
        self._locals_of.setdefault(local.cluster_queue, {})[key] = local
        return local

    def remove_local(self, key: ObjectKey) -> LocalQ | None:
        self._specs.pop(("LocalQueue", str(key)), None)
        local = self.locals.get(key)
        if local is not None:
            local.exists = False
            local.stop = "None"
            self._locals_of.get(local.cluster_queue, {}).pop(key, None)
            if not local.members:
                del self.locals[key]
        return local

    # --- what queues refer to --------------------------------------------------------------------------------------------

    def set_flavor(self, obj: ResourceFlavor) -> tuple[list[Queue], bool]:
        """Queues that use the flavor, and whether it takes other pods than before."""
        new = Flavor(obj)
        old = self.scene.flavors.get(new.name)
        self.scene.flavors[new.name] = new
        self.scene.places.set_flavor(obj)
        users = self.users_of(new.name)
        self._forget_plans(users)
        return users, old is None or old.differs(new)

    def remove_flavor(self, name: str) -> list[Queue]:
        self.scene.flavors.pop(name, None)
        self.scene.places.remove_flavor(name)
        users = self.users_of(name)
        self._forget_plans(users)
        return users

    def set_topology(self, obj: Topology) -> list[Queue]:
        self.scene.places.set_topology(obj)
        users = list(self.queues.values())
        self._forget_plans(users)
        return users

    def remove_topology(self, name: str) -> list[Queue]:
        self.scene.places.remove_topology(name)
        users = list(self.queues.values())
        self._forget_plans(users)
        return users

    def set_check(self, obj: AdmissionCheck) -> list[Queue]:
        self._checks[obj.metadata.name] = obj
        return self._with_check(obj.metadata.name)

    def remove_check(self, name: str) -> list[Queue]:
        self._checks.pop(name, None)
        return self._with_check(name)

    def _with_check(self, name: str) -> list[Queue]:
        return [q for q in self.queues.values() if any(rule.name == name for rule in q.checks)]

    def users_of(self, flavor: str) -> list[Queue]:
        return [q for q in self.queues.values() if any(flavor in g.flavors for g in q.groups)]

    def set_limits(self, namespace: str, name: str, items: Sequence[LimitRangeItem]) -> None:
        self._limits.setdefault(namespace, {})[name] = items

    def remove_limits(self, namespace: str, name: str) -> None:
        self._limits.get(namespace, {}).pop(name, None)

    def controller_of(self, check: str) -> str:
        obj = self._checks.get(check)
        return obj.spec.controller_name if obj else ""

    def _forget_plans(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            queue.plans.clear()

    # --- activity --------------------------------------------------------------------------------------------------------

    def settle(self) -> list[Queue]:
        """Bring the quota trees up to date with what changed. Returns the queues of those trees."""
        changed = self.forest.settle()
        for queue in changed:
            self.judge(queue)
        return changed

    def judge(self, queue: Queue) -> bool:
        """Work out whether the ClusterQueue is active and why not. True: that changed."""
        found = list(self._troubles(queue))
        before = queue.inactive_reason
        queue.inactive_reason = found[0][0] if found else ""
        queue.inactive_message = (
            "Can't admit new workloads: " + ", ".join(text for _, text in found) + "." if found else ""
        )
        self._judge_topology(queue)
        return queue.inactive_reason != before

    def _judge_topology(self, queue: Queue) -> None:
        checks = {self.controller_of(rule.name): rule for rule in queue.checks}
        rule = checks.get(n.CONTROLLER_PROVISIONING_REQUEST)
        flavors = [f for g in queue.groups for f in g.flavors]
        delayed = flavors if rule is not None and not rule.flavors else sorted(rule.flavors) if rule is not None else []
        queue.places_elsewhere = n.CONTROLLER_MULTIKUEUE in checks
        self.scene.places.set_queue(queue, delayed, never=queue.places_elsewhere)

    def _troubles(self, queue: Queue) -> Iterable[tuple[str, str]]:
        """(reason, what is the matter), the one that counts first."""
        if queue.terminating:
            yield _Reason.TERMINATING, "is being deleted"
        if queue.stop != "None":
            yield _Reason.STOPPED, "is stopped"
        flavors = [f for g in queue.groups for f in g.flavors]
        if missing := [f for f in flavors if f not in self.scene.flavors]:
            yield _Reason.FLAVOR_NOT_FOUND, f"references missing ResourceFlavor(s): {','.join(missing)}"
        yield from self._check_troubles(queue)
        if missing := self.scene.places.missing_topologies(flavors):
            yield _Reason.TOPOLOGY_NOT_FOUND, f"there is no Topology {','.join(missing)} for its flavors"
        if queue.problem:
            yield _Reason.UNKNOWN, queue.problem
        if self.forest.looped(queue):
            yield _Reason.UNKNOWN, "its cohorts form a loop, or are nested too deep"

    def _check_troubles(self, queue: Queue) -> Iterable[tuple[str, str]]:
        names = [rule.name for rule in queue.checks]
        if missing := [c for c in names if c not in self._checks]:
            yield _Reason.ADMISSION_CHECK_NOT_FOUND, f"references missing AdmissionCheck(s): {','.join(missing)}"
        here = [self._checks[c] for c in names if c in self._checks]
        if idle := [c.metadata.name for c in here if not is_true(c.status.conditions, n.ACTIVE)]:
            yield _Reason.ADMISSION_CHECK_INACTIVE, f"references inactive AdmissionCheck(s): {','.join(idle)}"
        remote = [r for r in queue.checks if self.controller_of(r.name) == n.CONTROLLER_MULTIKUEUE]
        if len(remote) > 1:
            yield _Reason.MULTIPLE_MULTIKUEUE_ADMISSION_CHECKS, "references several MultiKueue AdmissionChecks"
        if any(rule.flavors for rule in remote):
            yield (
                _Reason.MULTIKUEUE_ADMISSION_CHECK_APPLIED_PER_FLAVOR,
                "its MultiKueue AdmissionCheck is limited to flavors",
            )
        if remote and any(self.controller_of(c) == n.CONTROLLER_PROVISIONING_REQUEST for c in names):
            yield _Reason.MULTIKUEUE_WITH_PROVISIONING_REQUEST, "combines MultiKueue with ProvisioningRequest"
