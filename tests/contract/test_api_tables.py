"""Tables, as kubectl asks for them."""

import pytest

from tests.contract.client import Client
from tests.contract.manifests import config, job, pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def shown(table: dict, *, wide: bool = False) -> list[dict]:
    """Rows as column -> cell, those of `-o wide` only when asked for."""
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [(c["name"], c["priority"]) for c in table["columnDefinitions"]]
    return [
        {name: cell for (name, priority), cell in zip(columns, row["cells"], strict=True) if wide or priority == 0}
        for row in table["rows"]
    ]


async def test_jobs(client: Client, jobs):
    await client.post(jobs, job("j", parallelism=2, completions=4))
    row = shown(await client.get(jobs, accept=TABLE))[0]
    assert list(row) == ["Name", "Status", "Completions", "Duration", "Age"]
    assert (row["Name"], row["Completions"], row["Duration"]) == ("j", "0/4", "")
    wide = shown(await client.get(jobs, accept=TABLE), wide=True)[0]
    assert (wide["Containers"], wide["Images"]) == ("c", "i")


async def test_pods(client: Client, namespace):
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await client.post(pods, pod("p"))
    row = shown(await client.get(pods, accept=TABLE))[0]
    assert list(row) == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert (row["Name"], row["Ready"], row["Status"], str(row["Restarts"])) == ("p", "0/1", "Pending", "0")
    wide = shown(await client.get(f"{pods}/p", accept=TABLE), wide=True)[0]
    assert wide["Node"] == "<none>"


async def test_a_suspended_job_that_ran_says_so(client: Client, jobs):
    await client.post(jobs, job("j"))
    condition = {"type": "Suspended", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await client.patch(f"{jobs}/j/status", {"status": {"conditions": [condition]}})
    assert shown(await client.get(jobs, accept=TABLE))[0]["Status"] == "Suspended"


@pytest.mark.parametrize(
    ("include", "want"),
    [
        pytest.param("", {"kind", "apiVersion", "metadata"}, id="metadata by default"),
        pytest.param("Object", {"kind", "apiVersion", "metadata", "data"}, id="the object"),
        pytest.param("None", set(), id="nothing"),
    ],
)
async def test_rows_carry(client: Client, configs, include, want):
    await client.post(configs, config("a"))
    path = f"{configs}?includeObject={include}" if include else configs
    row = (await client.get(path, accept=TABLE))["rows"][0]
    assert set(row.get("object") or {}) == want


async def test_a_watch_shows_the_columns_once(client: Client, configs):
    for name in "ab":
        await client.post(configs, config(name))
    events = [e async for e in client.watch(f"{configs}?watch=1&timeoutSeconds=1", accept=TABLE)]
    tables = [e["object"] for e in events]
    assert [bool(t.get("columnDefinitions")) for t in tables] == [True, False]
    assert sorted(t["rows"][0]["cells"][0] for t in tables) == ["a", "b"]


async def test_who_cannot_have_a_table_gets_the_list(client: Client, configs):
    assert (await client.get(configs, accept=f"application/json;as=Nothing,{TABLE},application/json"))[
        "kind"
    ] == "Table"
    assert (await client.get(configs, accept="application/json;as=Nothing,application/json"))["kind"] == "ConfigMapList"
