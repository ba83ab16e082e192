"""Stored objects as the bytes of an answer: objects and lists, Tables, bare metadata; one by one or as watch events."""

from collections.abc import Callable

import orjson
from msgspec import Struct

from hub.sandbox.documents import Document
from hub.sandbox.negotiation import Form, Output
from hub.sandbox.reading import Page
from hub.sandbox.served import Served
from hub.sandbox.storage import Event, Stored
from hub.sandbox.tables import ROW_OBJECTS, column_definitions, partial, row, table

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Rendering(Struct, frozen=True):
    """How one client wants the objects of one resource. `clock` dates the ages in tables."""

    served: Served
    output: Output
    clock: Callable[[], float]
    #: `includeObject` of a Table: Metadata, Object or None.
    include: str = ""

    @property
    def form(self) -> Form:
        return self.output.form

    def read(self, stored: Stored) -> Document:
        return self.served.read(stored.object)

    def raw(self, stored: Stored) -> bytes:
        """One object as JSON, made once when it is stored in the version asked for."""
        obj = self.served.read(stored.object)
        return stored.raw if obj is stored.object else orjson.dumps(obj)

    def one(self, stored: Stored) -> bytes:
        """The answer to a GET of one object."""
        if self.form == "Table":
            version = {"resourceVersion": str(stored.version)}
            return orjson.dumps(table([self._row(stored)], self.served.columns, version))
        if self.form == "PartialObjectMetadata":
            return orjson.dumps(partial(self.read(stored)))
        return self.raw(stored)

    def page(self, page: Page) -> bytes:
        """The answer to a list."""
        metadata: Document = {"resourceVersion": str(page.version)}
        if page.token:
            metadata["continue"] = page.token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        if self.form == "Table":
            rows = [self._row(stored) for stored in page.items]
            return orjson.dumps(table(rows, self.served.columns, metadata))
        kind, api_version, items = self.served.list_kind, self.served.api_version, map(self.raw, page.items)
        if self.form == "PartialObjectMetadata":
            kind, api_version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            items = (orjson.dumps(partial(self.read(stored))) for stored in page.items)
        head = orjson.dumps({"kind": kind, "apiVersion": api_version, "metadata": metadata})
        return b"".join((head[:-1], b',"items":[', b",".join(items), b"]}"))

    def _row(self, stored: Stored) -> Document:
        return row(self.read(stored), self.served.columns, self.include, self.clock())

    # --- watch events ------------------------------------------------------------------------------------------------

    def event(self, kind: str, event: Event) -> bytes:
        """One line of a watch, shared between all watchers that want the same form."""
        wanted = (kind, self.served.api_version, self.form, self.include)
        if (chunk := event.chunks.get(wanted)) is None:
            chunk = event.chunks[wanted] = self.line(kind, event.stored)
        return chunk

    def line(self, kind: str, stored: Stored) -> bytes:
        if self.form == "Table":
            version = {"resourceVersion": str(stored.version)}
            return _line(kind, orjson.dumps(table([self._row(stored)], self.served.columns, version, headers=False)))
        if self.form == "PartialObjectMetadata":
            return _line(kind, orjson.dumps(partial(self.read(stored))))
        return _line(kind, self.raw(stored))

    def with_headers(self, line: bytes) -> bytes:
        """The first event of a watch as Tables carries the column definitions; later ones go without."""
        if self.form != "Table":
            return line
        event = orjson.loads(line)
        event["object"]["columnDefinitions"] = column_definitions(self.served.columns)
        return orjson.dumps(event) + b"\n"

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        metadata: Document = {"resourceVersion": str(version), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        obj: Document = {"kind": self.served.resource.kind, "apiVersion": self.served.api_version}
        obj["metadata"] = metadata
        if self.form == "Table":
            carried = ROW_OBJECTS[self.include]({"kind": obj["kind"], "metadata": metadata} | obj)
            cells = ["" for _ in self.served.columns]
            obj = table([{"cells": cells, "object": carried}], self.served.columns, {"resourceVersion": str(version)})
        elif self.form == "PartialObjectMetadata":
            obj = partial(obj)
        return _line("BOOKMARK", orjson.dumps(obj))


def _line(kind: str, obj: bytes) -> bytes:
    return b"".join((b'{"type":"', kind.encode(), b'","object":', obj, b"}\n"))


def error_line(status: Document) -> bytes:
    return _line("ERROR", orjson.dumps(status))
