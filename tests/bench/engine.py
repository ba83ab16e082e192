"""`make bench-engine`: how fast the admission engine decides, and what it costs to remember.

Everything goes through `AdmissionState.handle`: arrivals, cycles, the echo of every write, finished jobs. Only time inside the
engine is counted; objects are made outside the clock. "schedule" counts the cycles alone, "all" the events as well.
"""

import argparse
import gc
import platform
import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hub.kueue.admission import messages as m
from hub.kueue.admission.policy import FairSharing, Policy
from hub.kueue.admission.state import AdmissionState
from hub.kueue.api.meta import Condition, ObjectKey, format_time
from hub.kueue.api.v1beta2 import Workload, decode, decode_as

START = 1_767_225_600.0
replace = msgspec.structs.replace


@dataclass
class Clock:
    """Time spent inside the engine, by what for."""

    schedule: float = 0.0
    events: float = 0.0
    heads: int = 0
    admitted: int = 0
    preempted: int = 0
    #: seconds per head, one figure a cycle.
    per_head: list[float] = field(default_factory=list)


class Bench:
    """An engine and the little world that it needs."""

    def __init__(self, policy: Policy) -> None:
        self.engine = AdmissionState(policy)
        self.now = START
        self.clock = Clock()
        self.running: deque[tuple[int, Workload]] = deque()
        self.objects: dict[ObjectKey, Workload] = {}
        self.cycles = 0

    def configure(self, manifests: Iterator[dict[str, Any]]) -> None:
        self.engine.handle(m.NamespaceChanged(now=self.now, name="team", labels={}))
        for manifest in manifests:
            self.engine.handle(m.ConfigChanged(now=self.now, object=decode(manifest)))

    def send(self, event: m.Event) -> list[m.AnyInstruction]:
        before = time.thread_time()
        out = self.engine.handle(event)
        self.clock.events += time.thread_time() - before
        return out

    def arrive(self, workload: Workload, *, keep: bool = True) -> None:
        if keep:
            self.objects[workload.metadata.key] = workload
        self.send(m.WorkloadChanged(now=self.now, workload=workload))

    def cycle(self, lasts: int) -> int:
        """One cycle; what it admits runs for so many cycles. Returns how many got in."""
        self.cycles += 1
        self.now += 1
        before = time.thread_time()
        out = self.engine.handle(m.CycleDue(now=self.now))
        spent = time.thread_time() - before
        heads = len(self.engine.last_cycle)
        self.clock.schedule += spent
        self.clock.heads += heads
        if heads:
            self.clock.per_head.append(spent / heads)
        admitted = self._echo(out, lasts)
        self._finish()
        return admitted

    def _echo(self, out: list[m.AnyInstruction], lasts: int) -> int:
        admitted = 0
        for instruction in out:
            if isinstance(instruction, m.ReserveQuota):
                admitted += 1
                workload = admitted_object(self.objects[instruction.key], instruction, self.now)
                self.objects[instruction.key] = workload
                self.send(m.WorkloadChanged(now=self.now, workload=workload))
                if lasts:
                    self.running.append((self.cycles + 1 + (self.clock.admitted + admitted) % lasts, workload))
            elif isinstance(instruction, m.Evict):
                self.clock.preempted += 1
                workload = self.objects[instruction.key]
                workload = replace(workload, status=type(workload.status)())
                self.objects[instruction.key] = workload
                self.send(m.WorkloadChanged(now=self.now, workload=workload))
        self.clock.admitted += admitted
        return admitted

    def _finish(self) -> None:
        for _ in range(len(self.running)):
            at, workload = self.running.popleft()
            if at > self.cycles:
                self.running.append((at, workload))
            elif self.objects.get(workload.metadata.key) is workload:
                del self.objects[workload.metadata.key]
                self.send(m.WorkloadDeleted(now=self.now, key=workload.metadata.key))


def admitted_object(workload: Workload, order: m.ReserveQuota, now: float) -> Workload:
    at = format_time(now)
    conditions = [
        Condition(type=kind, status="True", reason=kind, last_transition_time=at)
        for kind in ("QuotaReserved", "Admitted")
    ]
    return replace(workload, status=replace(workload.status, admission=order.admission, conditions=conditions))


# --- worlds ---------------------------------------------------------------------------------------------------------------


def flavor(name: str) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {}}


def cohort(name: str, parent: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Cohort",
        "metadata": {"name": name},
        "spec": {"parentName": parent},
    }


def queue(name: str, in_cohort: str, cpu: int, **spec: Any) -> Iterator[dict[str, Any]]:
    quota = [{"name": "cpu", "nominalQuota": str(cpu)}, {"name": "memory", "nominalQuota": f"{cpu * 4}Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "default", "resources": quota}]}
    api = "kueue.x-k8s.io/v1beta2"
    yield {
        "apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": name},
        "spec": {"cohortName": in_cohort, "namespaceSelector": {}, "resourceGroups": [group], **spec},
    }  # fmt: skip
    yield {
        "apiVersion": api, "kind": "LocalQueue", "metadata": {"name": name, "namespace": "team"}, "spec": {"clusterQueue": name},
    }  # fmt: skip


def workloads(count: int, queues: int, shapes: int = 30) -> Iterator[Workload]:
    """Workloads of a few shapes and three priorities, dealt out to the queues one after the other."""
    patterns = [_pattern(i) for i in range(shapes)]
    for i in range(count):
        pattern = patterns[i % shapes]
        meta = replace(
            pattern.metadata, name=f"w{i}", uid=f"{i:09d}", creation_timestamp=format_time(START - count + i)
        )
        spec = replace(pattern.spec, queue_name=f"cq{i % queues}", priority=(0, 50, 100)[i % 7 % 3])
        yield replace(pattern, metadata=meta, spec=spec)


def _pattern(i: int) -> Workload:
    requests = {"cpu": f"{250 * (1 + i % 6)}m", "memory": f"{256 * (1 + i % 5)}Mi"}
    container = {"name": "c", "image": f"registry/job:{i}", "resources": {"requests": requests}}
    pods = {"name": "main", "count": 1 + i % 4, "template": {"spec": {"containers": [container]}}}
    return decode_as(
        Workload,
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w", "namespace": "team"},
            "spec": {"queueName": "cq0", "priority": 0, "podSets": [pods]},
        },
    )  # fmt: skip


# --- shapes ---------------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    name: str
    bench: Bench
    bytes_each: float = 0.0
    note: str = ""


def flat(name: str, queues: int, cohorts: int, count: int, cpu: int, lasts: int, fair: bool = False) -> Result:
    """Many queues in flat cohorts; everything is queued at the start."""
    bench = Bench(Policy(fair_sharing=FairSharing() if fair else None, pods_ready=None))
    bench.configure(iter([flavor("default")]))
    for i in range(queues):
        bench.configure(queue(f"cq{i}", f"co{i % cohorts}", cpu))
    for workload in workloads(count, queues):
        bench.arrive(workload)
    while bench.engine.needs_cycle or bench.running:
        bench.cycle(lasts)
    bench.engine.validate()
    return Result(name, bench)


def memory(count: int, queues: int) -> float:
    """Bytes that the engine keeps for one waiting workload."""
    bench = Bench(Policy(pods_ready=None))
    bench.configure(iter([flavor("default")]))
    for i in range(queues):
        bench.configure(queue(f"cq{i}", f"co{i % 10}", 1))
    gc.collect()
    tracemalloc.start()
    for workload in workloads(count, queues):
        bench.arrive(workload, keep=False)
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / count


def waiting(count: int, queues: int, cohorts: int) -> Result:
    """A huge backlog, then single arrivals: what one more costs."""
    bench = Bench(Policy(pods_ready=None))
    bench.configure(iter([flavor("default")]))
    for i in range(queues):
        bench.configure(queue(f"cq{i}", f"co{i % cohorts}", 2, queueingStrategy="BestEffortFIFO"))
    for workload in workloads(count, queues):
        bench.arrive(workload, keep=False)
    filled = time.thread_time()
    while bench.engine.needs_cycle:
        bench.engine.handle(m.CycleDue(now=bench.now))
    filled = time.thread_time() - filled
    costs: list[float] = []
    for i, workload in enumerate(workloads(2000, queues)):
        meta = replace(
            workload.metadata, name=f"late{i}", uid=f"late{i:05d}", creation_timestamp=format_time(START + i)
        )
        late = replace(workload, metadata=meta)
        before = time.thread_time()
        bench.engine.handle(m.WorkloadChanged(now=bench.now, workload=late))
        if bench.engine.needs_cycle:
            bench.engine.handle(m.CycleDue(now=bench.now))
        costs.append(time.thread_time() - before)
    bench.clock.per_head = costs
    bench.clock.heads = len(costs)
    bench.clock.schedule = sum(costs)
    return Result(
        f"(c) {count:,} waiting in {queues:,} queues", bench, note=f"backlog looked through in {filled:.1f} s"
    )


def preempting(admitted: int, arrivals: int) -> Result:
    """One cohort full of low-priority work in borrowing queues; high-priority work arrives and has to preempt."""
    bench = Bench(Policy(pods_ready=None))
    bench.configure(iter([flavor("default")]))
    rules = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    queues = 10
    for i in range(queues):
        bench.configure(queue(f"cq{i}", "co", admitted * 2 // queues, preemption=rules))
    for i, workload in enumerate(workloads(admitted * 2, queues // 2)):
        low = replace(workload, spec=replace(workload.spec, priority=i % 5))
        bench.arrive(low)
    while bench.engine.needs_cycle:
        bench.cycle(0)
    bench.clock = Clock()
    for i, workload in enumerate(workloads(arrivals, queues)):
        meta = replace(
            workload.metadata, name=f"high{i}", uid=f"high{i:06d}", creation_timestamp=format_time(START + i)
        )
        bench.arrive(
            replace(workload, metadata=meta, spec=replace(workload.spec, priority=1000, queue_name=f"cq{5 + i % 5}"))
        )
        for _ in range(3):
            bench.cycle(0)
    bench.engine.validate()
    return Result(f"(d) preemption, {admitted:,} admitted in a cohort", bench)


def fair(queues: int, count: int) -> Result:
    bench = Bench(Policy(fair_sharing=FairSharing(), pods_ready=None))
    bench.configure(iter([flavor("default"), cohort("root")]))
    mids = 25
    for i in range(mids):
        bench.configure(iter([cohort(f"mid{i}", "root")]))
    for i in range(queues):
        bench.configure(queue(f"cq{i}", f"mid{i % mids}", 4))
    for workload in workloads(count, queues):
        bench.arrive(workload)
    while bench.engine.needs_cycle or bench.running:
        bench.cycle(8)
    bench.engine.validate()
    return Result(f"(e) fair sharing, {queues} queues, 3 levels", bench)


def topology(nodes: int, gangs: int) -> Result:
    """Gangs of 16 pods on hosts in racks of 16 in blocks of 8 racks; half want one rack, half prefer one."""
    bench = Bench(Policy(pods_ready=None))
    api = "kueue.x-k8s.io/v1beta2"
    levels = [{"nodeLabel": f"cloud/{x}"} for x in ("block", "rack")] + [{"nodeLabel": "kubernetes.io/hostname"}]
    tas = flavor("tas")
    tas["spec"] = {"nodeLabels": {"pool": "gpu"}, "topologyName": "dc"}
    bench.configure(
        iter([{"apiVersion": api, "kind": "Topology", "metadata": {"name": "dc"}, "spec": {"levels": levels}}, tas])
    )
    for i in range(nodes):
        bench.engine.handle(m.NodeChanged(now=bench.now, node=host(i)))
    for manifest in queue("cq0", "", nodes * 64):
        if manifest["kind"] == "ClusterQueue":
            manifest["spec"]["resourceGroups"][0]["flavors"][0]["name"] = "tas"
        bench.configure(iter([manifest]))
    for i in range(gangs):
        wish = {"required" if i % 2 else "preferred": "cloud/rack"}
        bench.arrive(gang(i, wish))
    while bench.engine.needs_cycle:
        bench.cycle(0)
    bench.engine.validate()
    return Result(f"(f) topology, {nodes:,} nodes, gangs of 16", bench)


def host(i: int) -> dict[str, Any]:
    labels = {
        "pool": "gpu",
        "cloud/block": f"b{i // 128}",
        "cloud/rack": f"r{i // 16}",
        "kubernetes.io/hostname": f"h{i}",
    }
    return {
        "metadata": {"name": f"h{i}", "labels": labels},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def gang(i: int, wish: dict[str, str]) -> Workload:
    container = {"name": "c", "resources": {"requests": {"cpu": "16", "memory": "32Gi"}}}
    pods = {"name": "main", "count": 16, "topologyRequest": wish, "template": {"spec": {"containers": [container]}}}
    meta = {
        "name": f"g{i}",
        "namespace": "team",
        "uid": f"g{i:05d}",
        "creationTimestamp": format_time(START - 1000 + i),
    }
    spec = {"queueName": "cq0", "priority": 0, "podSets": [pods]}
    return decode_as(
        Workload, {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": meta, "spec": spec}
    )


def show(result: Result) -> None:
    clock = result.bench.clock
    heads = sorted(clock.per_head) or [0.0]
    p50, p99 = heads[len(heads) // 2], heads[min(len(heads) - 1, len(heads) * 99 // 100)]
    schedule = clock.admitted / clock.schedule if clock.schedule else 0
    everything = clock.admitted / (clock.schedule + clock.events) if clock.schedule else 0
    print(
        f"{result.name:<52}{clock.admitted:>9,}{clock.heads:>10,}{clock.heads / max(clock.schedule, 1e-9):>13,.0f}"
        f"{schedule:>12,.0f}{everything:>10,.0f}{p50 * 1e6:>9.1f}{p99 * 1e6:>9.1f}  {result.note}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-engine")
    parser.add_argument("--only", default="", help="letters of the shapes to run, e.g. ab")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    # A process that keeps hundreds of thousands of long-lived objects looks through all of them too often by default.
    gc.set_threshold(100_000, 50, 100)
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}, one process, seconds of CPU; "
        f"gc thresholds {gc.get_threshold()}"
    )
    print(
        f"{'shape':<52}{'admitted':>9}{'decisions':>10}{'decisions/s':>13}{'admit/s':>12}{'with events':>10}"
        f"{'p50 us':>9}{'p99 us':>9}"
    )
    runs = {
        "a": [
            lambda: flat("(a) 30 queues, 5 cohorts, 15,000, all fits", 30, 5, 15_000 // scale, 10_000, 0),
            lambda: flat("(a) the same, contended", 30, 5, 15_000 // scale, 20, 12),
        ],
        "b": [
            lambda: flat("(b) 1,000 queues, 10 cohorts, 50,000, all fits", 1000, 10, 50_000 // scale, 10_000, 0),
            lambda: flat("(b) the same, contended", 1000, 10, 50_000 // scale, 10, 12),
            lambda: flat("(b) the same, contended, fair sharing", 1000, 10, 50_000 // scale, 10, 12, fair=True),
        ],
        "c": [
            lambda: waiting(50_000 // scale, 1000, 10),
            lambda: waiting(1_000_000 // scale, 5000, 50),
        ],
        "d": [lambda: preempting(2500 // scale, 300)],
        "e": [lambda: fair(500, 20_000 // scale)],
        "f": [lambda: topology(640, 140), lambda: topology(10_000 // scale, 300)],
    }
    for letter, shapes in runs.items():
        if not options.only or letter in options.only:
            for run in shapes:
                show(run())
                gc.collect()
    if not options.only or "m" in options.only:
        print(f"memory per waiting workload: {memory(50_000 // scale, 1000):,.0f} bytes")


if __name__ == "__main__":
    main()
