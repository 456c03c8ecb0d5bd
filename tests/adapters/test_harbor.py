"""The official harbor command with our boxes. It needs Python 3.12 and ``pip install 'aenvironment[harbor]'``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("harbor", reason="harbor is not installed; it needs Python 3.12")

TASKS = Path(__file__).parents[1] / "bench" / "tasks" / "harbor"


@pytest.mark.usefixtures("sandboxes")
@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_harbor_runs_its_trials_in_a_box(tmp_path: Path, agent: str, reward: float) -> None:
    for name in ("greet", "serve"):
        shutil.copytree(TASKS / name, tmp_path / "tasks" / name)
    command = [
        str(Path(sys.executable).with_name("harbor")), "run", "-p", str(tmp_path / "tasks"), "-a", agent,
        "-e", "aenv.adapters.harbor:BoxEnvironment", "-o", str(tmp_path / "jobs"), "-n", "1",
    ]  # fmt: skip
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=110)
    results = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*/*/result.json")]
    assert len(results) == 2, done.stdout + done.stderr
    assert [result["verifier_result"]["rewards"]["reward"] for result in results] == [reward, reward], done.stdout
