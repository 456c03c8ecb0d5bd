"""The agent for Agent Lightning, started by its own runner, with its own server and gateway between agent and model."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv.testing import model_server
from tests.trainers.treasure import TREASURE, needs, outcomes, walks

needs("agentlightning.controller.local_reconciler", "agentlightning")

import uvicorn  # noqa: E402
from agentlightning.client import AgentLightningAsyncClient, AgentLightningSyncClient  # noqa: E402
from agentlightning.controller.local_reconciler import LocalReconciler  # noqa: E402
from agentlightning.server.app import create_app  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from aenv.adapters.trainers.agent_lightning import EnvironmentAgent  # noqa: E402
from aenv.errors import UsageError  # noqa: E402

AGENT = "aenv.adapters.trainers.agent_lightning:EnvironmentAgent"
SAMPLING = {"temperature": 1.0}
PROXY = {
    "model_name": "scripted",
    "include_log_probs": False,
    "include_routed_experts": False,
    "train": SAMPLING,
    "val": SAMPLING,
}


@contextmanager
def served() -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(create_app({"key": "secret", "default_proxy": PROXY}), port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def rolled_out(store: Path, task: str, turns: list[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run a rollout with Agent Lightning's local runner; return its record and its events."""
    variables = {
        "AENV_TRAIN_ENVIRONMENT": TREASURE,
        "AENV_TRAIN_TASK": "input.task_id",
        "AENV_TRAIN_OPTIONS": f'{{"store": "{store}"}}',
    }
    config = {"local": {"agent_class": AGENT, "env_map": variables}}
    with model_server(turns) as model, served() as url:
        client = AgentLightningSyncClient(key="secret", base_url=url)
        client.post_with_retry("/api/models", json=[{"model": "scripted", "endpoint": model.url}])
        wanted = [{"input": {"task_id": task}, "config": config}]
        made = client.post_with_retry("/api/rollouts", json=wanted).json()[0]

        async def reconcile() -> dict[str, Any]:
            settings = OmegaConf.create(
                {
                    "runner_type": "local",
                    "agl_server": {"url": url, "key": "secret"},
                    "local_runner": {"maximum_size": 1, "poll_interval": 0.1},
                }
            )
            async with AgentLightningAsyncClient(key="secret", base_url=url) as api:
                reconciler = LocalReconciler(api, settings)
                while True:
                    await reconciler._reconcile_once()
                    found = (await api.get(f"/api/rollouts/{made['rollout_id']}")).json()["rollout"]
                    if found["status"]["state"] in ("succeeded", "failed"):
                        return dict(found)
                    await asyncio.sleep(0.1)

        found = asyncio.run(reconcile())
        events = client.get(f"/api/rollouts/{made['rollout_id']}/events").json()
        client.close()
    return found, events


@pytest.mark.timeout(180)
def test_a_rollout_is_played_and_its_reward_reported(store: Path) -> None:
    found, events = rolled_out(store, "right", walks("right"))
    assert found["status"]["state"] == "succeeded"
    assert [event["event_type"] for event in events] == ["model_request", "model_request", "reward"]
    assert events[-1]["data"]["value"] == 1.0
    assert outcomes(store) == [("right", "ok", 1.0)]


@pytest.mark.timeout(180)
def test_an_episode_that_cannot_be_played_fails_and_reports_no_reward(store: Path) -> None:
    found, events = rolled_out(store, "middle", walks("right"))
    assert found["status"]["state"] == "failed"
    assert events == []


def test_the_agent_needs_the_runners_variables() -> None:
    assert "AGL_EVENT_URL" not in os.environ
    with pytest.raises(UsageError, match="AGL_OPENAI_BASE_URL"):
        asyncio.run(EnvironmentAgent().run())
