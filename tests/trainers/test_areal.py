"""The workflow for AReaL: by itself, and in AReaL's own proxy workflow where that is installed."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

from aenv.adapters.trainers.areal import EnvironmentWorkflow
from aenv.adapters.trainers.episodes import EpisodeFailed
from aenv.errors import UsageError
from aenv.testing import model_server
from tests.trainers.treasure import TREASURE, losing_instances, outcomes, walks


def workflow(store: Path, **options: Any) -> EnvironmentWorkflow:
    return EnvironmentWorkflow(TREASURE, store=str(store), **options)


def test_an_episode_is_played_with_the_endpoint_and_the_key_of_the_session(store: Path) -> None:
    with model_server(walks("left")) as model:
        reward = asyncio.run(
            workflow(store, sampling={"temperature": 1.0}).run(
                {"task_id": "left", "answer": "unused"}, base_url=model.url, api_key="session-1", http_client=None
            )
        )
    assert reward == 1.0
    assert isinstance(reward, float)
    assert [request["temperature"] for request in model.requests] == [1.0, 1.0]
    assert outcomes(store) == [("left", "ok", 1.0)]


def test_the_endpoint_of_a_subprocess_is_in_its_variables(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pickle.loads(pickle.dumps(workflow(store)))
    with model_server(walks("left")) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        assert asyncio.run(made.run({"task_id": "right"})) == 0.0
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(UsageError, match="no model"):
        asyncio.run(made.run({"task_id": "right"}))


def test_an_episode_without_a_reward_raises_so_that_areal_rejects_it(store: Path) -> None:
    with model_server(walks("left") * 3) as model, losing_instances(), pytest.raises(EpisodeFailed):
        asyncio.run(workflow(store).run({"task_id": "left"}, base_url=model.url))


def test_areals_own_workflow_accepts_it_and_runs_it(store: Path) -> None:
    pytest.importorskip("areal.experimental.openai.proxy.workflow", reason="needs areal", exc_type=ImportError)
    from areal.experimental.openai.proxy.workflow import OpenAIProxyWorkflow

    with model_server(walks("left")) as model:
        made = OpenAIProxyWorkflow("inline", agent=workflow(store), proxy_addr=model.url)
        assert asyncio.run(OpenAIProxyWorkflow._run_agent(made, "session-1", {"task_id": "left"})) == 1.0
