from __future__ import annotations

import pytest

from tests.local.conftest import _use_platform, platform

__all__ = ["_use_platform", "platform"]


@pytest.fixture(autouse=True)
def _own_hub(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested is what lies in envs/ now, and not what this user's hub has kept of it."""
    folder = tmp_path_factory.getbasetemp() / "hub-of-built-ins"
    monkeypatch.setenv("AENV_DATA_DIR", str(folder))
