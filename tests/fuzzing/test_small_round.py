"""A small round of fuzzing, the same every time. `make fuzz` goes on for ten minutes."""

from __future__ import annotations

import pytest

from tests.fuzzing import readers, servers
from tests.fuzzing.rounds import once

TARGETS = {**readers.TARGETS, **servers.TARGETS}


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_withstands_hostile_input(name: str) -> None:
    once(TARGETS[name], 1, 60)
