"""A demo as a process of its own, read line by line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Demo:
    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hub.demo", "--folder", str(folder), *options],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def until(self, words: str) -> str:
        """The next line with these words in it. Fails with everything that was printed when the demo ends before."""
        for line in self._read():
            if words in line:
                return line
        pytest.fail(f"the demo ended without {words!r}:\n{self.text}")

    def end(self) -> dict[str, Any]:
        """Its last line, once it has ended."""
        list(self._read())
        self.process.wait()
        return json.loads(self.lines[-1])

    def kill(self, name: str) -> None:
        os.kill(self.pids()[name], signal.SIGKILL)

    def pids(self) -> dict[str, int]:
        return json.loads((self.folder / "processes.json").read_text())

    def kubeconfig(self, cluster: str = "management") -> Path:
        return self.folder / f"{cluster}.kubeconfig"

    def _read(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            yield line.rstrip()


@contextmanager
def running_demo(folder: Path, *options: str) -> Iterator[Demo]:
    demo = Demo(folder, *options)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.wait()
        assert demo.process.stdout is not None
        demo.process.stdout.close()
