"""The tricky rules of cycles, preemption, fair shares, queues and evictions, one case each."""

from collections.abc import Callable
from typing import Any

import pytest

from hub.kueue.admission import messages as m
from hub.kueue.admission import usage_history
from hub.kueue.admission.config import LocalQ
from hub.kueue.admission.fair_sharing import share
from hub.kueue.admission.policy import AdmissionFairSharing, PodsReady, Policy
from hub.kueue.admission.review import backoff
from hub.kueue.admission.state import AdmissionState
from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.v1beta2 import decode
from tests.admission_builders import PREEMPT_LOWER, Cluster
from tests.conformance.world import START

RULES: list[Any] = []


def rule(text: str) -> Callable[[Callable[[], tuple[object, object]]], Callable[[], tuple[object, object]]]:
    """Register a case: it returns what it got and what the rule wants."""

    def register(case: Callable[[], tuple[object, object]]) -> Callable[[], tuple[object, object]]:
        RULES.append(pytest.param(case, id=text))
        return case

    return register


@pytest.mark.parametrize("case", RULES)
def test_rule(case: Callable[[], tuple[object, object]]) -> None:
    got, want = case()
    assert got == want


# --- cycles --------------------------------------------------------------------------------------------------------------


@rule("who borrows less goes first, before priority")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("lender", "co", 1)
    c.queue("a", "co", 0)
    c.queue("b", "co", 1)
    c.submit("high", "a", 1, priority=100)
    c.submit("low", "b", 1)
    return list(c.cycle()), ["low", "high"]


@rule("of two that want the same spare room the second is skipped and stays at the front")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("lender", "co", 1)
    c.queue("a", "co", 0)
    c.queue("b", "co", 0)
    c.submit("first", "a", 1, at=1)
    c.submit("second", "b", 1, at=2)
    return (c.cycle(), c.is_parked("second")), ({"first": "admitted", "second": "skipped"}, False)


def _blocked(reclaim: str) -> dict[str, str]:
    c = Cluster()
    c.queue("a", "co", 2, preemption={"withinClusterQueue": "Never", "reclaimWithinCohort": reclaim})
    c.queue("b", "co", 0)
    c.submit("runs", "a", 1)
    c.cycle()
    c.submit("waits", "a", 2, at=1)
    c.submit("borrows", "b", 1, at=2)
    return c.cycle()


@rule("a preemptor without candidates holds its quota, unless it can always reclaim it")
def _() -> tuple[object, object]:
    got = (_blocked("LowerPriority")["borrows"], _blocked("Never")["borrows"], _blocked("Any")["borrows"])
    return got, ("skipped", "skipped", "admitted")


def _overlap(**gates: bool) -> tuple[dict[str, str], dict[str, str]]:
    c = Cluster(**gates)
    for name in ("a", "b"):
        c.queue(name, "co", 2, **PREEMPT_LOWER)
    c.queue("z", "co", 0)
    c.submit("victim", "z", 4)
    c.cycle()
    c.submit("one", "a", 2, at=1)
    c.submit("two", "b", 2, at=2)
    return c.cycle(), c.preempted


@rule("when another takes its victim a preemptor waits for the same eviction")
def _() -> tuple[object, object]:
    off = _overlap(RecomputeAssignmentUponPreemptionTargetsOverlap=False)[0]["two"]
    return (_overlap()[0], off), ({"one": "preempting", "two": "deferred"}, "skipped")


# --- preemption ------------------------------------------------------------------------------------------------------------


@rule("victims that turn out not to be needed are spared")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=6, preemption={"withinClusterQueue": "LowerPriority"})
    for name, cpu, priority in (("low", 1, -1), ("mid", 2, 0), ("high", 3, 2)):
        c.submit(name, "q", cpu, priority=priority)
    c.cycle(3)
    c.submit("new", "q", 2, priority=1)
    c.cycle()
    return c.preempted, {"mid": "InClusterQueue"}


def _newer(at: float) -> dict[str, str]:
    c = Cluster()
    c.queue("q", cpu=2, preemption={"withinClusterQueue": "LowerOrNewerEqualPriority"})
    c.submit("runs", "q", 2, at=at)
    c.cycle()
    c.submit("new", "q", 2, at=10)
    c.cycle()
    return c.preempted


@rule("LowerOrNewerEqualPriority takes those that are strictly newer")
def _() -> tuple[object, object]:
    return (_newer(10), _newer(11)), ({}, {"runs": "InClusterQueue"})


@rule("the borrowing threshold protects only while the preemptor would borrow")
def _() -> tuple[object, object]:
    def preempted(cpu: int) -> dict[str, str]:
        c = Cluster()
        borrow = {"policy": "LowerPriority", "maxPriorityThreshold": 0}
        c.queue("q", "co", 1, preemption={"reclaimWithinCohort": "LowerPriority", "borrowWithinCohort": borrow})
        c.queue("other", "co", 1)
        c.submit("borrower", "other", 2, priority=1)
        c.cycle()
        c.submit("new", "q", cpu, priority=2)
        c.cycle()
        return c.preempted

    return (preempted(2), preempted(1)), ({}, {"borrower": "InCohortReclamation"})


@rule("a lender that is back within its quota is left alone")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("a", "co", 5, **PREEMPT_LOWER)
    c.queue("b", "co", 3)
    for i in range(5):
        c.submit(f"b{i}", "b", 1)
    c.submit("own", "a", 2, priority=9)
    c.cycle(6)
    c.submit("new", "a", 3)
    c.cycle()
    return len(c.preempted), 2


@rule("the right to a subtree's quota does not bypass LowerPriority")
def _() -> tuple[object, object]:
    c = Cluster()
    c.cohort("root")
    c.cohort("c", "root", 2)
    c.queue("q", "c", 0, preemption={"reclaimWithinCohort": "LowerPriority"})
    c.queue("b", "root", 0)
    c.submit("equal", "b", 2)
    c.cycle()
    c.submit("new", "q", 2)
    return (c.cycle(), c.preempted), ({"new": "nocandidates"}, {})


# --- fair sharing ------------------------------------------------------------------------------------------------------------


def _share(weight: str) -> float:
    c = Cluster(fair=[])
    c.queue("a", "co", 5, fairSharing={"weight": weight})
    c.queue("lender", "co", 5)
    c.submit("w", "a", 7)
    c.cycle()
    return share(c.engine.config.queues["a"]).value


@rule("a share is what is borrowed of what can be lent, by weight")
def _() -> tuple[object, object]:
    return (_share("1"), _share("2"), _share("0")), (200.0, 100.0, float("inf"))


@rule("what nobody lends has no share, but borrowing it is borrowing")
def _() -> tuple[object, object]:
    c = Cluster(fair=[])
    flavors = {"default": {"cpu": 1, "gpu": (2, None, 0)}}
    c.queue("a", "co", flavors=flavors)
    c.queue("b", "co", flavors={"default": {"cpu": 4, "gpu": (2, None, 0)}})
    c.submit("w", "a", requests={"cpu": "4"})
    c.cycle()
    own = share(c.engine.config.queues["a"])
    return (own.value, own.borrowing), (600.0, True)


@rule("no preemption that would only turn the imbalance round")
def _() -> tuple[object, object]:
    c = Cluster(fair=["LessThanOrEqualToFinalShare", "LessThanInitialShare"])
    for name in ("a", "b", "c"):
        c.queue(name, "co", 3, **PREEMPT_LOWER)
    for i in range(3):
        c.submit(f"a{i}", "a", 1)
    for i in range(5):
        c.submit(f"b{i}", "b", 1)
    c.cycle(6)
    c.submit("new", "a", 2)
    c.cycle()
    return c.preempted, {}


@rule("a preemptor within its nominal quota preempts without comparing shares")
def _() -> tuple[object, object]:
    c = Cluster(fair=[])
    c.queue("a", "co", flavors={"premium": {"cpu": 3}, "cheap": {"cpu": 0}}, **PREEMPT_LOWER)
    c.queue("b", "co", flavors={"premium": {"cpu": 0}, "cheap": {"cpu": 5}})
    for i in range(2):
        c.submit(f"a{i}", "a", 1)
    c.cycle(2)
    c.submit("b0", "b", 1)
    c.cycle()
    c.submit("cheap", "a", 5)
    c.cycle()
    c.submit("new", "a", 1)
    c.cycle()
    return c.preempted, {"b0": "InCohortReclamation"}


@rule("whoever reaches the lower share goes first, whatever the priority")
def _() -> tuple[object, object]:
    c = Cluster(fair=[])
    c.queue("a", "co", 3)
    c.queue("b", "co", 3)
    c.queue("c", "co", 3)
    c.submit("busy", "b", 3)
    c.cycle()
    c.submit("b-head", "b", 1, priority=100, at=1)
    c.submit("a-head", "a", 3, at=2)
    return list(c.cycle()), ["a-head", "b-head"]


# --- queues ------------------------------------------------------------------------------------------------------------------


@rule("a strict head blocks its own queue and no other")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("strict", "co", 1, queueingStrategy="StrictFIFO")
    c.queue("other", "co", 1)
    c.submit("huge", "strict", 9, at=1)
    c.submit("small", "strict", 1, at=2)
    c.submit("fine", "other", 1, at=3)
    c.cycle(3)
    return c.admitted(), {"fine"}


@rule("workloads of one shape are parked together, and a changed one is looked at again")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=1)
    for i in range(3):
        c.submit(f"w{i}", "q", 2, at=i)
    c.cycle()
    together = [c.is_parked(f"w{i}") for i in range(3)]
    c.world.set({"workload": "w1", "priority": 5})
    return (together, c.is_parked("w1")), ([True] * 3, False)


@rule("a strict queue parks nobody for lack of room")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=1, queueingStrategy="StrictFIFO")
    for i in range(3):
        c.submit(f"w{i}", "q", 2, at=i)
    c.cycle(2)
    return [c.is_parked(f"w{i}") for i in range(3)], [False] * 3


@rule("the search for a flavor goes on where it stopped, and starts over after the last")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("lender", "co", flavors={f: {"cpu": 2} for f in ("f0", "f1", "f2")})
    c.queue("a", "co", flavors={f: {"cpu": 0} for f in ("f0", "f1", "f2")})
    c.queue("b", "co", flavors={f: {"cpu": 0} for f in ("f0", "f1", "f2")})
    c.submit("first", "a", 2, at=1)
    c.submit("w", "b", 2, at=2)
    skipped = c.cycle()["w"]
    c.cycle()
    return (skipped, c.flavors("first"), c.flavors("w")), ("skipped", {"cpu": "f0"}, {"cpu": "f1"})


@rule("pods given back free their share, and parked workloads are looked at again")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=20)
    c.submit("w", "q", 2, count=10)
    c.cycle()
    c.submit("late", "q", 8)
    c.cycle()
    parked = c.is_parked("late")
    c.world.set({"workload": "w", "reclaimablePods": [{"name": "main", "count": 4}]})
    return (parked, c.cell("q").usage, c.cycle()), (True, 12000, {"late": "admitted"})


# --- evictions, checks and time ----------------------------------------------------------------------------------------------

RULES_READY = PodsReady(backoff_limit=3)


@rule("the wait after a failed start doubles up to its maximum")
def _() -> tuple[object, object]:
    got = [backoff(RULES_READY, count) for count in range(1, 9)]
    return got, [60, 120, 240, 480, 960, 1920, 3600, 3600]


def _running(policy: Policy, **status: Any) -> tuple[AdmissionState, dict[str, Any]]:
    """An engine with one admitted workload, as after a restart."""
    c = Cluster()
    c.queue("q", cpu=5)
    c.submit("w", "q", 1, maximumExecutionTimeSeconds=status.pop("max_s", None) or 10**6)
    c.cycle()
    manifest = c.world.manifest(c.world.workloads["w"])
    manifest["status"] |= status
    engine = AdmissionState(policy)
    return engine, manifest


def _fed(engine: AdmissionState, manifest: dict[str, Any], now: float) -> list[m.AnyInstruction]:
    c = Cluster()
    c.queue("q", cpu=5)
    for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue"):
        spec: dict[str, Any] = {}
        meta = {"name": "default" if kind == "ResourceFlavor" else "q"}
        if kind == "ClusterQueue":
            quota = {"name": "cpu", "nominalQuota": "5"}
            flavors = [{"name": "default", "resources": [quota]}]
            spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}
        if kind == "LocalQueue":
            spec, meta["namespace"] = {"clusterQueue": "q"}, "team"
        obj = decode({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": meta, "spec": spec})
        engine.handle(m.ConfigChanged(now=START, object=obj))
    engine.handle(m.NamespaceChanged(now=START, name="team", labels={}))
    first = engine.handle(m.WorkloadChanged(now=START, workload=decode(manifest)))
    return [*first, *engine.handle(m.CycleDue(now=now))]


@rule("a workload whose pods do not start in time is evicted and comes back later, at last it is switched off")
def _() -> tuple[object, object]:
    policy = Policy(pods_ready=RULES_READY)
    engine, manifest = _running(policy)
    out = _fed(engine, manifest, START + 1801)
    evict = next(o for o in out if isinstance(o, m.Evict))
    engine, manifest = _running(policy, requeueState={"count": 3})
    last = next(o for o in _fed(engine, manifest, START + 1801) if isinstance(o, m.Deactivate))
    return (evict.reason, evict.requeue_count, last.reason), ("PodsReadyTimeout", 1, "RequeuingLimitExceeded")


@rule("a workload that runs for longer than it may is switched off")
def _() -> tuple[object, object]:
    engine, manifest = _running(Policy(pods_ready=None), max_s=100)
    out = _fed(engine, manifest, START + 101)
    return [o.reason for o in out if isinstance(o, m.Deactivate)], ["MaximumExecutionTimeExceeded"]


@rule("checks that ask for another try decide together when, and one that rejects decides alone")
def _() -> tuple[object, object]:
    at = "2026-01-01T00:00:00Z"
    retry = [
        {"name": n, "state": "Retry", "lastTransitionTime": at, "requeueAfterSeconds": s, "message": ""}
        for n, s in (("a", 30), ("b", 60))
    ]
    engine, manifest = _running(Policy(), admissionChecks=retry)
    evict = next(o for o in _fed(engine, manifest, START + 1) if isinstance(o, m.Evict))
    engine, manifest = _running(
        Policy(), admissionChecks=[*retry, {"name": "c", "state": "Rejected", "lastTransitionTime": at, "message": ""}]
    )
    rejected = next(o for o in _fed(engine, manifest, START + 1) if isinstance(o, m.Deactivate))
    return (evict.reason, evict.requeue_at, rejected.reason), (
        "AdmissionCheck",
        "2026-01-01T00:01:00Z",
        "AdmissionCheck",
    )


@rule("after a restart running workloads count as before, and nothing is decided anew")
def _() -> tuple[object, object]:
    engine, manifest = _running(Policy())
    out = [o for o in _fed(engine, manifest, START + 1) if not isinstance(o, m.WakeAt)]
    engine.validate()
    return (out, engine.config.queues["q"].cells["default", "cpu"].usage), ([], 1000)


@rule("two phases: quota is reserved at once, Admitted follows when every check is ready")
def _() -> tuple[object, object]:
    c = Cluster()
    active = {"conditions": [{"type": "Active", "status": "True"}]}
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "ok"}}
    c.world.put({**check, "spec": {"controllerName": "example.com/ok"}, "status": active})
    c.queue("q", cpu=5, admissionChecksStrategy={"admissionChecks": [{"name": "ok"}]})
    c.submit("w", "q", 1)
    c.world.now += 1
    order = next(o for o in c.world.cycle() if isinstance(o, m.ReserveQuota))
    manifest = c.world.manifest(c.world.workloads["w"])
    manifest["status"]["admissionChecks"] = [
        {"name": "ok", "state": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}
    ]
    admit = c.world.send(m.WorkloadChanged(now=c.world.now, workload=decode(manifest)))
    return (order.checks, [type(o) for o in admit]), (("ok",), [m.Admit])


@rule("a queue on hold takes back what was reserved and not admitted, and keeps what runs")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=5)
    c.submit("runs", "q", 1)
    c.cycle()
    c.queue("q", cpu=5, stopPolicy="Hold")
    held = c.admitted()
    c.queue("q", cpu=5, stopPolicy="HoldAndDrain")
    return (held, c.admitted(), c.reason("runs")), ({"runs"}, set(), "PendingEvaluation")


@rule("a gate, an unknown queue and a switched-off workload each say why they wait")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=5)
    c.submit("gated", "q", 1, annotations={"kueue.x-k8s.io/admission-gated-by": "example.com/x"})
    c.submit("lost", "nowhere", 1)
    c.submit("off", "q", 1, active=False)
    c.cycle()
    return [c.reason(n) for n in ("gated", "lost", "off")], ["AdmissionGated", "Misconfigured", "Deactivated"]


# --- admission fair sharing ----------------------------------------------------------------------------------------------------


def _history(used: dict[str, float], weight: str = "1") -> Cluster:
    """Two LocalQueues of one ClusterQueue with a past, in a policy with a half-life of ten minutes."""
    c = Cluster()
    engine = AdmissionState(
        Policy(admission_fair_sharing=AdmissionFairSharing(half_life_s=600, sampling_interval_s=300))
    )
    c.engine = c.world.engine = engine
    c.world.put({"kind": "Namespace", "metadata": {"name": "team"}})
    c.queue("q", cpu=4, admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"})
    for name, consumed in used.items():
        c.put(
            "LocalQueue",
            name,
            {"clusterQueue": "q", "fairSharing": {"weight": weight if name == "b" else "1"}},
            namespace="team",
        )
        local = engine.config.local(ObjectKey("team", name))
        local.used, local.settled_at = {"cpu": consumed}, START
    return c


@rule("with admission fair sharing the LocalQueue that used less goes first, before priority")
def _() -> tuple[object, object]:
    c = _history({"a": 8, "b": 2})
    c.submit("important", "q", 4, priority=1000, local_queue="a")
    c.submit("modest", "q", 4, local_queue="b")
    return list(c.cycle()), ["modest"]


@rule("a LocalQueue of weight 0 comes last even if it used nothing")
def _() -> tuple[object, object]:
    c = _history({"a": 8, "b": 0}, weight="0")
    c.submit("used", "q", 4, local_queue="a")
    c.submit("none", "q", 4, local_queue="b")
    return list(c.cycle()), ["used"]


@rule("reserved quota is charged to the LocalQueue at once")
def _() -> tuple[object, object]:
    c = _history({"a": 0})
    c.submit("w", "q", 4, local_queue="a")
    c.cycle()
    local = c.engine.config.local(ObjectKey("team", "a"))
    return round(local.used["cpu"], 4), 1.1716


@rule("what was consumed is half forgotten after one half-life")
def _() -> tuple[object, object]:
    rules = AdmissionFairSharing(half_life_s=600)
    local = LocalQ(ObjectKey("team", "a"))
    local.used, local.settled_at = {"cpu": 8.0}, START
    usage_history.sample(local, rules, START + 600)
    return (local.used["cpu"], round(usage_history.fading(300, 600), 5)), (4.0, 0.29289)


# --- elastic jobs ----------------------------------------------------------------------------------------------------------------


def _grown(to: int) -> tuple[Cluster, dict[str, str]]:
    """A job of two pods in a queue of five cores asks for more, by a slice that replaces the first."""
    c = Cluster()
    c.queue("q", flavors={"f1": {"cpu": 5}, "f2": {"cpu": 9}})
    c.submit("small", "q", 1, count=2)
    c.cycle()
    c.submit("large", "q", 1, count=to, annotations={"kueue.x-k8s.io/workload-slice-replacement-for": "team/small"})
    return c, c.cycle()


@rule("a slice that replaces another pays for the difference alone, on the same flavor")
def _() -> tuple[object, object]:
    c, outcome = _grown(5)
    return (outcome, c.flavors("large"), c.cell("q", "f1").usage), ({"large": "admitted"}, {"cpu": "f1"}, 5000)


@rule("the slice that was replaced is finished, not evicted")
def _() -> tuple[object, object]:
    c, _ = _grown(5)
    finished = [x for x in c.world.workloads["small"].status.conditions if x.type == "Finished"]
    return [x.reason for x in finished], ["WorkloadSliceReplaced"]


@rule("a slice does not move to another flavor to find more room, and the old one runs on")
def _() -> tuple[object, object]:
    c, outcome = _grown(6)
    return (outcome["large"], c.admitted(), c.cell("q", "f1").usage), ("nofit", {"small"}, 2000)


# --- one start at a time -------------------------------------------------------------------------------------------------------


@rule("with blockAdmission the next is admitted when the pods of all that are admitted are ready")
def _() -> tuple[object, object]:
    c = Cluster()
    c.engine = c.world.engine = AdmissionState(Policy(pods_ready=PodsReady(block_admission=True)))
    c.world.put({"kind": "Namespace", "metadata": {"name": "team"}})
    c.queue("q", cpu=5)
    c.submit("first", "q", 1, at=1)
    c.submit("second", "q", 1, at=2)
    c.cycle(3)
    waits = (c.admitted(), c.reason("second"))
    manifest = c.world.manifest(c.world.workloads["first"])
    manifest["status"]["conditions"].append({"type": "PodsReady", "status": "True", "reason": "Started"})
    c.world.create(manifest)
    c.cycle()
    return (waits, c.admitted()), (({"first"}, "WaitingForPodsReady"), {"first", "second"})
