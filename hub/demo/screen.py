"""What the demo shows: steps with their time, then a live table of jobs by cluster; plain lines where nobody watches."""

import time
from collections import Counter

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hub.demo.jobs import JobPlan
from hub.demo.verdict import Facts, Verdict


class Screen:
    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._started = time.monotonic()
        self._live: Live | None = None
        self._last = ""

    def step(self, text: str) -> None:
        self._console.print(f"[{time.monotonic() - self._started:5.1f} s] {text}", markup=False)

    def addresses(self, dashboard_url: str, kubeconfig: str) -> None:
        self.step(f"dashboard    {dashboard_url}")
        self.step(f"kubeconfig   {kubeconfig}")

    def progress(self, facts: Facts) -> None:
        """The table again on a terminal; elsewhere a line whenever it changed."""
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(table(facts), refresh=True)
        elif (line := summary(facts)) != self._last:
            self._last = line
            self.step(line)

    def close(self, found: Verdict, complaints: list[str]) -> None:
        if self._live is not None:
            self._live.stop()
        for complaint in complaints:
            self.step(complaint)
        word = "NOT as it should be" if complaints else "all as it should be"
        self.step(
            f"{word}: {found.finished} of {found.jobs} jobs finished, {found.never_fit} can never fit, "
            f"{found.double_runs} ran twice, {found.lost} lost"
        )

    def staying(self) -> None:
        self.step("everything stays up; Ctrl-C ends it")


def states(facts: Facts) -> dict[str, str]:
    """Job -> where it is now, in a word: a cluster's name, done, never fits, waiting."""
    running = {f"{r.source.namespace}/{r.source.name}": r.source.cluster for r in facts.runs if r.end is None}
    return {plan.key: _state(plan, facts, running) for plan in facts.plans}


def _state(plan: JobPlan, facts: Facts, running: dict[str, str]) -> str:
    if plan.key in facts.complete:
        return "done"
    if plan.key in facts.never_fit:
        return "never fits"
    return running.get(plan.key, "waiting")


def summary(facts: Facts) -> str:
    counts = Counter(states(facts).values())
    words = ("done", "waiting", "never fits")
    clusters = [f"{name} {n}" for name, n in sorted(counts.items()) if name not in words]
    rest = [f"{counts[word]} {word}" for word in words]
    return f"running: {', '.join(clusters) or 'none'}; {', '.join(rest)}"


def table(facts: Facts) -> Table:
    """One row per team, one column per place."""
    placed = states(facts)
    words = ["waiting", "done", "never fits"]
    clusters = sorted(
        {where for where in placed.values() if where not in words} | {r.source.cluster for r in facts.runs}
    )
    shown = Table(title="jobs by team and place", title_justify="left")
    shown.add_column("team")
    for column in [*clusters, *words]:
        shown.add_column(column, justify="right", min_width=8)
    teams = sorted({plan.namespace for plan in facts.plans})
    for team in teams:
        counts = Counter(placed[plan.key] for plan in facts.plans if plan.namespace == team)
        shown.add_row(team, *(str(counts[place] or "") for place in [*clusters, *words]))
    return shown
