"""Tools for verl's own tool loop, and for loops that create, execute and release tools: verl's `BaseTool`.

verl makes one object of each tool for all trajectories. Tools of the same environment share an episode for each
trajectory, so that they act on the same state.
"""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeSource, OpenEpisode, at_home, score_of, shared_source
from aenv.errors import InvalidUse
from aenv.sdk.blocking import LoopThread

base_tool = framework("verl.tools.base_tool", "verl")
schemas = framework("verl.tools.schemas", "verl")


class _Trajectory:
    """The episode of a trajectory, which begins with its first call."""

    def __init__(self, source: EpisodeSource, task: str | None) -> None:
        self._source, self._task = source, task
        self._opening: asyncio.Task[OpenEpisode] | None = None
        self.reward: float | None = None

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[str, float]:
        """Return the text of a result, and the environment's reward if the episode ends with it."""
        if self.reward is not None:
            return "The episode has ended.", 0.0
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._source.open(self._task))
        result = await (await asyncio.shield(self._opening)).call(tool, arguments)
        if isinstance(result.data, dict) and (result.data.get("done") or result.data.get("terminated")):
            return result.text, await self.grade()
        return result.text, 0.0

    async def grade(self) -> float:
        """End the episode, and return its reward.

        Raises:
            EpisodeFailed: it has none.
        """
        if self.reward is None:
            if self._opening is None:
                raise InvalidUse("no tool was called, so there is nothing to grade")
            self.reward = score_of(await (await asyncio.shield(self._opening)).finish())
        return self.reward

    async def end(self) -> None:
        """Release the instance; an episode that was not graded gets no reward."""
        if self._opening is not None and self.reward is None:
            self._opening.cancel() if not self._opening.done() else None
            if not self._opening.cancelled() and self._opening.done() and self._opening.exception() is None:
                await self._opening.result().cancel()


_of_agents: weakref.WeakKeyDictionary[Any, dict[int, _Trajectory]] = weakref.WeakKeyDictionary()
_of_instances: dict[tuple[int, str], _Trajectory] = {}


class EnvironmentTool(base_tool.BaseTool):  # type: ignore[misc, name-defined]
    """A tool of an environment as verl's `BaseTool`; `verl_tools_config` writes the configuration of all of them.

    ``tools_kwargs[tool]["create_kwargs"]["task_id"]`` of a row names the task. verl's tool loop creates and releases a
    tool for each call, so there an episode lasts as long as the trajectory. A result with a true ``done`` or
    ``terminated`` ends it, and that call has the environment's reward, in verl's ``tool_rewards``. In other loops
    `calc_reward` grades, and `release` ends.

    verl's tool loop makes a text of every exception. A reward function therefore has to leave out trajectories without
    a tool reward; `EnvironmentAgentLoop` does so by itself.
    """

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self._source = shared_source({"environment": config["environment"], **(config.get("options") or {})})
        self._tasks: dict[str, str | None] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, Any]:
        """Name a trajectory and its task; the instance starts with the first call."""
        instance_id = instance_id or uuid.uuid4().hex
        task = (kwargs.get("create_kwargs") or kwargs).get("task_id")
        self._tasks[instance_id] = None if task is None else str(task)
        return instance_id, schemas.ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[Any, float, Any]:
        """Call the tool."""
        trajectory = self._trajectory(instance_id, kwargs.get("agent_data"))
        text, reward = await at_home(trajectory.call(self.name, parameters))
        return schemas.ToolResponse(text=text), reward, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """End the episode, and return its reward.

        Raises:
            EpisodeFailed: it has none; it is not a reward of 0.
        """
        return await at_home(self._trajectory(instance_id, kwargs.get("agent_data")).grade())

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Release the instance, unless a trajectory of verl's tool loop goes on with it."""
        self._tasks.pop(instance_id, None)
        trajectory = _of_instances.pop((id(self._source), instance_id), None)
        if trajectory is not None:
            await at_home(trajectory.end())

    def _trajectory(self, instance_id: str, agent: Any) -> _Trajectory:
        source, task = self._source, self._tasks.get(instance_id)
        if agent is None:
            return _of_instances.setdefault((id(source), instance_id), _Trajectory(source, task))
        known = _of_agents.setdefault(agent, {})
        if id(source) not in known:
            known[id(source)] = made = _Trajectory(source, task)
            weakref.finalize(agent, _later, made.end).atexit = False
        return known[id(source)]


def verl_tools_config(environment: str, **options: Any) -> dict[str, Any]:
    """Return verl's configuration of an environment's tools, for the file that ``tool_config_path`` names.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        **options: Other arguments of `EpisodeSource`, which can be written as YAML.
    """
    definitions = LoopThread.run(_definitions(shared_source({"environment": environment, **options})))
    config = {"type": "native", "environment": environment, "options": options}
    name = f"{EnvironmentTool.__module__}.{EnvironmentTool.__qualname__}"
    return {"tools": [{"class_name": name, "config": config, "tool_schema": each} for each in definitions]}


async def _definitions(source: EpisodeSource) -> list[dict[str, Any]]:
    episode = await source.open((await source.tasks())[0])
    await episode.cancel()
    return episode.tools


def _later(work: Callable[[], Any]) -> None:
    """Do it on the event loop of episodes, without waiting: a finalizer may run in any thread."""
    asyncio.run_coroutine_threadsafe(work(), LoopThread._running())
