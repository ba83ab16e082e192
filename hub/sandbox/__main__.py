"""`python -m hub.sandbox --state DIR SPEC.yaml [--parent-pid N]`: simulated clusters in a process of their own.

Writes into DIR, all readable by us alone: one NAME.kubeconfig per cluster, and fleet.json with every address and the
control interface's token. Prints one JSON line when all clusters serve. Ends on SIGTERM, on SIGINT, or with its parent.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import secrets
import signal
import sys
from pathlib import Path

from hub.sandbox.control import make_control_app
from hub.sandbox.fleet import Fleet, FleetError, FleetSpec, read_spec, write_secret
from hub.sandbox.http import serve

#: How often the parent is looked for.
PARENT_S = 0.5
GC_THRESHOLDS = (100_000, 50, 100)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m hub.sandbox", description="simulated clusters in a process of their own"
    )
    parser.add_argument("spec", type=Path, help="the clusters; hub/sandbox/fleet.py says what may stand in it")
    parser.add_argument("--state", type=Path, required=True, help="folder for kubeconfigs and fleet.json")
    parser.add_argument("--parent-pid", type=int, help="end when this process does")
    options = parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        spec = read_spec(options.spec.read_text())
        options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        asyncio.run(_run(spec, options.state, options.parent_pid))
    except (FleetError, OSError) as error:
        sys.stderr.write(f"hub.sandbox: {options.spec}: {error}\n")
        return 2
    return 0


async def _run(spec: FleetSpec, state: Path, parent: int | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Clusters hold many long-lived objects; the default thresholds would walk them over and over.
    gc.set_threshold(*GC_THRESHOLDS)
    fleet = Fleet(spec.clusters)
    await fleet.start()
    token = secrets.token_urlsafe(24)
    control = await serve(make_control_app(fleet, token))
    ready = _write_state(fleet, state, control.url, token)
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    # What is there now stays; a full collection over it every few seconds would only cost time.
    gc.collect()
    gc.freeze()
    try:
        await _end(stop, parent)
    finally:
        await control.close()
        await fleet.stop()
        (state / "fleet.json").unlink(missing_ok=True)


def _write_state(fleet: Fleet, state: Path, url: str, token: str) -> dict[str, object]:
    paths = fleet.write_kubeconfigs(state)
    clusters = [{"name": n, "url": c.url, "kubeconfig": str(paths[n].resolve())} for n, c in fleet.clusters.items()]
    table = {"pid": os.getpid(), "control": {"url": url, "token": token}, "clusters": clusters}
    write_secret(state / "fleet.json", json.dumps(table, indent=2) + "\n")
    return {"ready": True, "pid": os.getpid(), "control": url, "clusters": clusters}


async def _end(stop: asyncio.Event, parent: int | None) -> None:
    """Return when it is time to go."""
    ours = os.getppid() == parent
    while not stop.is_set():
        if parent is not None and not _is_alive(parent, ours=ours):
            return
        try:
            async with asyncio.timeout(PARENT_S if parent is not None else None):
                await stop.wait()
        except TimeoutError:
            continue


def _is_alive(pid: int, *, ours: bool) -> bool:
    """`ours`: it started us. A child whose parent dies is given another one."""
    if ours:
        return os.getppid() == pid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(main())
