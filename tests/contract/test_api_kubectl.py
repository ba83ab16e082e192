"""What kubectl does with the schemas, patches and field owners of a server: apply both ways, diff, edit, explain."""

import pytest
import yaml

from tests.api_servers import Api
from tests.contract.client import Client
from tests.contract.manifests import job

pytestmark = pytest.mark.kubectl


def text(manifest: dict) -> str:
    return yaml.safe_dump(manifest)


@pytest.fixture
def sparse(namespace: str) -> dict:
    """As `kubectl create --dry-run=client -o yaml` writes it: with nulls and an empty status."""
    manifest = job("j", parallelism=1)
    manifest["metadata"] |= {"namespace": namespace, "creationTimestamp": None, "labels": {"a": "1"}}
    manifest["spec"]["template"]["metadata"] = {"creationTimestamp": None}
    manifest["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1}}
    return {**manifest, "status": {}}


@pytest.fixture
def plain(namespace: str) -> dict:
    manifest = job("j", parallelism=1)
    manifest["metadata"] |= {"namespace": namespace, "labels": {"a": "1", "b": "1"}}
    return manifest


def applied(api: Api, manifest: dict) -> str:
    return api.kubectl("apply", "-f", "-", stdin=text(manifest)).strip()


def test_apply_creates_changes_and_leaves_alone(api: Api, plain):
    assert applied(api, plain) == "job.batch/j created"
    plain["spec"]["parallelism"] = 2
    assert applied(api, plain) == "job.batch/j configured"
    assert applied(api, plain) == "job.batch/j unchanged"


def test_nulls_and_numbers_for_quantities_are_taken(api: Api, sparse):
    assert applied(api, sparse) == "job.batch/j created"
    assert applied(api, sparse) == "job.batch/j configured", (
        "kubectl sees 1 and null where the server has '1' and nothing"
    )


def test_apply_removes_what_the_manifest_has_no_more(api: Api, plain, namespace):
    applied(api, plain)
    api.kubectl("label", "job", "j", "-n", namespace, "other=1")
    del plain["metadata"]["labels"]["a"]
    applied(api, plain)
    assert labels(api, namespace) == {"b": "1", "other": "1"}


def labels(api: Api, namespace: str) -> dict:
    return yaml.safe_load(api.kubectl("get", "job", "j", "-n", namespace, "-o", "yaml"))["metadata"]["labels"]


def test_a_misspelt_field_is_named(api: Api, sparse):
    sparse["spec"]["paralelism"] = 2
    assert 'unknown field "spec.paralelism"' in api.kubectl("apply", "-f", "-", stdin=text(sparse), check=False)
    said = api.kubectl("apply", "--server-side", "-f", "-", stdin=text(sparse), check=False)
    assert ".spec.paralelism: field not declared in schema" in said


def test_a_wrong_type_is_named(api: Api, sparse):
    sparse["spec"]["parallelism"] = "two"
    said = api.kubectl("create", "-f", "-", stdin=text(sparse), check=False)
    assert "cannot unmarshal string into Go struct field JobSpec.spec.parallelism of type int32" in said


def test_server_side_apply_names_the_owner_until_it_is_forced(api: Api, sparse):
    def apply(parallelism: int, *flags: str, check: bool = True) -> str:
        manifest = {**sparse, "spec": {**sparse["spec"], "parallelism": parallelism}}
        arguments = ["apply", "--server-side", "-f", "-", *flags]
        return api.kubectl(*arguments, stdin=text(manifest), check=check).strip()

    assert apply(1, "--field-manager=a") == "job.batch/j serverside-applied"
    said = apply(2, "--field-manager=b", check=False)
    assert 'conflicts with "a":' in said
    assert "- .spec.parallelism" in said
    assert apply(2, "--field-manager=b", "--force-conflicts") == "job.batch/j serverside-applied"


def test_client_side_apply_becomes_server_side_apply(api: Api, sparse, namespace):
    sparse["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"
    api.kubectl("apply", "-f", "-", stdin=text(sparse))
    sparse["spec"]["parallelism"] = 3
    api.kubectl("apply", "--server-side", "-f", "-", stdin=text(sparse))
    found = api.kubectl("get", "job", "j", "-n", namespace, "-o", "yaml", "--show-managed-fields")
    managers = {(e["manager"], e["operation"]) for e in yaml.safe_load(found)["metadata"]["managedFields"]}
    assert ("kubectl", "Apply") in managers
    assert ("kubectl-client-side-apply", "Update") not in managers


def test_diff_shows_what_an_apply_would_change(api: Api, sparse):
    api.kubectl("apply", "-f", "-", stdin=text(sparse))
    assert api.kubectl("diff", "-f", "-", stdin=text(sparse)) == ""
    sparse["spec"]["parallelism"] = 5
    said = api.kubectl("diff", "-f", "-", stdin=text(sparse), check=False)
    assert "-  parallelism: 1\n+  parallelism: 5\n" in said


def test_edit_sends_what_the_editor_changed(api: Api, sparse, namespace, monkeypatch):
    api.kubectl("apply", "-f", "-", stdin=text(sparse))
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/parallelism:.*/parallelism:\\ 7/")
    assert api.kubectl("edit", "job", "j", "-n", namespace).strip() == "job.batch/j edited"
    assert api.kubectl("get", "job", "j", "-n", namespace, "-o", "jsonpath={.spec.parallelism}") == "7"


@pytest.mark.parametrize(
    ("what", "want"),
    [
        pytest.param(["job.spec.parallelism"], "FIELD: parallelism <integer>", id="a number"),
        pytest.param(["job.spec.template", "--recursive"], "\n    containers\t<[]Container> -required-", id="a tree"),
        pytest.param(["pods.spec.nodeSelector"], "FIELD: nodeSelector <map[string]string>", id="a map"),
        pytest.param(["customresourcedefinition.spec.versions"], "FIELD: versions <[]CustomResourceDefinitionVersion>", id="a list"),
    ],
)  # fmt: skip
def test_explain(api: Api, what, want):
    assert want in api.kubectl("explain", *what)


async def test_explain_follows_a_definition(api: Api, client: Client):
    described = {"type": "object", "properties": {"size": {"type": "integer", "description": "How big it is."}}}
    schema = {"type": "object", "properties": {"spec": described}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "boxes", "kind": "Box"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "boxes.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    api.kubectl("apply", "-f", "-", stdin=text(definition))
    api.kubectl("wait", "--for=condition=Established", "crd/boxes.example.com")
    # A real server publishes new documents a little later than it serves the kind.
    for _ in range(50):
        if "How big it is." in (said := api.kubectl("explain", "boxes.spec.size", check=False)):
            return
    pytest.fail(said)
