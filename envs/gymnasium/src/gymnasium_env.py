"""Any environment that Gymnasium knows, as tools: GYM_ENV names it, GYM_KWARGS is a JSON object for its constructor.

GYM_IMPORT names packages, divided by commas, whose import registers more environments.
"""

import importlib
import json
import os
from typing import Any

from _play import Episode, describe

from aenv import register_function, register_reward, register_tool

try:
    import gymnasium
except ModuleNotFoundError:
    gymnasium = None  # type: ignore[assignment]

DEFAULT = "FrozenLake-v1"


def _made() -> Episode | None:
    if gymnasium is None:
        return None
    for name in filter(None, os.environ.get("GYM_IMPORT", "").split(",")):
        module = importlib.import_module(name.strip())
        if hasattr(module, "register_envs"):
            gymnasium.register_envs(module)
    wanted = os.environ.get("GYM_ENV") or DEFAULT
    options = json.loads(os.environ.get("GYM_KWARGS") or "{}")
    if not isinstance(options, dict):
        raise ValueError('GYM_KWARGS: write a JSON object, like {"map_name": "8x8"}')
    try:
        return Episode(gymnasium.make(wanted, **{"render_mode": None, **options}), wanted)
    except gymnasium.error.Error as error:
        raise ValueError(f"GYM_ENV: {error}") from error


episode = _made()


def _ready() -> Episode:
    if episode is None:
        raise RuntimeError("the package gymnasium is not installed: pip install gymnasium")
    return episode


@register_tool
def reset(seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Begin an episode.

    Args:
        seed: Makes the episode the same as others with it.
        options: What else the environment can be told.
    """
    return _ready().reset(seed, options)


@register_tool
def step(action: Any) -> dict[str, Any]:
    """Do one step.

    Args:
        action: What to do: see gym_info.
    """
    return _ready().step(action)


@register_tool
@register_function
def gym_info() -> dict[str, Any]:
    """Tell what can be done here, and what is seen."""
    made = _ready()
    return {
        "env": made.name,
        "action_space": describe(made.env.action_space),
        "observation_space": describe(made.env.observation_space),
        "max_episode_steps": made.env.spec.max_episode_steps if made.env.spec else None,
    }


@register_function
def list_gym_envs() -> list[str]:
    """The names that GYM_ENV can have."""
    from gymnasium.envs.registration import registry

    return sorted(registry)


@register_reward
def total_reward() -> dict[str, Any]:
    """The sum of the rewards of all steps of this episode."""
    made = _ready()
    return {
        "score": made.total,
        "steps": made.steps,
        "terminated": made.terminated,
        "truncated": made.truncated,
    }
