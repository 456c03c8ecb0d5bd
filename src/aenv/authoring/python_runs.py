"""Run Python that an agent wrote, in a process of its own.

``exec`` in the environment's own process would give that code everything the process has: the private files, the
reward, the registry of tools. Here it has a fresh interpreter, none of the environment's variables, and limits.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from aenv.authoring.destroyed_state import blaming_the_agent
from aenv.isolation.files.trees import remove_tree

MAX_OUTPUT = 1 << 20
"""Bytes that are kept of each stream."""
MAX_VALUE = 8 << 20
"""Bytes of JSON that are read of a value."""
REMOVE_SECONDS = 10.0
"""So long what the code has left behind is being removed; processes that it left may go on writing."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
_HARNESS = """
import json, os, sys
told, answer = (int(number) for number in sys.argv[1:3])
with open(told, "rb") as file:
    task = json.load(file)
if task["memory"] is not None:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (task["memory"],) * 2)
sys.argv = ["-c"]
scope = {"__name__": "__main__", "__builtins__": __builtins__}
exec(compile(task["code"], "<code>", "exec"), scope)
if task["call"] is not None:
    value = scope[task["call"]](*task["arguments"])
    with open(answer, "w") as file:
        json.dump(value, file)
"""


@dataclass(frozen=True, slots=True)
class PythonRun:
    """What came of it. Everything here is the agent's word: compare it, and never ask it for a verdict."""

    exit_code: int | None
    """None when it was stopped at its time limit; negative: killed by that signal."""
    stdout: str
    stderr: str
    value: Any = None
    """What the function that was called returned, as JSON carries it."""
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ran to its end without an error."""
        return self.exit_code == 0


def run_python(
    code: str,
    *,
    call: str | None = None,
    arguments: Sequence[Any] = (),
    stdin: str = "",
    timeout: float = 10.0,
    memory: int | None = 512 << 20,
    directory: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> PythonRun:
    """Run code in a new interpreter, and end it with all that it has started in its process group.

    Args:
        code: Python source.
        call: The name of a function that the code defines; it is called, and what it returns is the run's ``value``.
        arguments: What it is called with: values that JSON can carry.
        stdin: What the code can read from its standard input.
        timeout: Seconds until it is stopped.
        memory: Bytes of address space that it may have; None: as much as the instance.
        directory: Where it runs; by default in an empty folder, which is removed afterwards.
        variables: For its environment. The environment's own are not passed on: they may have keys in them.

    Raises:
        StateDestroyed: the folder that it should run in, or the place for temporary files, is gone or cannot be used.
    """
    task = {"code": code, "call": call, "arguments": list(arguments), "memory": memory}
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    with (
        blaming_the_agent("there is no place for temporary files"),
        tempfile.TemporaryFile() as told,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        _empty_folder() as empty,
    ):
        for file, text in ((told, json.dumps(task)), (given, stdin)):
            file.write(text.encode(errors="replace"))
            file.seek(0)
        files = (told.fileno(), answer.fileno())
        with blaming_the_agent(f"code cannot run in {directory or empty}"):
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _HARNESS, *map(str, files)],
                stdin=given, stdout=out, stderr=err, pass_fds=files, start_new_session=True,
                cwd=directory or empty, env={**kept, **(variables or {})},
            )  # fmt: skip
        exit_code = _ended(process, timeout)
        value = _value(answer) if exit_code == 0 and call is not None else None
        return PythonRun(exit_code, _text(out), _text(err), value, exit_code is None)


@contextmanager
def _empty_folder() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="run-")
    try:
        yield made
    finally:
        remove_tree(made, REMOVE_SECONDS)


def _ended(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """Its exit code; None when it had to be stopped."""
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MAX_OUTPUT).decode(errors="replace")


def _value(file: IO[bytes]) -> Any:
    file.seek(0)
    try:
        return json.loads(file.read(MAX_VALUE))
    except (ValueError, RecursionError):  # lists within lists, thousands deep
        return None
