from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.client import local_lease
from tests.conftest import left_in, stop_all

ENV = '''
import os
import sys

from aenv import register_function, register_reward, register_tool

count = 0


@register_tool
def increment() -> int:
    """Add one."""
    global count
    count += 1
    return count


@register_tool
def variable(name: str) -> str | None:
    return os.environ.get(name)


@register_tool
def arguments() -> list[str]:
    return sys.argv[1:]


@register_tool
def speak(text: str) -> None:
    print(text)


@register_function
def double(n: int) -> int:
    return 2 * n


@register_reward
def reward() -> float:
    return float(count)
'''


@pytest.fixture(scope="module")
def platform(sandboxes: None) -> Iterator[local_lease.LocalPaths]:
    """A local platform for this module, started by the first Environment."""
    folder = tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp")
    try:
        yield local_lease.LocalPaths(Path(folder))
    finally:
        stop_all(Path(folder))
        left = left_in(Path(folder))
        _remove(Path(folder))
        assert not left


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))
    yield folder
    stop_all(folder)
    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder, also while a server's cleanup process does the same."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _use_platform(platform: local_lease.LocalPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_RUNTIME_DIR", str(platform.runtime))
    held = local_lease.lease()
    if held is not None and held.where != platform:
        held.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "counter" / "src").mkdir(parents=True)
    (tmp_path / "counter" / "src" / "env.py").write_text(ENV)
    (tmp_path / "counter" / "config.json").write_text(
        '{"name": "counter", "version": "1.2.0", "buildConfig": {}, "deployConfig": {"memory": "256Mi", '
        '"environmentVariables": {"FROM_CONFIG": "yes"}}}'
    )
    return tmp_path / "counter"
