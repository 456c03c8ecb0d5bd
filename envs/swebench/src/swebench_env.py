"""SWE-bench as an environment: a repository with an issue, tools to work on it, and the benchmark's own verdict.

What is worked on was prepared before (`aenv bench swe`): a repository at its base commit, a Python with the packages
that its tests need, and what an agent may know of the task. The tests that decide are not there: they are given to, or
prepared for, another instance, in which `swebench_reward` applies a patch to an untouched repository.
"""

import json
from typing import Any

import _grading
import _repository as repository
from _evaluation import evaluate

from aenv import register_function, register_reward, register_tool

TIMEOUT = 1800.0
_used = False


def _working() -> None:
    """An agent is at work here, so this is no place to grade."""
    global _used
    repository.ready()
    _used = True


@register_tool
def shell(command: str, timeout: float = 120) -> dict[str, Any]:
    """Run a bash command in the repository's folder.

    Each call is a new bash: what it changes in files stays, `cd` and variables do not.

    Args:
        command: The command.
        timeout: Seconds after which it is ended.
    """
    _working()
    return repository.run(["bash", "-c", command], timeout)


@register_tool
def view(path: str, start: int = 1, end: int | None = None) -> str:
    """Read a file with line numbers, or list a folder.

    Args:
        path: Relative to the repository's folder.
        start: The first line.
        end: The last line; at most 400 lines are shown.
    """
    _working()
    return repository.view(path, start, end)


@register_tool
def search(pattern: str, path: str = ".") -> str:
    """Find lines that match a regular expression.

    Args:
        pattern: As `grep -E` takes it.
        path: A file or folder to look in.
    """
    _working()
    return repository.search(pattern, path)


@register_tool
def edit(path: str, old: str, new: str) -> str:
    """Replace a piece of text, which must occur just once, in a file. With an empty `old`, make a new file.

    Args:
        path: Relative to the repository's folder.
        old: The text that is there, whole lines best.
        new: The text to be there.
    """
    _working()
    return repository.edit(path, old, new)


@register_tool
def apply_patch(patch: str) -> str:
    """Apply a unified diff to the repository.

    Args:
        patch: As `git diff` writes it.
    """
    _working()
    how = repository.apply(patch)
    if how is None:
        raise ValueError("the patch does not apply; nothing was changed")
    return f"applied with {how}"


@register_tool
def run_tests(tests: str = "", timeout: float = 600) -> dict[str, Any]:
    """Run tests that are in the repository, with pytest.

    Args:
        tests: Files and options for pytest.
        timeout: Seconds after which they are ended.
    """
    _working()
    return repository.run(["bash", "-c", f"python -m pytest -q {tests}"], timeout)


@register_function
def get_task() -> dict[str, Any]:
    """Tell what the task is: nothing in it that an agent must not know."""
    task = repository.ready()
    return {
        **{name: task.get(name) for name in ("instance_id", "repo", "base_commit", "version", "problem_statement")},
        "repository": str(repository.TESTBED),
        "instruction": repository.instruction(task),
    }


@register_function
def get_patch() -> str:
    """All changes to the repository since the base commit, as a patch."""
    return repository.diff()


@register_reward
def swebench_reward(
    instance: str | dict[str, Any], model_patch: str | None, timeout: float = TIMEOUT
) -> dict[str, Any]:
    """Grade a patch with the benchmark's own parsers and rules: 1.0 in `score`, 0 in `returncode`, when it resolves.

    Args:
        instance: The id of the prepared instance, or a whole row of the dataset.
        model_patch: As `git diff` writes it.
        timeout: Seconds for the tests.
    """
    if _used:
        raise RuntimeError("an agent has worked in this instance: grade its patch in a new one")
    repository.ready()
    row = _grading.row(instance)
    grader = _grading.Grader(row)
    log, facts = evaluate(row, grader, model_patch or "", timeout)
    report = grader.report(model_patch, log)
    about = report[row["instance_id"]]
    if facts["trusted"] is False:
        about["resolved"] = False
    elif about["infra_failure"] or not facts["started"]:
        raise RuntimeError(f"the tests did not run: {about.get('infra_failure_reason') or log[-2000:]}")
    log = f"{facts.pop('before', '')}\n{log}"
    about.update(facts)
    return {
        "score": 1.0 if about["resolved"] else 0.0,
        "returncode": 0 if about["resolved"] else 1,
        "stdout": json.dumps(report),
        "stderr": "",
        "log": log,
    }
