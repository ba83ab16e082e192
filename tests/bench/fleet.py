"""The whole path on this machine: hub, embedded Postgres, three agents and four simulated clusters, all sharing its cores.

Submits small jobs as fast as the management API takes them and reads off the clusters when each began to run.
`python -m tests.bench fleet`.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hub.demo import stage
from hub.demo.jobs import JobPlan
from hub.demo.verdict import Facts, verdict

JOBS = 300
SUBMITTERS = 8
FINISH_WITHIN_S = 300.0
#: Looking costs the management cluster something too.
LOOK_EVERY_S = 1.0


def plans(how_many: int) -> list[JobPlan]:
    """One pod each, without a GPU and over at once, so that room is not what is waited for."""
    return [
        JobPlan(name=f"tiny-{i}", namespace=("research", "production")[i % 2], pods=1, gpus_per_pod=0, run_s=0.05)
        for i in range(how_many)
    ]


async def measure(how_many: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with stage.raised(Path(folder), lambda text: print(text, file=sys.stderr)) as scene:
            mix = plans(how_many)
            began = time.time()
            await asyncio.gather(*(_submit(scene, mix[i::SUBMITTERS]) for i in range(SUBMITTERS)))
            submitted = time.time()
            facts = await _until_done(scene, mix)
            found = verdict(facts)
            starts = sorted(run.start for run in facts.runs)
            return {
                "jobs": how_many,
                "submitted_per_s": round(how_many / (submitted - began), 1),
                "placements_per_s": round(how_many / (starts[-1] - began), 1),
                "submit_to_running_p50_s": found.p50_place_s,
                "submit_to_running_p99_s": found.p99_place_s,
                "double_runs": found.double_runs,
                "lost": found.lost,
                "hub_memory_mib": _memory_mib(scene.children["hub"].pid),
                "agent_memory_mib": _memory_mib(scene.children["agent-hopper"].pid),
            }


async def _submit(scene: stage.Scene, mine: list[JobPlan]) -> None:
    scene.submitted_at |= await stage.submit(scene, mine)


async def _until_done(scene: stage.Scene, mix: list[JobPlan]) -> Facts:
    async with asyncio.timeout(FINISH_WITHIN_S):
        while True:
            facts = await stage.look(scene, mix, wall_s=0.0)
            if stage.all_ended(facts):
                return facts
            await asyncio.sleep(LOOK_EVERY_S)


def _memory_mib(pid: int) -> int:
    """Resident memory, from /proc; 0 where there is none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0)


def figures() -> Iterator[dict[str, Any]]:
    yield asyncio.run(measure(JOBS))
