"""What a simulated pod does: its annotations are its program.

    sandbox.multikueue-hub.io/duration: 90s             runs that long (default: the cluster's pace), or "forever"
    sandbox.multikueue-hub.io/exit-code: "1"            then ends with this code (default 0)
    sandbox.multikueue-hub.io/durations: 0=5s,3=1m      likewise, for single completion indexes
    sandbox.multikueue-hub.io/exit-codes: 3=42
    sandbox.multikueue-hub.io/fail-times: "2"           the first two tries (of this Job and index) fail, then it succeeds
    sandbox.multikueue-hub.io/termination: 3s           time it takes to stop when asked to; its grace period is the limit

A pod of restartPolicy Always without a duration runs until it is deleted.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from hub.sandbox.job_policies import index_of

T = TypeVar("T")

PREFIX = "sandbox.multikueue-hub.io/"

_DURATION = re.compile(
    r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+(?:\.\d+)?)ms)?"
)
_UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class ScriptError(ValueError):
    """An annotation of ours cannot be read. Says which and what it should look like."""


class Pace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast things go in a simulated cluster where the pod does not say. All in seconds."""

    #: From being bound to a node to running.
    start_s: float = 0.2
    run_s: float = 2.0
    #: How long a process takes to stop when asked to, and the longest grace period that is honoured.
    stop_s: float = 0.1
    stop_most_s: float = 3600.0
    #: Before a container that failed is started again in its pod, and before a failed pod of a Job is replaced; doubling.
    restart_s: float = 1.0
    restart_most_s: float = 60.0
    #: How long pods of an unreachable node are left alone when they have no toleration of their own.
    unreachable_s: float = 300.0
    #: After a node is removed, until the pods that were on it are.
    orphaned_pods_s: float = 20.0


class Script(Struct, frozen=True, kw_only=True):
    """`duration_s` None: forever. The first `fail_times` tries end with `exit_code`, or with 1 if that is 0."""

    duration_s: float | None
    exit_code: int
    fail_times: int
    stop_s: float

    def code_of_try(self, number: int) -> int:
        """The exit code of try `number`, counted from 0."""
        if not self.fail_times:
            return self.exit_code
        return (self.exit_code or 1) if number < self.fail_times else 0


def parse_duration(text: str) -> float:
    """Seconds of `1h30m`, `2s`, `250ms`. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text!r} is not a duration: write 500ms, 2s, 1m30s")
    return sum(float(number) * _UNIT_S[unit] for unit, number in found.groupdict().items() if number)


def script_of(pod: Mapping[str, Any], pace: Pace) -> Script:
    """Raises ScriptError."""
    annotations = pod["metadata"].get("annotations") or {}
    spec, index = pod["spec"], index_of(pod)
    forever = spec.get("restartPolicy") == "Always"
    default = None if forever else pace.run_s
    grace_s = min(spec.get("terminationGracePeriodSeconds", 30), pace.stop_most_s)

    def own(name: str, parse: Callable[[str], T], default: T) -> T:
        text = annotations.get(PREFIX + name)
        if index is not None and (by_index := annotations.get(f"{PREFIX}{name}s")) is not None:
            text = _of_index(name, by_index).get(index, text)
        return default if text is None else _read(name, text, parse)

    return Script(
        duration_s=own("duration", lambda t: None if t == "forever" else parse_duration(t), default),
        exit_code=own("exit-code", int, 0),
        fail_times=own("fail-times", int, 0),
        stop_s=min(own("termination", parse_duration, pace.stop_s), grace_s),
    )


def _read(name: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise ScriptError(f"annotation {PREFIX}{name}: {error}") from error


def _of_index(name: str, text: str) -> dict[int, str]:
    pairs = [piece.partition("=") for piece in text.split(",")]
    if any(not index.strip().isdigit() or not value for index, _, value in pairs):
        raise ScriptError(f"annotation {PREFIX}{name}s: {text!r} is not a list such as 0=VALUE,3=VALUE")
    return {int(index): value.strip() for index, _, value in pairs}
