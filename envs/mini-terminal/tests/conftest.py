"""Plain unit tests: no server, no container. Each test leaves no shell behind."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mini_terminal
import pytest


@pytest.fixture(autouse=True)
def _at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def play() -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Run a coroutine function, and end all shells and terminals that it started."""

    async def main(work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(60):
                return await work()
        finally:
            for name in list(mini_terminal.shells):
                await mini_terminal.close_shell(name)
            for name in list(mini_terminal.terminals):
                await mini_terminal.close_terminal(name)

    return lambda work: asyncio.run(main(work))


@pytest.fixture
def commands(play) -> Callable[..., list[dict[str, Any]]]:
    """Run commands one after another in one shell; their results."""

    def run(*commands: str, timeout: float = 20) -> list[dict[str, Any]]:
        async def work() -> list[dict[str, Any]]:
            return [await mini_terminal.execute_command(command, timeout) for command in commands]

        return play(work)

    return run


def wait_until_gone(pids: list[int]) -> None:
    """Return when none of these processes runs any more; one that nobody waits for does not run."""
    for pid in pids:
        while _runs(pid):
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
