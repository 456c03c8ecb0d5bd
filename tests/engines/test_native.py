"""What is the native engine's own: which warm parents it keeps, and for how long."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.engines.sandbox_log import SIZE, Log
from aenv.errors import NotFound
from aenv.http.url import ServerUrl
from aenv.isolation.limits import process_usage
from aenv.schema import paths
from aenv.testing.contracts import SOURCE


@pytest.fixture
def folder(sandboxes: None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


def test_instances_go_on_when_their_project_changes(folder: Path) -> None:
    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        spec = SandboxSpec("mine@1.0.0", project, project)
        engine = NativeEngine(folder / "native", pool=0)
        try:
            old = [await engine.start(spec) for _ in range(4)]  # the last ones are forks of what is loaded
            (project / "env.py").write_text(SOURCE + "\n# changed\n")
            new = await engine.start(spec)
            for ref in (old[0], old[1]):  # none is left that loaded the code for itself
                await engine.stop(ref)
            assert [await engine.poll(ref) for ref in (*old[2:], new)] == [None] * 3
            for ref in old[2:]:
                await engine.stop(ref)
            assert [ref.id async for ref in engine.running()] == [new.id]
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_what_was_loaded_for_many_is_kept_for_as_long_as_any_of_them_is_asked_for(folder: Path) -> None:
    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        engine = NativeEngine(folder / "native")
        try:
            for number in range(4):
                spec = SandboxSpec("mine@1.0.0", project, project, {"NUMBER": str(number)})
                await engine.stop(await engine.start(spec))
            loaded = set(engine._families)
            assert len(loaded) == 1
            *others, last = engine._specs
            for key in others:
                engine._pool._expire(key)
            await asyncio.sleep(0.1)
            assert engine._families == loaded
            engine._pool._expire(last)
            while engine._families:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (engine._specs, engine._kin, engine._parents._made) == ({}, {}, {})
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


TELLS = """
import os, random
from aenv import register_tool

@register_tool
def tell() -> dict:
    return {"number": os.environ.get("NUMBER"), "drawn": random.random()}
"""


def test_what_is_ready_serves_whoever_comes_with_variables_of_their_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.engines.native.pool.WINDOW", 600.0)

    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(TELLS)
        engine = NativeEngine(folder / "native")

        async def made(number: int, **more: str) -> SandboxRef:
            return await engine.start(SandboxSpec("mine@1.0.0", project, project, {"NUMBER": str(number), **more}))

        async def told(ref: SandboxRef) -> dict[str, Any]:
            client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
            try:
                with pytest.raises(NotFound, match="has its variables"):  # they are given once
                    await client.call(paths.SETTLE, {"NUMBER": "stolen"}, timeout=60)
                return dict(json.loads((await client.call("/tools/tell", {}, timeout=60))["content"][0]["text"]))
            finally:
                client.close()

        async def spare() -> str:
            while not engine._pool.ready():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return next(iter(engine._pool.ready())).id

        try:
            first = await told([await made(number, AENV_SEED="17") for number in range(6)][2])
            ready = await spare()
            ref = await made(9, AENV_SEED="17")
            assert ref.id == ready
            assert await told(ref) == {**first, "number": "9"}  # drawn from the same seed
            dead = engine._sandboxes[await spare()]
            dead.zygote.kill(dead.id)
            await dead.gone.wait()
            dead.exit = None  # nobody has noticed yet
            assert (await told(await made(10)))["number"] == "10"
            hangs = process_usage.listening_process(engine._sandboxes[await spare()].path)
            assert hangs is not None
            monkeypatch.setattr("aenv.engines.native.zygote_handle.SETTLE_SECONDS", 0.5)
            os.kill(hangs, signal.SIGSTOP)
            assert (await told(await made(11)))["number"] == "11"
            assert not Path(f"/proc/{hangs}").exists()
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.1, 0.4])
def test_a_start_that_is_cancelled_leaves_nothing(folder: Path, seconds: float) -> None:
    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        engine = NativeEngine(folder / "native", pool=0)
        try:
            starting = asyncio.create_task(engine.start(SandboxSpec("mine@1.0.0", project, project)))
            await asyncio.sleep(seconds)
            starting.cancel()
            await asyncio.wait({starting})
            left = [ref async for ref in engine.running()] if starting.cancelled() else []
            assert left == []
        finally:
            await engine.close()
        assert list((folder / "native").iterdir()) == []

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_log_keeps_the_last_of_what_was_written() -> None:
    log = Log()
    whole = b""
    for number in range(3000):
        line = f"{number} {'x' * (number % 300)}\n".encode()
        log.append(line)
        whole += line
        if number % 500 == 0:
            assert log.since(0) == (whole[-SIZE:].decode(), len(whole))
            assert log.since(len(whole) - 5) == (whole[-5:].decode(), len(whole))
    assert len(whole) > SIZE
    log.append(b"y" * (2 * SIZE + 7))
    whole += b"y" * (2 * SIZE + 7)
    assert log.since(0) == ("y" * SIZE, len(whole))
    assert log.since(len(whole)) == ("", len(whole))
    log.close()
    log.close()
