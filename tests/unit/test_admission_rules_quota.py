"""The tricky rules of quota, flavors and sizes, one case each. Most are pinned by Kueue's own tests as well."""

from collections.abc import Callable

import pytest

from hub.kueue.admission.policy import Policy, Transformation
from hub.kueue.admission.quota import available, potential
from hub.kueue.admission.requests import transformed
from hub.kueue.api.quantity import amount
from tests.admission_builders import PREEMPT_LOWER, Cluster, pods

TRY_NEXT = {"flavorFungibility": {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor"}}
RULES: list[object] = []


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


def used(c: Cluster, queue: str, cpu: int) -> None:
    """Make the queue use so much, whatever its quota: other writers admitted it."""
    name = f"runs-{queue}"
    c.submit(name, queue, cpu)
    workload = c.world.workloads[name]
    document = {
        "clusterQueue": queue,
        "podSetAssignments": [
            {"name": "main", "flavors": {"cpu": "default"}, "resourceUsage": {"cpu": str(cpu)}, "count": 1}
        ],
    }
    manifest = c.world.manifest(workload)
    manifest["status"] = {
        "admission": document,
        "conditions": [{"type": "QuotaReserved", "status": "True"}, {"type": "Admitted", "status": "True"}],
    }
    c.world.create(manifest)


@rule("a lending limit keeps the rest for its owner, and what stays inside it does not reach the cohort")
def _() -> tuple[object, object]:
    c = Cluster()
    c.cohort("co", cpu=10)
    for name, given, use in (("cq1", 10, 20), ("cq2", (10, 2, None), 10), ("cq3", (10, None, 5), 6)):
        c.queue(name, "co", given)
        used(c, name, use)
    cells = [c.cell(name) for name in ("cq1", "cq2", "cq3")]
    return [(available(x) // 1000, potential(x) // 1000) for x in cells], [(4, 35), (2, 12), (4, 40)]


@rule("the debt of an over-admitted queue reaches even one that neither lends nor borrows")
def _() -> tuple[object, object]:
    c = Cluster()
    c.cohort("co", cpu=10)
    c.queue("cq1", "co", 10)
    c.queue("cq2", "co", (10, 0, 0))
    used(c, "cq1", 31)
    return max(0, available(c.cell("cq2"))), max(0, available(c.cell("cq2")))


@rule("a cohort's lending limit applies to its whole subtree")
def _() -> tuple[object, object]:
    c = Cluster()
    c.cohort("root")
    c.cohort("left", "root", (0, None, 5))
    c.queue("left1", "left", (10, None, 5))
    c.queue("left2", "left", 10)
    c.queue("right", "root", 0)
    return [potential(c.cell(q)) // 1000 for q in ("left1", "left2", "right")], [20, 15, 5]


@rule("too little now is WaitingForQuota, too much for ever is ExceedsMaxQuota")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("borrower", "co", (5, 10, None))
    c.queue("lender", "co", (10, None, 3))
    used(c, "borrower", 5)
    c.submit("small", "borrower", 4, priority=1)
    c.submit("big", "borrower", 9)
    c.cycle(2)
    got = (c.reason("small"), "1 more needed" in c.message("small"), c.reason("big"))
    return got, ("WaitingForQuota", True, "ExceedsMaxQuota")


@rule("preemption is not even tried where neither nominal quota nor a subtree below the root could hold the request")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("a", "co", 2, **PREEMPT_LOWER)
    c.queue("b", "co", 2)
    c.submit("low", "a", 1, priority=-1)
    c.submit("other", "b", 1)
    c.cycle()
    c.submit("new", "a", 3, priority=1)
    return (c.cycle(), c.preempted), ({"new": "nofit"}, {})


@rule("but an intermediate cohort that can hold it gives the right to preempt")
def _() -> tuple[object, object]:
    c = Cluster()
    c.cohort("root")
    c.cohort("c", "root", 2)
    c.queue("q", "c", 0, **PREEMPT_LOWER)
    c.queue("b", "root", 0)
    c.submit("borrowed", "b", 2)
    c.cycle()
    c.submit("new", "q", 2)
    return (c.cycle(), c.preempted), ({"new": "preempting"}, {"borrowed": "InCohortReclamation"})


def _two_flavors(**spec: object) -> Cluster:
    c = Cluster()
    c.queue("lender", "co", flavors={"f1": {"cpu": 5}, "f2": {"cpu": 0}})
    c.queue("q", "co", flavors={"f1": {"cpu": 1}, "f2": {"cpu": 5}}, **spec)
    c.submit("first", "q", 1)
    c.cycle()
    c.submit("w", "q", 2)
    c.cycle()
    return c


@rule("by default the search stops at a flavor that fits by borrowing")
def _() -> tuple[object, object]:
    return _two_flavors().flavors("w"), {"cpu": "f1"}


@rule("with whenCanBorrow TryNextFlavor it goes on to one that needs no borrowing")
def _() -> tuple[object, object]:
    return _two_flavors(**TRY_NEXT).flavors("w"), {"cpu": "f2"}


def _preemptable_first(when: str) -> Cluster:
    c = Cluster()
    c.queue(
        "q",
        flavors={"f1": {"cpu": 2}, "f2": {"cpu": 2}},
        flavorFungibility={"whenCanBorrow": "MayStopSearch", "whenCanPreempt": when},
        preemption={"withinClusterQueue": "LowerPriority"},
    )
    c.submit("low", "q", 2)
    c.cycle()
    c.submit("high", "q", 2, priority=5)
    c.cycle()
    return c


@rule("by default the search goes on past a flavor that would need preemption")
def _() -> tuple[object, object]:
    c = _preemptable_first("TryNextFlavor")
    return (c.flavors("high"), c.preempted), ({"cpu": "f2"}, {})


@rule("with whenCanPreempt MayStopSearch it stops there")
def _() -> tuple[object, object]:
    c = _preemptable_first("MayStopSearch")
    return (c.flavors("high"), c.preempted), ({}, {"low": "InClusterQueue"})


def _preference(preference: str) -> Cluster:
    c = Cluster()
    c.queue("lender", "co", flavors={"f1": {"cpu": 0}, "f2": {"cpu": 5}})
    fungible = {**TRY_NEXT["flavorFungibility"], "preference": preference}
    c.queue(
        "q", "co", flavors={"f1": {"cpu": (2, 0, None)}, "f2": {"cpu": 0}}, flavorFungibility=fungible,
        preemption={"withinClusterQueue": "LowerPriority"},
    )  # fmt: skip
    c.submit("low", "q", 2)
    c.cycle()
    c.submit("high", "q", 2, priority=5)
    c.cycle()
    return c


@rule("borrowing is preferred to preemption, unless the queue says otherwise")
def _() -> tuple[object, object]:
    a, b = _preference("BorrowingOverPreemption"), _preference("PreemptionOverBorrowing")
    return (a.flavors("high"), b.preempted), ({"cpu": "f2"}, {"low": "InClusterQueue"})


@rule("a flavor without candidates never beats a viable one, whatever the preference")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("lender", "co", flavors={"f1": {"cpu": 0}, "f2": {"cpu": 5}})
    fungible = {**TRY_NEXT["flavorFungibility"], "preference": "PreemptionOverBorrowing"}
    c.queue("q", "co", flavors={"f1": {"cpu": (2, 0, None)}, "f2": {"cpu": 0}}, flavorFungibility=fungible)
    c.submit("first", "q", 2)
    c.cycle()
    c.submit("w", "q", 2)
    c.cycle()
    return c.flavors("w"), {"cpu": "f2"}


@rule("MayStopSearch does not stop at a flavor without candidates")
def _() -> tuple[object, object]:
    c = Cluster()
    stop = {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"}
    c.queue("q", flavors={"f1": {"cpu": 2}, "f2": {"cpu": 2}}, flavorFungibility=stop)
    c.submit("first", "q", 2)
    c.cycle()
    c.submit("w", "q", 2)
    c.cycle()
    return c.flavors("w"), {"cpu": "f2"}


def _labelled(labels: dict[str, dict[str, str]], pod: dict[str, object]) -> dict[str, str]:
    c = Cluster()
    for name, own in labels.items():
        c.flavor(name, nodeLabels=own)
    c.queue("q", flavors={name: {"cpu": 5} for name in labels})
    c.submit("w", "q", 1, pod=pod)
    c.cycle()
    return c.flavors("w")


@rule("of a node selector only the flavor's own label keys count")
def _() -> tuple[object, object]:
    labels = {"f1": {"type": "a"}, "f2": {"zone": "z"}}
    return _labelled(labels, {"nodeSelector": {"zone": "z"}}), {"cpu": "f1"}


@rule("an affinity term without any of the flavor's keys satisfies the whole affinity")
def _() -> tuple[object, object]:
    terms = [
        {"matchExpressions": [{"key": "type", "operator": "In", "values": ["b"]}]},
        {"matchExpressions": [{"key": "cpu", "operator": "In", "values": ["amd"]}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return _labelled({"f1": {"type": "a"}}, {"affinity": {"nodeAffinity": required}}), {"cpu": "f1"}


@rule("pod sets add up, and none of them is admitted alone")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=5)
    c.submit("w", "q", pod_sets=[pods("a", 1, {"cpu": "3"}), pods("b", 1, {"cpu": "3"})])
    c.cycle()
    return (c.admitted(), c.reason("w")), (set(), "ExceedsMaxQuota")


@rule("zero of a resource that the queue does not cover is nothing; one of it is too much")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=5)
    c.submit("none", "q", requests={"cpu": "1", "gpu": "0"}, at=1)
    c.submit("one", "q", requests={"cpu": "1", "gpu": "1"}, at=2)
    c.cycle(2)
    return (c.flavors("none"), c.flavors("one")), ({"cpu": "default"}, {})


@rule("a queue that covers pods counts them")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", flavors={"default": {"pods": 3}})
    c.submit("w", "q", pod_sets=[pods("main", 5, {})])
    c.cycle()
    return c.admitted(), set()


@rule("everything but cpu is rounded up to whole pieces")
def _() -> tuple[object, object]:
    return (amount("gpu", "500m"), amount("memory", "100.5"), amount("cpu", "1500m")), (1, 101, 1500)


@rule("multiplyBy scales the outputs alone, and Retain keeps the input")
def _() -> tuple[object, object]:
    policy = Policy(transformations=(Transformation(input="A", outputs={"C": "2"}, multiply_by="B"),))
    return transformed({"A": 3, "B": 4}, policy), {"A": 3, "B": 4, "C": 24}


@rule("a negative output lowers what transformations made, never what was asked for")
def _() -> tuple[object, object]:
    policy = Policy(transformations=(Transformation(input="X", outputs={"cpu": "-5"}, replace=True),))
    return transformed({"X": 1, "cpu": 2000}, policy), {"cpu": 2000}


@rule("partial admission shrinks in proportion and rounds towards more pods")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=50)
    sets = [
        pods("a", 20, {"cpu": "1"}),
        pods("b", 30, {"cpu": "1"}, min_count=10),
        pods("c", 15, {"cpu": "1"}, min_count=5),
    ]
    c.submit("w", "q", pod_sets=sets)
    c.cycle()
    return c.counts("w"), [20, 20, 10]


@rule("preemption at full size is preferred to a fit at reduced size")
def _() -> tuple[object, object]:
    c = Cluster()
    c.queue("q", cpu=50, preemption={"withinClusterQueue": "LowerPriority"})
    c.submit("low", "q", 10)
    c.cycle()
    c.submit("w", "q", 1, count=50, min_count=20, priority=1)
    return (c.cycle(), c.preempted), ({"w": "preempting"}, {"low": "InClusterQueue"})
