"""Apply a patch to the untouched repository, put the real tests in place, run them, and see whether the run is honest.

A patch may hold more than a solution. Three things keep it from the scales:

- What decides how tests are run is as it was before the patch (`_pristine`), git's own files too.
- The verdict is made here. The output of the tests is a file of its own; their exit status comes from the shell that
  this process has started, and nothing that they print can take the place of either. All that the patch left running
  is ended before they start and after they end.
- Code of the patch runs in the process of the tests, where it can change what is reported. So there are tests among
  the real ones that must fail (`_canaries`); where one of them passes, nothing of the run is believed.
"""

import re
import shlex
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import _canaries as canaries
import _pristine as pristine
import _repository as repository
from _canaries import Canary
from _grading import Grader, as_list

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
APPLY_FAILED, TIMED_OUT, EXIT_CODE = ">>>>> Patch Apply Failed", ">>>>> Tests Timed Out", ">>>>> Test Exit Code"
_ACTIVATE = re.compile(r"^\s*source /opt/miniconda3/bin/activate\s*$", re.MULTILINE)
_TESTBED = re.compile(r"(?<![\w./-])/testbed\b")
_FILE = re.compile(r"^diff --git a/\S+ b/(\S+\.py)$", re.MULTILINE)
_TEST = re.compile(r"\w+")
_SUMMARY = re.compile(r"^(PASSED|FAILED) (\S+)", re.MULTILINE)
_PYTEST = re.compile(r"\bpy\.?test\b")
FAILURES = 1
"""What pytest ends with when tests have failed."""
NOT_RUN = (126, 127)
WHOLE = 50_000_000


def evaluate(row: dict[str, Any], grader: Grader, patch: str, timeout: float) -> tuple[str, dict[str, Any]]:
    """The log of the tests, and what else is known of the run."""
    facts: dict[str, Any] = {"started": True, "trusted": None}
    tree, git = pristine.look(), pristine.git_state()
    if patch.strip() and repository.apply(patch) is None:
        return f"{APPLY_FAILED}\n", facts
    if pristine.git_state() != git:
        return f"{APPLY_FAILED}\nthe patch changes files of git\n", {**facts, "trusted": False}
    command = command_of(row)
    facts |= pristine.put_back(tree, row, command)
    planted: list[Canary] = []
    with tempfile.TemporaryDirectory(prefix="tests-") as place:
        output = Path(place, "output")
        output.touch()
        run = repository.run(
            ["bash", "-c", script(row, output)],
            timeout,
            limit=WHOLE,
            when_stopped=lambda: planted.extend(_plant(row)),
        )
        said = output.read_text(errors="replace") if output.is_file() and not output.is_symlink() else ""
    timed_out = "note" in run
    code = run["returncode"]
    said = canaries.unveiled(_harmless(said), planted)
    graded = f"+ : '{START}'\n{said}\n+ : '{END}'\n{EXIT_CODE}: {code}\n"
    if timed_out:
        graded += f"{TIMED_OUT}\n"
    facts["started"] = run["stopped"] and (timed_out or code not in NOT_RUN)
    facts["trusted"] = _trusted(grader.statuses(said), said, planted, code, command)
    if facts["trusted"] and facts["declared"]:
        facts["trusted"] = None
    facts["before"] = _harmless(str(run["output"]))
    return graded, facts


def script(row: dict[str, Any], output: Path) -> str:
    """The benchmark's script up to its tests, with the paths of this instance. It stops itself before these; their
    output goes to a file, and their exit status is its own.
    """
    lines = _lines(row)
    begin, finish = _bounds(lines)
    test = ["kill -STOP $$", "{", *lines[begin + 1 : finish], f"}} > {shlex.quote(str(output))} 2>&1", "exit $?"]
    return "\n".join([*lines[:begin], *test]) + "\n"


def command_of(row: dict[str, Any]) -> str:
    """What runs the tests."""
    lines = _lines(row)
    begin, finish = _bounds(lines)
    return "\n".join(lines[begin + 1 : finish])


def _lines(row: dict[str, Any]) -> list[str]:
    text = str(row["eval_script"])
    if repository.TESTBED != repository.IN_IMAGE:
        text = _TESTBED.sub(str(repository.TESTBED), _ACTIVATE.sub(":", text))
        text = f"conda() {{ :; }}\n{text}"
    return text.splitlines()


def _bounds(lines: list[str]) -> tuple[int, int]:
    """The lines before and after the tests."""
    begin = next((number for number, line in enumerate(lines) if START in line), None)
    finish = next((number for number, line in enumerate(lines) if END in line), len(lines))
    if begin is None or finish <= begin + 1:
        raise ValueError("the row's eval_script does not say where its tests begin")
    return begin, finish


def _plant(row: dict[str, Any]) -> list[Canary]:
    """Put tests that must fail among the real ones, which are in place now."""
    solved, kept = (_names(as_list(row.get(kind))) for kind in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    known = {name for name, tests in (solved + kept).items() if tests == 1}
    found: list[Canary] = []
    for name in _FILE.findall(str(row["test_patch"])):
        path = repository.TESTBED / name
        if path.is_symlink() or not path.is_file():
            continue
        text = path.read_bytes().decode(errors="surrogateescape")
        if "\r" in text:
            continue
        text, planted = canaries.plant(text, known, set(solved))
        path.write_bytes(text.encode(errors="surrogateescape"))
        found += planted
        known -= {each.original for each in planted}
    return found


def _names(tests: list[str]) -> Counter[str]:
    """Every word of the names of tests, and in how many of them it is; parameters are not counted."""
    bare = {test.partition("[")[0] for test in tests}
    return Counter(word for test in bare for word in set(_TEST.findall(test)))


def _trusted(statuses: dict[str, str], said: str, planted: list[Canary], code: int, command: str) -> bool | None:
    """Whether what was reported can have happened; None where nothing tells."""
    held = canaries.held(statuses, planted)
    single = len([line for line in command.splitlines() if line.strip()]) == 1
    if held and single and (code == 0 or (_PYTEST.search(command) and code != FAILURES)):
        return False  # tests have failed, and the runner did not say so
    failed: set[str] = set()
    for outcome, test in _SUMMARY.findall(said) if _PYTEST.search(command) else ():
        if outcome == "FAILED":
            failed.add(test)
        elif test in failed:
            return False  # pytest names those that failed last
    return held


def _harmless(text: str) -> str:
    """Without anything that could be taken for a mark of the benchmark's."""
    return text.replace(">>>>>", ">>>>")
