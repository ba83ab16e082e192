"""`make demo`: three simulated GPU clusters, a management cluster, a hub and three agents on this machine.

    sandbox process ── 4 API servers ◀── hub process ── embedded Postgres
                            ▲                │ polls
                            └──── 3 agent processes

On a terminal it stays up until Ctrl-C; otherwise it ends when every job has, with status 0 if all is as it should be. Its
last line is one JSON object, computed from what the simulated clusters saw.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import time
from pathlib import Path

import msgspec

from hub.demo import stage
from hub.demo.jobs import JobPlan, plans
from hub.demo.processes import ChildFailed
from hub.demo.screen import Screen
from hub.demo.verdict import Facts, complaints, verdict

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".hub" / "demo"
FINISH_WITHIN_S = 180.0
LOOK_EVERY_S = 0.5


async def play(folder: Path, screen: Screen, *, stay: bool) -> int:
    """Set the stage, submit, watch, judge. Returns the exit status."""
    started = time.monotonic()
    async with stage.raised(folder, screen.step) as scene:
        screen.addresses(scene.dashboard_url, scene.kubeconfig)
        mix = plans()
        scene.submitted_at = await stage.submit(scene, mix)
        screen.step(f"submitted {len(mix)} jobs of three teams through the management API")
        facts = await watch(scene, mix, screen, started)
        found = verdict(facts)
        good = found.as_it_should_be(mix)
        screen.close(found, [] if good else complaints(facts))
        if stay:
            screen.staying()
            await interrupted()
    print(json.dumps(msgspec.to_builtins(found)), flush=True)
    return 0 if good else 1


async def watch(scene: stage.Scene, mix: list[JobPlan], screen: Screen, started: float) -> Facts:
    """Look at the clusters until every job that can end has ended, or the time is up."""
    deadline = time.monotonic() + FINISH_WITHIN_S
    while True:
        facts = await stage.look(scene, mix, wall_s=time.monotonic() - started)
        screen.progress(facts)
        if stage.all_ended(facts) or time.monotonic() > deadline:
            return facts
        await asyncio.sleep(LOOK_EVERY_S)


async def interrupted() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hub.demo", description="a fleet of simulated GPU clusters at work")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where its files go; emptied at the start")
    parser.add_argument("--stay", action="store_true", help="stay up until Ctrl-C, as on a terminal")
    options = parser.parse_args()
    folder = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    stay = options.stay or (sys.stdin.isatty() and sys.stdout.isatty())
    try:
        with contextlib.suppress(KeyboardInterrupt):
            sys.exit(asyncio.run(play(folder, Screen(), stay=stay)))
    except ChildFailed as error:
        sys.exit(f"the demo could not start: {error}")
    sys.exit(130)


if __name__ == "__main__":
    main()
