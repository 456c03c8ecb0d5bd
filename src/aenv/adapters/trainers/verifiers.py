"""Environments for verifiers: a taskset with the tasks of an environment, and a harness that runs their episodes.

The harness runs in verifiers' process and sends every model request to the endpoint that verifiers intercepts, so that
its trace is complete. The reward is the environment's. verifiers finds plug-ins by the name of a module without dots,
so a module of yours exports them:

```python
# my_env.py, for the ids "my_env" of taskset and harness
from aenv.adapters.trainers.verifiers import EnvironmentHarness, EnvironmentTaskset

__all__ = ["EnvironmentHarness", "EnvironmentTaskset"]
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeFailed, at_home, endpoint, score_of, shared_source
from aenv.sdk.blocking import LoopThread

vf = framework("verifiers.v1", "verifiers")


class EnvironmentState(vf.State):  # type: ignore[misc, name-defined]
    """Result of the harness, for scoring."""

    reward: float | None = None
    episode: str = ""


class EnvironmentTask(vf.Task[vf.TaskData, EnvironmentState]):  # type: ignore[misc, name-defined]
    """A task of an environment."""

    @vf.reward  # type: ignore[untyped-decorator]
    async def environment_reward(self, trace: Any) -> float:
        """Return the reward that the environment gave."""
        if trace.state.reward is None:
            raise vf.TaskError("the environment gave no reward")
        return float(trace.state.reward)


class EnvironmentTasksetConfig(vf.TasksetConfig):  # type: ignore[misc, name-defined]
    """Arguments of `EpisodeSource`: the environment, and ``options`` for the others."""

    environment: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class EnvironmentTaskset(vf.Taskset[EnvironmentTask, EnvironmentTasksetConfig]):  # type: ignore[misc, name-defined]
    """The tasks of an environment. Rewards and solutions stay behind: verifiers sees ids and instructions."""

    def load(self) -> Iterator[EnvironmentTask]:
        """Yield the tasks."""
        source = shared_source({"environment": self.config.environment, **self.config.options})
        for task in LoopThread.run(source.tasks()):
            prompt = task.instruction or f"Task {task.id}"
            yield EnvironmentTask(vf.TaskData(id=task.id, name=task.id, prompt=prompt), self.config.task)


class EnvironmentHarnessConfig(vf.HarnessConfig):  # type: ignore[misc, name-defined]
    """Arguments of `EpisodeSource`, as in `EnvironmentTasksetConfig`."""

    environment: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class EnvironmentHarness(vf.Harness[EnvironmentHarnessConfig]):  # type: ignore[misc, name-defined]
    """Plays the episode of a task in an instance of its own, with the agent of the options (a tool-calling loop)."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    APPENDS_SYSTEM_PROMPT = True

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint_: str, secret: str, mcp_urls: Any, data: Any, **more: Any
    ) -> Any:
        """Run the episode, and leave its reward in the trace.

        Raises:
            SandboxError: the episode has no reward for infra reasons; verifiers may retry it.
            HarnessError: it has none for another reason that is not the agent's.
        """
        source = shared_source({"environment": self.config.environment, **self.config.options})
        model = endpoint(endpoint_, model=ctx.model, key=secret)
        result = await at_home(source.play(data.id, model=model, retries=0))
        try:
            trace.state.reward = score_of(result)
        except EpisodeFailed as error:
            kind = vf.SandboxError if error.fault == "infra" else vf.HarnessError
            raise kind(error.message) from error
        trace.state.episode = result.episode
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
