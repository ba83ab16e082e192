"""Lists: selectors, pages that belong together, and what a resourceVersion asks for."""

import pytest

from tests.contract.client import Client
from tests.contract.manifests import config, pod


def names(found: dict) -> list[str]:
    return [item["metadata"]["name"] for item in found["items"]]


@pytest.fixture
async def five(client: Client, configs: str) -> str:
    """Five ConfigMaps: e, d, c, b, a in this order; every other one is labelled."""
    for place, name in enumerate("edcba"):
        labels = {"place": str(place), "tier": "gold" if place % 2 else "lead"} if name != "a" else {}
        await client.post(configs, config(name, labels=labels))
    return configs


async def test_a_list_is_sorted_and_has_a_version(client: Client, five):
    found = await client.get(five)
    assert names(found) == ["a", "b", "c", "d", "e"]
    assert (found["kind"], found["apiVersion"]) == ("ConfigMapList", "v1")
    assert int(found["metadata"]["resourceVersion"]) > 0


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        pytest.param("tier=gold", "bd", id="equal"),
        pytest.param("tier==gold", "bd", id="equal, written twice"),
        pytest.param("tier!=gold", "ace", id="unequal, which the unlabelled are too"),
        pytest.param("tier in (gold,lead),place!=0", "bcd", id="one of several"),
        pytest.param("tier notin (gold)", "ace", id="none of several"),
        pytest.param("tier", "bcde", id="there"),
        pytest.param("!tier", "a", id="not there"),
        pytest.param("place>1", "bc", id="greater"),
        pytest.param("place<1", "e", id="less"),
    ],
)
async def test_label_selectors(client: Client, five, selector, want):
    assert "".join(names(await client.get(f"{five}?labelSelector={selector.replace('=', '%3D')}"))) == want


@pytest.mark.parametrize("selector", ["a==%3Db", "tier in gold", "place>x", "a b"])
async def test_a_label_selector_that_cannot_be_read_is_400(client: Client, five, selector):
    assert (await client.call("GET", f"{five}?labelSelector={selector}")).refusal == (400, "BadRequest")


async def test_field_selectors(client: Client, five):
    assert names(await client.get(f"{five}?fieldSelector=metadata.name%3Dc")) == ["c"]
    assert names(await client.get(f"{five}?fieldSelector=metadata.name!%3Dc")) == ["a", "b", "d", "e"]
    assert (await client.call("GET", f"{five}?fieldSelector=data.a%3D1")).refusal == (400, "BadRequest")


async def test_pods_are_selected_by_node_and_phase(client: Client, namespace):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await client.post(pods, pod("on-n1", nodeName="n1"))
    await client.post(pods, pod("free"))
    assert names(await client.get(f"{pods}?fieldSelector=spec.nodeName%3Dn1")) == ["on-n1"]
    assert names(await client.get(f"{pods}?fieldSelector=spec.nodeName%3D,status.phase%3DPending")) == ["free"]


async def test_pages_show_what_was_there_at_the_first_one(client: Client, five):
    first = await client.get(f"{five}?limit=2")
    assert names(first) == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    await client.delete(f"{five}/d")
    await client.post(five, config("cc"))
    second = await client.get(f"{five}?limit=2&continue={first['metadata']['continue']}")
    third = await client.get(f"{five}?limit=2&continue={second['metadata']['continue']}")
    assert (names(second), names(third)) == (["c", "d"], ["e"])
    assert "continue" not in third["metadata"]
    versions = {page["metadata"]["resourceVersion"] for page in (first, second, third)}
    assert len(versions) == 1


async def test_pages_of_a_selection_count_what_is_selected(client: Client, five):
    first = await client.get(f"{five}?limit=2&labelSelector=tier")
    assert names(first) == ["b", "c"]
    assert "remainingItemCount" not in first["metadata"]
    rest = await client.get(f"{five}?limit=5&labelSelector=tier&continue={first['metadata']['continue']}")
    assert names(rest) == ["d", "e"]


async def test_a_continue_token_that_is_none_is_400(client: Client, five):
    assert (await client.call("GET", f"{five}?continue=nonsense")).refusal == (400, "BadRequest")


async def test_an_exact_version_shows_the_past(client: Client, five):
    then = (await client.get(five))["metadata"]["resourceVersion"]
    await client.delete(f"{five}/a")
    await client.patch(f"{five}/b", {"data": {"a": "new"}})
    past = await client.get(f"{five}?resourceVersion={then}&resourceVersionMatch=Exact")
    assert names(past) == ["a", "b", "c", "d", "e"]
    assert past["items"][1]["data"] == {"a": "1"}
    assert past["metadata"]["resourceVersion"] == then


async def test_not_older_than_shows_the_present(client: Client, five):
    then = (await client.get(five))["metadata"]["resourceVersion"]
    await client.delete(f"{five}/a")
    now = await client.get(f"{five}?resourceVersion={then}&resourceVersionMatch=NotOlderThan")
    assert names(now)[-1] == "e"
    assert int(now["metadata"]["resourceVersion"]) >= int(then)


async def test_a_version_that_has_not_come_yet_is_504(client: Client, five):
    answer = await client.call("GET", f"{five}?resourceVersion=99999999")
    assert answer.refusal == (504, "Timeout")
    assert answer.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_match_without_a_version_is_refused(client: Client, five):
    assert (await client.call("GET", f"{five}?resourceVersionMatch=Exact")).code in (400, 422)


async def test_a_list_over_all_namespaces(client: Client, five):
    namespace = five.split("/")[4]
    await client.post(five, config(f"only-in-{namespace}"))
    found = await client.get(f"/api/v1/configmaps?fieldSelector=metadata.name%3Donly-in-{namespace}")
    assert [item["metadata"]["namespace"] for item in found["items"]] == [namespace]


async def test_metadata_alone(client: Client, five):
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    found = await client.get(five, accept=accept)
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert set(found["items"][0]) <= {"kind", "apiVersion", "metadata"}
    one = await client.get(f"{five}/a", accept="application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
    assert (one["kind"], one["metadata"]["name"]) == ("PartialObjectMetadata", "a")
