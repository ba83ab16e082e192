"""core/v1 Event and events.k8s.io/v1 Event are one object under two sets of field names."""

from hub.sandbox.documents import Document

#: core/v1 name -> events.k8s.io/v1 name
RENAMED = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
ORIGINAL = {new: old for old, new in RENAMED.items()}


def events_from_core(stored: Document) -> Document:
    renamed = {RENAMED.get(name, name): value for name, value in stored.items()}
    return renamed | {"apiVersion": "events.k8s.io/v1"}


def events_to_core(event: Document) -> Document:
    renamed = {ORIGINAL.get(name, name): value for name, value in event.items()}
    return renamed | {"apiVersion": "v1"}


def default_event(draft: Document) -> None:
    draft.setdefault("source", {})
    draft.setdefault("type", "Normal")
    for name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        draft.setdefault(name, None)
    draft.setdefault("reportingComponent", "")
    draft.setdefault("reportingInstance", "")
