"""Watches: where they begin, what they show, how they end."""

import asyncio

import pytest

from tests.contract.client import Client
from tests.contract.manifests import config


def told(event: dict) -> tuple[str, str]:
    return event["type"], event["object"].get("metadata", {}).get("name", "")


async def first(client: Client, path: str, count: int) -> list[dict]:
    """The first `count` events."""
    found = []
    async with asyncio.timeout(20):
        events = client.watch(path)
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
        await events.aclose()
    return found


async def version_of(client: Client, configs: str) -> str:
    return (await client.get(configs))["metadata"]["resourceVersion"]


async def test_from_a_version_on_every_change_is_shown_once_in_order(client: Client, configs):
    then = await version_of(client, configs)
    await client.post(configs, config("a"))
    await client.patch(f"{configs}/a", {"data": {"a": "2"}})
    await client.delete(f"{configs}/a")
    events = await first(client, f"{configs}?watch=1&resourceVersion={then}", 3)
    assert [told(e) for e in events] == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert versions == sorted(set(versions))
    assert events[2]["object"]["data"] == {"a": "2"}


@pytest.mark.parametrize("flag", ["watch=1", "watch=true", "watch=True"])
async def test_without_a_version_the_present_comes_first(client: Client, configs, flag):
    await client.post(configs, config("a"))
    await client.post(configs, config("b"))
    events = await first(client, f"{configs}?{flag}", 2)
    assert sorted(told(e) for e in events) == [("ADDED", "a"), ("ADDED", "b")]


async def test_changes_reach_a_watch_that_is_open(client: Client, configs):
    then = await version_of(client, configs)
    events = client.watch(f"{configs}?watch=1&resourceVersion={then}")
    pending = asyncio.ensure_future(anext(events))
    await client.post(configs, config("a"))
    async with asyncio.timeout(20):
        assert told(await pending) == ("ADDED", "a")
    await events.aclose()


async def test_a_change_that_leaves_or_enters_the_selection_is_a_delete_or_an_add(client: Client, configs):
    then = await version_of(client, configs)
    await client.post(configs, config("a", labels={"on": "yes"}))
    await client.post(configs, config("b"))
    await client.patch(f"{configs}/a", {"data": {"a": "2"}})
    await client.patch(f"{configs}/a", {"metadata": {"labels": {"on": "no"}}})
    gone_at = (await client.get(f"{configs}/a"))["metadata"]["resourceVersion"]
    await client.patch(f"{configs}/a", {"data": {"a": "3"}})
    await client.patch(f"{configs}/b", {"metadata": {"labels": {"on": "yes"}}})
    events = await first(client, f"{configs}?watch=1&labelSelector=on%3Dyes&resourceVersion={then}", 4)
    assert [told(e) for e in events] == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
    assert events[2]["object"]["metadata"]["resourceVersion"] == gone_at


async def test_one_object_is_watched_by_name(client: Client, configs):
    then = await version_of(client, configs)
    for name in ("a", "b"):
        await client.post(configs, config(name))
    await client.patch(f"{configs}/b", {"data": {"a": "2"}})
    path = f"{configs}?watch=1&fieldSelector=metadata.name%3Db&resourceVersion={then}"
    assert [told(e) for e in await first(client, path, 2)] == [("ADDED", "b"), ("MODIFIED", "b")]


async def test_it_ends_when_its_time_is_over(client: Client, configs):
    await client.post(configs, config("a"))
    async with asyncio.timeout(20):
        events = [told(e) async for e in client.watch(f"{configs}?watch=1&timeoutSeconds=1")]
    assert events == [("ADDED", "a")]


async def test_watch_list_begins_with_the_present_and_says_when_that_is_over(client: Client, configs):
    await client.post(configs, config("a"))
    options = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    events = await first(client, f"{configs}?watch=1&{options}", 2)
    assert told(events[0]) == ("ADDED", "a")
    mark = events[1]
    assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(mark["object"]["metadata"]["resourceVersion"]) > 0


async def test_watch_list_needs_the_match_rule(client: Client, configs):
    answer = await client.call("GET", f"{configs}?watch=1&sendInitialEvents=true")
    assert answer.code == 422


async def test_metadata_alone_can_be_watched(client: Client, configs):
    await client.post(configs, config("a"))
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    event = (await first(client, f"{configs}?watch=1", 1))[0]
    assert "data" in event["object"]
    async with asyncio.timeout(20):
        events = [e async for e in client.watch(f"{configs}?watch=1&timeoutSeconds=1", accept=accept)]
    assert events[0]["object"]["kind"] == "PartialObjectMetadata"
    assert "data" not in events[0]["object"]
