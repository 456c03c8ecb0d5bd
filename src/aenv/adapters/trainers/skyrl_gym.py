"""Environments as a text environment of SkyRL-gym, registered as ``aenv``.

SkyRL gives an environment the model's text and wants messages back. Tools are described in a system prompt, since SkyRL
does not hand tools to the chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeFailed, OpenEpisode, score_of, shared_source
from aenv.adapters.trainers.text_calls import calls_in, response, tool_prompt
from aenv.errors import AEnvError
from aenv.sdk.blocking import LoopThread

skyrl_gym = framework("skyrl_gym", "skyrl-gym")
base = framework("skyrl_gym.envs.base_text_env", "skyrl-gym")
NAME = "aenv"


class ToolTextEnv(base.BaseTextEnv):  # type: ignore[misc, name-defined]
    """An episode of an environment, for SkyRL's generator.

    A fault of the infrastructure raises `EpisodeFailed`: the episode has no reward.

    Args:
        env_config: ``environment``, and other arguments of `EpisodeSource`; ``max_turns``.
        extras: The row of the dataset. ``task_id``, here or in its ``extra_info``, names the task; without it, the row
            describes one, or one is chosen.
    """

    def __init__(self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        options = {**(env_config or {})}
        self.max_turns = int((extras or {}).get("max_turns") or options.pop("max_turns", None) or 32)
        options.pop("max_turns", None)
        self._source = shared_source(options)
        self._row = {**(extras or {}), **((extras or {}).get("extra_info") or {})}
        self._episode: OpenEpisode | None = None
        self._metrics: dict[str, Any] = {}

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Start the instance, and return the first messages: the tools, then the instruction or ``prompt``."""
        task = self._row.get("task_id", self._row.get("id"))
        self._episode = LoopThread.run(self._source.open(task))
        said = [message for message in prompt or [] if message.get("content")]
        asked = said or [{"role": "user", "content": self._episode.instruction}]
        system = {"role": "system", "content": tool_prompt(self._episode.tools)}
        return [system, *asked], {"task": self._episode.task.id}

    def step(self, action: str) -> Any:
        """Run the tool calls in the model's text; a text without one ends the episode."""
        episode = self._episode
        if episode is None:
            raise skyrl_gym.error.Error("init() has not been called, or the episode has ended")
        self.turns += 1
        observations, wanted = [], calls_in(action)
        for tool, arguments in wanted:
            try:
                observations.append(response(LoopThread.run(episode.call(tool, arguments)).text))
            except EpisodeFailed:
                self._episode = None
                raise
            except AEnvError:  # a budget is used up, or the agent has ended its own instance
                return self._end(episode, observations)
        if not wanted or self.turns >= self.max_turns:
            return self._end(episode, observations)
        return base.BaseTextEnvStepOutput(observations=observations, reward=0.0, done=False, metadata={})

    def _end(self, episode: OpenEpisode, observations: list[dict[str, str]]) -> Any:
        self._episode = None
        result = LoopThread.run(episode.finish())
        self._metrics = {"steps": result.steps, "seconds": result.seconds}
        metadata = {"outcome": result.outcome, "episode": result.episode}
        return base.BaseTextEnvStepOutput(
            observations=observations, reward=score_of(result), done=True, metadata=metadata
        )

    def get_metrics(self) -> dict[str, Any]:
        """Return numbers about the episode."""
        return self._metrics

    def close(self) -> None:
        """Release the instance, if the episode has not ended."""
        episode, self._episode = self._episode, None
        if episode is not None:
            LoopThread.run(episode.cancel())


def register() -> None:
    """Register the environment as ``aenv``; needed once in each process that makes it."""
    if NAME not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id=NAME, entry_point=f"{__name__}:ToolTextEnv")
