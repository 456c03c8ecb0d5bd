"""Whose fault a failed step of a TAU2 episode is, with a stand-in for the benchmark's orchestrator."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from aenv.errors import UserFailed
from tests.scripted_model import scripted_model

SOURCE = Path(__file__).parents[2] / "envs" / "tau2-env" / "src"


class Role(enum.Enum):
    AGENT = "agent"
    USER = "user"
    ENV = "env"


class Orchestrator:
    """It is always the turn of one role, whose step a function plays."""

    done = False
    role = Role.USER
    play: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, **given: Any) -> None:
        self.to_role = self.role
        self.trajectory: list[Any] = []

    def initialize(self) -> None:
        return

    def step(self) -> None:
        type(self).play()


@pytest.fixture
def episode(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment's module, loaded with a stand-in for the benchmark."""

    def module(name: str, **names: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, made)

    class Agent:
        def __init__(self, **given: Any) -> None:
            return

    module("_models", told=str)
    module("_solutions", solution=None, spoiled=None)
    module("_users", ScriptedUser=object)
    module("tau2.agent.base_agent", HalfDuplexAgent=Agent)
    module("tau2.data_model.message", AssistantMessage=SimpleNamespace, ToolCall=SimpleNamespace, UserMessage=dict)
    module("tau2.data_model.tasks", Task=object)
    module("tau2.orchestrator.orchestrator", Orchestrator=Orchestrator, Role=Role)
    module("tau2.registry", registry=None)
    module("tau2.user.user_simulator", DummyUser=object, UserSimulator=object)
    module("tau2.utils.tools", to_functional_format=str)
    module("tau2.utils.utils", get_now=str)
    made = ModuleType("_episode")
    exec(compile((SOURCE / "_episode.py").read_text(), "_episode.py", "exec"), made.__dict__)
    task = SimpleNamespace(initial_state=None)
    loaded = SimpleNamespace(
        tools=[], policy="", domain="mock", task=task, max_steps=9, solo=False, user={"llm": "m", "llm_args": {}}
    )
    return lambda: made.Episode(loaded, None, None)


def test_a_users_model_that_fails_is_the_users_fault_and_leaves_no_reward(
    episode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_model(lambda messages: "never said") as model:
        model.refuses = True

        def ask() -> None:
            with closing(HTTPConnection(urlsplit(model.url).netloc)) as server:
                server.request("POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": []}))
                with server.getresponse() as response:
                    raise RuntimeError(f"the model answered with HTTP status {response.status}")

        monkeypatch.setattr(Orchestrator, "play", ask, raising=False)
        made = episode()
        with pytest.raises(UserFailed, match=r"could not go on: .*401"):
            made.open()
        for act in (made.rewards, lambda: made.speak("Hello?"), made.finish):
            with pytest.raises(UserFailed, match="could not go on"):
                act()


def test_a_failing_step_of_the_benchmark_itself_is_not_the_users_fault(
    episode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("no such order")

    monkeypatch.setattr(Orchestrator, "play", fail, raising=False)
    monkeypatch.setattr(Orchestrator, "role", Role.ENV)
    with pytest.raises(RuntimeError, match="could not go on") as failed:
        episode().open()
    assert not isinstance(failed.value, UserFailed)
