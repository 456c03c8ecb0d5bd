"""The entry point for trainers, with an environment that has the same functions and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.errors import AEnvError
from aenv.examples.tau2_rl.agent import run_agent_return_reward
from aenv.testing import running
from tests.scripted_model import ScriptedModel, scripted_model
from tests.tau2_stand_in import ENV, servant


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedModel]:
    file = tmp_path / "env.py"
    file.write_text(ENV)
    with scripted_model(servant) as model, running(file, log=tmp_path / "log") as env:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        monkeypatch.setenv("AENV_INSTANCE_URL", env.url)
        yield model


def test_an_episode_is_played_to_its_reward(model: ScriptedModel) -> None:
    assert asyncio.run(run_agent_return_reward({"domain": "retail", "task_id": "1"})) == 1.0
    first, *_, last = model.asked
    assert first["messages"][0]["content"] == "Serve the customer."
    assert first["temperature"] == 1.0
    assert any(message["role"] == "tool" for message in last["messages"]), "it remembers what it did"


def test_an_episode_that_could_not_be_played_raises(model: ScriptedModel) -> None:
    model.refuses = True
    with pytest.raises(Exception, match="401"):
        asyncio.run(run_agent_return_reward({"domain": "retail", "task_id": "1"}))


def test_an_environment_that_cannot_be_reached_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_INSTANCE_URL", "http://127.0.0.1:9")
    with pytest.raises(AEnvError):
        asyncio.run(run_agent_return_reward({"domain": "retail"}))
