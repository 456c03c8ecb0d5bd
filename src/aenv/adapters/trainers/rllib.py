"""Environments for RLlib: `ToolEnv` under a name of Ray's registry, so that a configuration names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aenv.adapters.agents.agent_tools import framework
from aenv.adapters.trainers.gymnasium import ToolEnv

registry = framework("ray.tune.registry", "rllib")


def register_rllib(name: str = "aenv") -> str:
    """Make the environment known to RLlib, and return its name. ``env_config`` has the arguments of `ToolEnv`.

    An episode without a reward raises `EpisodeFailed` in the env runner. With ``restart_failed_sub_environments=True``
    RLlib drops that episode and begins another one; it is never a reward of 0.

    Example:
        ```python
        config = (
            PPOConfig()
            .environment(register_rllib(), env_config={"environment": "./treasure", "mapping": Corridor()})
            .fault_tolerance(restart_failed_sub_environments=True)
        )
        ```
    """
    registry.register_env(name, _made)
    return name


def _made(config: Mapping[str, Any]) -> ToolEnv:
    return ToolEnv(**dict(config))
