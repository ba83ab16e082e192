"""A few vectors of every family, so that a change that breaks a rule fails fast. `make conformance` replays all."""

from itertools import islice

import pytest

from tests.conformance.replay import differences
from tests.conformance.vectors import family_of, files, read

SAMPLE = 4


@pytest.mark.parametrize("path", [pytest.param(p, id=family_of(p)) for p in files()])
def test_decisions_are_those_recorded_from_kueue(path):
    for vector in islice(read(path), SAMPLE):
        assert not differences(vector), vector["name"]
