"""Admission webhooks: who is asked, what is asked, what becomes of the answer."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.client import MERGE, Client
from tests.contract.manifests import config, job
from tests.contract.webhook_server import WebhookServer, allow, deny, patch

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
JOB_RULE = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["jobs"]}
CONFIG_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}


@pytest.fixture
async def hook() -> AsyncIterator[WebhookServer]:
    async with WebhookServer() as server:
        yield server


class Registered:
    """Registers webhooks for one namespace and takes them away again."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._made: list[str] = []

    async def __call__(self, kind: str, name: str, hook: WebhookServer, rule: dict[str, Any], **more: Any) -> None:
        entry = {
            "name": f"{name}.example.com",
            "rules": [rule],
            "clientConfig": hook.client_config,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **more,
        }
        body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration"}
        path = f"{CONFIGURATIONS}/{kind.lower()}webhookconfigurations"
        full_name = f"{name}-{self._namespace}"
        await self._client.post(path, body | {"metadata": {"name": full_name}, "webhooks": [entry]})
        self._made.append(f"{path}/{full_name}")

    async def remove(self) -> None:
        for path in self._made:
            await self._client.delete(path)


@pytest.fixture
async def register(client: Client, namespace: str) -> AsyncIterator[Registered]:
    registered = Registered(client, namespace)
    yield registered
    await registered.remove()


async def in_force(client: Client, collection: str, hook: WebhookServer) -> None:
    """Wait until the server asks the webhook: a real one learns of a configuration by watching."""
    while not hook.asked:
        probe = await client.call(
            "POST", f"{collection}?dryRun=All", {**_empty(collection), "metadata": {"generateName": "probe-"}}
        )
        assert probe.code in (201, 400), probe.text
    hook.asked.clear()


def _empty(collection: str) -> dict[str, Any]:
    return job("x") if collection.endswith("jobs") else config("x")


async def test_a_mutating_webhook_changes_the_object_before_it_is_stored(client, jobs, hook, register):
    hook.answer = lambda request: patch(
        {"op": "add", "path": "/spec/managedBy", "value": "kueue.x-k8s.io/multikueue"},
        {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}},
    )
    await register("Mutating", "change", hook, JOB_RULE)
    await in_force(client, jobs, hook)
    made = await client.post(jobs, job("j"))
    assert made["spec"]["managedBy"] == "kueue.x-k8s.io/multikueue"
    assert made["metadata"]["labels"] == {"seen": "yes"}


async def test_the_question_has_everything_to_decide_on(client, jobs, hook, register, namespace):
    await register("Mutating", "ask", hook, JOB_RULE)
    await in_force(client, jobs, hook)
    await client.post(jobs, job("j"))
    await client.patch(f"{jobs}/j", {"spec": {"parallelism": 2}})
    created, updated = hook.asked
    assert (created["operation"], updated["operation"]) == ("CREATE", "UPDATE")
    assert created["kind"] == {"group": "batch", "version": "v1", "kind": "Job"}
    assert created["resource"] == {"group": "batch", "version": "v1", "resource": "jobs"}
    assert (created["namespace"], created["name"], created["dryRun"]) == (namespace, "j", False)
    assert created["userInfo"]["username"] == "admin"
    assert "system:masters" in created["userInfo"]["groups"]
    assert (created["object"]["spec"]["backoffLimit"], created["oldObject"]) == (6, None)
    assert (updated["oldObject"]["spec"]["parallelism"], updated["object"]["spec"]["parallelism"]) == (1, 2)


async def test_a_refusal_is_the_clients_answer(client, configs, hook, register):
    hook.answer = lambda request: deny("too many GPUs")
    await register("Validating", "refuse", hook, CONFIG_RULE)
    await in_force(client, configs, hook)
    answer = await client.call("POST", configs, config("a"))
    assert answer.refusal == (400, "")
    assert answer.json["message"] == 'admission webhook "refuse.example.com" denied the request: too many GPUs'
    assert (await client.call("GET", f"{configs}/a")).code == 404


async def test_a_refusal_may_bring_its_own_code(client, configs, hook, register):
    hook.answer = lambda request: deny("no such queue", code=422, reason="Invalid")
    await register("Validating", "refuse", hook, CONFIG_RULE)
    while (answer := await client.call("POST", f"{configs}?dryRun=All", config("a"))).code == 201:
        pass
    assert answer.refusal == (422, "Invalid")


async def test_warnings_reach_the_client(client, configs, hook, register):
    hook.answer = lambda request: allow(warnings=["queue is held"])
    await register("Validating", "warn", hook, CONFIG_RULE)
    await in_force(client, configs, hook)
    answer = await client.call("POST", configs, config("a"))
    assert answer.headers["Warning"] == '299 - "queue is held"'


async def test_deletes_are_asked_about_too(client, configs, hook, register):
    hook.answer = lambda request: deny("kept") if request["operation"] == "DELETE" else allow()
    await register("Validating", "keep", hook, CONFIG_RULE)
    await in_force(client, configs, hook)
    await client.post(configs, config("a"))
    assert (await client.call("DELETE", f"{configs}/a")).refusal == (400, "")
    asked = hook.asked[-1]
    assert (asked["operation"], asked["object"], asked["oldObject"]["metadata"]["name"]) == ("DELETE", None, "a")
    hook.answer = lambda request: allow()


@pytest.mark.parametrize(
    ("more", "labels", "want_asked"),
    [
        pytest.param({"objectSelector": {"matchLabels": {"q": "a"}}}, {"q": "a"}, True, id="object labels that match"),
        pytest.param({"objectSelector": {"matchLabels": {"q": "a"}}}, {}, False, id="object labels that do not"),
        pytest.param({"namespaceSelector": {"matchLabels": {"no": "where"}}}, {}, False, id="another namespace"),
    ],
)
async def test_who_is_asked(client, configs, hook, register, more, labels, want_asked):
    await register("Validating", "all", hook, CONFIG_RULE)
    await in_force(client, configs, hook)
    async with WebhookServer() as chosen:
        await register("Validating", "chosen", chosen, CONFIG_RULE, **more)
        if want_asked:
            while not chosen.asked:
                await client.post(f"{configs}?dryRun=All", config("probe", labels=labels))
        chosen.asked.clear()
        await client.post(configs, config("a", labels=labels))
        assert bool(chosen.asked) is want_asked


async def test_a_webhook_that_does_not_answer_fails_the_write(client, configs, hook, register):
    await register("Validating", "gone", hook, CONFIG_RULE, timeoutSeconds=1)
    await in_force(client, configs, hook)
    await hook.__aexit__()
    answer = await client.call("POST", configs, config("a"))
    assert answer.refusal == (500, "InternalError")
    assert 'failed calling webhook "gone.example.com": failed to call webhook' in answer.json["message"]
    await register.remove()
    register._made.clear()
    await hook.__aenter__()


async def test_a_webhook_that_may_fail_is_passed_over(client, configs, hook, register):
    await register("Validating", "optional", hook, CONFIG_RULE, failurePolicy="Ignore", timeoutSeconds=1)
    await in_force(client, configs, hook)
    await hook.__aexit__()
    assert (await client.call("POST", configs, config("a"))).code == 201
    await hook.__aenter__()


async def test_a_webhook_with_side_effects_is_not_asked_for_dry_runs_by_mistake(client, configs, hook, register):
    await register("Validating", "careful", hook, CONFIG_RULE, sideEffects="NoneOnDryRun")
    await in_force(client, configs, hook)
    await client.post(f"{configs}?dryRun=All", config("a"))
    assert hook.asked[0]["dryRun"] is True


async def test_a_webhook_may_stand_behind_a_service(client, configs, hook, register, namespace):
    service = {"type": "ExternalName", "externalName": "127.0.0.1"}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"}, "spec": service}
    answer = await client.call("POST", "/api/v1/namespaces/default/services", body)
    assert answer.code == 201, answer.text
    where = {"namespace": "default", "name": "hook", "port": hook.port, "path": "/admit"}
    try:
        await register(
            "Validating", "service", hook, CONFIG_RULE, clientConfig={"service": where, "caBundle": hook.ca_bundle}
        )
        await in_force(client, configs, hook)
        await client.post(configs, config("a"))
        assert [r["name"] for r in hook.asked] == ["a"]
    finally:
        await register.remove()
        register._made.clear()
        await client.delete("/api/v1/namespaces/default/services/hook")


async def test_a_broken_webhook_can_always_be_removed(client, hook, register, configs):
    everything = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
    hook.answer = lambda request: deny("no to all")
    await register("Validating", "all", hook, everything)
    while (await client.call("POST", f"{configs}?dryRun=All", config("a"))).code == 201:
        pass
    assert (await client.call("PATCH", f"{configs}/a", {}, media=MERGE)).code in (400, 404)
    await register.remove()
    register._made.clear()
