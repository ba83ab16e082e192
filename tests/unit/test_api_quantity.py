from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.kueue.api import quantity
from hub.kueue.api.errors import QuantityError
from hub.kueue.api.quantity import LOWEST, UNLIMITED, amount, nanos, text


@pytest.mark.parametrize(
    ("given_text", "want_nanos"),
    [
        ("0", 0),
        ("1", 10**9),
        (3, 3 * 10**9),
        ("+5", 5 * 10**9),
        ("-5", -5 * 10**9),
        ("500m", 5 * 10**8),
        ("0.5", 5 * 10**8),
        (0.25, 25 * 10**7),
        (".5", 5 * 10**8),
        ("5.", 5 * 10**9),
        ("1n", 1),
        ("1u", 10**3),
        ("2k", 2 * 10**12),
        ("1Ki", 1024 * 10**9),
        ("1.5Gi", 3 * 2**29 * 10**9),
        ("1e3", 10**12),
        ("1E3", 10**12),
        ("1e-3", 10**6),
        ("1E", 10**27),
        ("9Ei", UNLIMITED * 10**9),  # cut
        ("1e400", UNLIMITED * 10**9),
        ("1e-400", 1),  # rounded away from zero
        ("0.1n", 1),
        ("-0.1n", -1),
    ],
)
def test_nanos(given_text, want_nanos):
    assert nanos(given_text) == want_nanos


@pytest.mark.parametrize(
    "given_text", ["", " 1", "1 ", "abc", "1K", "1kb", "1mi", ".", "-", "1.2.3", "0x1", "1e", "\u0661", True]
)
def test_what_is_no_quantity_is_refused_and_named(given_text):
    with pytest.raises(QuantityError, match="is not a quantity"):
        nanos(given_text)


@pytest.mark.parametrize(
    ("resource", "given_text", "want_amount"),
    [
        pytest.param("cpu", "1500m", 1500, id="cpu is in milli"),
        pytest.param("cpu", "0.0001", 1, id="cpu rounds up to a milli"),
        pytest.param("cpu", "1e18", UNLIMITED, id="more cpu than fits is unlimited"),
        pytest.param("memory", "1Gi", 2**30, id="memory is in bytes"),
        pytest.param("memory", "1500m", 2, id="memory rounds up to a byte"),
        pytest.param("nvidia.com/gpu", "500m", 1, id="half a GPU is a GPU"),
        pytest.param("nvidia.com/gpu", "-500m", -1, id="negative ones round away from zero too"),
    ],
)
def test_amount(resource, given_text, want_amount):
    assert amount(resource, given_text) == want_amount


@pytest.mark.parametrize(
    ("resource", "given_amount", "want_text"),
    [
        ("cpu", 0, "0"),
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("cpu", 2_000_000, "2k"),
        ("memory", 2**30, "1Gi"),
        ("memory", 1500 * 2**20, "1500Mi"),
        ("memory", 1000, "1k"),
        ("memory", 1025, "1025"),
        ("hugepages-2Mi", 2**22, "4Mi"),
        ("nvidia.com/gpu", 8, "8"),
        ("nvidia.com/gpu", 8000, "8k"),
        ("pods", -10, "-10"),
    ],
)
def test_text_is_what_kubernetes_prints(resource, given_amount, want_text):
    assert text(resource, given_amount) == want_text


resources = st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-1Gi", "pods", "example.com/gpu"])
finite = st.integers(min_value=LOWEST // 1000, max_value=UNLIMITED // 1000)
edges = st.integers(min_value=LOWEST, max_value=UNLIMITED) | st.sampled_from([UNLIMITED, LOWEST])


@given(resources, finite)
def test_text_reads_back(resource, value):
    assert amount(resource, text(resource, value)) == value


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=9))
def test_decimals_are_exact(value):
    assert nanos(f"{value:f}") == int(value * 10**9)


@given(
    st.from_regex(r"[+-]?([0-9]{1,6}(\.[0-9]{0,6})?|\.[0-9]{1,6})", fullmatch=True),
    st.sampled_from([("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("e2", 2), ("E-4", -4)]),
)
def test_a_suffix_is_a_power_of_ten(number, suffix):
    exact = Decimal(number).scaleb(suffix[1] + 9)
    assert 0 <= abs(nanos(number + suffix[0])) - abs(exact) < 1


@given(edges, edges)
def test_saturating_arithmetic_stays_within_an_int64(left, right):
    for result in (quantity.add(left, right), quantity.subtract(left, right)):
        assert LOWEST <= result <= UNLIMITED


@pytest.mark.parametrize(
    ("result", "want"),
    [
        pytest.param(quantity.add(UNLIMITED, -5), UNLIMITED, id="unlimited plus a debt is unlimited"),
        pytest.param(quantity.add(UNLIMITED - 1, 5), UNLIMITED, id="a sum is cut"),
        pytest.param(quantity.subtract(UNLIMITED, 5), UNLIMITED, id="unlimited less something is unlimited"),
        pytest.param(quantity.subtract(UNLIMITED, UNLIMITED), 0, id="unlimited less unlimited is nothing"),
        pytest.param(quantity.subtract(5, UNLIMITED), LOWEST, id="something less unlimited is the lowest"),
        pytest.param(quantity.multiply(UNLIMITED // 2, 3), UNLIMITED, id="a product is cut"),
        pytest.param(quantity.multiply(UNLIMITED, 0), 0, id="none of the unlimited is nothing"),
    ],
)
def test_unlimited(result, want):
    assert result == want
