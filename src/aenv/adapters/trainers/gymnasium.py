"""Environments as `gymnasium.Env` and `gymnasium.vector.VectorEnv`: a reset starts an instance, a step calls a tool."""

from __future__ import annotations

from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeSource
from aenv.adapters.trainers.stepping import Step, StepLoop, StepMapping, run_all
from aenv.rollout.result import EpisodeResult
from aenv.sdk.blocking import LoopThread

gymnasium = framework("gymnasium", "gymnasium")
spaces = gymnasium.spaces
vector = framework("gymnasium.vector", "gymnasium")
batching = framework("gymnasium.vector.utils", "gymnasium")


class AnyText(spaces.Text):  # type: ignore[misc, name-defined]
    """Texts of any length and any characters."""

    def __init__(self) -> None:
        super().__init__(max_length=200)  # of samples

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a text."""
        return isinstance(x, str)


def spaces_of(mapping: StepMapping) -> tuple[Any, Any]:
    """Return the spaces of observations and actions."""
    return mapping.observation_space or AnyText(), mapping.action_space or AnyText()


class ToolEnv(gymnasium.Env):  # type: ignore[misc, name-defined]
    """An environment as `gymnasium.Env`. Each episode runs in an instance of its own.

    `reset(options={"task": ID})` chooses a task; without it, the seed does. A fault of the infrastructure raises
    `EpisodeFailed`: there is no reward to return.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        mapping: How actions become tool calls, and results observations; default: both are text.
        max_steps: Steps after which an episode is truncated.
        **options: Other arguments of `EpisodeSource`, such as ``tasks`` or ``store``, and of `Environment`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, environment: str, *, mapping: StepMapping | None = None, max_steps: int | None = None, **options: Any
    ) -> None:
        self._mapping = mapping or StepMapping()
        self.observation_space, self.action_space = spaces_of(self._mapping)
        self._source = EpisodeSource(environment, **options)
        self._loop = StepLoop(self._source, self._mapping, max_steps)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            task = int(self.np_random.integers(2**31))
        return LoopThread.run(self._loop.reset(task))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do one step."""
        done = LoopThread.run(self._loop.step(action))
        return done.observation, done.reward, done.terminated, done.truncated, done.info

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of the episode, in the format of OpenAI's Chat Completions, for a model's prompt."""
        return self._loop.tools

    @property
    def result(self) -> EpisodeResult | None:
        """How the last episode ended, with the identifier under which it is recorded."""
        return self._loop.result

    def close(self) -> None:
        """Release the instance."""
        LoopThread.run(self._loop.close())
        LoopThread.run(self._source.close())


class ToolVectorEnv(vector.VectorEnv):  # type: ignore[misc, name-defined]
    """A batch of instances as `gymnasium.vector.VectorEnv`: the steps of all of them run at the same time.

    An episode that has ended is followed by another one with the next step, as in Gymnasium's own vector environments.
    The arguments are those of `ToolEnv`, with ``num_envs`` instances.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": vector.AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        environment: str,
        num_envs: int,
        *,
        mapping: StepMapping | None = None,
        max_steps: int | None = None,
        **options: Any,
    ) -> None:
        self.num_envs = num_envs
        self._mapping = mapping or StepMapping()
        self.single_observation_space, self.single_action_space = spaces_of(self._mapping)
        self.observation_space = batching.batch_space(self.single_observation_space, num_envs)
        self.action_space = batching.batch_space(self.single_action_space, num_envs)
        self._source = EpisodeSource(environment, **options)
        self._loops = [StepLoop(self._source, self._mapping, max_steps) for _ in range(num_envs)]
        self._ended = [False] * num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every instance. ``options["tasks"]`` names a task for each."""
        super().reset(seed=seed if isinstance(seed, int) else None)
        tasks = (options or {}).get("tasks") or self.np_random.integers(2**31, size=self.num_envs).tolist()
        begun = LoopThread.run(run_all([loop.reset(task) for loop, task in zip(self._loops, tasks, strict=True)]))
        self._ended = [False] * self.num_envs
        info: dict[str, Any] = {}
        for number, (_, each) in enumerate(begun):
            info = self._add_info(info, each, number)
        return self._batched([observation for observation, _ in begun]), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Do one step in every instance."""
        import numpy

        each = list(batching.iterate(self.action_space, actions))
        done = LoopThread.run(run_all([self._step(number, action) for number, action in enumerate(each)]))
        self._ended = [step.is_last for step in done]
        info: dict[str, Any] = {}
        for number, step in enumerate(done):
            info = self._add_info(info, step.info, number)
        return (
            self._batched([step.observation for step in done]),
            numpy.array([step.reward for step in done], dtype=numpy.float64),
            numpy.array([step.terminated for step in done], dtype=numpy.bool_),
            numpy.array([step.truncated for step in done], dtype=numpy.bool_),
            info,
        )

    async def _step(self, number: int, action: Any) -> Step:
        if self._ended[number]:
            observation, info = await self._loops[number].reset()
            return Step(observation, 0.0, False, False, info)
        return await self._loops[number].step(action)

    def _batched(self, observations: list[Any]) -> Any:
        empty = batching.create_empty_array(self.single_observation_space, n=self.num_envs)
        return batching.concatenate(self.single_observation_space, observations, empty)

    def close_extras(self, **given: Any) -> None:
        """Release all instances."""
        LoopThread.run(run_all([loop.close() for loop in self._loops]))
        LoopThread.run(self._source.close())
