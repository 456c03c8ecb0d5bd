"""OpenEnv in both directions: an environment served as an OpenEnv server, and an OpenEnv environment as tools here."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeFailed, EpisodeSource, OpenEpisode, at_home, score_of, shared_source
from aenv.adapters.trainers.tool_signatures import sign
from aenv.authoring.declarations import register_function, register_reward, register_tool
from aenv.errors import AEnvError, UsageError
from aenv.sdk.blocking import LoopThread

env_server = framework("openenv.core.env_server", "openenv")
mcp_environment = framework("openenv.core.env_server.mcp_environment", "openenv")
types = framework("openenv.core.env_server.types", "openenv")
mcp_types = framework("openenv.core.env_server.mcp_types", "openenv")


class ToolObservation(types.Observation):  # type: ignore[misc, name-defined]
    """Observation after a reset or a tool call."""

    text: str = ""
    """The instruction, or the tool's result."""
    is_error: bool = False
    tools: list[dict[str, Any]] | None = None
    """The tools, after a reset and for the action ``list_tools``."""


class ToolEnvironment(env_server.Environment):  # type: ignore[misc, name-defined]
    """Episodes of an environment, as OpenEnv's server wants them. Actions are OpenEnv's `CallToolAction`.

    ``reset(task_id=...)`` starts an instance. The tool ``finish`` ends the episode, as does a result with a true
    ``done`` or ``terminated``; the observation then has the environment's reward. A fault of the infrastructure raises.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, source: EpisodeSource) -> None:
        super().__init__()
        self._source = source
        self._episode: OpenEpisode | None = None
        self._state = types.State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Any:
        """Begin an episode; see `reset_async`."""
        return LoopThread.run(self._reset(seed, row))

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Any:
        """Begin an episode: of the task that ``task_id`` names, the one that the seed chooses, or any."""
        return await at_home(self._reset(seed, row))

    def step(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        """Call a tool; see `step_async`."""
        return LoopThread.run(self._step(action))

    async def step_async(self, action: Any, timeout_s: float | None = None, **more: Any) -> Any:
        """Call a tool, list the tools, or end the episode."""
        return await at_home(self._step(action))

    @property
    def state(self) -> Any:
        """Identifier and number of steps of the episode."""
        return self._state

    async def _reset(self, seed: int | None, row: dict[str, Any]) -> Any:
        await self._drop()
        named = row.get("task_id")
        self._episode = await self._source.open(str(named) if named is not None else seed)
        self._state = types.State(episode_id=self._episode.episode.id, step_count=0)
        return ToolObservation(text=self._episode.instruction, tools=self._episode.tools, done=False)

    async def _step(self, action: Any) -> Any:
        episode = self._episode
        if episode is None:
            raise RuntimeError("there is no episode; reset first")
        if isinstance(action, mcp_types.ListToolsAction):
            return ToolObservation(tools=episode.tools, done=False)
        if action.tool_name == "finish":
            return await self._end(episode, "", False)
        self._state.step_count += 1
        try:
            result = await episode.call(action.tool_name, action.arguments)
        except EpisodeFailed:
            self._episode = None
            raise
        except AEnvError as error:  # a budget is used up, or the agent has ended its own instance
            return await self._end(episode, error.message, True)
        data = result.data
        if isinstance(data, dict) and (data.get("done") or data.get("terminated")):
            return await self._end(episode, result.text, result.is_error)
        return ToolObservation(text=result.text, is_error=result.is_error, done=False)

    async def _end(self, episode: OpenEpisode, text: str, is_error: bool) -> Any:
        self._episode = None
        reward = score_of(await episode.finish())
        return ToolObservation(text=text, is_error=is_error, done=True, reward=reward)

    async def _drop(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            await episode.cancel()

    def close(self) -> None:
        """Release the instance."""
        LoopThread.run(self._drop())


def openenv_app(environment: str = "", *, max_concurrent_envs: int = 64, **options: Any) -> Any:
    """Return the FastAPI application of an OpenEnv server whose sessions are episodes of an environment.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        max_concurrent_envs: Maximum number of sessions at the same time.
        **options: Other arguments of `EpisodeSource`.

    Example:
        ```python
        # server.py, for: uvicorn server:app
        app = openenv_app("./treasure")
        ```
    """
    source = shared_source({"environment": environment, **options})
    return env_server.create_app(
        lambda: ToolEnvironment(source),
        mcp_types.CallToolAction,
        ToolObservation,
        env_name=environment.rstrip("/").rpartition("/")[2] or "aenv",
        max_concurrent_envs=max_concurrent_envs,
    )


def register_openenv_package(package: str) -> Any:
    """Make tools of an installed OpenEnv package, such as ``echo_env``: see `register_openenv`.

    The environment and its action are those that its module ``server.app`` serves.

    Raises:
        UsageError: the package serves no environment that can be found there.

    Example:
        ```python
        # src/echo.py
        register_openenv_package("echo_env")
        ```
    """
    served = vars(import_module(f"{package}.server.app")).values()
    classes = [each for each in served if isinstance(each, type)]
    environments = [each for each in classes if issubclass(each, env_server.Environment) and not isabstract(each)]
    actions = [each for each in classes if issubclass(each, types.Action) and each is not types.Action]
    if len(environments) != 1:
        raise UsageError(
            f"{package}.server.app names {len(environments)} environments",
            {"hint": "Call register_openenv(environment, action) with its classes."},
        )
    if issubclass(environments[0], mcp_environment.MCPEnvironment):
        return register_openenv(environments[0])
    if len(actions) != 1:
        raise UsageError(
            f"{package}.server.app names {len(actions)} actions",
            {"hint": "Call register_openenv(environment, action) with its classes."},
        )
    return register_openenv(environments[0], actions[0])


def _register_mcp_tools(made: Any, seen: dict[str, Any]) -> None:
    """Make a tool of each MCP tool of an environment."""
    for tool in made.step(mcp_types.ListToolsAction()).tools:
        register_tool(_mcp_tool(made, tool, seen))


def _mcp_tool(made: Any, tool: Any, seen: dict[str, Any]) -> Any:
    def call(**arguments: Any) -> Any:
        observation = made.step(mcp_types.CallToolAction(tool_name=tool.name, arguments=arguments))
        if observation.error is not None:
            raise ValueError(observation.error.message)
        _count(observation, seen)
        result = observation.result
        return getattr(result, "data", result)  # FastMCP's results have the value that the tool returned

    call.__name__ = call.__qualname__ = tool.name
    sign(call, tool.input_schema, tool.description or tool.name, returns=Any)
    return call


def _count(observation: Any, seen: dict[str, Any]) -> None:
    if observation.reward is not None:
        seen["reward"] = float(observation.reward)
        seen["total"] += float(observation.reward)


def register_openenv(environment: type, action: type | None = None) -> Any:
    """Make tools of an OpenEnv environment, in a module of an environment: ``reset`` and ``step``, and its reward.

    An `MCPEnvironment` has its own tools in the place of ``step``. The reward is the last one that the environment
    gave, and ``total_reward`` of the function ``openenv_state`` their sum.

    Args:
        environment: Subclass of OpenEnv's `Environment`.
        action: Its subclass of `Action`, whose fields are the arguments of ``step``. None: it is an `MCPEnvironment`.

    Returns:
        The object of the class.

    Example:
        ```python
        # src/echo.py
        register_openenv(EchoEnvironment, EchoAction)
        ```
    """
    made: Any = environment()
    seen: dict[str, Any] = {"reward": None, "total": 0.0}

    @register_tool
    def reset(seed: int | None = None) -> dict[str, Any]:
        """Begin an episode.

        Args:
            seed: Makes the episode the same as others with it.
        """
        seen.update(reward=None, total=0.0)
        return _plain(made.reset(seed=seed))

    if action is None:
        _register_mcp_tools(made, seen)
    else:
        _register_step(made, action, seen)

    @register_function
    def openenv_state() -> dict[str, Any]:
        """Return the state of the environment, and the sum of its rewards."""
        return {**_plain(made.state), "total_reward": seen["total"]}

    @register_reward
    def openenv_reward() -> float:
        """Return the last reward that the environment gave."""
        if seen["reward"] is None:
            raise ValueError("the environment has given no reward")
        return float(seen["reward"])

    return made


def _register_step(made: Any, action_type: Any, seen: dict[str, Any]) -> None:
    @register_tool
    def step(action: dict[str, Any]) -> dict[str, Any]:
        """Act in the environment.

        Args:
            action: The fields of the action; see openenv_schema.
        """
        observation = made.step(action_type.model_validate(action))
        _count(observation, seen)
        return _plain(observation)

    @register_tool
    @register_function
    def openenv_schema() -> dict[str, Any]:
        """Return the JSON schema of an action."""
        schema: dict[str, Any] = action_type.model_json_schema()
        return schema


def _plain(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json")
    return data
