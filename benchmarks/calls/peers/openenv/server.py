"""An OpenEnv environment that echoes, laid out as its own template does it."""

import sys

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    content: str


class Heard(Observation):
    result: str = ""


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self._state = State(episode_id="bench", step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> Heard:
        return Heard(done=False, reward=0.0)

    def step(self, action: Say, timeout_s: float | None = None, **_: object) -> Heard:
        self._state.step_count += 1
        return Heard(result=action.content, done=False, reward=1.0)

    @property
    def state(self) -> State:
        return self._state


app = create_app(Echo, Say, Heard, env_name="bench", max_concurrent_envs=4096)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
