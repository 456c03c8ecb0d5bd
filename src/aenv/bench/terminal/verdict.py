"""Parse the verdict of a verifier from its output, and detect a verifier that did not run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\s+(\S+::\S.*?|\S+)(?: - .*)?$", re.MULTILINE)
_HEAD = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of grading."""

    reward: float | None
    """None if the verifier did not run to a verdict."""
    why: str = ""
    tests: dict[str, bool] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


def of_harbor(logs: Path, script: str) -> Verdict:
    """Read reward.txt or reward.json of /logs/verifier, and the report of the tests if the script writes one."""
    report = _json(logs / "ctrf.json")
    tests = _reported(report)
    if "--ctrf" in script and not tests:
        return Verdict(None, "the tests did not run: no report")
    rewards = _json(logs / "reward.json")
    text = _text(logs / "reward.txt")
    try:
        if rewards is not None:
            numbers = {str(name): float(value) for name, value in dict(rewards).items()}
            reward = numbers.get("reward", sum(numbers.values()) / len(numbers))
        elif text is not None:
            numbers, reward = {}, float(text)
        else:
            return Verdict(None, "it wrote no reward", tests)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        return Verdict(None, f"invalid reward: {error}", tests)
    if not math.isfinite(reward):
        return Verdict(None, "the reward is not a finite number", tests)
    if reward > 0 and tests and not any(tests.values()):
        return Verdict(0.0, "it wrote a reward, but no test has passed", tests)
    if reward >= 1 and tests and not all(tests.values()):
        return Verdict(0.0, "it wrote a reward, but a test has failed", tests)
    return Verdict(reward, "", tests, {"rewards": numbers} if numbers else {})


def of_terminal_bench_1(output: str, code: int) -> Verdict:
    """Read pytest's summary, as Terminal-Bench 1 does: all tests have to pass."""
    heads = list(_HEAD.finditer(output))
    if not heads:
        return Verdict(None, f"the tests did not run: no summary (exit code {code})")
    tests: dict[str, bool] = {}
    for outcome, name in _SUMMARY.findall(output[heads[-1].end() :]):
        if outcome != "SKIPPED":
            tests[name] = outcome in ("PASSED", "XFAIL") and tests.get(name, True)
    if not tests:
        return Verdict(None, "the tests did not run: empty summary")
    passed = sum(tests.values()) / len(tests)
    good = passed == 1 and code == 0
    return Verdict(1.0 if good else 0.0, "" if good or passed < 1 else f"exit code {code}", tests, {"passed": passed})


def _reported(report: Any) -> dict[str, bool]:
    try:
        rows = report["results"]["tests"]
        return {str(row["name"]): row["status"] in ("passed", "skipped") for row in rows}
    except (TypeError, KeyError):
        return {}


def _text(path: Path) -> str | None:
    """Read a small file; links, which may be the agent's, are not followed."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 22:
            return None
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path) or "null")
    except ValueError:
        return None
