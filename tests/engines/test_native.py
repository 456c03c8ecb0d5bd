"""The native engine's zygotes, preloaded parents and pool: which it keeps, and for how long."""

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
from tests.isolation.host import Process, processes


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


def test_a_preloaded_parent_ends_when_its_environment_is_not_requested_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.engines.native.pool.KEPT", 1.0)

    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        engine = NativeEngine(folder / "native", pool=0)
        try:
            while not _preloaded():
                await engine.stop(await engine.start(SandboxSpec("mine@1.0.0", project, project)))
            while _preloaded():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def _preloaded() -> list[Process]:
    """The preloaded parents below this process."""
    everything = processes()
    found = {os.getpid()}
    while more := {p.pid for p in everything.values() if p.parent in found} - found:
        found |= more
    return [everything[pid] for pid in found if everything[pid].is_preloaded and everything[pid].alive]


TELLS = """
import os, random
from aenv import register_tool

@register_tool
def tell() -> dict:
    return {"number": os.environ.get("NUMBER"), "drawn": random.random()}
"""


def test_a_pooled_sandbox_serves_a_request_with_variables_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.engines.native.pool.WINDOW", 600.0)

    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(TELLS)
        engine = NativeEngine(folder / "native")

        async def start(number: int, **more: str) -> SandboxRef:
            return await engine.start(SandboxSpec("mine@1.0.0", project, project, {"NUMBER": str(number), **more}))

        async def pooled() -> Path:
            """The socket of a pooled sandbox: `running` has all others, those that are being made among them."""
            while True:
                others = {ref.data_url async for ref in engine.running()}
                ready = [path for path in (folder / "native").glob("*.sock") if f"unix:{path}" not in others]
                for path in ready:
                    if process_usage.listening_process(path) not in (None, os.getpid()):
                        return path
                await asyncio.sleep(0.01)

        try:
            refs = [await start(number, AENV_SEED="17") for number in range(6)]
            first = await _tell(refs[2])
            ref, expected = refs[0], Path()
            while ref.data_url != f"unix:{expected}":
                expected = await pooled()
                ref = await start(9, AENV_SEED="17")
            assert await _tell(ref) == {**first, "number": "9"}  # drawn from the same seed
            dead = process_usage.listening_process(await pooled())
            assert dead is not None
            os.kill(dead, signal.SIGKILL)
            assert (await _tell(await start(10)))["number"] == "10"
            hangs = process_usage.listening_process(await pooled())
            assert hangs is not None
            monkeypatch.setattr("aenv.engines.native.sandbox_handle.VARIABLES_SECONDS", 0.5)
            os.kill(hangs, signal.SIGSTOP)
            while Path(f"/proc/{hangs}").exists():
                assert (await _tell(await start(11)))["number"] == "11"
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 60))


async def _tell(ref: SandboxRef) -> dict[str, Any]:
    client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
    try:
        with pytest.raises(NotFound, match="has its variables"):  # they are sent once
            await client.call(paths.SETTLE, {"NUMBER": "stolen"}, timeout=60)
        return dict(json.loads((await client.call("/tools/tell", {}, timeout=60))["content"][0]["text"]))
    finally:
        client.close()


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


def test_a_log_keeps_the_last_output() -> None:
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


def test_a_fork_that_imports_the_code_itself_has_the_time_of_an_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that starts a thread is imported in each fork of a parent that has imported its packages."""
    monkeypatch.setattr("aenv.engines.native.zygote_handle.FORK_ANSWER_SECONDS", 0.2)
    slow = "import psutil, threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"

    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(f"{slow}time.sleep(1)\n{SOURCE}")
        engine = NativeEngine(folder / "native", pool=0)
        try:
            for _ in range(5):
                await engine.start(SandboxSpec("mine@1.0.0", project, project))
            assert _preloaded()  # with the packages
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(main(), 100))
