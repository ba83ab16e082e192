"""Simulated pods through their whole life, in one process: created by a Job, scheduled, run, ended, counted."""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from hub.kueue.api.resources import JOBS, PODS
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.nodes import NodeGroup
from hub.sandbox.simulation import Simulation
from hub.sandbox.timers import VirtualTimers

PODS_TOTAL = 5_000
NODES = 200
GPUS = 8


def make_job(name: str, pods: int, parallelism: int) -> dict[str, Any]:
    container = {"name": "main", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "2"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"completions": pods, "parallelism": parallelism, "completionMode": "Indexed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def run(jobs: int, pods: int, parallelism: int) -> Simulation:
    """`jobs` Jobs of `pods` pods each, to their end, in virtual time."""
    timers = VirtualTimers()
    sim = Simulation(ApiServer("bench", timers.clock, seed=1), timers)
    sim.start()
    sim.add_nodes(NodeGroup(name="node", count=NODES, gpus=GPUS, pods=1000))
    for number in range(jobs):
        sim.server.create(JOBS, make_job(f"job-{number}", pods, parallelism))
    while len(sim.observer.completions) < jobs:
        timers.advance(10)
    assert sum(job["status"]["succeeded"] for job in sim.server.list(JOBS)) == jobs * pods
    return sim


def measure(shape: str, jobs: int, pods: int, parallelism: int) -> dict[str, Any]:
    started, cpu = time.perf_counter(), time.process_time()
    sim = run(jobs, pods, parallelism)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    writes = sim.server.storage.version
    total = jobs * pods
    figure = {"shape": shape, "pods": total, "jobs": jobs, "nodes": NODES, "wall_s": round(wall_s, 2)}
    figure |= {"pods_per_s": round(total / wall_s), "pods_per_cpu_s": round(total / cpu_s)}
    return figure | {"writes_per_pod": round(writes / total, 1), "pods_left": len(sim.server.list(PODS))}


def memory() -> dict[str, Any]:
    """What a finished pod leaves behind: its object, its history, its run."""
    tracemalloc.start()
    run(1, 100, 100)
    before, _ = tracemalloc.get_traced_memory()
    sim = run(10, 100, 100)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "shape": "memory",
        "pods": len(sim.server.list(PODS)),
        "kib_per_pod": round((after - before) / 1024 / 1000, 1),
    }


SHAPES: list[tuple[str, int, int, int]] = [
    ("one pod per job", PODS_TOTAL, 1, 1),
    ("50 pods per job", PODS_TOTAL // 50, 50, 50),
    ("one job, 1000 at a time", 1, PODS_TOTAL, 1000),
]


def figures() -> Iterator[dict[str, Any]]:
    made: list[Callable[[], dict[str, Any]]] = [lambda shape=shape: measure(*shape) for shape in SHAPES]
    for make in [*made, memory]:
        yield make()


if __name__ == "__main__":
    for line in figures():
        print(line)
