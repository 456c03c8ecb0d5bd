"""A batch of instances as a `VecEnv` of Stable-Baselines3, whose algorithms need spaces of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.episodes import EpisodeSource
from aenv.adapters.trainers.gymnasium import spaces_of
from aenv.adapters.trainers.stepping import Step, StepLoop, StepMapping, run_all
from aenv.errors import UsageError
from aenv.sdk.blocking import LoopThread

vec_env = framework("stable_baselines3.common.vec_env", "stable-baselines3")


class ToolVecEnv(vec_env.VecEnv):  # type: ignore[misc, name-defined]
    """A batch of instances for an algorithm of Stable-Baselines3: the steps of all of them run at the same time.

    An episode that ends is followed by another one in the same step; its last observation is in
    ``info["terminal_observation"]``, as this library expects. A fault of the infrastructure raises `EpisodeFailed`.

    Args:
        environment: ``name``, ``name@version``, or the path of a project on this machine.
        num_envs: Number of instances.
        mapping: How actions become tool calls, and results observations; it has spaces of numbers.
        max_steps: Steps after which an episode is truncated.
        **options: Other arguments of `EpisodeSource` and of `Environment`.
    """

    def __init__(
        self, environment: str, num_envs: int, *, mapping: StepMapping, max_steps: int | None = None, **options: Any
    ) -> None:
        if mapping.action_space is None or mapping.observation_space is None:
            raise UsageError(
                "Stable-Baselines3 needs spaces of numbers, and this mapping is one of texts",
                {"hint": "Give a StepMapping with an action_space and an observation_space."},
            )
        observation_space, action_space = spaces_of(mapping)
        self._source = EpisodeSource(environment, **options)
        self._loops = [StepLoop(self._source, mapping, max_steps) for _ in range(num_envs)]
        self._pending_actions: Any = None
        self.render_mode = None
        super().__init__(num_envs, observation_space, action_space)

    def reset(self) -> Any:
        """Begin an episode in every instance."""
        tasks = [options.get("task") for options in self._options]
        begun = LoopThread.run(run_all([loop.reset(task) for loop, task in zip(self._loops, tasks, strict=True)]))
        self.reset_infos = [info for _, info in begun]
        self._reset_seeds()
        self._reset_options()
        return self._batched([observation for observation, _ in begun])

    def step_async(self, actions: Any) -> None:
        """Note the actions of the next step."""
        self._pending_actions = actions

    def step_wait(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """Do the step in every instance."""
        import numpy

        work = [self._step(loop, action) for loop, action in zip(self._loops, self._pending_actions, strict=True)]
        done: list[tuple[Step, Any]] = LoopThread.run(run_all(work))
        infos = []
        for step, _ in done:
            info = {**step.info, "TimeLimit.truncated": step.truncated and not step.terminated}
            if step.is_last:
                info["terminal_observation"] = step.observation
            infos.append(info)
        return (
            self._batched([following for _, following in done]),
            numpy.array([step.reward for step, _ in done], dtype=numpy.float32),
            numpy.array([step.is_last for step, _ in done], dtype=numpy.bool_),
            infos,
        )

    async def _step(self, loop: StepLoop, action: Any) -> tuple[Step, Any]:
        """Return the step, and the observation that the next action is for."""
        step = await loop.step(action)
        if not step.is_last:
            return step, step.observation
        observation, _ = await loop.reset()
        return step, observation

    def _batched(self, observations: list[Any]) -> Any:
        import numpy

        return numpy.stack([numpy.asarray(each, dtype=self.observation_space.dtype) for each in observations])

    def close(self) -> None:
        """Release all instances."""
        LoopThread.run(run_all([loop.close() for loop in self._loops]))
        LoopThread.run(self._source.close())

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of this object, once for each instance."""
        return [getattr(self, attr_name)] * len(self._numbers(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of this object."""
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Refuse: instances have tools, and no methods of Python."""
        raise UsageError(f"an instance has no method {method_name!r}; call its tools")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for each instance: none is wrapped."""
        return [False] * len(self._numbers(indices))

    def _numbers(self, indices: Any) -> Sequence[int]:
        return list(self._get_indices(indices))
