"""The native engine's zygotes, preloaded parents and pool: which it keeps, and for how long."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import SandboxRef, SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.engines.sandbox_log import SIZE, Log
from aenv.errors import CapacityExhausted, NotFound
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


def write_project(folder: Path, source: str = SOURCE) -> Path:
    project = folder / "project"
    project.mkdir()
    (project / "env.py").write_text(source)
    return project


@asynccontextmanager
async def native_engine(folder: Path) -> AsyncIterator[NativeEngine]:
    """Yield an engine without a pool; it is closed at the end."""
    engine = NativeEngine(folder / "native", pool=0)
    try:
        yield engine
    finally:
        await engine.close()


def test_instances_go_on_when_their_project_changes(folder: Path) -> None:
    async def main() -> None:
        project = write_project(folder)
        spec = SandboxSpec("mine@1.0.0", project, project)
        async with native_engine(folder) as engine:
            old = [await engine.start(spec) for _ in range(4)]  # the last ones are forks of what is loaded
            (project / "env.py").write_text(SOURCE + "\n# changed\n")
            new = await engine.start(spec)
            for ref in (old[0], old[1]):  # none is left that loaded the code for itself
                await engine.stop(ref)
            assert [await engine.poll(ref) for ref in (*old[2:], new)] == [None] * 3
            for ref in old[2:]:
                await engine.stop(ref)
            assert [ref.id async for ref in engine.running()] == [new.id]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_preloaded_parent_ends_when_its_environment_is_not_requested_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.engines.native.pool.KEPT", 1.0)

    async def main() -> None:
        project = write_project(folder)
        async with native_engine(folder) as engine:
            while not _preloaded():
                await engine.stop(await engine.start(SandboxSpec("mine@1.0.0", project, project)))
            while _preloaded():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_batch_is_forked_from_several_parents_which_end_when_they_are_idle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aenv.engines.native.parent_copies.IDLE_SECONDS", 0.5)

    async def main() -> None:
        project = write_project(folder)
        spec = SandboxSpec("mine@1.0.0", project, project)
        made: list[SandboxRef] = []
        async with native_engine(folder) as engine:
            while len(_preloaded()) < 2:
                made += await asyncio.gather(*(engine.start(spec) for _ in range(16)))
            made += await asyncio.gather(*(engine.start(spec) for _ in range(16)))
            while len(_preloaded()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            made.append(await engine.start(spec))
            assert [await engine.poll(ref) for ref in made] == [None] * len(made)
            for ref in made:
                await engine.stop(ref)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_an_instance_takes_one_descriptor_of_the_platform(folder: Path) -> None:
    async def main() -> None:
        project = write_project(folder)
        spec = SandboxSpec("mine@1.0.0", project, project)
        async with native_engine(folder) as engine:
            await asyncio.gather(*(engine.start(spec) for _ in range(4)))  # zygotes and parents have some, too
            before = len(os.listdir("/proc/self/fd"))
            await asyncio.gather(*(engine.start(spec) for _ in range(3)))
            assert len(os.listdir("/proc/self/fd")) - before <= 3

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_create_without_free_descriptors_is_refused_by_name_and_harms_no_other(folder: Path) -> None:
    async def main() -> None:
        project = write_project(folder)
        spec = SandboxSpec("mine@1.0.0", project, project)
        async with native_engine(folder) as engine:
            made, refused = [await engine.start(spec) for _ in range(4)], []
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            for free in range(1, 10):  # each time another call fails
                highest = max(int(name) for name in os.listdir("/proc/self/fd"))
                gaps: list[int] = []
                while not gaps or gaps[-1] < highest:
                    gaps.append(os.open("/dev/null", os.O_RDONLY))
                resource.setrlimit(resource.RLIMIT_NOFILE, (gaps[-1] + free, limits[1]))
                try:
                    made.append(await engine.start(spec))
                except CapacityExhausted as error:
                    refused.append(error.message)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                    for fd in gaps:
                        os.close(fd)
            assert refused
            assert all("open files" in message for message in refused)
            made.append(await engine.start(spec))
            assert [await engine.poll(ref) for ref in made] == [None] * len(made)
            left = {f"unix:{path}" for path in (folder / "native").glob("*.sock")}
            assert left >= {ref.data_url for ref in made}

    asyncio.run(asyncio.wait_for(main(), 120))


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
        project = write_project(folder, TELLS)
        engine = NativeEngine(folder / "native")
        numbers = itertools.count()  # none twice: a pooled sandbox that has the same variables would be taken instead

        async def start(**more: str) -> tuple[SandboxRef, str]:
            variables = {"NUMBER": str(next(numbers)), **more}
            ref = await engine.start(SandboxSpec("mine@1.0.0", project, project, variables))
            return ref, variables["NUMBER"]

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
            refs = [await start(AENV_SEED="17") for _ in range(6)]
            drawn = (await _tell(refs[2][0]))["drawn"]
            (ref, number), expected = refs[0], Path()
            while ref.data_url != f"unix:{expected}":
                expected = await pooled()
                ref, number = await start(AENV_SEED="17")
            assert await _tell(ref) == {"drawn": drawn, "number": number}  # drawn from the same seed
            dead = process_usage.listening_process(await pooled())
            assert dead is not None
            os.kill(dead, signal.SIGKILL)
            ref, number = await start()
            assert (await _tell(ref))["number"] == number
            hangs = process_usage.listening_process(await pooled())
            assert hangs is not None
            monkeypatch.setattr("aenv.engines.native.sandbox_handle.VARIABLES_SECONDS", 0.5)
            os.kill(hangs, signal.SIGSTOP)
            while Path(f"/proc/{hangs}").exists():
                ref, number = await start()
                assert (await _tell(ref))["number"] == number
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
        project = write_project(folder)
        async with native_engine(folder) as engine:
            starting = asyncio.create_task(engine.start(SandboxSpec("mine@1.0.0", project, project)))
            await asyncio.sleep(seconds)
            starting.cancel()
            await asyncio.wait({starting})
            left = [ref async for ref in engine.running()] if starting.cancelled() else []
            assert left == []
        assert list((folder / "native").iterdir()) == []

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("in_file", [False, True])
def test_a_log_keeps_the_last_output(in_file: bool) -> None:
    log = Log()
    if in_file:
        log.open()
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
    handed_over = Log(os.dup(log.open()))
    assert handed_over.since(0) == log.since(0) == ("y" * SIZE, len(whole))
    handed_over.close()
    log.close()
    log.close()


def test_a_log_has_the_record_that_was_written_last() -> None:
    log = Log()
    log.append(b"before\n")
    with pytest.raises(ValueError, match="no record"):
        Log(log.open()).read_record()
    for record in (b"a" * 3000, b"b" * 200_000, b"c" * 3000, b"d", b"e" * 3001, b"f" * 200_000):
        log.write_record(record)
        handed_over = Log(os.dup(log.open()))
        assert handed_over.read_record() == record
        assert handed_over.since(0) == ("before\n", 7)
        handed_over.close()
    assert os.fstat(log.fd).st_size < SIZE + 450_000  # places of earlier records are used again
    log.close()


def test_a_fork_that_imports_the_code_itself_has_the_time_of_an_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that starts a thread is imported in each fork of a parent that has imported its packages."""
    monkeypatch.setattr("aenv.engines.native.zygote_handle.FORK_ANSWER_SECONDS", 0.2)
    slow = "import psutil, threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"

    async def main() -> None:
        project = write_project(folder, f"{slow}time.sleep(1)\n{SOURCE}")
        async with native_engine(folder) as engine:
            for _ in range(5):
                await engine.start(SandboxSpec("mine@1.0.0", project, project))
            assert _preloaded()  # with the packages

    asyncio.run(asyncio.wait_for(main(), 100))
