"""A small round of fuzzing, the same every time. `make fuzz` goes on for ten minutes."""

from __future__ import annotations

import pytest

from tests.attacks.ledger import Attacks
from tests.fuzzing import exchanges, readers, servers
from tests.fuzzing.rounds import once

TARGETS = {**readers.TARGETS, **servers.TARGETS, **exchanges.TARGETS}
INPUTS = 60


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_withstands_hostile_input(name: str, attacks: Attacks) -> None:
    once(TARGETS[name], 1, INPUTS)
    for number in range(INPUTS):
        attacks.record(f"fuzz, {name}", str(number), held=True)
