"""A small round of the soak, with a seed that does not change."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.isolation.host import forget_lease, own_platform
from tests.soak.creates import soak

CREATES = int(os.environ.get("AENV_SOAK_CREATES", "60"))


@pytest.mark.timeout(600 + 3 * CREATES)
def test_creates_end_with_the_right_reward_or_an_error_whichever_process_is_killed(
    sandboxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_lease()
    with own_platform() as platform:
        for name, value in platform.variables.items():
            monkeypatch.setenv(name, value)
        summary = asyncio.run(soak(tmp_path, platform, creates=CREATES, seed=7, at_once=6, kill_every=0.5))
    print(summary.text())
    assert summary.held, summary.text()
    assert summary.creates == CREATES
    assert summary.right
