"""House rules that a linter cannot see. Each test names the rule; the lists at the top are the exemptions, with reasons."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600
TEST_FILE_LINES_MAX = 800

#: function -> lines it may have. It may shrink and leave this list; it may not grow.
LONG_FUNCTIONS: dict[str, int] = {}
#: file -> lines it may have, likewise.
LONG_FILES: dict[str, int] = {}

#: Generic words say nothing about what a file holds.
BANNED_FILE_NAMES = {"utils", "helpers", "common", "manager", "misc", "util", "helper"}


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


PYTHON = tracked("*.py")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> list[tuple[str, int]]:
    tree = ast.parse(path.read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(f"{relative(path)}:{f.name}", (f.end_lineno or f.lineno) - f.lineno + 1) for f in found]


def test_functions_stay_short():
    long = {
        name: n for path in PYTHON for name, n in functions(path) if n > LONG_FUNCTIONS.get(name, FUNCTION_LINES_MAX)
    }
    assert not long, f"over {FUNCTION_LINES_MAX} lines: {long}"


def test_files_stay_short():
    def limit(path: Path) -> int:
        return LONG_FILES.get(
            relative(path), TEST_FILE_LINES_MAX if path.parts[len(ROOT.parts)] == "tests" else FILE_LINES_MAX
        )

    long = {relative(p): n for p in PYTHON if (n := len(p.read_text().splitlines())) > limit(p)}
    assert not long


def test_exemptions_are_needed():
    lengths = {name: n for path in PYTHON for name, n in functions(path)}
    stale = [name for name in LONG_FUNCTIONS if lengths.get(name, 0) <= FUNCTION_LINES_MAX]
    assert not stale, f"these may leave the list of long functions: {stale}"


def test_tests_never_sleep():
    pattern = re.compile(r"time\.sleep\(|asyncio\.sleep\((?!0\))")
    sleepers = [
        relative(p)
        for p in PYTHON
        if "tests/" in relative(p)
        and "tests/bench/" not in relative(p)
        and p.name != "test_tidy.py"
        and pattern.search(p.read_text())
    ]
    assert not sleepers, "wait for a signal instead"


def test_unfinished_work_has_an_owner():
    marker = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\()")
    found = [relative(p) for p in PYTHON if p.name != "test_tidy.py" and marker.search(p.read_text())]
    assert not found, "write TODO(name): ..., or better, do it"


def test_file_names_say_what_they_hold():
    assert not [relative(p) for p in PYTHON if p.stem in BANNED_FILE_NAMES]


def test_every_module_is_imported_or_run():
    sources = "\n".join(p.read_text() for p in [*PYTHON, ROOT / "Makefile", ROOT / "pyproject.toml"])
    entry = {"__init__", "__main__", "conftest", "env"}
    dead = []
    for path in PYTHON:
        name = relative(path)
        if path.stem in entry or path.stem.startswith("test_") or name.startswith("migrations/versions/"):
            continue
        package, module = ".".join(path.relative_to(ROOT).parts[:-1]), path.stem
        wanted = (
            rf"{re.escape(package)}\.{module}\b",
            rf"from {re.escape(package)} import [^\n]*\b{module}\b",
            rf"from {re.escape(package)} import \([^)]*\b{module}\b",
        )
        if not any(re.search(w, sources) for w in wanted):
            dead.append(name)
    assert not dead, f"imported by nothing: {dead}"


def test_no_third_party_scripts_are_committed():
    big = [relative(p) for p in tracked("*.js", "*.css") if p.stat().st_size > 40_000]
    assert not big


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "LICENSE", "requirements.lock", "requirements-dev.lock"])
def test_the_project_has(name: str):
    assert (ROOT / name).is_file()
