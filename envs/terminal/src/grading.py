"""Runs a task's tests, when nothing of the agent's runs any more, and reads what they say.

The agent and the tests share a sandbox, so all that the tests begin with is made for them: a folder, a home and
variables that no program of the agent's has seen. What was put in place of the programs that they are run with, where
these can be changed, is found by its time: it is younger than the environment.
"""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 900.0
SAID = 20_000
PATIENCE = 10.0
"""Seconds for what was killed to be gone."""
HEAD = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS)\s+(\S+)", re.MULTILINE)
BUDGET = re.compile(r"^max_test_timeout_sec:\s*([0-9.]+)", re.MULTILINE)
KEPT = ("LANG", "http_proxy", "https_proxy", "no_proxy")
RUNNERS = ("bash", "sh", "env", "python", "python3", "pytest", "uv", "uvx", "cat", "grep", "sed", "test", "timeout")
LOADED = ("/etc/ld.so.preload", "/etc/profile", "/etc/bash.bashrc", "/etc/environment")
SETTINGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "uv.toml", "uv.lock")
"""Files that runners of tests look for in every folder above."""


class Tasks:
    """The tests of all tasks, held in memory; in the agent's files they are no more, where that can be had."""

    def __init__(self, place: str, *, hide: bool) -> None:
        """``hide``: remove them; only where the files are a sandbox's own."""
        self.began = time.time()
        self.path = os.environ.get("PATH", os.defpath)
        self.programs = [name for name in RUNNERS if shutil.which(name, path=self.path)]
        self._place = Path(place)
        self._hide = hide
        self._files: dict[str, dict[str, bytes]] = {}
        for folder in sorted(self._place.iterdir()) if self._place.is_dir() else ():
            if (folder / "run-tests.sh").is_file():
                self._take(folder)

    def _take(self, folder: Path) -> None:
        wanted = [folder / "run-tests.sh", folder / "task.yaml", *sorted((folder / "tests").rglob("*"))]
        self._files[folder.name] = {
            str(path.relative_to(folder)): path.read_bytes() for path in wanted if path.is_file()
        }
        if not self._hide:
            return
        with contextlib.suppress(OSError):
            for path in (folder / "run-tests.sh", folder / "solution.sh"):
                path.unlink(missing_ok=True)
            shutil.rmtree(folder / "tests")

    def files(self, name: str) -> dict[str, bytes]:
        """What grading a task takes. Raises LookupError, with what to do."""
        if name not in self._files:
            known = ", ".join(self._files) or "none"
            raise LookupError(f"there is no task {name!r} in {self._place} (T_BENCH_TASKS_DIR); there are: {known}")
        return self._files[name]


def grade(tasks: Tasks, name: str) -> dict:
    """``status`` is success, error, timeout or parse_error; ``score`` is there when the tests have run."""
    answer = {"task_name": name, "status": "error"}
    try:
        files = tasks.files(name)
    except LookupError as error:
        return {**answer, "error": str(error)}
    end_all_others()
    replaced = tampered(tasks)
    if replaced:
        why = f"what tests are run with was changed by the agent: {', '.join(replaced)}"
        return {**answer, "status": "success", "score": 0.0, "error": why}
    with tempfile.TemporaryDirectory(prefix="tests-") as place:
        for folder in ("home", "tests", "work"):
            Path(place, folder).mkdir()
        for path, content in files.items():
            target = Path(place, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        found = BUDGET.search(files.get("task.yaml", b"").decode(errors="replace"))
        with set_aside(Path(place)):
            return {**answer, **run(Path(place), tasks.path, float(found[1]) if found else SECONDS)}


@contextlib.contextmanager
def set_aside(place: Path) -> Iterator[None]:
    """Settings of the agent's in folders above a place are not there for as long as the context is."""
    moved = {}
    for number, (folder, name) in enumerate(itertools.product(place.parents, SETTINGS)):
        with contextlib.suppress(OSError):
            (folder / name).rename(place / f".aside-{number}")
            moved[place / f".aside-{number}"] = folder / name
    try:
        yield
    finally:
        for kept, original in moved.items():
            kept.rename(original)


def run(place: Path, path: str, seconds: float) -> dict:
    variables = {name: os.environ[name] for name in KEPT if name in os.environ}
    variables |= {"PATH": path, "HOME": str(place / "home"), "TEST_DIR": str(place / "tests"), "PYTHONNOUSERSITE": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", str(place / "run-tests.sh")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
            cwd=place / "work",
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end_all_others()  # a program of the agent's that the tests have started may have left the group
        output.seek(0)
        said = output.read().decode(errors="replace")
    if code is None:
        return {"status": "timeout", "error": f"the tests took longer than {seconds:g} s", "raw_output": said[-SAID:]}
    return {**score(said, code), "raw_output": said[-SAID:]}


def score(output: str, code: int) -> dict:
    """Each test counts the same. Tests that all pass end well: a log that says so of others was not written by them."""
    heads = list(HEAD.finditer(output))
    outcomes: dict[str, bool] = {}
    for outcome, name in OUTCOME.findall(output[heads[-1].end() :]) if heads else ():
        outcomes[name] = outcome in ("PASSED", "XFAIL") and outcomes.get(name, True)
    if not outcomes:
        return {"status": "parse_error", "error": "the tests left no summary: they did not run"}
    passed = sum(outcomes.values())
    if code and passed == len(outcomes):
        return {"status": "success", "score": 0.0, "error": f"all tests have passed, but with exit code {code}"}
    return {"status": "success", "score": passed / len(outcomes)}


def tampered(tasks: Tasks) -> list[str]:
    """What tests are run with that is no more what the environment began with; only a system that can be changed,
    which is that of an image, has any.
    """
    if not sandboxed():
        return []
    programs = {name: shutil.which(name, path=tasks.path) for name in tasks.programs}
    gone = [name for name, path in programs.items() if path is None]
    return gone + [path for path in (*programs.values(), *LOADED) if path and younger(path, tasks.began)]


def younger(path: str, began: float) -> bool:
    """Whether it, or what it leads to, was changed since; a program can set every time of a file but this one."""
    with contextlib.suppress(OSError):
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            return max(os.lstat(path).st_ctime, os.stat(path).st_ctime) >= began
    return False


def end_all_others() -> None:
    """Kill everything but this program and the first one: the agent's shell, its daemons, and whatever they start.

    Only in a sandbox of one's own, where there is nothing else: elsewhere that would be the user's whole desktop.
    """
    if sandboxed():
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all at once, so that none can start another in time
        until = time.monotonic() + PATIENCE
        while others() and time.monotonic() < until:
            time.sleep(0.005)


def others() -> list[int]:
    """All processes that run, but the first one and this."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) not in (1, os.getpid()):
                state = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(name)] if state not in "ZX" else []
    return found


def sandboxed() -> bool:
    """Whether the first process is of this environment's user: on a machine it is root's."""
    return Path("/proc/1").stat().st_uid == os.getuid() != 0
