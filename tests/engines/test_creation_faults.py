"""A create always ends: whichever process that takes part in it hangs, and is then killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from aenv.engines.base import Exit, SandboxRef, SandboxSpec
from aenv.engines.native import zygote_handle
from aenv.engines.native.engine import NativeEngine
from aenv.engines.native.sandbox_handle import SandboxHandle
from aenv.errors import AEnvError
from aenv.testing.contracts import SOURCE
from tests.isolation.host import Process, processes
from tests.waiting import wait_until, wait_while

SECONDS = 120.0
"""A create that takes longer hangs: each wait on its way is bounded by less."""


@pytest.fixture
def folder(sandboxes: None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aenv-e-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


def descendants() -> list[Process]:
    """The processes that this one has started, and theirs, oldest first."""
    everything = processes()
    found = {os.getpid()}
    while more := {p.pid for p in everything.values() if p.parent in found} - found:
        found |= more
    return sorted((everything[pid] for pid in found - {os.getpid()}), key=lambda p: (p.started, p.pid))


def taking_part(refs: list[SandboxRef], before: set[int]) -> list[Process]:
    """Those that a create needs: not the instances that there are, nor what other tests have left to this process."""
    return [p for p in descendants() if p.pid not in before and not p.is_instance and p.alive]


def _scenario(folder: Path, hurt: Callable[[NativeEngine, SandboxSpec, set[int]], Awaitable[None]]) -> None:
    async def main() -> None:
        project = folder / "project"
        project.mkdir()
        (project / "env.py").write_text(SOURCE)
        spec = SandboxSpec("faulty@1.0.0", project, project)
        before = {p.pid for p in descendants()}
        engine = NativeEngine(folder / "native", pool=0)
        try:
            await hurt(engine, spec, before)
        finally:
            await asyncio.wait_for(engine.close(), SECONDS)
        wait_while(lambda: [p for p in descendants() if p.pid not in before], "processes are left")
        assert not list((folder / "native").glob("*.sock"))

    asyncio.run(asyncio.wait_for(main(), 10 * SECONDS))


async def _attempt(engine: NativeEngine, spec: SandboxSpec) -> SandboxRef | None:
    with contextlib.suppress(AEnvError):
        return await asyncio.wait_for(engine.start(spec), SECONDS)
    return None


async def _works_again(engine: NativeEngine, spec: SandboxSpec) -> None:
    for _ in range(20):
        if await _attempt(engine, spec) is not None:
            return
    raise AssertionError("no create works any more")


@pytest.mark.long
@pytest.mark.parametrize("which", range(5))
def test_a_create_ends_when_a_process_that_takes_part_in_it_hangs_and_is_killed(folder: Path, which: int) -> None:
    """By age: the outer zygote, the zygote, and those that it has forked to make instances from."""

    async def hurt(engine: NativeEngine, spec: SandboxSpec, before: set[int]) -> None:
        refs = [await engine.start(spec) for _ in range(4)]
        there = taking_part(refs, before)
        assert len(there) >= 5, there
        victim = there[which]
        os.kill(victim.pid, signal.SIGSTOP)
        creates = [asyncio.ensure_future(_attempt(engine, spec)) for _ in range(8)]
        await asyncio.wait(creates, timeout=0.5)
        victim.kill()
        await asyncio.gather(*creates)
        await _works_again(engine, spec)

    _scenario(folder, hurt)


def test_a_create_ends_when_the_zygote_hangs_for_good(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_handle, "FORK_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(zygote_handle, "GONE_SECONDS", 1.0)
    monkeypatch.setattr(zygote_handle, "LOAD_SECONDS", 2.0)

    async def hurt(engine: NativeEngine, spec: SandboxSpec, before: set[int]) -> None:
        refs = [await engine.start(spec) for _ in range(4)]
        for process in taking_part(refs, before):
            os.kill(process.pid, signal.SIGSTOP)
        assert await _attempt(engine, spec) is None
        await _works_again(engine, spec)

    _scenario(folder, hurt)


async def _preloaded_parent(refs: list[SandboxRef], before: set[int]) -> Process:
    """Wait for the preloaded parent. While it is traced, which it is for each fork, it does not count as one."""
    found: list[Process] = []

    def look() -> bool:
        found.extend(p for p in taking_part(refs, before) if p.is_preloaded)
        return bool(found)

    await wait_until(look)
    return found[0]


@pytest.mark.parametrize("hung", ["parent", "zygote"])
def test_a_parent_that_is_killed_is_replaced_by_another_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hung: str
) -> None:
    """Its end is reported before the requests fail that wait for it: the code is not to blame.

    While the zygote hangs, the requests reach it before the parent's end does; while the parent hangs, after it.
    """
    ended: list[SandboxHandle] = []
    note_end = SandboxHandle.ended

    def note_order(handle: SandboxHandle, end: Exit) -> None:
        ended.append(handle)
        note_end(handle, end)

    monkeypatch.setattr(SandboxHandle, "ended", note_order)

    async def hurt(engine: NativeEngine, spec: SandboxSpec, before: set[int]) -> None:
        refs = [await engine.start(spec) for _ in range(4)]
        parent = await _preloaded_parent(refs, before)
        stopped = parent.pid if hung == "parent" else parent.parent
        sockets = len(list((folder / "native").glob("*.sock")))
        os.kill(stopped, signal.SIGSTOP)
        if hung == "zygote":
            os.kill(parent.pid, signal.SIGKILL)
            await wait_until(lambda: not parent.alive)
        creates = [asyncio.ensure_future(_attempt(engine, spec)) for _ in range(3)]
        await wait_until(lambda: len(list((folder / "native").glob("*.sock"))) == sockets + len(creates))
        os.kill(*((parent.pid, signal.SIGKILL) if hung == "parent" else (stopped, signal.SIGCONT)))
        assert None not in await asyncio.gather(*creates)
        first, *requests = ended
        assert first.reads is not None, "a request failed while its parent seemed to be alive"
        assert requests, "no request waited for the parent"
        for _ in range(2):  # the first one starts another parent, for which the second one waits
            assert await _attempt(engine, spec) is not None
        assert (await _preloaded_parent(refs, before)).pid != parent.pid

    _scenario(folder, hurt)


def test_creates_end_whenever_the_preloaded_parent_is_killed_among_them(folder: Path) -> None:
    async def hurt(engine: NativeEngine, spec: SandboxSpec, before: set[int]) -> None:
        refs = [await engine.start(spec) for _ in range(4)]
        made = 0
        for round_ in range(6):
            creates = [asyncio.ensure_future(_attempt(engine, spec)) for _ in range(10)]
            for _ in range(round_):
                await asyncio.sleep(0)
            await asyncio.wait(creates, timeout=0.002 * round_)
            for process in [p for p in taking_part(refs, before) if p.is_preloaded]:
                process.kill()
            results = await asyncio.gather(*creates)
            made += sum(ref is not None for ref in results)
            for ref in results:
                if ref is not None:
                    await engine.stop(ref)
        assert made >= 30
        await _works_again(engine, spec)

    _scenario(folder, hurt)
