import pytest

from hub.kueue.api.v1beta2 import decode
from hub.kueue.api.validation import check, validate
from tests.unit.validation_cases import MANIFESTS, QUEUE_ALLOWED, QUEUE_CASES, manifest
from tests.unit.workload_cases import ALLOWED, WORKLOAD_CASES


@pytest.mark.parametrize("given", [pytest.param(m, id=f"{m['kind']} {m['metadata']['name']}") for m in MANIFESTS])
def test_manifests_that_are_right_have_no_errors(given):
    assert check(given) == []
    assert check(given, old=given) == []


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in [*QUEUE_CASES, *WORKLOAD_CASES]])
def test_manifests_that_are_wrong(case):
    errors = "\n".join(str(error) for error in check(case.new, case.old))
    for want in case.want:
        assert want in errors
    assert case.old is None or check(case.old) == [], "what was there before must have been right"


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in [*QUEUE_ALLOWED, *ALLOWED]])
def test_changes_that_are_right(case):
    assert check(case.new, case.old) == []


def test_what_cannot_be_read_can_be_mended():
    given = manifest("LocalQueue", "training")
    assert check(given, old=given | {"spec": {}}) == []


def test_a_kind_cannot_replace_another():
    with pytest.raises(TypeError, match="a Cohort cannot replace a Topology"):
        validate(decode(manifest("Cohort", "company")), decode(manifest("Topology", "gpu-racks")))
