"""Apply a patch to the untouched repository, put the real tests in place, run them, and see whether the run is honest.

A patch may hold more than a solution: a conftest.py, a plug-in, a sitecustomize.py that prints "PASSED" and leaves. The
benchmark compares the log with the exit status, which catches a clumsy one. So the very same command is run once more
with other tests under the same names, one that must pass and one that must fail. If it did that before the patch and
does not after it, the patch has its hands on the scales.
"""

import re
import secrets
import shlex
from pathlib import Path
from typing import Any

import _repository as repository
from _grading import Grader

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
APPLY_FAILED, TIMED_OUT, EXIT_CODE = ">>>>> Patch Apply Failed", ">>>>> Tests Timed Out", ">>>>> Test Exit Code"
_ACTIVATE = re.compile(r"^\s*source /opt/miniconda3/bin/activate\s*$", re.MULTILINE)
_TESTBED = re.compile(r"(?<![\w./-])/testbed\b")
_FILE = re.compile(r"^diff --git a/\S+ b/(\S+)$", re.MULTILINE)
_NO_COMMAND = re.compile(rf"^{EXIT_CODE}: 12[67]$", re.MULTILINE)
_HOOKS = ("sitecustomize.py", "usercustomize.py")
WHOLE = 50_000_000


def evaluate(row: dict[str, Any], grader: Grader, patch: str, timeout: float) -> tuple[str, dict[str, Any]]:
    """The log of the tests, and what else is known of the run."""
    facts: dict[str, Any] = {"started": False, "trusted": None}
    probe = _Probe(row, grader)
    honest_before = probe.is_honest(timeout)
    if patch.strip() and repository.apply(patch) is None:
        return f"{APPLY_FAILED}\n", {**facts, "started": True}
    facts["removed"] = _remove_hooks()
    if honest_before:
        facts["trusted"] = bool(probe.is_honest(timeout))
    repository.end_all_others()  # what the patch has left running would be there while its tests run
    run = repository.run(["bash", "-c", script(row)], timeout, limit=WHOLE)
    log = str(run["output"])
    if run["returncode"] == 124 and "note" in run:
        log += f"\n{TIMED_OUT}\n"
    facts["started"] = START in log and not _NO_COMMAND.search(log)
    return log, facts


def script(row: dict[str, Any]) -> str:
    """The benchmark's script, with the paths of this instance, and with the exit status of the tests in its log."""
    text = str(row["eval_script"])
    if repository.TESTBED != repository.IN_IMAGE:
        text = _TESTBED.sub(str(repository.TESTBED), _ACTIVATE.sub(":", text))
        text = f"conda() {{ :; }}\n{text}"
    lines: list[str] = []
    for line in text.splitlines():
        if END in line:
            lines += ["TEST_EXIT_CODE=$?", line, f'echo "{EXIT_CODE}: $TEST_EXIT_CODE"']
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _remove_hooks() -> list[str]:
    """Modules that any Python imports as it starts are no part of a solution, unless the repository had them."""
    known = set(repository.run(["git", "ls-tree", "-r", "--name-only", "HEAD"], 60, limit=WHOLE)["output"].splitlines())
    removed = []
    for path in sorted(repository.TESTBED.rglob("*")):
        name = path.relative_to(repository.TESTBED).as_posix()
        if (path.name in _HOOKS or path.suffix == ".pth") and name not in known and path.is_file():
            path.unlink()
            removed.append(name)
    return removed


class _Probe:
    """Other tests under the names of the real ones."""

    def __init__(self, row: dict[str, Any], grader: Grader) -> None:
        self._grader = grader
        files = [name for name in _FILE.findall(row["test_patch"]) if Path(name).name.startswith(("test_", "testing_"))]
        self._files = [name for name in files if name.endswith(".py")]
        lines = script(row).splitlines()
        begin = next((number for number, line in enumerate(lines) if START in line), None)
        finish = next((number for number, line in enumerate(lines) if END in line), None)
        self._command = "\n".join(lines[begin + 1 : finish - 1]) if begin is not None and finish else ""

    def is_honest(self, timeout: float) -> bool | None:
        """Whether a test that passes and one that fails are told apart; None where this cannot be told."""
        named = [name for name in self._files if name in self._command]
        if not named or not re.search(r"\bpy\.?test\b", self._command):
            return None
        passes, fails = (f"test_{secrets.token_hex(8)}" for _ in range(2))
        text = f"def {passes}():\n    assert True\n\n\ndef {fails}():\n    assert False\n"
        kept: dict[Path, bytes | None] = {}
        try:
            for name in named:
                path = repository.TESTBED / name
                kept[path] = path.read_bytes() if path.is_file() else None
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            activate = f"cd {shlex.quote(str(repository.TESTBED))}\n"
            if repository.TESTBED == repository.IN_IMAGE:
                activate = f"source /opt/miniconda3/bin/activate\nconda activate testbed\n{activate}"
            run = repository.run(["bash", "-c", activate + self._command], timeout, limit=WHOLE)
        finally:
            for path, data in kept.items():
                path.unlink(missing_ok=True)
                if data is not None:
                    path.write_bytes(data)
        seen = self._grader.statuses(str(run["output"]))
        of = {test: {status for name, status in seen.items() if name.endswith(test)} for test in (passes, fails)}
        return run["returncode"] != 0 and of[passes] == {"PASSED"} and of[fails] == {"FAILED"}
