"""The repository that is worked on, where it is, and what can be done with it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
IN_IMAGE = Path("/testbed")
TESTBED = IN_IMAGE if IN_IMAGE.is_dir() else PROJECT / "testbed"
PYTHON = PROJECT / "python"
INTERPRETER = PROJECT / "interpreter"
GIT = PROJECT / "git"
"""For a repository of an image: a git that knows its base commit alone, and takes the place of the image's own."""
SWAPPED = TESTBED / ".git" / "aenv-swapped"
CONDA = Path("/opt/miniconda3/envs/testbed")
_swapping = threading.Lock()
TASK = PROJECT / "task" / "instance.json"
IN_SANDBOX = Path("/app") == PROJECT
ROUNDS = 200
"""Looks at what runs, until nothing does that should not."""
SHOWN_LINES = 400
SHOWN = 100_000
"""Of a command's output, as much as an agent can take in; half from its beginning, half from its end."""
PATCHERS = (["git", "apply", "-"], ["patch", "--batch", "--fuzz=5", "-p1", "--no-backup-if-mismatch"])
MISSING = (
    "there is no repository in this instance. Prepare one first: "
    "`aenv bench swe --instances ... --prepare`, then open the folder that it names."
)
INSTRUCTION = """\
Solve this issue of {repo}. The repository is in {folder}; change its code, not its tests. Tests that you cannot see
decide whether it is solved.

<issue>
{problem_statement}
</issue>"""


def ready() -> dict[str, Any]:
    """The task, as far as an agent may know it."""
    if not TESTBED.is_dir() or not TASK.is_file():
        raise RuntimeError(MISSING)
    if GIT.is_dir():
        with _swapping:
            _forget_what_came_later()
    task: dict[str, Any] = json.loads(TASK.read_text())
    return task


def _forget_what_came_later() -> None:
    """Before anybody looks: the image's own git has the solution in it."""
    if SWAPPED.exists():
        return
    own = TESTBED / ".git"
    shutil.rmtree(own) if own.is_dir() else own.unlink(missing_ok=True)
    shutil.copytree(GIT, own, symlinks=True)
    SWAPPED.touch()


def instruction(task: dict[str, Any]) -> str:
    """For an agent."""
    return INSTRUCTION.format(folder=TESTBED, **{name: task[name] for name in ("repo", "problem_statement")})


def variables() -> dict[str, str]:
    """For commands: the prepared Python first, and a pip that takes what is there."""
    task = ready()
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    python = CONDA if TESTBED == IN_IMAGE else PYTHON
    found = {
        **os.environ,
        "GIT_CONFIG_COUNT": "3",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "user.name",
        "GIT_CONFIG_VALUE_1": "agent",
        "GIT_CONFIG_KEY_2": "user.email",
        "GIT_CONFIG_VALUE_2": "agent@localhost",
        "GIT_PAGER": "cat",
        "PATH": f"{python / 'bin'}:{path}",
        "PIP_NO_BUILD_ISOLATION": "false",  # which is how pip is told not to isolate
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "SETUPTOOLS_SCM_PRETEND_VERSION": str(task.get("pretend_version") or "1.0.0"),
    }
    if TESTBED != IN_IMAGE:
        found["VIRTUAL_ENV"] = str(PYTHON)
    if INTERPRETER.is_dir():  # it was built to find its library elsewhere
        found["LD_LIBRARY_PATH"] = str(INTERPRETER / "lib")
    return found


def run(
    command: list[str],
    timeout: float,
    *,
    stdin: str = "",
    limit: int = SHOWN,
    when_stopped: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Run a command in the repository; end it, and all that it started, when it takes too long.

    Its output is a file, so nothing that goes on with that file open can hold up who waits for the command.
    ``when_stopped`` is called when the command has stopped itself, and all that was started by then is ended; the
    command goes on afterwards. ``stopped`` in the answer says whether that has happened.
    """
    if timeout <= 0:
        raise ValueError("a time-out is more than 0 seconds")
    began = time.monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        process = subprocess.Popen(
            command, cwd=TESTBED, env=variables(), stdin=given, stdout=output, stderr=output, start_new_session=True
        )
        stopped = False
        try:
            if when_stopped is not None and _stops(process, timeout):
                stopped = True
                end_all_others(process.pid)
                when_stopped()
                os.kill(process.pid, signal.SIGCONT)
            process.wait(max(timeout - (time.monotonic() - began), 0.001))
            timed_out = False
        except subprocess.TimeoutExpired:
            _end_session(process.pid)
            timed_out = True
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        said = output.read()
    answer = {"output": shortened(said.decode(errors="replace"), limit), "returncode": process.returncode}
    if timed_out:
        answer |= {"returncode": 124, "note": f"ended after {timeout:g} s"}
    if when_stopped is not None:
        answer["stopped"] = stopped
        end_all_others()
    return answer | {"seconds": round(time.monotonic() - began, 3)}


def _stops(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait until a child has stopped itself: True; or has ended, or the time is up: False."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            return found.si_code == os.CLD_STOPPED
        time.sleep(0.01)
    return False


def _end_session(leader: int) -> None:
    """All that a command has started, in whatever process group."""
    for pid, session in _sessions().items():
        if session == leader:
            _kill(pid)


def end_all_others(but: int = 0) -> None:
    """Everything in this sandbox but this process, the first one, and one that has stopped itself."""
    if not IN_SANDBOX:
        return
    if not but:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all at once: none can start another in time
        return
    spared = {1, os.getpid(), but}
    for signal_ in (signal.SIGSTOP, signal.SIGKILL):  # who is stopped starts no other
        for _ in range(ROUNDS):
            others = [pid for pid in _sessions(alive="" if signal_ == signal.SIGKILL else "tT") if pid not in spared]
            if not others:
                break
            for pid in others:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal_)


def _sessions(alive: str = "") -> dict[int, int]:
    """The session of every process that runs; ``alive``: further states that do not count as running."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in f"ZX{alive}":
                found[int(entry.name)] = int(fields[3])
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def shortened(text: str, limit: int = SHOWN) -> str:
    """No longer than an agent can take in."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def inside(path: str) -> Path:
    """A path in the repository; others are none of an agent's business, and the shell is there for them."""
    found = (TESTBED / path).resolve()
    if not found.is_relative_to(TESTBED.resolve()):
        raise ValueError(f"{path} is not in {TESTBED}")
    return found


def view(path: str, start: int, end: int | None) -> str:
    """A file's lines, numbered; a folder's names."""
    found = inside(path)
    if found.is_dir():
        return "\n".join(sorted(f"{entry.name}{'/' if entry.is_dir() else ''}" for entry in found.iterdir()))
    if not found.is_file():
        raise ValueError(f"there is no file {path}")
    lines = found.read_text(errors="replace").splitlines()
    first = max(start, 1)
    last = min(end or len(lines), first + SHOWN_LINES - 1, len(lines))
    numbered = [f"{number:6}\t{lines[number - 1]}" for number in range(first, last + 1)]
    if last < len(lines):
        numbered.append(f"... {len(lines) - last} more lines")
    return shortened("\n".join(numbered))


def search(pattern: str, path: str) -> str:
    """What grep finds, but for git's own files."""
    where = inside(path).relative_to(TESTBED.resolve())
    names = [str(where)] if where.parts else ["-r"]
    found = run(["grep", "-rnIE", "--exclude-dir=.git", "-e", pattern, *names], 60, limit=SHOWN // 4)
    if found["returncode"] > 1:
        raise ValueError(found["output"].strip())
    return found["output"] or "nothing found"


def edit(path: str, old: str, new: str) -> str:
    """Change one place of a file."""
    found = inside(path)
    if not old:
        if found.exists():
            raise ValueError(f"{path} is there already: say which text of it to replace")
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text(new)
        return f"{path} is made"
    text = found.read_text() if found.is_file() else ""
    if text.count(old) != 1:
        raise ValueError(f"the text is {text.count(old)} times in {path}, not once")
    found.write_text(text.replace(old, new))
    return f"{path} is changed"


def apply(patch: str) -> str | None:
    """Apply a patch, if need be at places that only resemble those it names; with what, or None."""
    text = patch if patch.endswith("\n") else f"{patch}\n"
    for command in PATCHERS:
        check = [*command, "--check"] if command[0] == "git" else [*command, "--dry-run"]
        if run(check, 60, stdin=text)["returncode"] == 0 and run(command, 60, stdin=text)["returncode"] == 0:
            return command[0] if command[0] == "patch" else "git apply"
    return None


def diff() -> str:
    """All changes since the start, new files too."""
    base = ready()["start"]
    run(["git", "add", "--all", "--intent-to-add"], 120)
    options = ["--no-color", "--no-ext-diff", "--binary"]
    found = run(["git", "-c", "core.fileMode=false", "diff", *options, base], 120, limit=10**8)
    if found["returncode"]:
        raise RuntimeError(f"git diff failed: {found['output'][-500:]}")
    return str(found["output"])
