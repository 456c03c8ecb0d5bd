"""Runs a task's tests, when nothing of the agent's runs any more, and reads what they say.

The agent and the tests share a sandbox, so all that the tests begin with is made for them: a folder, a home and
variables that no program of the agent's has seen. Settings that runners of tests would look for in the folders above
are moved aside, and a settings file of our own keeps pytest from looking there. What was put in place of the programs
that they are run with, where these can be changed, is found (`pristine`).
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pristine import System

SECONDS = 900.0
SAID = 20_000
PATIENCE = 10.0
"""Seconds for what was killed to be gone."""
HEAD = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS)\s+(\S+)", re.MULTILINE)
BUDGET = re.compile(r"^max_test_timeout_sec:\s*([0-9.]+)", re.MULTILINE)
KEPT = ("LANG", "http_proxy", "https_proxy", "no_proxy")
INI = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")
SETTINGS = (*INI, "setup.py", "conftest.py", "uv.toml", "uv.lock", ".venv", ".python-version", "Makefile", ".npmrc",
            "package.json", "node_modules", ".git", ".editorconfig")  # fmt: skip
"""What runners of tests look for in every folder above."""


APART = "/run"
"""Tests are put there rather than where agents work: what is moved aside in the folders above is nobody's work."""


class Tasks:
    """The tests of all tasks, held in memory; in the agent's files they are no more, where that can be had."""

    def __init__(self, place: str, *, hide: bool) -> None:
        """``hide``: remove them; only where the files are a sandbox's own."""
        self.system = System(time.time())
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
    replaced = tasks.system.replaced(files) if sandboxed() else []
    if replaced:
        why = f"what tests are run with was changed by the agent: {', '.join(replaced)}"
        return {**answer, "status": "success", "score": 0.0, "error": why}
    with tempfile.TemporaryDirectory(
        prefix="tests-", dir=APART if sandboxed() and os.access(APART, os.W_OK) else None
    ) as place:
        for folder in ("home", "tests", "work"):
            Path(place, folder).mkdir()
        for path, content in files.items():
            target = Path(place, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for folder in (place, f"{place}/tests"):
            if not any(Path(folder, name).exists() for name in INI):
                Path(folder, "pytest.ini").write_text("[pytest]\n")  # pytest looks no further, for conftest.py either
        found = BUDGET.search(files.get("task.yaml", b"").decode(errors="replace"))
        with set_aside(Path(place), tasks.system.added() if sandboxed() else []):
            return {**answer, **run(Path(place), tasks.system.path, float(found[1]) if found else SECONDS)}


@contextlib.contextmanager
def set_aside(place: Path, more: list[Path]) -> Iterator[None]:
    """Settings of the agent's in folders above a place, and ``more``, are not there for as long as the context is."""
    moved = {}
    above = [folder / name for folder in place.parents for name in SETTINGS]
    with contextlib.ExitStack() as opened:
        for path in (*above, *more):
            if os.path.lexists(path) and os.access(path.parent, os.W_OK):
                aside = Path(tempfile.mkdtemp(prefix=".aside-", dir=path.parent))
                opened.callback(shutil.rmtree, aside, ignore_errors=True)
                path.rename(aside / "kept")
                moved[aside / "kept"] = path
        try:
            yield
        finally:
            for kept, original in moved.items():
                kept.rename(original)


def run(place: Path, path: str, seconds: float) -> dict:
    variables = {name: os.environ[name] for name in KEPT if name in os.environ}
    variables |= {"PATH": path, "HOME": str(place / "home"), "TEST_DIR": str(place / "tests"), "PYTHONNOUSERSITE": "1"}
    variables["PYTHONPYCACHEPREFIX"] = str(place / "home" / "pycache")  # what the agent has compiled is not used
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
        why = f"the tests took longer than {seconds:g} s"
        return {"status": "timeout", "score": 0.0, "error": why, "raw_output": said[-SAID:]}
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
