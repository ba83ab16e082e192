"""What a batch/v1 Job says about its pods: completion indexes, podFailurePolicy, successPolicy. Pure reading of manifests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

Manifest = Mapping[str, Any]
FailureAction = Literal["FailJob", "FailIndex", "Ignore", "Count"]

INDEX = "batch.kubernetes.io/job-completion-index"
#: How often this index failed before the pod (backoffLimitPerIndex).
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
ENDED = ("Succeeded", "Failed")


# --- pods ---


def phase(pod: Manifest) -> str:
    return (pod.get("status") or {}).get("phase") or "Pending"


def is_terminating(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: Manifest) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def index_of(pod: Manifest) -> int | None:
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else None


def index_failures(pod: Manifest) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX_FAILURES, 0))


def restarts(pod: Manifest) -> int:
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return sum(c.get("restartCount", 0) for c in containers)


# --- indexes as text: "0,2-4" ---


def parse_indexes(text: str) -> set[int]:
    found: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def indexes_text(indexes: Iterable[int]) -> str:
    """As the Job controller writes them: runs of three and more as first-last, runs of two as two numbers."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(_run_text(first, last) for first, last in runs)


def _run_text(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"


# --- podFailurePolicy ---


class FailureMatch:
    """The rule that a failed pod met: what to do, and for FailJob the sentence of the condition."""

    __slots__ = ("action", "message")

    def __init__(self, action: FailureAction, message: str) -> None:
        self.action, self.message = action, message


def match_failure(policy: Manifest | None, pod: Manifest) -> FailureMatch | None:
    """The first rule of `spec.podFailurePolicy` that the failed pod meets."""
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        found = _exit_code_met(rule, pod) if rule.get("onExitCodes") else _condition_met(rule, pod)
        if found:
            action = rule["action"]
            assert action in get_args(FailureAction), action
            return FailureMatch(action, f"{found} matching {action} rule at index {number}")
    return None


def _name(pod: Manifest) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def _exit_code_met(rule: Manifest, pod: Manifest) -> str:
    wanted = rule["onExitCodes"]
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        code = ((container.get("state") or {}).get("terminated") or {}).get("exitCode", 0)
        if not code or (wanted.get("containerName") or container["name"]) != container["name"]:
            continue
        if (code in wanted["values"]) is (wanted["operator"] == "In"):
            return f"Container {container['name']} for pod {_name(pod)} failed with exit code {code}"
    return ""


def _condition_met(rule: Manifest, pod: Manifest) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    for pattern in rule.get("onPodConditions") or ():
        wanted = (pattern["type"], pattern.get("status") or "True")
        if any((c["type"], c["status"]) == wanted for c in conditions):
            return f"Pod {_name(pod)} has condition {pattern['type']}"
    return ""


# --- successPolicy ---


def match_success(policy: Manifest | None, completions: int, succeeded: set[int]) -> str:
    """The sentence of the condition when a rule of `spec.successPolicy` is met, else ""."""
    rules: Sequence[Manifest] = (policy or {}).get("rules") or ()
    for number, rule in enumerate(rules):
        named = rule.get("succeededIndexes")
        chosen = parse_indexes(named) if named is not None else set(range(completions))
        needed = rule.get("succeededCount") or len(chosen)
        if len(chosen & succeeded) >= needed:
            return f"Matched rules at index {number}"
    return ""
