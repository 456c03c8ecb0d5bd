"""An agent loop for verl, registered as ``aenv``: verl's own tool loop, with the tools of an environment.

verl makes an object for each trajectory, generates with its servers, and keeps the tokens. Here only the tools, their
calls and the reward are the environment's.
"""

from __future__ import annotations

from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import (
    RETRIES,
    EpisodeFailed,
    OpenEpisode,
    at_home,
    score_of,
    shared_source,
)
from aenv.errors import AEnvError

agent_loop = framework("verl.experimental.agent_loop.agent_loop", "verl")
tool_agent_loop = framework("verl.experimental.agent_loop.tool_agent_loop", "verl")
schemas = framework("verl.tools.schemas", "verl")


class _OfferedTool:
    """A tool as verl's loop looks at it; it is called by `EnvironmentAgentLoop`."""

    def __init__(self, definition: dict[str, Any]) -> None:
        self.tool_schema = schemas.OpenAIFunctionToolSchema.model_validate(definition)
        self.name: str = self.tool_schema.function.name


@agent_loop.register("aenv")
class EnvironmentAgentLoop(tool_agent_loop.ToolAgentLoop):  # type: ignore[misc, name-defined]
    """Runs each trajectory in an instance of an environment, and returns the environment's reward.

    Name it in the agent loop configuration of verl, with the arguments of `EpisodeSource`:

    ```yaml
    - name: aenv
      _target_: aenv.adapters.trainers.verl.EnvironmentAgentLoop
      environment: tau2-env@1.0.0
    ```

    The row's ``extra_info["task_id"]`` or ``task_id`` names the task; without it, the row describes one. An episode
    that fails for infra reasons is run again in a new instance; one without a reward raises `EpisodeFailed`.
    """

    def __init__(self, *args: Any, environment: str = "", options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        kwargs.pop("tools", None)
        super().__init__(*args, **kwargs)
        self._source = shared_source({"environment": environment, **(options or {})})
        self._episode: OpenEpisode | None = None

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> Any:
        """Run one trajectory; see `AgentLoopBase.run`."""
        for attempt in range(RETRIES + 1):
            try:
                return await self._attempt(sampling_params, priority, dict(kwargs))
            except EpisodeFailed as error:
                if error.fault != "infra" or attempt == RETRIES:
                    raise
        raise AssertionError("unreachable")

    async def _attempt(self, sampling_params: dict[str, Any], priority: int, row: dict[str, Any]) -> Any:
        episode = self._episode = await at_home(self._source.open(_task_of(row)))
        try:
            self.tools = {tool.name: tool for tool in map(_OfferedTool, episode.tools)}
            self.tool_schemas = [
                tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in self.tools.values()
            ]
            said = [message for message in row.get("raw_prompt") or [] if message.get("content")]
            row["raw_prompt"] = said or [{"role": "user", "content": episode.instruction}]
            output = await super().run(sampling_params, priority=priority, **row)
            result = await at_home(episode.finish())
        except BaseException:
            await at_home(episode.cancel())
            raise
        output.reward_score = score_of(result)
        output.extra_fields["aenv_episode"] = result.episode
        return output

    async def _call_tool(
        self, tool_call: Any, tools_kwargs: dict[str, Any], agent_data: Any
    ) -> tuple[Any, float, dict[str, Any]]:
        assert self._episode is not None
        try:
            text = (await at_home(self._episode.call(tool_call.name, tool_call.arguments))).text
        except EpisodeFailed:
            raise
        except AEnvError as error:  # a budget is used up, or the agent has ended its own instance
            text = f"Error: {error.message}"
        limit = self.max_tool_response_length
        if limit and len(text) > limit:
            text = text[:limit] + "...(truncated)"
        return schemas.ToolResponse(text=text), 0.0, {}


def _task_of(row: dict[str, Any]) -> Any:
    """Return what names the task in a row of verl's dataset."""
    about = {**row, **(row.get("extra_info") or {})}
    named = about.get("task_id")
    if named is not None:
        return str(named)
    described = {name: about[name] for name in ("variables", "setup", "reward", "seed") if about.get(name)}
    return {"prompt": row.get("raw_prompt"), **described} if described else None
