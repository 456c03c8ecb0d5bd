"""Both engines keep the same contract."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aenv.engines.base import Engine
from aenv.engines.native import NativeEngine
from aenv.engines.process import ProcessEngine
from aenv.testing.contracts import EngineContract


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for the names of sockets."""
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    yield made
    left = list(made.rglob("*.*"))
    shutil.rmtree(made)
    assert left == []


class TestNative(EngineContract):
    @pytest.fixture
    def engine(self, folder: Path, sandboxes: None) -> Callable[[], Engine]:
        return lambda: NativeEngine(folder / "native")


class TestProcess(EngineContract):
    @pytest.fixture
    def engine(self, folder: Path) -> Callable[[], Engine]:
        return lambda: ProcessEngine(folder / "process")
