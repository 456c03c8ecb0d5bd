"""An episode as a loop of reset and step, for trainers that know environments as Gymnasium does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aenv.adapters.trainers.episodes import RETRIES, EpisodeFailed, EpisodeSource, OpenEpisode, score_of
from aenv.adapters.trainers.text_calls import Call, calls_in
from aenv.authoring.results import ToolResult
from aenv.errors import AEnvError
from aenv.rollout.result import EpisodeResult


class StepMapping:
    """How a trainer's actions become tool calls, and results become observations.

    As it is, both are text: an action is what a model wrote, with tool calls as ``<tool_call>{"name": ...,
    "arguments": {...}}</tool_call>`` or as bare JSON; a text without one is an answer and ends the episode. Trainers
    that need numbers get a subclass with spaces of their own.

    Example:
        ```python
        class Corridor(StepMapping):
            action_space = spaces.Discrete(2)
            observation_space = spaces.Box(0, 1, (5,))

            def call(self, action):
                return "move", {"direction": ("left", "right")[int(action)]}

            def first(self, episode):
                return np.eye(5, dtype=np.float32)[0]

            def observation(self, result, episode):
                return np.eye(5, dtype=np.float32)[result.data["place"]]
        ```
    """

    action_space: Any = None
    """Space of one action; None: text."""
    observation_space: Any = None
    """Space of one observation; None: text."""

    def call(self, action: Any) -> Call | None:
        """Return the tool and the arguments that an action stands for; None if it ends the episode."""
        found = calls_in(str(action))
        return found[0] if found else None

    def first(self, episode: OpenEpisode) -> Any:
        """Return the first observation of an episode; here the instruction."""
        return episode.instruction

    def observation(self, result: ToolResult, episode: OpenEpisode) -> Any:
        """Return the observation for a tool's result; here its text."""
        return result.text

    def is_over(self, result: ToolResult) -> bool:
        """Return whether the episode has ended: the result is an object with a true ``done`` or ``terminated``."""
        data = result.data
        return isinstance(data, dict) and bool(data.get("done") or data.get("terminated"))

    def reward(self, result: ToolResult) -> float:
        """Return the reward of a step. The environment's own reward is added when the episode ends."""
        return 0.0

    @property
    def gives_rewards(self) -> bool:
        """True if steps have rewards, so that an environment without a reward of its own can be trained on."""
        return type(self).reward is not StepMapping.reward


@dataclass(frozen=True, slots=True)
class Step:
    """The result of a step."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """True if the episode has ended."""
        return self.terminated or self.truncated


class StepLoop:
    """Episodes one after another, each in an instance of its own. Runs in one event loop.

    Args:
        source: Tasks and their episodes.
        mapping: How actions and observations look.
        max_steps: Maximum number of steps; the state that is then reached is graded.
    """

    def __init__(self, source: EpisodeSource, mapping: StepMapping, max_steps: int | None = None) -> None:
        self._source = source
        self._mapping = mapping
        self._max_steps = max_steps
        self._episode: OpenEpisode | None = None
        self._last: Any = None
        self._steps = 0
        self.result: EpisodeResult | None = None
        """How the last episode ended."""

    async def reset(self, task: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that runs is dropped without a reward. Returns the observation and information.

        Raises:
            EpisodeFailed: no instance could be started, also after retries.
        """
        await self.close()
        for attempt in range(RETRIES + 1):
            try:
                self._episode = await self._source.open(task)
                break
            except EpisodeFailed as error:
                if error.fault != "infra" or attempt == RETRIES:
                    raise
        assert self._episode is not None
        self._steps = 0
        self._last = self._mapping.first(self._episode)
        return self._last, {"task": self._episode.task.id}

    async def step(self, action: Any) -> Step:
        """Do what an action says.

        Raises:
            EpisodeFailed: the episode has no reward, for a reason that is not the agent's. Reset, and go on.
        """
        if self._episode is None:
            await self.reset()
        episode = self._episode
        assert episode is not None
        wanted = self._mapping.call(action)
        if wanted is None:
            return await self._end(episode, terminated=True)
        try:
            result = await episode.call(*wanted)
        except EpisodeFailed:
            self._episode = None
            raise
        except AEnvError as error:  # a budget is used up, or the agent has ended its own instance
            return await self._end(episode, terminated=error.fault != "timeout")
        self._steps += 1
        self._last = self._mapping.observation(result, episode)
        reward = self._mapping.reward(result)
        if self._mapping.is_over(result):
            return await self._end(episode, reward, terminated=True)
        if self._max_steps is not None and self._steps >= self._max_steps:
            return await self._end(episode, reward, terminated=False)
        return Step(self._last, reward, False, False, {"is_error": result.is_error})

    async def _end(self, episode: OpenEpisode, reward: float = 0.0, *, terminated: bool) -> Step:
        self._episode = None
        result = self.result = await episode.finish()
        own = self._own_reward(result)
        info = {"outcome": result.outcome, "score": result.score, "steps": self._steps}
        return Step(self._last, reward + own, terminated, not terminated, info)

    def _own_reward(self, result: EpisodeResult) -> float:
        if self._mapping.gives_rewards and result.outcome == "ok" and result.reward is None:
            return 0.0  # the environment declares no reward
        return score_of(result)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of the episode, in the format of OpenAI's Chat Completions."""
        return self._episode.tools if self._episode is not None else []

    async def close(self) -> None:
        """Drop the episode that runs, if there is one."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.cancel()


async def run_all(work: list[Any]) -> list[Any]:
    """Run all to the end, then raise the first error: no instance is left in the middle of a step."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return done
