"""The resources server for NeMo Gym, as its own application, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes

needs("nemo_gym.base_resources_server", "nemo-gym")

from fastapi.testclient import TestClient  # noqa: E402
from nemo_gym.server_utils import ServerClient  # noqa: E402

from aenv.adapters.trainers.nemo_gym import (  # noqa: E402
    EnvironmentResourcesServer,
    EnvironmentResourcesServerConfig,
)

ANSWER: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "Go."}]},
    "response": {
        "id": "resp_1",
        "created_at": 1.0,
        "model": "scripted",
        "object": "response",
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    },
}


def client(store: Path) -> TestClient:
    config = EnvironmentResourcesServerConfig(
        host="127.0.0.1", port=1, entrypoint="", name="treasure", environment=TREASURE, options={"store": str(store)}
    )
    server = EnvironmentResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
    return TestClient(server.setup_webserver())


def test_a_session_is_an_episode_with_a_route_for_each_tool(store: Path) -> None:
    http = client(store)
    begun = http.post("/seed_session", json={"task_id": "right"}).json()
    assert "right end" in begun["instruction"]
    assert "steps must be 1 to 7" in http.post("/move", json={"direction": "right", "steps": 9}).text
    assert '"place":6' in http.post("/move", json={"direction": "right", "steps": 3}).text
    verified = http.post("/verify", json=ANSWER)
    assert verified.status_code == 200, verified.text
    assert verified.json()["reward"] == 1.0
    assert http.post("/move", json={"direction": "left"}).status_code == 409
    assert outcomes(store) == [("right", "ok", 1.0)]


def test_two_sessions_have_instances_of_their_own(store: Path) -> None:
    one, other = client(store), client(store)
    one.post("/seed_session", json={"task_id": "right"})
    other.post("/seed_session", json={"verifier_metadata": {"task_id": "right"}})
    one.post("/move", json={"direction": "right", "steps": 3})
    other.post("/move", json={"direction": "left", "steps": 3})
    assert [http.post("/verify", json=ANSWER).json()["reward"] for http in (one, other)] == [1.0, 0.0]


def test_a_lost_instance_is_an_error_and_no_reward(store: Path) -> None:
    http = client(store)
    http.post("/seed_session", json={"task_id": "left"})
    with losing_instances():
        assert http.post("/move", json={"direction": "left"}).status_code == 503
    failed = http.post("/verify", json=ANSWER)
    assert failed.status_code == 503
    assert "reward" not in failed.json()
