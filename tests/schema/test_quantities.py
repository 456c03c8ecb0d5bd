import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.schema import quantities


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1", 1000), ("500m", 500), ("0.5", 500), (2, 2000), (0.25, 250), ("1C", 1000), ("1.5C", 1500)],
)
def test_cpu_is_parsed_into_thousandths_of_a_core(value: str | int | float, expected: int) -> None:
    assert quantities.millicores(value) == expected


@pytest.mark.parametrize("value", ["", "0", 0, "-1", "two", "1 core", "0.0001", "9" * 100])
def test_an_invalid_amount_of_cpu_is_rejected(value: str | int) -> None:
    with pytest.raises(ValueError, match="500m"):
        quantities.millicores(value)


@pytest.mark.parametrize(("value", "expected"), [("1C", "1"), ("500m", "500m"), (2, "2"), ("1.5", "1500m")])
def test_cpu_is_formatted_for_kubernetes(value: str | int, expected: str) -> None:
    assert quantities.canonical_cpu(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2Gi", 2**31), ("512Mi", 2**29), ("2G", 2 * 10**9), (2**30, 2**30), ("1.5Gi", 3 * 2**29), ("2048Ki", 2**21)],
)
def test_sizes_are_parsed_into_bytes(value: str | int, expected: int) -> None:
    assert quantities.size(value) == expected


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("2 gigs", "write it like 2Gi"),
        ("2gb", "write it like 2Gi"),
        ("512 MB", "write it like 512Mi"),
        ("10 gigabytes", "write it like 10Gi"),
        ("500m", "write it like 500Mi"),
        ("lots", "write it like 2Gi"),
        (2, "write the unit too, like 2Gi"),
    ],
)
def test_an_invalid_size_is_reported_with_the_probable_one(value: str | int, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        quantities.size(value)


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats()))
def test_any_scalar_is_a_quantity_or_a_value_error(value: str | int | float) -> None:
    for read in (quantities.millicores, quantities.size):
        try:
            amount, message = read(value), ""
        except ValueError as error:
            amount, message = 0, str(error)
        assert amount > 0 or "write" in message
