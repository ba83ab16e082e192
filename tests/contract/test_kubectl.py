"""What people type: the real kubectl against both servers."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.api_servers import Api

pytestmark = pytest.mark.kubectl

JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  labels: {team: a}
spec:
  suspend: true
  parallelism: %d
  completions: 4
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: trainer:1
        resources:
          requests: {cpu: "1"}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crates.%(group)s}
spec:
  group: %(group)s
  scope: Namespaced
  names: {plural: crates, kind: Crate, shortNames: [cr8]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: What the crate is like.
            properties:
              weight: {type: integer, description: In grams.}
    additionalPrinterColumns:
    - {name: Weight, type: integer, jsonPath: .spec.weight}
"""


class Kubectl:
    """kubectl in one namespace."""

    def __init__(self, api: Api, namespace: str, folder: Path) -> None:
        self.api, self.namespace, self.folder = api, namespace, folder

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        return self.api.kubectl("--namespace", self.namespace, *arguments, stdin=stdin)

    def fails(self, *arguments: str, stdin: str = "") -> str:
        done = self.api.run_kubectl("--namespace", self.namespace, *arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def file(self, text: str) -> str:
        path = self.folder / "manifest.yaml"
        path.write_text(text)
        return str(path)


@pytest.fixture
def kubectl(api: Api, namespace: str, tmp_path: Path) -> Kubectl:
    return Kubectl(api, namespace, tmp_path)


def columns(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_apply_creates_configures_and_leaves_alone(kubectl):
    assert kubectl("apply", "-f", "-", stdin=JOB % 1) == "job.batch/train created\n"
    assert kubectl("apply", "-f", "-", stdin=JOB % 2) == "job.batch/train configured\n"
    assert kubectl("apply", "-f", "-", stdin=JOB % 2) == "job.batch/train unchanged\n"
    assert kubectl("get", "job", "train", "-o", "jsonpath={.spec.parallelism}") == "2"


def test_apply_shows_mistakes_before_anything_is_written(kubectl):
    said = kubectl.fails("apply", "-f", "-", stdin=(JOB % 1).replace("parallelism", "paralelism"))
    assert 'unknown field "spec.paralelism"' in said
    assert "not found" in kubectl.fails("get", "job", "train")


def test_server_side_apply_tells_of_conflicts(kubectl):
    kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=JOB % 1)
    said = kubectl.fails("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=JOB % 2)
    assert 'Apply failed with 1 conflict: conflict with "one": .spec.parallelism' in said
    forced = kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=two", "-f", "-", stdin=JOB % 2)
    assert forced == "job.batch/train serverside-applied\n"


def test_diff_shows_what_would_change(kubectl):
    kubectl("apply", "-f", "-", stdin=JOB % 1)
    done = kubectl.api.run_kubectl("--namespace", kubectl.namespace, "diff", "-f", "-", stdin=JOB % 2)
    assert done.returncode == 1, done.stderr
    assert "-  parallelism: 1\n+  parallelism: 2\n" in done.stdout


def test_create_and_create_again(kubectl):
    assert kubectl("create", "-f", "-", stdin=JOB % 1) == "job.batch/train created\n"
    assert 'jobs.batch "train" already exists' in kubectl.fails("create", "-f", "-", stdin=JOB % 1)


def test_get_in_its_forms(kubectl):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    header, row = columns(kubectl("get", "jobs"))
    assert header == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert (row[0], row[2]) == ("train", "0/4")
    assert kubectl("get", "jobs", "-o", "name") == "job.batch/train\n"
    assert columns(kubectl("get", "jobs", "-o", "wide", "--no-headers"))[0][-3:-1] == ["main", "trainer:1"]
    assert columns(kubectl("get", "jobs", "--show-labels"))[1][-1] == "team=a"
    assert columns(kubectl("get", "jobs", "-L", "team"))[1][-1] == "a"
    assert kubectl("get", "jobs", "-o", "custom-columns=P:.spec.parallelism") == "P\n2\n"
    assert yaml.safe_load(kubectl("get", "job", "train", "-o", "yaml"))["kind"] == "Job"
    assert kubectl.namespace in kubectl.api.kubectl("get", "jobs", "-A")
    assert "train" in kubectl("get", "all")
    assert "No resources found" in kubectl.api.run_kubectl("-n", kubectl.namespace, "get", "pods").stderr


def test_selectors(kubectl):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    assert kubectl("get", "jobs", "-l", "team in (a,b)", "-o", "name") == "job.batch/train\n"
    assert kubectl("get", "jobs", "-l", "team!=a", "-o", "name") == ""
    assert kubectl("get", "jobs", "--field-selector", "metadata.name=train", "-o", "name") == "job.batch/train\n"


def test_label_annotate_and_edit_by_replace(kubectl):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    assert kubectl("label", "job", "train", "tier=gold") == "job.batch/train labeled\n"
    assert "already has a value" in kubectl.fails("label", "job", "train", "tier=lead")
    assert kubectl("annotate", "job", "train", "note=hello") == "job.batch/train annotated\n"
    kubectl("label", "job", "train", "tier-")
    now = yaml.safe_load(kubectl("get", "job", "train", "-o", "yaml"))
    assert (now["metadata"]["labels"], now["metadata"]["annotations"]) == ({"team": "a"}, {"note": "hello"})
    now["spec"]["parallelism"] = 3
    assert kubectl("replace", "-f", "-", stdin=yaml.safe_dump(now)) == "job.batch/train replaced\n"
    now["spec"]["parallelism"] = 4
    assert "the object has been modified" in kubectl.fails("replace", "-f", "-", stdin=yaml.safe_dump(now))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("merge", '{"spec":{"parallelism":7}}'),
        ("json", '[{"op":"replace","path":"/spec/parallelism","value":7}]'),
        ("strategic", '{"spec":{"parallelism":7}}'),
    ],
)
def test_patch(kubectl, kind, body):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    assert kubectl("patch", "job", "train", "--type", kind, "-p", body) == "job.batch/train patched\n"
    assert kubectl("get", "job", "train", "-o", "jsonpath={.spec.parallelism}") == "7"


def test_the_status_is_patched_on_its_own(kubectl):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    kubectl("patch", "job", "train", "--subresource=status", "--type=merge", "-p", '{"status":{"active":2}}')
    assert kubectl("get", "job", "train", "-o", "jsonpath={.status.active}") == "2"


def test_scale(kubectl):
    deployment = kubectl("create", "deployment", "web", "--image=web:1", "--dry-run=client", "-o", "yaml")
    kubectl("apply", "-f", "-", stdin=deployment)
    assert kubectl("scale", "deployment", "web", "--replicas=5") == "deployment.apps/web scaled\n"
    assert columns(kubectl("get", "deployment", "web"))[1][1] == "0/5"
    assert "Expected replicas to be 4" in kubectl.fails(
        "scale", "deployment/web", "--current-replicas=4", "--replicas=1"
    )


def test_wait(kubectl):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    done = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    criteria = done | {"type": "SuccessCriteriaMet"}
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:05Z"}
    status = {"status": {"conditions": [criteria, done], **times}}
    kubectl("patch", "job", "train", "--subresource=status", "--type=merge", "-p", yaml.safe_dump(status))
    assert (
        kubectl("wait", "--for=condition=Complete", "job/train", "--timeout=10s") == "job.batch/train condition met\n"
    )
    assert "timed out" in kubectl.fails("wait", "--for=condition=Failed", "job/train", "--timeout=1s")
    assert "condition met" in kubectl("wait", "--for=jsonpath={.spec.parallelism}=2", "job/train", "--timeout=10s")
    assert columns(kubectl("get", "jobs"))[1][1:4] == ["Complete", "0/4", "5s"]


def test_watch_prints_changes(kubectl):
    watching = subprocess.Popen(
        kubectl.api.kubectl_command("--namespace", kubectl.namespace, "get", "jobs", "--watch", "--no-headers"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    try:
        kubectl("create", "-f", "-", stdin=JOB % 2)
        assert watching.stdout.readline().split()[0] == "train"
        kubectl("delete", "job", "train", "--wait=false")
        assert watching.stdout.readline().split()[0] == "train"
    finally:
        watching.kill()
        watching.wait()
        watching.stdout.close()


def test_delete_waits_until_it_is_gone(kubectl):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    assert kubectl("delete", "job", "train", "--cascade=background").startswith('job.batch "train" deleted')
    assert "not found" in kubectl.fails("get", "job", "train")
    kubectl("create", "configmap", "c", "--from-literal=a=b", "--dry-run=client", "-o", "yaml")
    assert kubectl("delete", "jobs", "--all") == "No resources found\n"


@pytest.mark.parametrize("cascade", ["foreground", "orphan"])
def test_delete_with_a_cascade(kubectl, cascade):
    if not kubectl.api.controllers:
        pytest.skip("needs a kube-controller-manager")
    kubectl("create", "-f", "-", stdin=JOB % 2)
    kubectl("delete", "job", "train", f"--cascade={cascade}", "--timeout=20s")
    assert "not found" in kubectl.fails("get", "job", "train")


def test_explain(kubectl):
    said = kubectl("explain", "job.spec.suspend")
    assert "FIELD: suspend <boolean>" in said
    assert "parallelism\t<integer>" in kubectl("explain", "jobs.spec")


def test_describe(kubectl):
    kubectl("create", "-f", "-", stdin=JOB % 2)
    said = kubectl("describe", "job", "train")
    assert "Parallelism:      2\n" in said
    assert "Suspend:          true\n" in said


def test_api_resources_and_versions(kubectl):
    jobs = next(line for line in columns(kubectl("api-resources")) if line[0] == "jobs")
    assert jobs == ["jobs", "batch/v1", "true", "Job"]
    assert "batch/v1\n" in kubectl("api-versions")


def test_errors_read_as_always(kubectl):
    assert 'Error from server (NotFound): jobs.batch "none" not found' in kubectl.fails("get", "job", "none")
    assert 'the server doesn\'t have a resource type "things"' in kubectl.fails("get", "things")
    assert "You must be logged in" in kubectl.fails("--token", "wrong", "get", "pods")
    assert 'pods is forbidden: User "bob" cannot list' in kubectl.fails("--token", "bob-token", "get", "pods")


def test_custom_resources_are_known_as_soon_as_they_are_defined(kubectl):
    group = f"{kubectl.namespace}.example.com"
    definition = kubectl.file(CRD % {"group": group})
    kubectl("apply", "-f", definition)
    kubectl("wait", "--for=condition=Established", f"crd/crates.{group}", "--timeout=20s")
    crate = f"apiVersion: {group}/v1\nkind: Crate\nmetadata: {{name: a}}\nspec: {{weight: 7}}\n"
    kubectl("apply", "-f", "-", stdin=crate)
    assert columns(kubectl("get", "cr8")) == [["NAME", "WEIGHT"], ["a", "7"]]
    assert "In grams." in kubectl("explain", "crate.spec.weight")
    assert 'unknown field "spec.wait"' in kubectl.fails("apply", "-f", "-", stdin=crate.replace("weight", "wait"))
    kubectl("delete", "-f", definition)
