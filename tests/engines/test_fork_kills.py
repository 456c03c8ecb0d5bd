"""Live forks that are interrupted at random points: no hang, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import ForkSpec, SandboxRef, SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.errors import AEnvError
from aenv.http.url import ServerUrl
from aenv.testing.contracts import SOURCE

ROUNDS = int(os.environ.get("AENV_FORK_KILLS", "3"))


@pytest.fixture
def folder(sandboxes: None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-k-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


async def answers(ref: SandboxRef) -> bool:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token, patience=0.0)
    try:
        await client.exchange("GET", "/health", timeout=90)
    except AEnvError:
        return False
    finally:
        client.close()
    return True


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_fork_that_is_interrupted_leaves_nothing(folder: Path, seed: int) -> None:
    dice = random.Random(seed)

    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        engine = NativeEngine(folder / "native", pool=0)
        try:
            ref = await engine.start(SandboxSpec("mine@1.0.0", project, project, forkable=True))
            wanted = [ForkSpec(checkpoint=dice.random() < 0.3) for _ in range(dice.randint(1, 4))]
            forking = asyncio.create_task(engine.fork(ref, wanted, wait=5))
            await asyncio.sleep(dice.uniform(0.0, 0.08))
            killed = dice.random() < 0.5
            if killed:
                await engine.stop(ref)
            else:
                forking.cancel()
            made: list[SandboxRef | AEnvError] = []
            with contextlib.suppress(asyncio.CancelledError, AEnvError):
                made = await forking
            if not killed:
                assert await answers(ref)
            kept = {each.id for each in made if isinstance(each, SandboxRef)} | (set() if killed else {ref.id})
            assert {each.id async for each in engine.running()} == kept
            for each in made:
                if isinstance(each, SandboxRef):
                    await engine.stop(each)
        finally:
            await engine.close()
        assert [path.name for path in (folder / "native").glob("*.sock")] == []

    asyncio.run(asyncio.wait_for(main(), 240))
