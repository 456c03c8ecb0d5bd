"""Run Python code that an agent wrote, in a separate process.

``exec`` in the environment's process would give that code access to the private files, the reward and the registry of
tools. A run gets a new interpreter, none of the environment's variables, and limits on time and memory.
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

from aenv.authoring.agent_time import agent_code
from aenv.authoring.failures.destroyed_state import raising_state_destroyed
from aenv.authoring.python_variables import package_folders
from aenv.errors import InvalidUse
from aenv.isolation.files.trees import remove_tree

MAX_OUTPUT = 1 << 20
"""Bytes of each output stream that are kept."""
MAX_VALUE = 8 << 20
"""Bytes of a returned value's JSON that are read."""
REMOVE_SECONDS = 10.0
"""Time limit for removing the run's folder: processes that the code left behind may still be writing to it."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ")
_HARNESS = """
import json, os, sys
request, answer = (int(number) for number in sys.argv[1:3])
with open(request, "rb") as file:
    task = json.load(file)
sys.path[:0] = task["layers"]
if task["memory"] is not None:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (task["memory"],) * 2)
sys.argv = ["-c"]
scope = {"__name__": "__main__", "__builtins__": __builtins__}
try:
    exec(compile(task["code"], "<code>", "exec"), scope)
    if task["call"] is not None:
        if task["call"] not in scope:
            raise NameError(f"the code defines no {task['call']}()")
        value = scope[task["call"]](*task["arguments"])
        with open(answer, "w") as file:
            json.dump(value, file)
except Exception as error:
    trace = error.__traceback__ = error.__traceback__.tb_next  # without this wrapper
    sys.excepthook(type(error), error, trace)
    sys.exit(1)
"""


@dataclass(frozen=True, slots=True)
class PythonRun:
    """Result of `run_python`. The agent's code controls all of it: compare it, but never accept its verdict."""

    exit_code: int | None
    """None if the run was stopped at its time limit; negative if it was killed by that signal."""
    stdout: str
    stderr: str
    value: Any = None
    """Return value of the function named by ``call``, converted to JSON and back."""
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """True if the code ran to its end without an error."""
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
    """Run code in a new interpreter, then kill its process group.

    The code can import the packages of requirements.txt, but no module of the environment.

    Args:
        code: Python source.
        call: Name of a function that the code defines. It is called, and its return value is the run's ``value``.
        arguments: Positional arguments of that function, serializable as JSON.
        stdin: Standard input of the code.
        timeout: Seconds until the run is stopped.
        memory: Limit of the address space in bytes; None means no limit below the instance's own.
        directory: Working directory; by default an empty folder, which is removed afterwards. Modules in it are found
            only if the code adds it to `sys.path`.
        variables: Environment variables. Those of the environment's own process are not passed on, since they may
            contain secrets.

    Raises:
        InvalidUse: an argument has a wrong type or value. Code that is not a text is not: that run fails.
        StateDestroyed: the working directory or the folder for temporary files is missing or not accessible.

    Example:
        ```python
        run = run_python(answer, call="solve", arguments=[[3, 1, 2]], timeout=5)
        return 1.0 if run.ok and run.value == [1, 2, 3] else 0.0
        ```
    """
    _check(call, stdin, timeout, memory, directory, variables)
    task = _encode({"code": code, "call": call, "memory": memory, "layers": package_folders()}, arguments)
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | dict(variables or {})
    return _run(task, stdin, timeout, directory, environment, has_value=call is not None)


def _run(
    task: str, stdin: str, timeout: float, directory: str | None, environment: dict[str, str], *, has_value: bool
) -> PythonRun:
    with (
        raising_state_destroyed("no folder for temporary files"),
        tempfile.TemporaryFile() as request,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as standard_input,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        _empty_folder() as empty,
    ):
        for file, text in ((request, task), (standard_input, stdin)):
            file.write(text.encode(errors="replace"))
            file.seek(0)
        with raising_state_destroyed(f"code cannot run in {directory or empty}"), agent_code():
            process = _start((request, answer), (standard_input, out, err), directory or empty, environment)
            exit_code = _wait(process, timeout)
        value = _value(answer) if exit_code == 0 and has_value else None
        return PythonRun(exit_code, _text(out), _text(err), value, exit_code is None)


def _encode(task: dict[str, Any], arguments: Sequence[Any]) -> str:
    try:
        return json.dumps({**task, "arguments": list(arguments)})
    except (TypeError, ValueError) as error:
        raise InvalidUse(f"run_python: arguments: JSON cannot carry them: {error}") from None


def _start(
    channels: tuple[IO[bytes], IO[bytes]],
    standard_files: tuple[IO[bytes], IO[bytes], IO[bytes]],
    directory: str,
    environment: dict[str, str],
) -> subprocess.Popen[bytes]:
    """Start the interpreter as the leader of a process group. ``channels``: the task, and the file for its value."""
    fds = [file.fileno() for file in channels]
    stdin, stdout, stderr = standard_files
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _HARNESS, *map(str, fds)],
        stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=fds, start_new_session=True, cwd=directory,
        env=environment,
    )  # fmt: skip


def _check(call: object, stdin: object, timeout: object, memory: object, directory: object, variables: object) -> None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < float("inf")
    texts = isinstance(variables, Mapping) and all(isinstance(each, str) for pair in variables.items() for each in pair)
    for name, value, right, expected in (
        ("call", call, call is None or isinstance(call, str), "the name of a function"),
        ("stdin", stdin, isinstance(stdin, str), "a text"),
        ("timeout", timeout, number, "a number of seconds above 0"),
        ("memory", memory, memory is None or (type(memory) is int and memory > 0), "a number of bytes, or None"),
        ("directory", directory, directory is None or isinstance(directory, str | os.PathLike), "a path"),
        ("variables", variables, variables is None or texts, "a mapping of texts to texts"),
    ):
        if not right:
            raise InvalidUse(f"run_python: {name} must be {expected}, not {value!r:.80}")


@contextmanager
def _empty_folder() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="run-")
    try:
        yield made
    finally:
        remove_tree(made, REMOVE_SECONDS)


def _wait(process: subprocess.Popen[bytes], timeout: float) -> int | None:
    """Wait for the process, kill its group, and return its exit code; None if it had to be stopped."""
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
    except (ValueError, RecursionError):  # RecursionError: lists nested thousands of levels deep
        return None
