"""What kube-apiserver refuses in the status of a Job (KEP-4368): it trusts no controller, and neither does the sandbox,
because a controller that mirrors a status from elsewhere is easily wrong and must find out here.
"""

from collections.abc import Iterator

from hub.sandbox.documents import Document
from hub.sandbox.errors import FieldError, duplicate, invalid_value, required

NOT_NEGATIVE = "must be greater than or equal to 0"
COUNTERS = ("active", "succeeded", "failed", "ready", "terminating")
#: Conditions that exclude each other, and conditions that need another one first.
EXCLUSIVE = (
    ("Complete", "Failed"),
    ("Complete", "FailureTarget"),
    ("SuccessCriteriaMet", "Failed"),
    ("SuccessCriteriaMet", "FailureTarget"),
)
PRECEDED_BY = (("Failed", "FailureTarget"), ("Complete", "SuccessCriteriaMet"))
#: What may not become false again, with the word for it.
LASTING = (
    ("Complete", "terminal Complete=True"),
    ("Failed", "terminal Failed=True"),
    ("FailureTarget", "FailureTarget=True"),
    ("SuccessCriteriaMet", "SuccessCriteriaMet=True"),
)


def job_status_errors(draft: Document, old: Document) -> list[FieldError]:
    """Field errors of the status in `draft`, which is to replace that of `old`."""
    spec, status, before = draft["spec"], draft.get("status") or {}, old.get("status") or {}
    return [
        *_counter_errors(status),
        *_index_errors(spec, status),
        *_uncounted_errors(status),
        *_time_errors(status),
        *_condition_errors(status),
        *_finished_errors(status),
        *_move_errors(spec, status, before),
    ]


def _is(status: Document, kind: str) -> bool:
    return any(c.get("type") == kind and c.get("status") == "True" for c in status.get("conditions") or ())


def _conditions(why: str) -> FieldError:
    return FieldError("status.conditions", "FieldValueInvalid", f"Invalid value: {why}")


def _counter_errors(status: Document) -> Iterator[FieldError]:
    for name in COUNTERS:
        if (value := status.get(name) or 0) < 0:
            yield invalid_value(f"status.{name}", value, NOT_NEGATIVE)
    active, ready = status.get("active") or 0, status.get("ready") or 0
    if ready > max(active, 0):
        yield invalid_value("status.ready", ready, "cannot set more ready pods than active")


def _index_errors(spec: Document, status: Document) -> Iterator[FieldError]:
    completed, failed = status.get("completedIndexes"), status.get("failedIndexes")
    for name, text in (("completedIndexes", completed), ("failedIndexes", failed)):
        if text and (why := _wrong_indexes(text, spec.get("completions") or 0)):
            yield invalid_value(f"status.{name}", text, f"error parsing {name}: {why}")
    if completed and spec.get("completionMode") != "Indexed":
        why = "cannot set non-empty completedIndexes when non-indexed completion mode"
        yield invalid_value("status.completedIndexes", completed, why)
    if failed is not None and spec.get("backoffLimitPerIndex") is None:
        why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null"
        yield invalid_value("status.failedIndexes", failed, why)


def _wrong_indexes(text: str, completions: int) -> str:
    """What is wrong with a list of indexes such as "1,3-5"; "" when nothing is."""
    last = -1
    for part in text.split(","):
        for word in part.split("-", 1):
            if not word.isdecimal():
                return f'cannot convert string to integer for index: "{word}"'
            if int(word) >= completions:
                return f'too large index: "{word}"'
            if int(word) <= last:
                return f"non-increasing order, previous: {last}, current: {int(word)}"
            last = int(word)
    return ""


def _uncounted_errors(status: Document) -> Iterator[FieldError]:
    seen: set[str] = set()
    uncounted = status.get("uncountedTerminatedPods") or {}
    for name in ("succeeded", "failed"):
        for index, uid in enumerate(uncounted.get(name) or ()):
            at = f"status.uncountedTerminatedPods.{name}[{index}]"
            if not uid:
                yield invalid_value(at, "", "must not be empty")
            elif uid in seen:
                yield duplicate(at, uid)
            seen.add(uid)


def _time_errors(status: Document) -> Iterator[FieldError]:
    started, ended, complete = status.get("startTime"), status.get("completionTime"), _is(status, "Complete")
    if ended and not complete:
        why = "cannot set completionTime when there is no Complete=True condition"
        yield invalid_value("status.completionTime", ended, why)
    if complete and not ended:
        yield required("status.completionTime", "completionTime is required for Complete jobs")
    if started and ended and ended < started:
        yield invalid_value("status.completionTime", ended, "must be equal to or after `startTime`")


def _condition_errors(status: Document) -> Iterator[FieldError]:
    for one, other in EXCLUSIVE:
        if _is(status, one) and _is(status, other):
            yield _conditions(f"cannot set {one}=True and {other}=true conditions")
    for kind, first in PRECEDED_BY:
        if _is(status, kind) and not _is(status, first):
            yield _conditions(f"cannot set {kind}=True condition without the {first}=true condition")


def _finished_errors(status: Document) -> Iterator[FieldError]:
    if not (_is(status, "Complete") or _is(status, "Failed")):
        return
    if not status.get("startTime"):
        yield required("status.startTime", "startTime is required for finished job")
    for name in ("active", "terminating"):
        if (value := status.get(name) or 0) > 0:
            yield invalid_value(f"status.{name}", value, f"{name}>0 is invalid for finished job")
    uncounted = status.get("uncountedTerminatedPods") or {}
    if uncounted.get("succeeded") or uncounted.get("failed"):
        yield invalid_value("status.uncountedTerminatedPods", uncounted, "must be empty for finished job")


def _move_errors(spec: Document, status: Document, before: Document) -> Iterator[FieldError]:
    for kind, words in LASTING:
        if _is(before, kind) and not _is(status, kind):
            yield _conditions(f"cannot disable the {words} condition")
    started = before.get("startTime")
    if started and status.get("startTime") != started and not spec.get("suspend"):
        why = "field is immutable for unsuspended job once set"
        yield invalid_value("status.startTime", status.get("startTime"), why)
    ended = before.get("completionTime")
    if ended and _is(before, "Complete") and status.get("completionTime") not in (ended, None):
        yield invalid_value("status.completionTime", status["completionTime"], "field is immutable")
    for name in ("succeeded", "failed"):
        less = (status.get(name) or 0) < (before.get(name) or 0)
        if less and not (name == "succeeded" and spec.get("completionMode") == "Indexed"):
            yield invalid_value(f"status.{name}", status.get(name) or 0, f"cannot decrease the {name} counter")
