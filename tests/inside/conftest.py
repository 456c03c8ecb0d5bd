from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aenv.client import local_lease
from aenv.sdk.environment import Environment
from tests.conftest import left_in, stop_all
from tests.platform.conftest import _remove as remove_published
from tests.platform.conftest import publish
from tests.platform.parts import Served, serving

ENV = """
from aenv import register_reward, register_tool


@register_tool
def echo(text: str) -> str:
    return text


@register_reward
def reward() -> float:
    return 1.0
"""


@dataclass
class Place:
    """Where instances run: on this machine without a server, or on a platform that is reached over TCP."""

    name: str
    env_name: str
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self, **options: Any) -> Environment:
        return Environment(self.env_name, **self.options, **options)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "aenv.cli", *words]

    def aenv(self, *words: str, code: int = 0, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run an `aenv` command to its end."""
        done = subprocess.run(self.command(*words), env={**os.environ, **self.variables}, input=stdin,
                              capture_output=True, check=False, timeout=120)  # fmt: skip
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done


@pytest.fixture(scope="module")
def runtime_folder(sandboxes: None) -> Iterator[Path]:
    """The folder of a local platform. At its end nothing is left there."""
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    yield folder
    stop_all(folder)
    left = left_in(folder)
    shutil.rmtree(folder, ignore_errors=True)
    assert not left


@pytest.fixture(scope="module")
def served(sandboxes: None) -> Iterator[tuple[Served, str]]:
    """A platform with tokens, and a user's token."""
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    try:
        asyncio.run(publish(folder, "inside", ENV))
        with serving(folder) as platform:
            yield platform, platform.token("ann")
    finally:
        remove_published(folder)


@pytest.fixture
def local(runtime_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(runtime_folder))
    held = local_lease.lease()
    if held is not None and held.where.runtime != runtime_folder:
        held.close()
    project = tmp_path / "inside"
    (project / "src").mkdir(parents=True)
    (project / "src" / "env.py").write_text(ENV)
    (project / "config.json").write_text(
        '{"name": "inside", "version": "1.2.0", "buildConfig": {}, "deployConfig": {}}'
    )
    return Place("local", str(project))


@pytest.fixture
def remote(served: tuple[Served, str]) -> Place:
    platform, token = served
    variables = {"AENV_SYSTEM_URL": platform.url, "AENV_API_KEY": token}
    return Place("remote", "inside@1.2.0", {"aenv_url": platform.url, "api_key": token}, variables)


@pytest.fixture(params=["local", "remote"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found
