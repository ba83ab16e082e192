"""What the outside reads: log set-up and the one list of event reasons."""

import json
import logging
import sys
import time
from typing import TextIO

#: Every reason of an event that we write, as people and alerts look for it; evictions add EvictedDueTo + their reason.
EVENT_REASONS = frozenset(
    {
        # About Workloads.
        "QuotaReserved",
        "Admitted",
        "Preempted",
        "AdmissionCheckRejected",
        "MaximumExecutionTimeExceeded",
        "RequeuingLimitExceeded",
        # Why it waits: the reasons of QuotaReserved=False.
        "Deactivated",
        "OnHold",
        "Misconfigured",
        "NoMatchingFlavor",
        "Suspended",
        "AdmissionGated",
        "WaitingForPodsReady",
        "ExceedsMaxQuota",
        "WaitingForQuota",
        "TopologyPlacementFailed",
        "WaitingForPreemptedWorkloads",
        "PendingEvaluation",
        # About jobs.
        "Started",
        "Stopped",
        "CreatedWorkload",
        "UpdatedWorkload",
        "DeletedWorkload",
        "FinishedWorkload",
        "FailedToStart",
        "FlavorNotFound",
        "ErrWorkloadCompose",
        "WorkloadNameConflict",
        "WorkloadPriorityClassNotFound",
        "PriorityClassNotFound",
        "NotDispatched",
    }
)


def set_up_logging(level: str = "INFO", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Log to stderr (stdout belongs to the one line that says where we serve): lines for people, or JSON for machines.

    Raises ValueError when there is no such level.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Every request of every poll would be a line.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """2026-01-02T03:04:05Z INFO hub.loops.poll: what happened."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback where there is one."""

    converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)
