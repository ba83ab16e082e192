"""The demo's processes: started in order, watched, started again when one dies, and gone when the demo is gone."""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hub.kueue.runtime.loop import Tasks

READY_WITHIN_S = 60.0
RESTART_PAUSE_S = 0.3
STOP_WITHIN_S = 10.0
_PR_SET_PDEATHSIG = 1


class ChildFailed(Exception):  # noqa: N818 - reads as what happened
    """A process of the demo did not come up. The message ends with the last lines of its log."""


class Child:
    """One process: `python -m MODULE`. It prints one JSON line on standard output when it is ready."""

    def __init__(
        self, name: str, module: str, *, env: Mapping[str, str], folder: Path, args: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.restarts = 0
        self.ready: dict[str, Any] = {}
        self.log_path = folder / f"{name}.log"
        self._command = (sys.executable, "-m", module, *args)
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self) -> dict[str, Any]:
        """Start it and wait for its ready line. Raises ChildFailed."""
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                preexec_fn=_die_with_parent,
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                self.ready = await _ready_line(self._process.stdout)
        except (TimeoutError, EOFError):
            raise ChildFailed(f"{self.name} did not start; the end of {self.log_path}:\n{self._tail()}") from None
        return self.ready

    async def keep_running(self, tasks: Tasks, on_restart: Callable[[str], None]) -> None:
        """Start it again whenever it dies, until `stop`."""
        tasks.spawn(self._watch(on_restart), self.name)

    async def _watch(self, on_restart: Callable[[str], None]) -> None:
        while self._process is not None:
            await self._process.wait()
            if self._stopping:
                return
            self.restarts += 1
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                await self.start()
                on_restart(self.name)
            except ChildFailed:
                if self._process.returncode is None:
                    self._process.kill()

    async def stop(self) -> None:
        self._stopping = True
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(lines[-15:]) or "(empty)"


async def _ready_line(stream: asyncio.StreamReader) -> dict[str, Any]:
    while line := await stream.readline():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("ready"):
            return found
    raise EOFError


def _die_with_parent() -> None:
    """Linux: no process of the demo outlives it, however it ended. Elsewhere the demo stops them on its way out."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
