from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.schema import duration
from aenv.schema.duration import Duration

durations = st.integers(0, 2**63 - 1).map(Duration)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("90s", 90),
        ("250ms", 0.25),
        ("1µs", 1e-6),
        ("1μs", 1e-6),
        ("0", 0),
        ("+5s", 5),
        (".5s", 0.5),
        (" 24h ", 86400),
    ],
)
def test_durations_are_parsed_as_in_go(text: str, seconds: float) -> None:
    assert duration.parse(text).seconds == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write it like 30m"),
        ("soon", "write it like 30m"),
        ("1h 30m", "write it like 30m"),
        ("30", "add a unit, like 30s or 30m"),
        ("-1h", "cannot be negative"),
        ("1d", "write 24h"),
        ("2 days", "write 48h"),
        ("9999999999h", "longer than 292 years"),
        ("1h" * 100, "write it like 30m"),
    ],
)
def test_an_invalid_duration_is_refused_with_the_expected_format(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        duration.parse(text)


@given(durations)
def test_a_formatted_duration_parses_to_the_same_value(value: Duration) -> None:
    assert duration.parse(str(value)) == value


@given(durations, durations)
def test_durations_sort_by_length(a: Duration, b: Duration) -> None:
    assert (a < b) == (a.nanoseconds < b.nanoseconds)


@given(st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_whole_microseconds_are_exact(length: timedelta) -> None:
    microseconds = length // timedelta(microseconds=1)
    assert duration.parse(f"{microseconds}us").nanoseconds == microseconds * 1000


@given(st.text(max_size=40))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        result = f"duration of {duration.parse(text)}"
    except ValueError as error:
        result = str(error)
    assert "duration" in result
