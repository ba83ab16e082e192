"""The REST API and the pages, over a real database and a sandbox management cluster that knows its users."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from hub.dispatch.nominate import Choice
from hub.kueue.runtime import tls
from hub.kueue.runtime.client import Client
from hub.kueue.wire import JoinRequest
from hub.sandbox.fleet import ClusterSpec, SandboxCluster, TokenSpec
from hub.store import placements, views
from hub.store.database import Database
from hub.web import openapi, sessions
from hub.web.access import Gate
from hub.web.app import API_ROUTES, make_app
from hub.web.context import WebContext
from tests.conftest import ManualClock
from tests.fleet_builders import make_offer, make_request

ADMIN, ANN = "admin-of-the-test", "ann-of-team-a"
HOPPER = "https://127.0.0.1:8443"


@pytest.fixture
async def management(tmp_path: Path) -> AsyncIterator[Client]:
    tokens = [
        TokenSpec(token=ADMIN, user="admin", groups=["system:masters"]),
        TokenSpec(token=ANN, user="ann", groups=["team-a"]),
    ]
    cluster = SandboxCluster(ClusterSpec(name="management", crds=True, namespaces=["team-a"], tokens=tokens))
    await cluster.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig_text())
    client = await Client.connect(str(kubeconfig))
    yield client
    await client.close()
    await cluster.stop()


@pytest.fixture
async def hub(management: Client, database: Database, clock: ManualClock) -> AsyncIterator[TestClient]:
    context = WebContext(
        database=database,
        management=management,
        gate=Gate(management, clock),
        clock=clock,
        version="1.2.3",
        hub_ca_pem="HUB CA",
        public_url="https://hub.example.com",
        session_key=sessions.make_key(b"0" * 32),
    )
    client = TestClient(TestServer(make_app(context)))
    await client.start_server()
    yield client
    await client.close()


def bearer(token: str = ADMIN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def call(hub: TestClient, method: str, path: str, want: int = 200, *, token: str = ADMIN, **more: Any) -> Any:
    headers = {**(bearer(token) if token else {}), **more.pop("headers", {})}
    answer = await hub.request(method, path, headers=headers, **more)
    text = await answer.text()
    assert answer.status == want, text
    return json.loads(text)


def join_request(token: str, /, **fields: Any) -> bytes:
    identity = tls.make_certificate("agent:east", 1_800_000_000.0, hosts=["127.0.0.1"])
    request = JoinRequest(
        token=token, address=HOPPER, certificate_pem=identity.certificate_pem, cluster_uid="uid-1", agent_version="1"
    )
    return msgspec.json.encode(msgspec.structs.replace(request, **fields))


# --- who may -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [route.path for route in API_ROUTES if not route.open and route.method == "GET" and "{" not in route.path]
)
async def test_nothing_is_open_without_a_token(hub: TestClient, path: str):
    problem = await call(hub, "GET", path, 401, token="")
    assert problem["title"] == "who are you?"
    await call(hub, "GET", path, 401, token="nobody-has-this")


async def test_rights_are_those_of_the_management_cluster(hub: TestClient):
    problem = await call(hub, "GET", "/api/v1/clusters", 403, token=ANN)
    assert "ann may not list multikueueclusters.kueue.x-k8s.io" in problem["detail"]


async def test_health_is_open(hub: TestClient):
    assert (await hub.get("/healthz")).status == 200
    assert (await hub.get("/readyz")).status == 200


# --- clusters ----------------------------------------------------------------------------------------------------------


async def test_a_cluster_is_registered_joins_once_and_is_seen(hub: TestClient):
    invitation = await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east", "labels": {"region": "eu"}})
    assert invitation["cluster"]["state"] == "Invited"
    assert invitation["joinToken"] not in json.dumps(await call(hub, "GET", "/api/v1/clusters"))
    answer = await call(hub, "POST", "/agent/v1/join", token="", data=join_request(invitation["joinToken"]))
    assert (answer["cluster"], answer["hubCaPem"]) == ("east", "HUB CA")
    seen = await call(hub, "GET", "/api/v1/clusters/east")
    assert (seen["address"], seen["labels"], seen["stale"], seen["ageS"]) == (HOPPER, {"region": "eu"}, True, None)
    problem = await call(hub, "POST", "/agent/v1/join", 401, token="", data=join_request(invitation["joinToken"]))
    assert "used already" in problem["detail"]


@pytest.mark.parametrize(
    ("fields", "want_status", "want_words"),
    [
        pytest.param({"token": "guessed"}, 401, "unknown", id="a wrong token"),
        pytest.param({"wire_min": 0, "wire_max": 0}, 426, "upgrade the older one", id="an older wire version"),
        pytest.param({"wire_min": 7, "wire_max": 9}, 426, "7 to 9", id="a newer one"),
        pytest.param({"certificate_pem": "no certificate"}, 422, "certificatePem", id="not a certificate"),
    ],
)
async def test_a_join_that_is_refused_says_why_and_changes_nothing(
    hub: TestClient, fields: dict[str, Any], want_status: int, want_words: str
):
    token = (await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east"}))["joinToken"]
    problem = await call(hub, "POST", "/agent/v1/join", want_status, token="", data=join_request(token, **fields))
    assert want_words in problem["detail"]
    assert (await call(hub, "GET", "/api/v1/clusters/east"))["state"] == "Invited"
    await call(hub, "POST", "/agent/v1/join", token="", data=join_request(token))


async def test_an_expired_token_is_refused(hub: TestClient, clock: ManualClock):
    token = (await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east", "expiresInS": 60}))["joinToken"]
    clock.advance(61)
    problem = await call(hub, "POST", "/agent/v1/join", 401, token="", data=join_request(token))
    assert "expired" in problem["detail"]


async def test_two_clusters_of_one_name(hub: TestClient):
    await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east"})
    problem = await call(hub, "POST", "/api/v1/clusters", 409, json={"name": "east"})
    assert "east" in problem["detail"]


async def test_one_cluster_under_two_names_is_refused(hub: TestClient):
    first = (await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east"}))["joinToken"]
    second = (await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "west"}))["joinToken"]
    await call(hub, "POST", "/agent/v1/join", token="", data=join_request(first))
    problem = await call(hub, "POST", "/agent/v1/join", 409, token="", data=join_request(second))
    assert "has joined as east already" in problem["detail"]


async def test_a_known_name_is_not_taken_over_by_another_cluster(hub: TestClient):
    first = (await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east"}))["joinToken"]
    await call(hub, "POST", "/agent/v1/join", token="", data=join_request(first))
    again = (await call(hub, "POST", "/api/v1/clusters/east/token", 201, json={}))["joinToken"]
    problem = await call(hub, "POST", "/agent/v1/join", 409, token="", data=join_request(again, cluster_uid="uid-2"))
    assert "east is another cluster" in problem["detail"]


@pytest.mark.parametrize(
    ("body", "want_field"),
    [
        pytest.param({"name": "East Coast"}, "name", id="not a DNS label"),
        pytest.param({}, "name", id="no name"),
        pytest.param({"name": "east", "labels": 3}, "labels", id="labels of the wrong type"),
        pytest.param({"name": "east", "expiresInS": 1}, "expiresInS", id="a life too short"),
        pytest.param({"name": "east", "color": "red"}, "color", id="an unknown field"),
    ],
)
async def test_a_bad_registration_names_the_field(hub: TestClient, body: dict[str, Any], want_field: str):
    problem = await call(hub, "POST", "/api/v1/clusters", 422, json=body)
    assert want_field in problem["detail"]


async def test_cordon_and_uncordon(hub: TestClient):
    await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east"})
    assert (await call(hub, "POST", "/api/v1/clusters/east/cordon"))["cordoned"] is True
    assert (await call(hub, "POST", "/api/v1/clusters/east/uncordon"))["cordoned"] is False
    problem = await call(hub, "POST", "/api/v1/clusters/none/cordon", 404)
    assert "no cluster none is registered" in problem["detail"]


async def test_a_cluster_is_removed_and_one_in_use_says_what_holds_it(hub: TestClient, database: Database):
    await call(hub, "POST", "/api/v1/clusters", 201, json={"name": "east"})
    held = make_offer(make_request("train"), Choice(cluster="east", queue="q", pod_sets=(), charges=()))
    async with database.transaction() as connection:
        await placements.save_new(connection, held)
    problem = await call(hub, "DELETE", "/api/v1/clusters/east", 409)
    assert (problem["holding"], "1 workloads are on east" in problem["detail"]) == ([str(held.workload)], True)
    assert (await call(hub, "DELETE", "/api/v1/clusters/east?force=true", 202))["state"] == "Removed"


# --- manifests ---------------------------------------------------------------------------------------------------------

FLAVOR = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: h100}\nspec: {nodeLabels: {gpu: h100}}\n"
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {generateName: train-, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: nowhere}}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: m, image: x}]}}}
"""
YAML = {"Content-Type": "application/yaml"}


async def test_apply_says_created_then_unchanged_then_configured(hub: TestClient):
    words = []
    for text in (FLAVOR, FLAVOR, FLAVOR.replace("gpu: h100", "gpu: h200")):
        answer = await call(hub, "POST", "/api/v1/apply", data=text, headers=YAML)
        words.append(answer["results"][0]["result"])
    assert words == ["created", "unchanged", "configured"]


async def test_one_wrong_document_and_nothing_is_sent(hub: TestClient):
    wrong = FLAVOR.replace("v1beta2", "v1beta9")
    problem = await call(hub, "POST", "/api/v1/apply", 422, data=f"{FLAVOR}---\n{wrong}", headers=YAML)
    error = problem["results"][0]["errors"][0]
    assert (problem["results"][0]["index"], error["field"]) == (1, "apiVersion")
    assert "kueue.x-k8s.io/v1beta2" in error["message"], "says which version there is"
    answer = await call(hub, "POST", "/api/v1/apply", data=FLAVOR, headers=YAML)
    assert answer["results"][0]["result"] == "created", "the first document had not been applied"


@pytest.mark.parametrize(
    ("text", "want_field"),
    [
        pytest.param("kind: ResourceFlavor", "apiVersion", id="no apiVersion"),
        pytest.param("- 1\n- 2", "", id="not an object"),
        pytest.param(FLAVOR.replace("{name: h100}", "{}"), "metadata.name", id="no name"),
        pytest.param(
            "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: q}\nspec: {resourceGroups: [{coveredResources: [cpu], "
            "flavors: [{name: f, resources: [{name: cpu, nominalQuota: -1}]}]}]}",
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
            id="a negative quota",
        ),
    ],
)
async def test_a_malformed_document_names_its_field(hub: TestClient, text: str, want_field: str):
    problem = await call(hub, "POST", "/api/v1/apply", 422, data=text, headers=YAML)
    assert problem["results"][0]["errors"][0]["field"] == want_field


async def test_a_job_for_a_queue_that_is_not_there_is_taken_with_a_warning(hub: TestClient):
    answer = await call(hub, "POST", "/api/v1/submit", data=JOB, headers=YAML)
    result = answer["results"][0]
    assert (result["result"], result["name"].startswith("train-")) == ("created", True)
    assert "there is no LocalQueue nowhere" in result["warnings"][0]


async def test_a_caller_sends_with_their_own_rights(hub: TestClient):
    answer = await call(hub, "POST", "/api/v1/apply", data=FLAVOR, headers=YAML, token=ANN)
    assert answer["results"][0]["result"] == "refused"
    assert "ann" in answer["results"][0]["errors"][0]["message"]


# --- workloads ---------------------------------------------------------------------------------------------------------


async def add_workloads(database: Database, *names: str) -> None:
    rows = [
        views.WorkloadRow(
            namespace="team-a",
            name=f"job-{name}-x",
            uid=f"uid-{name}",
            job_name=name,
            state="Pending",
            reason="WaitingForQuota",
            message="2 more needed",
            cluster_queue="q",
            position=n,
        )
        for n, name in enumerate(names)
    ]
    async with database.transaction() as connection:
        await views.upsert_workloads(connection, rows)


async def test_workloads_come_in_pages(hub: TestClient, database: Database):
    await add_workloads(database, "a", "b", "c")
    first = await call(hub, "GET", "/api/v1/workloads?limit=2")
    rest = await call(hub, "GET", f"/api/v1/workloads?limit=2&continue={first['continue']}")
    assert [w["jobName"] for w in (*first["items"], *rest["items"])] == ["a", "b", "c"]


async def test_why_takes_the_name_of_the_job_too(hub: TestClient, database: Database):
    await add_workloads(database, "a")
    answer = await call(hub, "GET", "/api/v1/workloads/team-a/a/why")
    assert (answer["workload"]["name"], answer["reason"], answer["position"]) == ("job-a-x", "WaitingForQuota", 0)
    assert "2 more needed" in answer["sentence"]
    problem = await call(hub, "GET", "/api/v1/workloads/team-a/none/why", 404)
    assert "no workload none in namespace team-a" in problem["detail"]


async def test_an_unknown_query_parameter_is_told(hub: TestClient):
    problem = await call(hub, "GET", "/api/v1/workloads?nmaespace=x", 400)
    assert problem["errors"][0]["field"] == "query.nmaespace"


# --- the document, the pages --------------------------------------------------------------------------------------------


async def test_the_document_describes_every_route_and_every_route_is_there(hub: TestClient):
    document = await call(hub, "GET", "/api/v1/openapi.json", token="")
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    served = {
        (route.method, route.resource.canonical)
        for route in hub.server.app.router.routes()  # type: ignore[union-attr]
        if route.resource is not None and route.method not in ("HEAD", "*")
    }
    pages = {
        "/",
        "/parts/fleet",
        "/workloads/{namespace}/{name}",
        "/sign-in",
        "/sign-out",
        "/static",
        "/api/v1/openapi.json",
    }
    assert described == {(method, path) for method, path in served if path not in pages}
    operations = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(operations) == len(set(operations))


def test_every_reference_in_the_document_leads_somewhere():
    document = openapi.document(API_ROUTES, "1")
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert names <= document["components"]["schemas"].keys()


async def test_a_browser_is_sent_to_the_sign_in_page_and_back(hub: TestClient, database: Database):
    await add_workloads(database, "a")
    page = await hub.get("/", headers={"Accept": "text/html"})
    assert "Paste a bearer token" in await page.text()
    wrong = await hub.post("/sign-in", data={"token": "guessed"})
    assert wrong.status == 401
    signed = await hub.post("/sign-in", data={"token": ADMIN}, allow_redirects=False)
    cookie = signed.cookies[sessions.COOKIE]
    assert (cookie["httponly"], cookie["samesite"], ADMIN in cookie.value) == (True, "Strict", False)
    fleet = await hub.get("/", cookies={sessions.COOKIE: cookie.value})
    text = await fleet.text()
    assert "team-a/<b>a</b>" in text
    assert "default-src 'none'" in fleet.headers["Content-Security-Policy"]


async def test_a_failure_tells_the_request_id_and_nothing_else(hub: TestClient, monkeypatch: pytest.MonkeyPatch):
    async def broken(*args: object) -> web.Response:
        raise RuntimeError("password=secret")

    monkeypatch.setattr("hub.web.capacity.views.list_queues", broken)
    problem = await call(hub, "GET", "/api/v1/queues", 500, headers={"X-Request-Id": "abc"})
    assert (problem["requestId"], "secret" in json.dumps(problem)) == ("abc", False)
