"""The demo as a newcomer runs it, and with a kill -9 in the middle of everything it is made of."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Demo:
    """A running demo, read line by line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hub.demo", "--folder", str(folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until(self, words: str) -> str:
        """The next line with these words in it. Fails with everything that was printed when the demo ends before."""
        for line in self._read():
            if words in line:
                return line
        pytest.fail(f"the demo ended without {words!r}:\n" + "\n".join(self.lines))

    def end(self) -> dict:
        """Its last line, once it has ended."""
        list(self._read())
        self.process.wait()
        return json.loads(self.lines[-1])

    def kill(self, name: str) -> None:
        os.kill(self.pids()[name], signal.SIGKILL)

    def pids(self) -> dict[str, int]:
        return json.loads((self.folder / "processes.json").read_text())

    def _read(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            yield line


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    running = Demo(tmp_path / "demo")
    yield running
    running.process.kill()
    running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()


def test_every_job_runs_once_where_it_fits(demo: Demo):
    found = demo.end()
    assert demo.process.returncode == 0, "\n".join(demo.lines)
    assert (found["jobs"], found["finished"], found["never_fit"]) == (41, 40, 1)
    assert (found["double_runs"], found["lost"]) == (0, 0)
    assert set(found["per_cluster"]) == {"ampere", "hopper", "lovelace"}


def test_it_ends_well_although_everything_is_killed_in_the_middle(demo: Demo):
    demo.until("submitted 41 jobs")
    demo.until("running: ")
    demo.kill("hub")
    demo.until("hub was started again")
    demo.kill("agent-hopper")
    demo.until("agent-hopper was started again")
    demo.kill("postgres")
    found = demo.end()
    assert demo.process.returncode == 0, "\n".join(demo.lines)
    assert (found["finished"], found["never_fit"], found["double_runs"], found["lost"]) == (40, 1, 0, 0)
