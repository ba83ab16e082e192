"""`hubctl sandbox`: simulated clusters in a process of their own, in the background."""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from hub.cli.config import ConfigError
from hub.cli.http import HubError

START_WITHIN_S = 30.0
STOP_WITHIN_S = 10.0


def folder(options: Namespace) -> Path:
    if options.state:
        return Path(options.state)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base, "hubctl", "sandbox")


def up(options: Namespace) -> int:
    state = folder(options)
    if (running := _running(state)) is not None:
        raise ConfigError(f"the sandbox in {state} is up already (pid {running}); `hubctl sandbox down` stops it")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    spec = options.filename or str(Path(__file__).parents[2] / "deploy" / "samples" / "sandbox" / "demo.yaml")
    if not Path(spec).is_file():
        raise ConfigError(f"-f {spec}: no such file")
    with (state / "sandbox.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hub.sandbox", "--state", str(state), spec],
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    process.returncode = 0  # it outlives this command, and nobody here waits for it
    assert process.stdout is not None
    with process.stdout as stdout:
        ready = stdout.readline()
    if not ready:
        raise HubError(f"the sandbox did not start; see {state / 'sandbox.log'}")
    (state / "pid").write_text(str(process.pid))
    return status(options)


def down(options: Namespace) -> int:
    state = folder(options)
    pid = _running(state)
    if pid is None:
        print(f"no sandbox is up in {state}")
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_WITHIN_S
    while _running(state) is not None:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    (state / "pid").unlink(missing_ok=True)
    print(f"the sandbox in {state} is down")
    return 0


def status(options: Namespace) -> int:
    state = folder(options)
    pid = _running(state)
    if pid is None:
        print(f"no sandbox is up in {state}; `hubctl sandbox up` starts one")
        return 3
    print(f"up, pid {pid}, state in {state}")
    for cluster in _clusters(state):
        print(f"  {cluster['name']:<12} {cluster['url']:<28} kubectl --kubeconfig {cluster['kubeconfig']}")
    return 0


def _clusters(state: Path) -> list[dict[str, Any]]:
    return json.loads((state / "fleet.json").read_text())["clusters"]


def _running(state: Path) -> int | None:
    """The pid, when it is alive and really a sandbox: a pid file may be older than the machine's last start."""
    try:
        pid = int((state / "pid").read_text())
        command = subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    except (OSError, ValueError):
        return None
    return pid if "hub.sandbox" in command else None
