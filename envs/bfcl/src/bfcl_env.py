"""BFCL's multi-turn tasks as an environment: a user's requests, one after the other, and the tools to do them with.

BFCL_TASK names the task, like multi_turn_base_0. The benchmark's own simulated systems run the calls, and its own
checker grades them: after every turn, the systems must be in the state that they should be in, and whatever had to be
found out must have been.
"""

import inspect
import os
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import WithJsonSchema

from aenv import register_function, register_reward, register_tool

if TYPE_CHECKING:
    from _turns import Episode

DEFAULT = "multi_turn_base_0"
MISSING = "the package bfcl-eval is not installed: pip install --no-deps bfcl-eval mpmath"


@cache
def _episode() -> "Episode":
    try:
        from _turns import Episode
    except ModuleNotFoundError as error:
        raise RuntimeError(MISSING) from error
    return Episode(os.environ.get("BFCL_TASK") or DEFAULT)


def _publish(name: str, described: dict[str, Any]) -> None:
    """Offer a function of the simulated systems. Its arguments are theirs to check: mistakes are part of the game."""
    parameters, annotations = [], {}
    required = described["parameters"].get("required", [])
    for parameter, schema in described["parameters"].get("properties", {}).items():
        annotations[parameter] = Annotated[Any, WithJsonSchema(_as_json_schema(schema))]
        default = inspect.Parameter.empty if parameter in required else None
        parameters.append(inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Any))

    def call(**given: Any) -> Any:
        return _episode().call(name, {key: value for key, value in given.items() if value is not None})

    call.__name__ = name
    call.__annotations__ = annotations
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(annotation=annotations[parameter.name]) for parameter in parameters]
    )
    register_tool(name=name, description=described["description"])(call)


def _as_json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type":
            found[key] = kinds.get(value, value)
        elif key == "properties":
            found[key] = {name: _as_json_schema(part) for name, part in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            found[key] = _as_json_schema(value)
        elif key in ("description", "enum", "default", "required"):
            found[key] = value
    return found


try:
    for _name, _described in _episode().functions().items():
        _publish(_name, _described)
except RuntimeError as _error:
    if str(_error) != MISSING:
        raise


@register_tool
@register_function
def get_request() -> str:
    """Read what the user asks for in this turn."""
    return _episode().request


@register_tool
@register_function
def end_turn(message: str = "") -> dict[str, Any]:
    """Say that this turn's request is done, or cannot be; what comes back is the next one.

    Args:
        message: Something to say to the user.
    """
    return _episode().end_turn()


@register_function
def get_task() -> dict[str, Any]:
    """Tell which task it is, and how far it is."""
    episode = _episode()
    return {
        "task": episode.task,
        "instruction": episode.request,
        "turn": episode.turn,
        "turns": episode.turns,
        "done": episode.done,
        "systems": episode.systems,
    }


@register_function
def list_tasks(category: str = "") -> list[str]:
    """The names that BFCL_TASK can have.

    Args:
        category: Only those of base, miss_func, miss_param or long_context.
    """
    from _turns import names

    found = [name for name in names() if name.startswith(f"multi_turn_{category}")]
    if not found:
        raise ValueError(f"there is no category {category!r}")
    return found


@register_function
def get_solution() -> list[dict[str, Any]]:
    """Tell a program what solves it: the calls that an agent would make."""
    return _episode().solution()


@register_reward
def bfcl_reward() -> dict[str, Any]:
    """Score the episode with the benchmark's own checker: 1.0 when every turn was right, else 0.0."""
    return _episode().graded()
