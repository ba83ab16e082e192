import pytest

from hub.kueue.api.errors import DecodeError
from hub.kueue.api.v1beta2 import KINDS, LocalQueue, decode, decode_as, encode, names


def manifest(kind="LocalQueue", **fields):
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": "q", "namespace": "team-a"},
        **fields,
    }


def workload(**pod_set):
    return manifest("Workload", spec={"podSets": [{"template": {"spec": {}}, **pod_set}]})


@pytest.mark.parametrize(
    ("given", "want_error"),
    [
        pytest.param(
            {**manifest(), "apiVersion": "kueue.x-k8s.io/v1beta1"},
            "LocalQueue team-a/q: apiVersion: is 'kueue.x-k8s.io/v1beta1' and must be 'kueue.x-k8s.io/v1beta2'",
            id="an older version is named",
        ),
        pytest.param({**manifest(), "kind": "Quueue"}, "kind: is 'Quueue'; known are Workload", id="an unknown kind"),
        pytest.param(manifest(), "LocalQueue team-a/q: spec: is required", id="a part that is missing"),
        pytest.param(manifest(spec={}), "spec.clusterQueue: is required", id="a field that is missing"),
        pytest.param(workload(count="x"), "spec.podSets[0].count: Expected int, got str", id="a wrong type in a list"),
        pytest.param(
            manifest(spec={"clusterQueue": "c", "stopPolicy": "No"}),
            "spec.stopPolicy: Invalid enum value 'No'",
            id="a word that is not in the list",
        ),
        pytest.param(
            {**manifest(), "metadata": "q"}, "metadata: Expected object, got str", id="metadata of a wrong type"
        ),
    ],
)
def test_errors_name_the_object_and_the_field(given, want_error):
    with pytest.raises(DecodeError) as caught:
        decode(given)
    assert want_error in str(caught.value)


def test_a_pod_template_survives_with_every_field():
    given = workload(template={"spec": {"containers": [{"name": "c", "novelty": {"deep": [1, None]}}]}, "extra": 0.5})
    assert encode(decode(given)) == given


def test_decode_as_refuses_another_kind():
    with pytest.raises(DecodeError, match="kind: is 'Workload' and must be 'LocalQueue'"):
        decode_as(LocalQueue, workload())


def test_a_zero_that_was_written_stays():
    given = manifest(spec={"clusterQueue": "c"}, status={"pendingWorkloads": 0})
    assert encode(decode(given)) == given


def test_every_kind_has_names_of_its_own():
    every = [name for info in KINDS.values() for name in info.short_names]
    assert len(every) == len(set(every))


def test_our_keys_and_those_of_kueue_are_qualified_names():
    keys = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str) and "/" in value]
    assert len(keys) > 50
    assert all(len(key.partition("/")[2]) <= 63 for key in keys)
