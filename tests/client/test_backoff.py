from __future__ import annotations

import pytest

from aenv.client.backoff import MAX_SERVER_PAUSE, backoff


def test_a_pause_doubles_up_to_a_bound_and_has_jitter() -> None:
    for attempt, most in ((0, 0.1), (1, 0.2), (3, 0.8), (10, 5.0), (10_000, 5.0)):
        pauses = {backoff(attempt, first=0.1, longest=5.0) for _ in range(50)}
        assert all(most / 2 <= pause <= most for pause in pauses)
        assert len(pauses) > 1


@pytest.mark.parametrize(("asked", "pause"), [("3", 3.0), (0, 0.0), ("7200", MAX_SERVER_PAUSE)])
def test_the_server_decides_if_it_says_how_long(asked: object, pause: float) -> None:
    assert backoff(5, first=0.1, longest=5.0, asked=asked) == pause


@pytest.mark.parametrize("asked", [None, "soon", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_pause_that_is_not_a_number_is_ignored(asked: object) -> None:
    assert backoff(0, first=0.1, longest=5.0, asked=asked) <= 0.1
