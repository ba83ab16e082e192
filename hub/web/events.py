"""Server-sent events: what changed, from the store's change feed. Whoever reconnects with Last-Event-ID misses nothing.

An event says that something changed, not what it is now: the reader asks for it again, with its own rights.
"""

import asyncio
import json

from aiohttp import web
from aiohttp_sse import EventSourceResponse, sse_response

from hub.kueue.api.resources import CLUSTER_QUEUES
from hub.store import changes
from hub.store.changes import Change, Cursor
from hub.store.errors import ChangesPruned, StoreError
from hub.web.context import context_of
from hub.web.middleware import require
from hub.web.routes import Parameter, Route

#: Names in the API -> topics of the feed.
TOPICS = {"cluster": "clusters", "placement": "placements", "workload": "workloads", "queue": "queues"}
#: Also how long a reader may be behind when the notification was missed.
LOOK_EVERY_S = 1.0


async def stream_events(request: web.Request) -> web.StreamResponse:
    await require(request, "list", CLUSTER_QUEUES)
    asked = [name for name in request.query.get("topics", "").split(",") if name]
    wanted = {TOPICS[name] for name in asked if name in TOPICS} if asked else set(TOPICS.values())
    async with sse_response(request) as response:
        cursor = await _start(request)
        while response.is_connected():
            cursor = await _send_new(request, response, cursor, wanted)
            await asyncio.sleep(LOOK_EVERY_S)
    return response


async def _start(request: web.Request) -> Cursor:
    last = request.headers.get("Last-Event-ID", "")
    xid, _, number = last.partition(".")
    if xid.isdigit() and number.isdigit():
        return Cursor(int(xid), int(number))
    async with context_of(request).database.transaction() as connection:
        return await changes.tail(connection)


async def _send_new(request: web.Request, response: EventSourceResponse, cursor: Cursor, wanted: set[str]) -> Cursor:
    try:
        async with context_of(request).database.transaction() as connection:
            found = await changes.read(connection, cursor)
    except ChangesPruned:
        await response.send("{}", event="resync")
        async with context_of(request).database.transaction() as connection:
            return await changes.tail(connection)
    except StoreError:
        return cursor  # the database is away: the reader keeps its place
    for change in _newest_of_each(found, wanted):
        identity = f"{change.xid}.{change.id}"
        await response.send(json.dumps({"topic": change.topic, "key": change.key}), id=identity, event=change.topic)
    return found[-1].cursor if found else cursor


def _newest_of_each(found: list[Change], wanted: set[str]) -> list[Change]:
    """One event for an object that changed ten times since the last look."""
    newest = {(change.topic, change.key): change for change in found if change.topic in wanted}
    return sorted(newest.values(), key=lambda change: change.cursor)


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/events",
        handler=stream_events,
        summary="What changed, as server-sent events; resume with Last-Event-ID",
        query={"topics": Parameter(description=f"comma list of {', '.join(TOPICS)}; all by default")},
        answer_type="text/event-stream",
        tag="events",
    )
]
