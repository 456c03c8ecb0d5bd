"""The environment `terminal` with a task whose tests run in their own pytest."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.hub import builtin
from tests.attacks.system import PACKAGES
from tests.envs.test_terminal import Typist

VARIABLES = {"T_BENCH_TASKS_DIR": "/app/tasks"}
HASTY = "hasty"
"""The same task with a short time limit for its tests."""
RUN_TESTS = """#!/bin/bash
PYTHONPATH=$TEST_DIR/packages python3 -m pytest -rA $TEST_DIR/test_answer.py
"""
TEST = """
import pathlib

def test_answer():
    assert pathlib.Path("/tmp/answer.txt").read_text() == "42\\n"
"""


def make_project(made: Path, **deploy: str) -> Path:
    """Create the project in a new folder."""
    shutil.copytree(builtin.folder() / "terminal", made, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    task = made / "tasks" / "answer"
    (task / "tests" / "packages").mkdir(parents=True)
    (task / "run-tests.sh").write_text(RUN_TESTS)
    (task / "tests" / "test_answer.py").write_text(TEST)
    for pattern in PACKAGES:
        for source in Path(pytest.__file__).parents[1].glob(pattern):
            target = task / "tests" / "packages" / source.name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    shutil.copytree(task, made / "tasks" / HASTY)
    for folder, seconds in ((task, 900.0), (made / "tasks" / HASTY, 3.0)):
        (folder / "task.yaml").write_text(f"max_test_timeout_sec: {seconds}\n")
    config = json.loads((made / "config.json").read_text())
    config["deployConfig"] |= deploy
    (made / "config.json").write_text(json.dumps(config))
    return made


def earned(project: Path, script: str, task: str = "answer") -> dict[str, Any]:
    """Return the reward of an agent that runs a script."""

    async def main() -> dict[str, Any]:
        async with Environment(str(project), environment_variables=VARIABLES) as env:
            await Typist(env).does(script)
            found: dict[str, Any] = await env.call_reward({"task_name": task}, timeout=1000)
            return found

    return asyncio.run(main())
