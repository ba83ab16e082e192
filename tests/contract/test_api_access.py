"""Who may do what: tokens, roles, impersonation, reviews."""

from collections.abc import AsyncIterator

import pytest

from tests.api_servers import Api
from tests.contract.client import Client
from tests.contract.manifests import config

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
async def ann(api: Api) -> AsyncIterator[Client]:
    """A member of team-a who may do nothing unless a test says so."""
    async with Client(api, "ann-token") as connected:
        yield connected


async def role(client: Client, namespace: str, *rules: dict) -> None:
    """Give group team-a these rules in one namespace."""
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    meta = {"name": "team", "namespace": namespace}
    await client.post(f"{RBAC}/namespaces/{namespace}/roles", kind | {"kind": "Role", "metadata": meta, "rules": rules})
    group = {"kind": "Group", "name": "team-a", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "team", "apiGroup": "rbac.authorization.k8s.io"}
    binding = kind | {"kind": "RoleBinding", "metadata": meta, "roleRef": reference, "subjects": [group]}
    await client.post(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)


def rule(resources: str, verbs: str, group: str = "", **more) -> dict:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


async def allowed(client: Client, path: str) -> None:
    """Wait until the grant is in force: a real server learns of roles by watching."""
    while (await client.call("GET", path)).code == 403:
        pass


async def test_without_a_token_a_request_is_anonymous(api: Api):
    async with Client(api, "") as nobody:
        answer = await nobody.call("GET", "/api/v1/pods")
        health = await nobody.call("GET", "/readyz")
    assert answer.refusal == (403, "Forbidden")
    assert answer.json["message"] == (
        'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" at the cluster scope'
    )
    assert (health.code, health.text) == (200, "ok")


async def test_a_token_nobody_knows_is_401(api: Api):
    async with Client(api, "no-such-token") as nobody:
        assert (await nobody.call("GET", "/api/v1/pods")).refusal == (401, "Unauthorized")


async def test_a_role_holds_in_its_namespace_only(client: Client, ann: Client, configs, namespace):
    refused = await ann.call("GET", configs)
    assert refused.json["message"] == (
        f'configmaps is forbidden: User "ann" cannot list resource "configmaps" in API group "" in the namespace "{namespace}"'
    )
    await role(client, namespace, rule("configmaps", "get list"))
    await allowed(ann, configs)
    assert (await ann.call("GET", configs)).code == 200
    assert (await ann.call("GET", "/api/v1/namespaces/default/configmaps")).code == 403
    assert (await ann.call("GET", "/api/v1/configmaps")).code == 403
    assert (await ann.call("POST", configs, config("a"))).code == 403


async def test_watching_and_subresources_are_verbs_and_resources_of_their_own(
    client: Client, ann: Client, jobs, namespace
):
    await role(client, namespace, rule("jobs", "get list", "batch"))
    await allowed(ann, jobs)
    assert (await ann.call("GET", f"{jobs}?watch=1&timeoutSeconds=1")).code == 403
    refused = await ann.call("PATCH", f"{jobs}/j/status", {}, media="application/merge-patch+json")
    assert 'cannot patch resource "jobs/status" in API group "batch"' in refused.json["message"]


async def test_resource_names_narrow_a_rule(client: Client, ann: Client, configs, namespace):
    for name in "ab":
        await client.post(configs, config(name))
    await role(client, namespace, rule("configmaps", "get", resourceNames=["a"]))
    await allowed(ann, f"{configs}/a")
    assert (await ann.call("GET", f"{configs}/b")).code == 403


async def test_aggregated_roles_gather_the_rules_of_others(client: Client, ann: Client, configs, namespace):
    meta = {"name": "team", "namespace": namespace}
    reference = {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}
    subject = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    body = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta}
    await client.post(
        f"{RBAC}/namespaces/{namespace}/rolebindings", body | {"roleRef": reference, "subjects": [subject]}
    )
    extra = {"name": f"extra-{namespace}", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": extra}
    await client.post(f"{RBAC}/clusterroles", kind | {"rules": [rule("leases", "list", "coordination.k8s.io")]})
    if client.api.kind == "sandbox":  # a real cluster needs a controller for it
        assert (await ann.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")).code == 200
        assert (await ann.call("GET", configs)).code == 200
        assert (await ann.call("GET", configs.replace("configmaps", "secrets"))).code == 403
    await client.delete(f"{RBAC}/clusterroles/extra-{namespace}")


async def test_an_admin_may_act_as_somebody_else(client: Client, ann: Client):
    bob = await client.call("GET", "/api/v1/pods", headers={"Impersonate-User": "bob"})
    assert 'User "bob" cannot list resource "pods"' in bob.json["message"]
    answer = await ann.call("GET", "/api/v1/pods", headers={"Impersonate-User": "bob"})
    assert answer.refusal == (403, "Forbidden")
    assert 'User "ann" cannot impersonate' in answer.json["message"]


async def test_a_token_is_reviewed(client: Client):
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "ann-token"}}
    status = (await client.post(path, body))["status"]
    assert status["authenticated"] is True
    assert status["user"]["username"] == "ann"
    assert set(status["user"]["groups"]) == {"team-a", "system:authenticated"}
    unknown = (await client.post(path, body | {"spec": {"token": "wrong"}}))["status"]
    assert not unknown.get("authenticated", False)


@pytest.mark.parametrize(
    ("verb", "namespace_of", "want"),
    [
        pytest.param("list", "own", True, id="granted"),
        pytest.param("delete", "own", False, id="not granted"),
        pytest.param("list", "default", False, id="elsewhere"),
    ],
)
async def test_access_is_reviewed(client: Client, ann: Client, configs, namespace, verb, namespace_of, want):
    await role(client, namespace, rule("configmaps", "get list"))
    await allowed(ann, configs)
    where = namespace if namespace_of == "own" else namespace_of
    wanted = {"verb": verb, "resource": "configmaps", "namespace": where}
    kind = {"apiVersion": "authorization.k8s.io/v1"}
    spec = {"user": "ann", "groups": ["team-a"], "resourceAttributes": wanted}
    review = kind | {"kind": "SubjectAccessReview", "spec": spec}
    found = await client.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert found["status"]["allowed"] is want
    own = kind | {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": wanted}}
    found = await ann.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", own)
    assert found["status"]["allowed"] is want


async def test_ones_own_rules_are_listed(client: Client, ann: Client, configs, namespace):
    await role(client, namespace, rule("configmaps", "get list"))
    await allowed(ann, configs)
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    found = await ann.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body)
    assert {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]} in found["status"][
        "resourceRules"
    ]


async def test_a_service_account_gets_a_token_that_works(api: Api, client: Client, namespace):
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await client.post(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}})
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    issued = await client.post(f"{accounts}/robot/token", body)
    async with Client(api, issued["status"]["token"]) as robot:
        answer = await robot.call("GET", "/api/v1/pods")
    assert f'User "system:serviceaccount:{namespace}:robot" cannot list resource "pods"' in answer.json["message"]
