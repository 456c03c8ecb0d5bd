"""The recipe that trains on TAU2-Bench with AReaL: run up to the trainer, with its stub engine and a scripted model."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.examples.tau2_rl.agent import Tau2Workflow
from tests.scripted_model import scripted_model
from tests.tau2_stand_in import ENV, servant
from tests.trainers.treasure import TREASURE, needs

needs("agents", "agents")

RECIPE = Path(TREASURE).parent / "tau2_areal.py"


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """A project with the functions of tau2-env."""
    folder = tmp_path / "tau2-stand-in"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "env.py").write_text(ENV)
    (folder / "config.json").write_text(json.dumps({"name": folder.name, "version": "1.0.0"}))
    return str(folder)


def play(stand_in: str, url: str) -> subprocess.CompletedProcess[str]:
    options = ["--stub", "--domain", "retail", "--task", "1", "--task", "2", "--group", "3", "--environment", stand_in]
    return subprocess.run(
        [sys.executable, str(RECIPE), *options],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "session-1"},
    )


@pytest.mark.long
def test_a_batch_of_groups_is_played_up_to_the_trainer(stand_in: str) -> None:
    with scripted_model(servant) as model:
        done = play(stand_in, model.url)
    assert done.returncode == 0, done.stdout + done.stderr
    full = "rewards [1.0, 1.0, 1.0], advantages [0.0, 0.0, 0.0]"
    assert done.stdout == f"task 1: {full}\ntask 2: {full}\n"
    assert model.keys == {"session-1"}


def test_an_episode_that_could_not_be_played_is_left_out_of_its_group(stand_in: str) -> None:
    with scripted_model(servant) as model:
        model.refuses = True
        done = play(stand_in, model.url)
    assert done.returncode == 1
    assert "task 1: rewards [], advantages []" in done.stdout
    assert done.stdout.count("no reward: AuthenticationError") == 6


def test_rollouts_at_the_same_time_have_endpoints_of_their_own(stand_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    workflow = Tau2Workflow(stand_in)
    assert inspect.iscoroutinefunction(workflow.run), "AReaL asks for it"

    async def both(first: str, second: str) -> list[float]:
        row = {"domain": "retail", "task_id": "1"}
        played = [workflow.run(row, base_url=url, api_key=key) for url, key in ((first, "a"), (second, "b"))]
        return await asyncio.gather(*played)

    with scripted_model(servant) as one, scripted_model(servant) as other:
        assert asyncio.run(both(one.url, other.url)) == [1.0, 1.0]
    assert (one.keys, other.keys) == ({"a"}, {"b"})
