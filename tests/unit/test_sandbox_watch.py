"""What a watch gives out: every change once, and bookmarks that promise no more than was given."""

import json

from hub.kueue.api.resources import CONFIG_MAPS
from hub.sandbox.apiserver import ApiServer
from hub.sandbox.negotiation import Output
from hub.sandbox.reading import list_parameters
from hub.sandbox.rendering import Rendering
from hub.sandbox.watch import Watcher, WatchParameters


def config(name: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}


async def test_a_bookmark_covers_what_was_given_out_and_not_what_happened_after_the_end():
    """A watch ends, and something is written before its last bookmark is on the wire: the next watch must show it."""
    api = ApiServer("east", lambda: 0.0, seed=1)
    served = api.registry.find(CONFIG_MAPS)
    start = api.storage.version
    selection = list_parameters(served, "", {"resourceVersion": str(start)})
    parameters = WatchParameters(selection=selection, bookmarks=True)
    watcher = Watcher(api.collection(served), parameters, Rendering(served, Output(), api.clock, ""))
    watcher.start(start)
    first = api.create(CONFIG_MAPS, config("a"))
    watcher.bookmark(api.storage.version)
    watcher.stop()
    late = api.create(CONFIG_MAPS, config("b"))
    events = [json.loads(line) for line in (await watcher.lines()).splitlines()]
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    covered = int(events[1]["object"]["metadata"]["resourceVersion"])
    assert int(first["metadata"]["resourceVersion"]) <= covered < int(late["metadata"]["resourceVersion"])
