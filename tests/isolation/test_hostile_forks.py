"""Live forks of instances whose code, or whose preloaded parent, prepares an attack."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.errors import AEnvError
from aenv.isolation.kernel import ptrace
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform

pytestmark = pytest.mark.skipif(not ptrace.supported(), reason="there are no preloaded parents on this processor")

COMMON = r"""
import os, signal, time
from aenv import register_function
from aenv.isolation.kernel import linux

IS_PARENT = os.getpid() != 1
NOTES = {"looks": 0, "seen": [], "with rights": []}
fork = linux.fork_with

def look(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        NOTES["looks"] += 1
        for name in os.listdir("/proc"):
            try:
                status = open(f"/proc/{name}/status").read() if name.isdigit() else ""
            except OSError:
                continue
            if status and name not in NOTES["seen"]:
                NOTES["seen"].append(name)
            if status and int(status.split("CapEff:")[1].split()[0], 16):
                NOTES["with rights"].append(name)

@register_function
def notes() -> dict:
    return NOTES

@register_function
def nest(levels: int) -> str:
    os.chdir("/tmp")
    for _ in range(levels):
        os.mkdir("deeper")
        os.chdir("deeper")
    os.chdir("/")
    return ""
"""
WATCHING = """
def forks(flags, *, notify=True):
    made = fork(flags, notify=notify)
    if made:
        look(0.3)
        signal.signal(signal.SIGALRM, lambda *_: look(0.05))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.06)
    return made

if IS_PARENT:
    linux.fork_with = forks
"""
ENDING = """
def forks(flags, *, notify=True):
    made = fork(flags, notify=notify)
    if made:
        if ORPHAN and os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    return made

if IS_PARENT:
    linux.fork_with = forks
"""


def attack(project: Path, work: Callable[[Environment], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Environment(str(project), forkable=True) as env:
            await work(env)

    asyncio.run(asyncio.wait_for(main(), 120))


async def outcome(env: Environment) -> Any:
    """What a fork of an instance says; or the error, as text."""
    try:
        made = (await env.fork(1))[0]
    except AEnvError as error:
        made = error
    if isinstance(made, AEnvError):
        return str(made)
    told = await made.call_function("notes")
    await made.release()
    return told


@pytest.mark.attack("preloaded parents")
def test_a_parent_never_runs_while_an_instance_has_rights(tmp_path: Path, platform: Platform) -> None:
    """It sees their processes, and owns their user namespaces: it could write into their memory."""
    project = make_project(tmp_path, COMMON + WATCHING, name="watching")

    async def work(env: Environment) -> None:
        for _ in range(5):
            assert isinstance(await outcome(env), dict)
        async with Environment(str(project), forkable=True) as other:
            told = await other.call_function("notes")
        assert told["looks"] > 10
        assert len(told["seen"]) > 4  # it saw doors and instances
        assert told["with rights"] == []

    attack(project, work)


@pytest.mark.attack("preloaded parents")
@pytest.mark.parametrize("orphan", [False, True])
def test_an_instance_is_forked_after_its_parent_unless_that_left_a_process(
    tmp_path: Path, platform: Platform, orphan: bool
) -> None:
    project = make_project(tmp_path, COMMON + f"ORPHAN = {orphan}\n" + ENDING, name="ending")

    async def work(env: Environment) -> None:
        told = await outcome(env)
        if orphan:
            assert "the preloaded parent has" in told
        else:
            assert isinstance(told, dict)

    attack(project, work)


@pytest.mark.attack("instances")
def test_folders_without_end_do_not_harm_the_siblings(tmp_path: Path, platform: Platform) -> None:
    """They are copied by the process that all instances of an environment end with."""
    project = make_project(tmp_path, COMMON, name="nested")

    async def work(env: Environment) -> None:
        await env.call_function("nest", {"levels": 1200})
        assert "inside of each other" in await outcome(env)
        assert await env.call_function("notes")

    attack(project, work)
