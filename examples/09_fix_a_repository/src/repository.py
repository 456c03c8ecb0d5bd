"""A repository whose last commit broke something, a shell to repair it with, and a reward that cannot be cheated.

How the reward is kept honest:

- The hidden tests are in `private/`, which no program in the instance can read. They run in the process of the
  environment, so nothing of the agent's (no conftest.py, sitecustomize.py, plug-in of pytest, program on the PATH) is
  ever loaded into what decides.
- The agent's functions run in processes of their own and only return values. What they print, how they exit and which
  files they leave says nothing.
- All of the agent's programs are ended before, and only the package's own files are read, into a new folder.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aenv import (
    StateDestroyed,
    end_programs,
    private,
    register_function,
    register_reward,
    register_tasks,
    register_tool,
    run_python,
)

COMMITS = Path(__file__).parents[1] / "commits"
WORK = Path("/tmp/bug-hunt")
PACKAGE = "intervals"
MOST = 20_000
"""Characters of output that the agent is shown."""
LARGEST = 100_000
"""Bytes that a file of the package may have."""
SECONDS = 10
"""How long one call of the agent's function may take."""
GIT = [shutil.which("git") or "/usr/bin/git", "-c", "user.name=Grace", "-c", "user.email=grace@example.com"]
INSTRUCTION = f"""\
The repository in {WORK} has a Python package, {PACKAGE}. Since the last commit, merging intervals gives wrong results.
Find out what broke (`git log -p`), repair the package so that it does what its docstrings say, add a test, run the
tests with `python -m pytest`, and commit. Hidden tests call the package's functions.
"""


@register_function
def prepare() -> str:
    """Make the repository, with its history, and return the instruction."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main")
    for commit in sorted(COMMITS.iterdir()):
        shutil.copytree(commit, WORK, dirs_exist_ok=True)
        git("add", "--all")
        git("commit", "--quiet", "--message", commit.name.partition("_")[2].replace("_", " "))
    return INSTRUCTION


@register_tool
def shell(command: str, timeout: float = 30.0) -> dict[str, Any]:
    """Run a command line in the repository.

    Args:
        command: What to run, such as `git log -p` or `python -m pytest`.
        timeout: Seconds until it is stopped.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=WORK,
            env=with_python(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(min(timeout, 300.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        output.seek(0)
        text = output.read(4 * MOST).decode(errors="replace")
    return {"exit_code": code, "timed_out": code is None, "output": text[:MOST]}


@register_tool
def write_file(path: str, content: str) -> str:
    """Write a file of the repository.

    Args:
        path: Relative to the repository.
        content: All of the file.
    """
    target = (WORK / path).resolve()
    if not target.is_relative_to(WORK):
        raise ValueError(f"{path} is not in the repository")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
    return f"wrote {len(content)} characters to {path}"


@register_reward
def hidden_tests() -> dict[str, Any]:
    """1 when all hidden tests pass, else 0, and how many do."""
    end_programs()
    with tempfile.TemporaryDirectory() as folder:
        copy_package(Path(folder))

        def call(function: str, *arguments: Any) -> Any:
            """What the agent's function returns; an assertion fails where it returns nothing."""
            code = f"import sys\nsys.path.insert(0, {folder!r})\nfrom {PACKAGE} import {function}\n"
            run = run_python(code, call=function, arguments=list(arguments), timeout=SECONDS, directory=folder)
            if run.timed_out:
                raise StateDestroyed(f"{function} took more than {SECONDS} seconds")
            assert run.ok, run.stderr[-500:]
            return run.value

        tests = private("hidden.py").module()
        named = [getattr(tests, name) for name in dir(tests) if name.startswith("test_")]
        passed = sum(passes(test, call) for test in named)
    return {"score": float(passed == len(named)), "passed": passed, "tests": len(named)}


@register_tasks
def tasks() -> Iterator[dict[str, Any]]:
    """The one task; its solution takes the faulty commit back."""
    yield {
        "id": "merge",
        "setup": {"function": "prepare"},
        "reward": {"name": "hidden_tests"},
        "limits": {"steps": 30},
        "solution": [
            {"tool": "shell", "arguments": {"command": "python -m pytest -q; git log -p -1"}},
            {"tool": "shell", "arguments": {"command": "git revert --no-edit HEAD"}},
        ],
    }


def passes(test: Any, call: Any) -> bool:
    try:
        test(call)
    except AssertionError:
        return False
    return True


def copy_package(target: Path) -> None:
    """Copy the package's Python files, and only these: plain files of a plain folder, not too large.

    Anything else in place of them is the agent's doing.
    """
    source = WORK / PACKAGE
    try:
        if not stat.S_ISDIR(source.lstat().st_mode):
            raise StateDestroyed(f"{PACKAGE} is not a folder")
        copied = target / PACKAGE
        copied.mkdir()
        for file in sorted(source.glob("*.py")):
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
                raise StateDestroyed(f"{file.name} is not a source file")
            (copied / file.name).write_bytes(file.read_bytes())
    except OSError as error:
        raise StateDestroyed(f"{PACKAGE} cannot be read: {error.strerror}") from error


def with_python() -> dict[str, str]:
    """Variables with which `python` is this Python, with the packages of requirements.txt."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}


def git(*arguments: str) -> None:
    subprocess.run([*GIT, *arguments], cwd=WORK, check=True, capture_output=True)
