"""Logs that people and machines can read, and no event that is not on the list."""

import io
import json
import logging
import re
from pathlib import Path

import pytest

from hub.kueue.api.v1beta2 import names
from hub.kueue.runtime.telemetry import EVENT_REASONS, set_up_logging

SOURCES = Path(__file__).resolve().parents[2] / "hub" / "kueue"


@pytest.fixture
def stream():
    """What was logged; the set-up of the test run comes back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level


def test_json_logs_are_one_object_a_line_with_the_traceback_inside(stream):
    set_up_logging("info", as_json=True, stream=stream)
    try:
        int("no")
    except ValueError:
        logging.getLogger("hub.x").exception("failed %s", "twice")
    logging.getLogger("hub.x").debug("not said")
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert (said["level"], said["logger"], said["message"]) == ("ERROR", "hub.x", "failed twice")
    assert "ValueError: invalid literal" in said["traceback"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", said["time"])


def test_plain_logs_begin_with_time_and_level(stream):
    set_up_logging(stream=stream)
    logging.getLogger("hub.x").warning("look")
    assert re.fullmatch(r"\S+Z WARNING hub\.x: look\n", stream.getvalue())


def test_an_unknown_level_is_refused(stream):
    with pytest.raises(ValueError, match="LOUD"):
        set_up_logging("loud", stream=stream)


def test_every_event_that_is_written_is_on_the_list():
    pattern = re.compile(r'event\(\s*"(?:Normal|Warning)",\s*"(\w+)"')
    used = {reason for path in SOURCES.rglob("*.py") for reason in pattern.findall(path.read_text())}
    waits = {v for k, v in vars(names.QuotaReservedReason).items() if k.isupper()} - {
        "Pending",
        "Inadmissible",
        "Waiting",
    }
    assert used | waits <= EVENT_REASONS, "add it to EVENT_REASONS"
