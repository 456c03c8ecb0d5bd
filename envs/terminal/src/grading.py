"""Runs a task's tests, when nothing of the agent's runs any more, and reads what they say."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

SECONDS = 900.0
SAID = 20_000
HEAD = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS)\s+(\S+)", re.MULTILINE)
BUDGET = re.compile(r"^max_test_timeout_sec:\s*([0-9.]+)", re.MULTILINE)
KEPT = ("PATH", "LANG", "HOME", "http_proxy", "https_proxy", "no_proxy")


class Tasks:
    """The tests of all tasks, held in memory; in the agent's files they are no more, where that can be had."""

    def __init__(self, place: str, *, hide: bool) -> None:
        """``hide``: remove them; only where the files are a sandbox's own."""
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
    with tempfile.TemporaryDirectory(prefix="tests-") as place:
        for path, content in files.items():
            target = Path(place, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        found = BUDGET.search(files.get("task.yaml", b"").decode(errors="replace"))
        return {**answer, **run(Path(place), float(found[1]) if found else SECONDS)}


def run(place: Path, seconds: float) -> dict:
    variables = {name: os.environ[name] for name in KEPT if name in os.environ}
    variables |= {"TEST_DIR": str(place / "tests"), "PYTHONNOUSERSITE": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["bash", str(place / "run-tests.sh")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=variables,
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
        output.seek(0)
        said = output.read().decode(errors="replace")
    if code is None:
        return {"status": "timeout", "error": f"the tests took longer than {seconds:g} s", "raw_output": said[-SAID:]}
    return {**score(said), "raw_output": said[-SAID:]}


def score(output: str) -> dict:
    """Each test counts the same."""
    heads = list(HEAD.finditer(output))
    outcomes = OUTCOME.findall(output[heads[-1].end() :]) if heads else []
    if not outcomes:
        return {"status": "parse_error", "error": "the tests left no summary: they did not run"}
    passed = [name for outcome, name in outcomes if outcome in ("PASSED", "XFAIL")]
    return {"status": "success", "score": len(passed) / len(outcomes)}


def end_all_others() -> None:
    """Kill whatever is in another session than this program and is not above it: the agent's shell, and its daemons.

    Only in a sandbox of one's own, where there is nothing else: elsewhere that would be the user's whole desktop.
    """
    if not sandboxed():
        return
    own = os.getsid(0)
    above = set()
    pid = os.getpid()
    while pid > 0:
        above.add(pid)
        pid = parent_of(pid)
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) not in above and os.getsid(int(name)) != own:
                os.kill(int(name), signal.SIGKILL)


def sandboxed() -> bool:
    """Whether the first process is of this environment's user: on a machine it is root's."""
    return Path("/proc/1").stat().st_uid == os.getuid() != 0


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
