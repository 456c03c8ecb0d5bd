"""Run a program to its end and return its output: the one way for short-lived child processes.

It does what callers forget: no standard input from the caller's terminal, output that is not UTF-8, and no process
left running after a timeout or a cancellation. Servers and programs whose output is read line by line are started by
the modules that own them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TAIL = 1500
"""Characters at the end of the output that an error message quotes."""


@dataclass(frozen=True, slots=True)
class CompletedProgram:
    """A program that has ended."""

    command: Sequence[str]
    code: int
    """Exit code; negative: the signal that killed it."""
    stdout: str
    stderr: str
    """Empty unless it was captured."""

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.code == 0

    def tail(self, limit: int = TAIL) -> str:
        """Return the last characters of stderr, or of stdout if stderr is empty, for an error message."""
        return (self.stderr.strip() or self.stdout.strip())[-limit:]

    def checked(self) -> CompletedProgram:
        """Return this program if it succeeded.

        Raises:
            subprocess.CalledProcessError: it did not.
        """
        if not self.ok:
            raise subprocess.CalledProcessError(self.code, list(self.command), self.stdout, self.stderr)
        return self


def run(
    command: Sequence[str],
    *,
    stdin: str = "",
    stderr: int | None = subprocess.PIPE,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> CompletedProgram:
    """Run a program to its end. The parameters mean what they do for `subprocess.run`.

    Raises:
        OSError: it could not be started.
        TimeoutError: it was killed after ``timeout`` seconds.
    """
    try:
        done = subprocess.run(
            command, input=stdin.encode(), stdout=subprocess.PIPE, stderr=stderr, cwd=cwd, env=env, timeout=timeout,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _too_late(command, timeout) from None
    return CompletedProgram(command, done.returncode, _text(done.stdout), _text(done.stderr))


async def run_async(
    command: Sequence[str],
    *,
    stderr: int | None = subprocess.PIPE,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    own_group: bool = False,
) -> CompletedProgram:
    """Run a program to its end without blocking the event loop. It is killed if the caller is cancelled.

    ``own_group``: run it as the leader of a process group, and kill what is left of the group when it has ended.

    Raises:
        OSError: it could not be started.
        TimeoutError: it was killed after ``timeout`` seconds.
    """
    import asyncio  # here: it takes 30 ms to import, which programs of ours that call only `run` do not need

    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, cwd=cwd, env=env,
        start_new_session=own_group,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
    except TimeoutError:
        raise _too_late(command, timeout) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            if own_group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        code = await process.wait()
    return CompletedProgram(command, code, _text(out), _text(err))


def _too_late(command: Sequence[str], timeout: float | None) -> TimeoutError:
    return TimeoutError(f"{os.path.basename(command[0])} did not end within {timeout:g} s")


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
