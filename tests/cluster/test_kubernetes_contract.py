"""The Kubernetes engine keeps the contract of every engine, on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aenv.engines.base import Engine, SandboxSpec
from aenv.testing.contracts import EngineContract
from tests.cluster.conftest import SMALL

pytestmark = pytest.mark.long


class TestKubernetes(EngineContract):
    @pytest.fixture
    def engine(self, engine: Callable[[], Engine]) -> Callable[[], Engine]:
        return engine

    def _spec(self, folder: Path, **more: Any) -> SandboxSpec:
        return super()._spec(folder, requests=SMALL, **more)


def test_pods_that_are_held_are_claimed_at_once_replaced_and_ended(engine: Callable[[], Engine], folder: Path) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "env.py").write_text("from aenv import register_tool\n@register_tool\ndef hello() -> int: return 1\n")
    spec = SandboxSpec("warm@1.0.0", project, project, requests=SMALL)

    async def main() -> None:
        made = engine()
        try:
            assert made.claim(spec) is None
            await made.hold(spec, 1)
            assert made.held(spec) == 1
            assert [ref async for ref in made.running()] == []  # or the platform would end them as orphans
            assert made.claim(replace(spec, variables={"OTHER": "1"})) is None
            first = made.claim(spec)
            assert first is not None
            assert await made.poll(first) is None
            assert [ref.id async for ref in made.running()] == [first.id]
            second = made.claim(spec)
            while second is None:
                await asyncio.sleep(0.05)
                second = made.claim(spec)
            assert second.id != first.id
            await made.hold(spec, 0)
            assert made.held(spec) == 0
        finally:
            await made.close()

    asyncio.run(asyncio.wait_for(main(), 100))
