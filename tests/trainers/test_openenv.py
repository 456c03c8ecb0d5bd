from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aenv import SyncEnvironment
from aenv.testing import running
from tests.trainers.treasure import TREASURE, losing_instances, needs, outcomes

needs("openenv.core", "openenv")

import uvicorn  # noqa: E402
from openenv.core import GenericEnvClient  # noqa: E402
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction  # noqa: E402

from aenv.adapters.trainers.episodes import EpisodeFailed, EpisodeSource  # noqa: E402
from aenv.adapters.trainers.openenv import ToolEnvironment, openenv_app  # noqa: E402


@contextmanager
def served(store: Path) -> Iterator[str]:
    """Serve the environment with OpenEnv's own server."""
    config = uvicorn.Config(openenv_app(TREASURE, store=str(store)), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def walk(direction: str, steps: int = 3) -> dict[str, object]:
    return {"type": "call_tool", "tool_name": "move", "arguments": {"direction": direction, "steps": steps}}


def test_openenvs_own_client_plays_episodes_over_its_server(store: Path) -> None:
    with served(store) as url, GenericEnvClient(base_url=url).sync() as client:
        begun = client.reset(task_id="right")
        assert "right end" in begun.observation["text"]
        assert begun.observation["tools"][0]["function"]["name"] == "move"
        wrong = client.step(walk("right", 9))
        assert "steps must be 1 to 7" in wrong.observation["text"]
        assert not wrong.done
        last = client.step(walk("right"))
        assert (last.reward, last.done) == (1.0, True)
        client.reset(task_id="left")
        assert client.state()["step_count"] == 0
        given_up = client.step({"type": "call_tool", "tool_name": "finish", "arguments": {}})
        assert (given_up.reward, given_up.done) == (0.0, True)
    assert outcomes(store) == [("left", "ok", 0.0), ("right", "ok", 1.0)]


def test_a_lost_instance_raises_and_is_no_reward(store: Path) -> None:
    env = ToolEnvironment(EpisodeSource(TREASURE, store=store))
    env.reset(task_id="left")
    assert env.step(ListToolsAction()).tools[0]["function"]["name"] == "move"
    with losing_instances(), pytest.raises(EpisodeFailed):
        env.step(CallToolAction(tool_name="move", arguments={"direction": "left"}))
    env.close()
    assert outcomes(store) == [("left", "infra", None)]


GUESS = """
from openenv.core.env_server import Action, Environment, Observation, State
from aenv.adapters.trainers.openenv import register_openenv

class Guess(Action):
    number: int

class Hint(Observation):
    text: str = ""

class GuessEnvironment(Environment):
    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._secret = seed or 7
        return Hint(text="1 to 10", done=False, reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        found = action.number == self._secret
        return Hint(text="correct" if found else "no", done=found, reward=float(found))

    @property
    def state(self):
        return self._state

register_openenv(GuessEnvironment, Guess)
"""


def test_an_openenv_environment_runs_as_tools_with_its_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guess.py").write_text(GUESS)
    with running(tmp_path / "guess.py", log=tmp_path / "log") as server:
        monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
        with SyncEnvironment("guess@1.0.0") as env:
            assert env.call_tool("reset", {"seed": 3}).data["text"] == "1 to 10"
            assert env.call_function("openenv_schema")["required"] == ["number"]
            assert env.call_tool("step", {"action": {"number": 5}}).data["reward"] == 0.0
            assert env.call_tool("step", {"action": {"guess": 5}}).is_error
            assert env.call_tool("step", {"action": {"number": 3}}).data["done"]
            assert env.call_reward() == 1.0
            assert env.call_function("openenv_state")["total_reward"] == 1.0


ECHO = """
from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Observation, State

class Parrot(MCPEnvironment):
    def __init__(self):
        tools = FastMCP("parrot")

        @tools.tool
        def repeat(words: str, times: int = 1) -> dict:
            \\"\\"\\"Repeat words.\\"\\"\\"
            if times > 3:
                raise ValueError("the parrot is tired")
            return {"said": " ".join([words] * times)}

        super().__init__(tools)
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(done=False)

    def step(self, action, timeout_s=None, **kwargs):
        observation = super().step(action, timeout_s=timeout_s, **kwargs)
        observation.reward = 0.5
        return observation

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False)

    @property
    def state(self):
        return self._state
"""
APP = """
from openenv.core.env_server import create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from parrot_env.server.parrot import Parrot

app = create_app(Parrot, CallToolAction, CallToolObservation, env_name="parrot_env")
"""
MODULE = """
import sys
sys.path.insert(0, "FOLDER")
from aenv.adapters.trainers.openenv import register_openenv_package
register_openenv_package("parrot_env")
"""


def test_a_package_with_mcp_tools_runs_as_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "parrot_env" / "server"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "parrot.py").write_text(ECHO.replace('\\"', '"'))
    (package / "app.py").write_text(APP)
    (tmp_path / "parrot.py").write_text(MODULE.replace("FOLDER", str(tmp_path / "packages")))
    with running(tmp_path / "parrot.py", log=tmp_path / "log") as server:
        monkeypatch.setenv("AENV_INSTANCE_URL", server.url)
        with SyncEnvironment("parrot@1.0.0") as env:
            named = {tool["name"].rpartition("/")[2]: tool for tool in env.list_tools()}
            assert named.keys() == {"reset", "repeat"}
            assert named["repeat"]["description"].startswith("Repeat words.")
            env.call_tool("reset", {})
            assert env.call_tool("repeat", {"words": "hello", "times": 2}).data == {"said": "hello hello"}
            tired = env.call_tool("repeat", {"words": "hello", "times": 4})
            assert tired.is_error
            assert env.call_reward() == 0.5
