"""The native engine, at both isolation levels, and the process engine keep the same contract."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aenv.engines.base import Engine, SandboxSpec
from aenv.engines.native.confined_engine import ConfinedEngine
from aenv.engines.native.engine import NativeEngine
from aenv.engines.process import ProcessEngine
from aenv.testing.contracts import EngineContract
from tests.conftest import run


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for the names of sockets."""
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    yield made
    left = list(made.rglob("*.*"))
    shutil.rmtree(made)
    assert left == []


class TestNative(EngineContract):
    keeps_ready = True

    @pytest.fixture
    def engine(self, folder: Path, sandboxes: None) -> Callable[[], Engine]:
        return lambda: NativeEngine(folder / "native")


class TestNativeWithoutInternals(EngineContract):
    """The way of versions of Python whose private parts are not known; see `cpython_internals`."""

    keeps_ready = True

    @pytest.fixture
    def engine(self, folder: Path, sandboxes: None) -> Callable[[], Engine]:
        return lambda: NativeEngine(folder / "native", plain=True)


class TestConfined(EngineContract):
    keeps_ready = True

    @pytest.fixture
    def engine(self, folder: Path, confined_sandboxes: None) -> Callable[[], Engine]:
        return lambda: ConfinedEngine(folder / "confined")


class TestProcess(EngineContract):
    @pytest.fixture
    def engine(self, folder: Path) -> Callable[[], Engine]:
        return lambda: ProcessEngine(folder / "process")


def test_sandboxes_that_are_requested_often_are_pooled(folder: Path, sandboxes: None) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "env.py").write_text("from aenv import register_tool\n@register_tool\ndef hello(): return 1\n")
    spec = SandboxSpec("ready@1.0.0", project, project)

    async def main() -> None:
        engine = NativeEngine(folder / "native")
        try:
            for _ in range(3):
                await engine.stop(await engine.start(spec))
            ref = None
            for _ in range(600):
                ref = ref or engine.claim(spec)
                await asyncio.sleep(0.05 if ref is None else 0)
            assert ref is not None
            assert await engine.poll(ref) is None
        finally:
            await engine.close()

    run(main())
    shutil.rmtree(project)
