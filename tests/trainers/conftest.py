"""A local platform of its own for the tests of a trainer's adapter."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.adapters.trainers.episodes import close_shared_sources
from aenv.client import local_lease, local_platforms
from aenv.isolation.host_support import unsupported_reason
from aenv.sdk.blocking import LoopThread


@pytest.fixture(scope="session", autouse=True)
def _own_platform() -> Iterator[Path]:
    """Keep sockets in a folder with a short path, and stop the platform in the end."""
    reason = unsupported_reason()
    if reason:
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="aet", dir="/tmp", ignore_cleanup_errors=True) as folder:
        patch = pytest.MonkeyPatch()
        for name in ("AENV_SYSTEM_URL", "AENV_INSTANCE_URL", "DUMMY_INSTANCE_IP", "OPENAI_BASE_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("AENV_RUNTIME_DIR", f"{folder}/run")
        patch.setenv("XDG_DATA_HOME", f"{folder}/data")
        LoopThread.run(asyncio.to_thread(int))
        local_lease.drop()
        try:
            yield Path(folder)
        finally:
            local_lease.drop()
            for where in local_platforms.all_of_user(local_platforms.LocalPaths(Path(folder) / "run")):
                local_platforms.stop(where)
            patch.undo()


@pytest.fixture(autouse=True)
def _uses_own_platform(_own_platform: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the folder for each test: settings from outside are removed before it."""
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(_own_platform / "run"))


@pytest.fixture(autouse=True)
def _shared_sources_are_closed(_uses_own_platform: None) -> Iterator[None]:
    yield
    close_shared_sources()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder where a test records episodes."""
    return tmp_path / "store"
