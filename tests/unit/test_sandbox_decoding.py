"""What can not be read as an object of a built-in kind, in the words of Go's JSON package."""

import pytest

from hub.sandbox.builtin_schemas import builtin_schema
from hub.sandbox.decoding import misfit
from hub.sandbox.formats import QUANTITY_RULE
from hub.sandbox.schemas import unreadable


def job(container: dict | None = None, pod: dict | None = None, **spec) -> dict:
    pod_spec = {"containers": [{"name": "a", **(container or {})}], **(pod or {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"template": {"spec": pod_spec}, **spec},
    }


def limits(cpu) -> dict:
    return job({"resources": {"limits": {"cpu": cpu}}})


def go(got: str, field: str, wanted: str) -> str:
    return f"json: cannot unmarshal {got} into Go struct field {field} of type {wanted}"


@pytest.mark.parametrize(
    ("manifest", "want"),
    [
        pytest.param(job(parallelism="x"), go("string", "JobSpec.spec.parallelism", "int32"), id="a string for a number"),
        pytest.param(job(parallelism=1.5), go("number 1.5", "JobSpec.spec.parallelism", "int32"), id="a fraction"),
        pytest.param(job(parallelism=1 << 40), go("number 1099511627776", "JobSpec.spec.parallelism", "int32"), id="a number out of range"),
        pytest.param(job(activeDeadlineSeconds=1 << 40), None, id="the same number where 64 bits are there"),
        pytest.param(job(suspend=1), go("number", "JobSpec.spec.suspend", "bool"), id="a number for a boolean"),
        pytest.param(job(template=[]), go("array", "JobSpec.spec.template", "v1.PodTemplateSpec"), id="a list for an object"),
        pytest.param(job(pod={"containers": {}}), go("object", "PodSpec.spec.template.spec.containers", "[]v1.Container"), id="an object for a list"),
        pytest.param(job(pod={"nodeSelector": {"a": 1}}), go("number", "PodSpec.spec.template.spec.nodeSelector", "string"), id="a number for a label"),
        pytest.param(job({"args": [1]}), go("number", "Container.spec.template.spec.containers.args", "string"), id="a number for an argument"),
        pytest.param({**job(), "metadata": {"labels": ["a"]}}, go("array", "ObjectMeta.metadata.labels", "map[string]string"), id="a list of labels"),
        pytest.param({**job(), "spec": []}, go("array", "Job.spec", "v1.JobSpec"), id="a list for the spec"),
        pytest.param({**job(), "spec": None}, None, id="null is a field that is not there"),
        pytest.param(limits("x"), QUANTITY_RULE, id="a text that is no quantity"),
        pytest.param(limits(True), QUANTITY_RULE, id="a boolean for a quantity"),
        pytest.param(limits(1.5), None, id="a number is a quantity"),
        pytest.param({**job(), "status": {"startTime": "x"}}, 'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"', id="no time"),
        pytest.param(job({"livenessProbe": {"httpGet": {"port": "http"}}}), None, id="a port by name"),
        pytest.param(job({"unknown": {"deep": 1}}), None, id="unknown fields are not looked into"),
    ],
)  # fmt: skip
def test_misfit(manifest, want):
    schema = builtin_schema("batch", "v1", "Job")
    assert schema is not None
    assert misfit(manifest, schema) == want


def test_secret_data_is_base64():
    schema = builtin_schema("", "v1", "Secret")
    assert schema is not None
    assert misfit({"data": {"a": "!!"}}, schema) == "illegal base64 data at input byte 0"
    assert misfit({"data": {"a": "aGk="}, "stringData": {"b": "!!"}}, schema) is None


def test_the_answer_names_the_kind():
    error = unreadable("Job", "v1", "because")
    assert (error.code, error.message) == (400, 'Job in version "v1" cannot be handled as a Job: because')
