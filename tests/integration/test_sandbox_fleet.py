"""Simulated clusters as their users meet them: over HTTPS, in this process and in one of their own."""

import asyncio
import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from hub.kueue.api.meta import ObjectKey
from hub.kueue.api.resources import JOBS, NODES, PODS
from hub.kueue.runtime.client import Client
from hub.sandbox.control import make_control_app
from hub.sandbox.faults import FaultSettings
from hub.sandbox.fleet import ClusterSpec, Fleet, SandboxCluster, SpecError, read_spec
from hub.sandbox.http import serve
from hub.sandbox.nodes import NodeGroup
from hub.sandbox.script import Pace

FAST = Pace(start_s=0.01, run_s=0.05, stop_s=0.01, restart_s=0.01)
SPEC = """
clusters:
  - name: hopper
    nodes: [{name: h100, count: 2, gpus: 8, product: H100, labels: {team: a}}]
    pace: {start_s: 0.01, run_s: 0.05}
  - name: hub
"""


def job(name="train", gpus=1, **spec):
    container = {"name": "main", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template, **spec}}


def is_complete(found):
    return any(c["type"] == "Complete" for c in (found.get("status") or {}).get("conditions", ()))


@pytest.fixture
async def cluster(tmp_path):
    made = SandboxCluster(
        ClusterSpec(name="hopper", nodes=[NodeGroup(name="h100", count=2, gpus=8)], pace=FAST), seed=1
    )
    await made.start()
    (tmp_path / "kubeconfig").write_text(made.kubeconfig_text())
    yield made
    await made.stop()


@pytest.fixture
async def client(cluster, tmp_path):
    made = await Client.connect(str(tmp_path / "kubeconfig"))
    yield made
    await made.close()


async def finished(client, name="train"):
    """The Job, once it is Complete."""
    items, version = await client.list(JOBS, "default")
    if (done := next((j for j in items if j["metadata"]["name"] == name and is_complete(j)), None)) is not None:
        return done
    async with asyncio.timeout(20):
        async for _, seen in client.watch(JOBS, version, namespace="default"):
            if seen.get("metadata", {}).get("name") == name and is_complete(seen):
                return seen
    raise AssertionError("the watch ended")


async def test_a_job_created_over_https_runs_to_its_end(cluster, client):
    await client.create(JOBS, job(completions=3, parallelism=2, gpus=8))
    done = await finished(client)
    assert done["status"]["succeeded"] == 3
    assert [r.outcome for r in cluster.observer.runs] == ["Succeeded"] * 3
    assert all(r.gpus == 8 for r in cluster.observer.runs)
    nodes, _ = await client.list(NODES)
    assert [n["status"]["allocatable"]["nvidia.com/gpu"] for n in nodes] == ["8", "8"]


async def test_what_ran_is_remembered_when_its_objects_are_gone(cluster, client):
    await client.create(JOBS, job())
    await finished(client)
    await client.delete(JOBS, ObjectKey("default", "train"))
    assert (await client.list(PODS))[0] == []
    assert len(cluster.observer.runs) == len(cluster.observer.completions) == 1


async def test_a_cluster_that_is_cut_off_goes_on_working(cluster, client):
    await client.create(JOBS, job(completions=2, parallelism=2))
    cluster.faults.set(FaultSettings(cut=True))
    ended = asyncio.Event()
    cluster.api.subscribe(JOBS, lambda _, seen: ended.set() if is_complete(seen) else None)
    await asyncio.wait_for(ended.wait(), 20)
    cluster.faults.set(FaultSettings())
    assert is_complete(await finished(client))


@pytest.fixture
async def fleet():
    made = Fleet(read_spec(SPEC).clusters)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def control(fleet):
    serving = await serve(make_control_app(fleet, "secret"))
    async with aiohttp.ClientSession(serving.url, headers={"Authorization": "Bearer secret"}) as session:
        yield session
    await serving.close()


async def call(control, path, body=None, want=200):
    method = "GET" if body is None else "POST"
    async with control.request(method, f"/sandbox/v1/{path}", json=body) as answer:
        assert answer.status == want, await answer.text()
        return await answer.json()


async def test_the_control_interface_shows_clusters_and_what_ran(fleet, control):
    done = asyncio.Event()
    hopper = fleet.clusters["hopper"].api
    hopper.subscribe(JOBS, lambda _, seen: done.set() if is_complete(seen) else None)
    hopper.create(JOBS, job(gpus=2))
    await asyncio.wait_for(done.wait(), 20)
    found = await call(control, "runs")
    assert [(r["source"]["cluster"], r["outcome"], r["gpus"]) for r in found["runs"]] == [("hopper", "Succeeded", 2)]
    assert found["doubleRuns"] == []
    assert found["perCluster"]["hopper"]["succeeded"] == 1
    clusters = {c["name"]: c for c in (await call(control, "clusters"))["clusters"]}
    assert clusters["hopper"]["pods"] == {"Succeeded": 1}
    assert [n["free"]["nvidia.com/gpu"] for n in clusters["hopper"]["nodes"]] == [8, 8]
    assert clusters["hub"]["nodes"] == []


async def test_the_control_interface_switches_faults_nodes_and_controllers(fleet, control):
    hopper = fleet.clusters["hopper"]
    await call(control, "clusters/hopper/faults", {"slow_s": 0.5, "skew_s": 60})
    assert (hopper.faults.settings.slow_s, hopper.api.skew_s) == (0.5, 60)
    await call(control, "clusters/hopper/faults", {})
    assert hopper.faults.settings == FaultSettings()
    await call(control, "clusters/hopper/nodes", {"name": "extra", "count": 1, "gpus": 4}, want=201)
    await call(control, "clusters/hopper/nodes/h100-0", {"action": "cordon"})
    await call(control, "clusters/hopper/nodes/h100-1", {"action": "lose"})
    nodes = {n["name"]: n for n in (await call(control, "clusters"))["clusters"][0]["nodes"]}
    assert {n: (v["ready"], v["unschedulable"]) for n, v in nodes.items()} == {
        "extra-0": (True, False),
        "h100-0": (True, True),
        "h100-1": (False, False),
    }
    for action in ("restore", "remove"):
        await call(control, "clusters/hopper/nodes/h100-1", {"action": action})
    await call(control, "clusters/hopper/nodes/extra-0", {"action": "abandon"})
    assert [n["metadata"]["name"] for n in hopper.api.list(NODES)] == ["h100-0"]
    await call(control, "clusters/hopper/freeze", {"part": "jobs"})
    await call(control, "clusters/hopper/restart", {})


@pytest.mark.parametrize(
    ("given_path", "given_body", "want_code", "want_text"),
    [
        pytest.param("clusters/east/faults", {}, 404, "there is no cluster east; there are hopper, hub", id="cluster"),
        pytest.param("clusters/hopper/nodes/n", {"action": "lose"}, 404, "cluster hopper has no node n", id="node"),
        pytest.param("clusters/hopper/nodes/h100-0", {"action": "burn"}, 400, "Invalid enum value 'burn'", id="action"),
        pytest.param("clusters/hopper/faults", {"slow": 1}, 400, "unknown field `slow`", id="fault"),
        pytest.param("clusters/hopper/freeze", {"part": "all"}, 400, "Invalid enum value 'all'", id="part"),
    ],
)
async def test_the_control_interface_names_what_is_wrong(control, given_path, given_body, want_code, want_text):
    assert want_text in (await call(control, given_path, given_body, want=want_code))["error"]


async def test_the_control_interface_wants_its_token(control):
    async with control.get("/sandbox/v1/runs", headers={"Authorization": "Bearer guess"}) as answer:
        assert answer.status == 401


@pytest.mark.parametrize(
    ("given_text", "want_error"),
    [
        pytest.param(
            "clusters: [{name: a}, {name: a}]", "clusters: the name a stands there more than once", id="doubled"
        ),
        pytest.param("clusters: [{nodes: []}]", "missing required field `name` - at `$.clusters[0]`", id="no name"),
        pytest.param("clusters: [{name: a, gpus: 8}]", "unknown field `gpus`", id="a field that is not known"),
        pytest.param(
            "clusters: [{name: a, nodes: [{name: n, count: x}]}]", "`$.clusters[0].nodes[0].count`", id="a type"
        ),
        pytest.param("clusters: [{", "not YAML", id="no YAML"),
    ],
)
def test_a_spec_that_is_wrong_says_where(given_text, want_error):
    with pytest.raises(SpecError) as caught:
        read_spec(given_text)
    assert want_error in str(caught.value)


def start(tmp_path, text, *more):
    (tmp_path / "spec.yaml").write_text(text)
    command = [
        sys.executable,
        "-m",
        "hub.sandbox",
        "--state",
        str(tmp_path / "state"),
        *more,
        str(tmp_path / "spec.yaml"),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_process_says_when_it_is_ready_and_ends_when_told(tmp_path):
    process = start(tmp_path, SPEC)
    try:
        ready = json.loads(process.stdout.readline())
        assert (ready["ready"], [c["name"] for c in ready["clusters"]]) == (True, ["hopper", "hub"])
        state = tmp_path / "state"
        assert {p.name for p in state.iterdir()} == {"fleet.json", "hopper.kubeconfig", "hub.kubeconfig"}
        assert {stat.S_IMODE(p.stat().st_mode) for p in state.iterdir()} == {0o600}
        table = json.loads((state / "fleet.json").read_text())
        assert table["control"]["url"] == ready["control"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert not (state / "fleet.json").exists()
    finally:
        process.kill()
        process.communicate()


def test_the_process_ends_with_the_one_it_is_told_to_follow(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = start(tmp_path, "clusters: [{name: a}]", "--parent-pid", str(parent.pid))
    try:
        assert process.stdout.readline()
        parent.communicate()
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_the_process_refuses_a_wrong_spec_by_name(tmp_path):
    process = start(tmp_path, "clusters: [{name: a, gpu: 1}]")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert errors == f"hub.sandbox: {tmp_path}/spec.yaml: Object contains unknown field `gpu` - at `$.clusters[0]`\n"


def test_the_demo_spec_is_valid():
    spec = read_spec((Path(__file__).parents[2] / "deploy" / "samples" / "sandbox" / "demo.yaml").read_text())
    gpus = {c.name: sum(g.count * g.gpus for g in c.nodes) for c in spec.clusters}
    assert gpus == {"management": 0, "hopper": 32, "ampere": 24, "lovelace": 8}
