"""Replays a vector through the engine and says where the decisions differ from the recorded ones."""

from typing import Any

from hub.kueue.admission import messages as m
from hub.kueue.admission.config import Queue
from hub.kueue.admission.cycle import Head
from hub.kueue.admission.records import Spot, Work
from hub.kueue.admission.status import cohort_share, queue_status
from hub.kueue.api.quantity import amount
from tests.conformance.vectors import Vector
from tests.conformance.world import START, World, key

HOUR = 3600
#: A step is over after so many cycles in a row without any effect.
IDLE_CYCLES = 12
CYCLES_MAX = 200


def differences(vector: Vector, rules: str = "kueue") -> list[str]:
    """Every difference from what was recorded, in words; empty: all decisions are the same."""
    world = World(vector, rules)
    found: list[str] = []
    for i, (step, want) in enumerate(zip(vector["steps"], vector["expected"]["steps"], strict=True)):
        got = play(world, i, step)
        found += [f"step {i}, {line}" for line in compare(got, want)]
        world.engine.validate()
        if found:
            break
    return found


def play(world: World, index: int, step: dict[str, Any]) -> dict[str, Any]:
    """One step: its changes, then cycles until nothing happens any more. In the form of a vector's `expected`."""
    start = world.now = _start(index)
    _apply(world, step)
    evicted = [{"workload": e.key.name, "reason": e.reason} for e in world.evictions]
    world.evictions.clear()
    cycles: list[dict[str, Any]] = []
    idle = 0
    while idle < IDLE_CYCLES and len(cycles) < CYCLES_MAX and _has_heads(world):
        before = _parked(world)
        world.now = start + len(cycles) + 1
        cycles.append(_cycle(world, len(cycles) + 1, world.cycle()))
        moved = cycles[-1]["admitted"] or cycles[-1]["preempted"] or before != cycles[-1]["inadmissible"]
        idle = 0 if moved else idle + 1
    capped = len(cycles) >= CYCLES_MAX
    while cycles and not (cycles[-1]["admitted"] or cycles[-1]["preempted"]):
        cycles.pop()
    return {"evictedByChanges": evicted, "cycles": cycles, "final": _final(world), "capped": capped}


def _start(index: int) -> float:

    return START + (index + 1) * HOUR


def _apply(world: World, step: dict[str, Any]) -> None:
    for name in step.get("finish") or []:
        world.finish(name)
    for name in step.get("delete") or []:
        world.delete(name)
    for manifest in step.get("update") or []:
        world.put(manifest)
    for change in step.get("set") or []:
        world.set(change)
    for manifest in step.get("create") or []:
        world.create(manifest)


def _has_heads(world: World) -> bool:
    world.engine.flush_wakes()
    return any(q.active and q.pending.ready for q in world.engine.config.queues.values())


def _parked(world: World) -> list[str]:
    world.engine.flush_wakes()
    works = world.engine.works.values()
    return sorted(
        w.key.name for w in works if w.queue is not None and w.reservation is None and w.queue.pending.is_parked(w)
    )


def _cycle(world: World, number: int, instructions: list[m.AnyInstruction]) -> dict[str, Any]:
    heads = sorted(world.engine.last_cycle, key=_tree)
    orders = {i.key.name: i for i in instructions if isinstance(i, m.ReserveQuota)}
    admitted = [_admitted(h.work, orders[h.work.key.name]) for h in heads if h.work.key.name in orders]
    preempted = [
        {"workload": i.key.name, "reason": i.preemption_reason, "preemptor": i.preemptor.name}
        for i in instructions
        if isinstance(i, m.Evict) and i.preemptor is not None
    ]
    world.evictions.clear()
    return {
        "cycle": number,
        "heads": [[h.work.key.name, h.outcome.value] for h in heads],
        "admitted": admitted,
        "preempted": sorted(preempted, key=lambda p: p["workload"]),
        "inadmissible": _parked(world),
    }


def _tree(head: Head) -> tuple[bool, str]:
    root = head.queue.root
    return (isinstance(root, Queue), root.name)


def _admitted(work: Work, order: m.ReserveQuota) -> dict[str, Any]:
    return {
        "workload": work.key.name,
        "clusterQueue": order.admission.cluster_queue,
        "podSets": [_pod_set(p) for p in order.admission.pod_set_assignments],
    }


def _pod_set(assigned: Any) -> dict[str, Any]:
    found = {
        "name": assigned.name,
        "count": assigned.count,
        "flavors": assigned.flavors,
        "resourceUsage": {r: amount(r, q) for r, q in assigned.resource_usage.items()},
    }
    if assigned.topology_assignment is not None:
        found["topologyAssignment"] = _domains(assigned.topology_assignment)
    return found


def _domains(assignment: Any) -> dict[str, Any]:
    domains: list[dict[str, Any]] = []
    for part in assignment.slices:
        for i in range(part.domain_count):
            values = [
                level.universal
                if level.universal is not None
                else (level.individual.prefix or "") + level.individual.roots[i] + (level.individual.suffix or "")
                for level in part.values_per_level
            ]
            counts = part.pod_counts
            count = counts.universal if counts.universal is not None else counts.individual[i]
            domains.append({"values": values, "count": count})
    return {"levels": assignment.levels, "domains": domains}


def _final(world: World) -> dict[str, Any]:
    engine = world.engine
    engine.flush_wakes()
    found: dict[str, Any] = {
        "workloads": {name: _state(world, name) for name in world.workloads},
        "clusterQueues": {name: _queue(world, name) for name in engine.config.queues},
    }
    if engine.policy.fair_sharing is not None:
        found["cohorts"] = {c: {"weightedShare": _rounded(cohort_share(engine, c) or 0.0)} for c in world.cohorts}
    return found


def _state(world: World, name: str) -> dict[str, str]:
    if name in world.finished:
        return {"state": "Finished"}
    work = world.engine.works[world.workloads[name].metadata.key]
    if work.reservation is not None:
        return {"state": "Admitted"}
    if work.spot is Spot.OUT or work.queue is None:
        return {"state": "Pending", "queue": "none"}
    return {"state": "Pending", "queue": "inadmissible" if work.queue.pending.is_parked(work) else "active"}


def _queue(world: World, name: str) -> dict[str, Any]:
    status = queue_status(world.engine, "ClusterQueue", key(name))
    found: dict[str, Any] = {
        "usage": {
            flavor: {r: {"total": total, "borrowed": borrowed} for r, (total, borrowed) in resources.items()}
            for flavor, resources in status.usage.items()
        },
        "pending": status.pending,
        "admitted": status.admitted,
    }
    if status.weighted_share is not None:
        found["weightedShare"] = _rounded(status.weighted_share)
    return found


def _rounded(share: float) -> float:
    return -1 if share == float("inf") else round(share, 6)


# --- comparing -----------------------------------------------------------------------------------------------------------


def compare(got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    """The first difference of a step, with the heads of that cycle to see why."""
    if _by_name(got["evictedByChanges"]) != _by_name(want.get("evictedByChanges") or []):
        return [f"evicted by changes: {got['evictedByChanges']}, recorded {want.get('evictedByChanges')}"]
    recorded = want["cycles"] or []
    for mine, theirs in zip(got["cycles"], recorded, strict=False):
        for part in ("admitted", "preempted", "inadmissible"):
            if (mine[part] or []) != (theirs[part] or []):
                heads = f"heads {mine['heads']}, recorded {theirs['heads']}"
                return [f"cycle {theirs['cycle']}, {part}: {mine[part]}, recorded {theirs[part]}; {heads}"]
    if len(got["cycles"]) != len(recorded):
        return [f"{len(got['cycles'])} cycles, recorded {len(recorded)}"]
    return _compare_final(got["final"], want["final"])


def _compare_final(got: dict[str, Any], want: dict[str, Any]) -> list[str]:
    for part, theirs in want.items():
        mine = got.get(part, {})
        for name in sorted({*mine, *theirs}):
            if mine.get(name) != theirs.get(name):
                return [f"final {part} {name}: {mine.get(name)}, recorded {theirs.get(name)}"]
    return []


def _by_name(evictions: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(evictions, key=lambda e: e["workload"])
