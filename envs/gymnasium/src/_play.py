"""An episode, and how what is in it looks in JSON."""

import math
from typing import Any


class Episode:
    """From one reset to the next."""

    def __init__(self, env: Any, name: str) -> None:
        self.env, self.name = env, name
        self._begun = False
        self._forget()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        """Begin."""
        seen, info = self.env.reset(seed=seed, options=options)
        self._begun = True
        self._forget()
        return {"observation": plain(seen), "info": plain(info)}

    def step(self, action: Any) -> dict[str, Any]:
        """One step; the first one begins the episode if nobody has."""
        if not self._begun:
            self.reset(None, None)
        if self.terminated or self.truncated:
            raise ValueError("the episode is over: call reset to begin another")
        chosen = taken(self.env.action_space, action)
        seen, reward, self.terminated, self.truncated, info = self.env.step(chosen)
        self.total += float(reward)
        self.steps += 1
        return {
            "observation": plain(seen),
            "reward": float(reward),
            "terminated": bool(self.terminated),
            "truncated": bool(self.truncated),
            "info": plain(info),
        }

    def _forget(self) -> None:
        self.total, self.steps = 0.0, 0
        self.terminated = self.truncated = False


def taken(space: Any, action: Any) -> Any:
    """An action of the space, from JSON.

    Raises:
        ValueError: it is none; says which there are.
    """
    try:
        found = _converted(space, action)
        fits = found in space
    except (TypeError, ValueError, KeyError, AttributeError):
        fits = False
    if not fits:
        raise ValueError(f"{action!r} is no action here; the actions are {describe(space)['text']}")
    return found


def _converted(space: Any, value: Any) -> Any:
    import numpy
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        if isinstance(value, bool) or int(value) != value:
            raise ValueError(value)
        return int(value)
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return numpy.asarray(value, dtype=space.dtype).reshape(space.shape)
    if isinstance(space, spaces.Dict):
        return {name: _converted(part, value[name]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_converted(part, value[number]) for number, part in enumerate(space.spaces))
    return value


def describe(space: Any) -> dict[str, Any]:
    """A space, for people and for programs."""
    about: dict[str, Any] = {"type": type(space).__name__, "text": str(space)}
    for name in ("n", "start", "shape", "low", "high", "nvec", "charset"):
        if getattr(space, name, None) is not None:
            about[name] = plain(getattr(space, name))
    return about


def plain(value: Any) -> Any:
    """As JSON can carry it."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
