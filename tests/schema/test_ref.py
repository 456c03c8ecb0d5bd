"""References to versions: parsing, ranges, and the sort key of versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.schema.ref import EnvRef, is_prerelease, order, parse_range

numbers = st.lists(st.integers(0, 10**12), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("text", "name", "want"),
    [
        ("tau2", "tau2", ""),
        ("tau2@latest", "tau2", ""),
        (" tau2@1.2.0 ", "tau2", "1.2.0"),
        ("tau2@^1.2", "tau2", "^1.2"),
        ("tau2@sha256:" + "0" * 64, "tau2", "sha256:" + "0" * 64),
    ],
)
def test_a_reference_is_parsed_into_name_and_constraint(text: str, name: str, want: str) -> None:
    ref = EnvRef.parse(text)
    assert (ref.name, ref.want) == (name, want)
    assert EnvRef.parse(str(ref)) == ref


@pytest.mark.parametrize("text", ["", "@1", "Bad_Name", "tau2@newest please", "tau2@^", "tau2@sha256:12", "a@b@c"])
def test_an_invalid_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a name|invalid version"):
        EnvRef.parse(text)


def test_versions_sort_by_number_and_prereleases_come_before_their_release() -> None:
    ascending = [
        "0.9", "1.0-2", "1.0.0-alpha.beta", "1.0-nightly.3", "1.0-rc2", "1.0-rc10", "1.0", "1.0.1", "1.9", "1.10",
        "2024a", "2024",
    ]  # fmt: skip
    keys = [order(version) for version in ascending]
    assert keys == sorted(set(keys))
    assert [version for version in ascending if is_prerelease(version)] == [*ascending[1:6], "2024a"]
    assert order("1") == order("1.0.0") == order("1.0+build.5")


@given(numbers, numbers)
def test_numeric_versions_sort_like_their_numbers(one: list[int], other: list[int]) -> None:
    def text(parts: list[int]) -> str:
        return ".".join(map(str, parts))

    def padded(parts: list[int]) -> list[int]:
        return parts + [0] * (4 - len(parts))

    assert (order(text(one)) < order(text(other))) == (padded(one) < padded(other))


@pytest.mark.parametrize(
    ("want", "inside", "outside"),
    [
        ("1", ["1.0", "1.0-rc1", "1.99.9"], ["0.9", "2.0", "2.0-rc1"]),
        ("1.2", ["1.2.0", "1.2.9"], ["1.1.9", "1.3", "1.3.0-rc1"]),
        ("1.2.x", ["1.2.0", "1.2.9"], ["1.1.9", "1.3"]),
        ("~1.2", ["1.2.0", "1.2.9"], ["1.1.9", "1.3"]),
        ("^1.2", ["1.2.0", "1.99"], ["1.1.9", "2.0-rc1"]),
        ("^0.2", ["0.2.0", "0.2.9"], ["0.1.9", "0.3"]),
        ("^0.0.3", ["0.0.3"], ["0.0.2", "0.0.4"]),
    ],
)
def test_a_range_ends_before_the_next_incompatible_version(want: str, inside: list[str], outside: list[str]) -> None:
    found = parse_range(want)
    assert found is not None
    assert [version for version in [*inside, *outside] if found.low <= order(version) < found.high] == inside


@pytest.mark.parametrize("want", ["1.2.0", "1.0-rc1", "latest", "", ">=1", "^1.2-rc1"])
def test_an_exact_version_or_other_text_is_not_a_range(want: str) -> None:
    assert parse_range(want) is None
