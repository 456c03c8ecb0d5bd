"""Commands as agents leave no process behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aenv.rollout.agents import command
from tests.conftest import run
from tests.waiting import wait_until


def test_a_command_that_is_cancelled_while_it_starts_leaves_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    real = asyncio.create_subprocess_shell

    async def main() -> None:
        async def cancelled_start(*args: Any, **options: Any) -> Any:
            """Start the process, and cancel the caller before it gets to know that."""
            process = await real(*args, **options)
            await wait_until(child.exists)
            running.cancel()
            await asyncio.sleep(0)
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_shell", cancelled_start)
        running = asyncio.ensure_future(
            command.run_command("sleep 600 & echo $! > new; mv new child; wait", tmp_path, {})
        )
        with pytest.raises(asyncio.CancelledError):
            await running
        await wait_until(lambda: _has_ended(int(child.read_text())))

    run(main())


def _has_ended(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
