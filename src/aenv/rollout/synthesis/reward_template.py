"""The environment's own reward as the grader of synthesised tasks, with arguments that the known solution shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from aenv.errors import UsageError
from aenv.schema.tasks import StateProbe, TaskReward

OBSERVE = "observe"


class _Observation(BaseModel):
    """A call after the solution, whose result, or a part of it, becomes an argument of the reward."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    tool: str | None = None
    function: str | None = None
    arguments: dict[str, Any] = {}
    path: str = ""
    """Path of the argument in the result, such as ``cart/items``."""


class RewardTemplate:
    """A reward whose arguments may be ``{"observe": {"tool": ..., "path": ...}}``.

    Args:
        given: The name of a reward, its JSON text, or an object with ``name`` and ``arguments``.

    Raises:
        UsageError: it is none of these.
    """

    def __init__(self, given: str | Mapping[str, Any]) -> None:
        try:
            found = json.loads(given) if isinstance(given, str) and given.lstrip().startswith("{") else given
            known = TaskReward(name=found) if isinstance(found, str) else TaskReward.model_validate(found)
            self._observed = {
                name: _Observation.model_validate(value[OBSERVE])
                for name, value in known.arguments.items()
                if isinstance(value, dict) and set(value) == {OBSERVE}
            }
            self.probes = [
                StateProbe(tool=each.tool, function=each.function, arguments=each.arguments)
                for each in self._observed.values()
            ]
        except (ValueError, ValidationError) as error:
            raise UsageError(f"invalid reward {given!r}: {error}") from error
        self._known = known

    def as_json(self) -> dict[str, Any]:
        """Return the template as a JSON object."""
        return self._known.model_dump(mode="json", exclude_defaults=True)

    def filled(self, observations: Sequence[Mapping[str, Any]]) -> TaskReward:
        """Return the reward with the arguments that the probes have shown.

        Raises:
            UsageError: a probe failed, or its result has no such path.
        """
        arguments = dict(self._known.arguments)
        for (name, observed), seen in zip(self._observed.items(), observations, strict=True):
            value = seen.get("value")
            for key in filter(None, observed.path.split("/")):
                if not isinstance(value, dict) or key not in value:
                    raise UsageError(f"the argument {name!r} of the reward: the observation has no {observed.path!r}")
                value = value[key]
            if "value" not in seen:
                raise UsageError(f"the argument {name!r} of the reward: the call that shows it failed")
            arguments[name] = value
        return self._known.model_copy(update={"arguments": arguments})
