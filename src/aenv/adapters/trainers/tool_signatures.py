"""Signatures and docstrings for functions that stand for tools, whose schemas others read out of them again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

_TYPES: dict[str, Any] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "null": None,
}  # fmt: skip


def sign(
    function: Callable[..., Any],
    schema: Mapping[str, Any],
    description: str,
    *,
    returns: Any = str,
    is_method: bool = False,
) -> None:
    """Give a function the parameters that a JSON schema lists, as keywords, and a docstring with their descriptions."""
    required = schema.get("required") or ()
    listed: dict[str, Any] = schema.get("properties") or {}
    own = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)] if is_method else []
    parameters, lines, hints = own, [], {}
    for name, about in sorted(listed.items(), key=lambda item: item[0] not in required):
        default = inspect.Parameter.empty if name in required else about.get("default")
        hints[name] = _hint(about, name in required)
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        )
        lines.append(f"    {name}: {' '.join(str(about.get('description') or name).split())}")
    function.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    function.__annotations__ = {**hints, "return": returns}
    function.__doc__ = "\n".join([" ".join(description.split()), *(["", "Args:", *lines] if lines else [])])


def _hint(about: dict[str, Any], is_required: bool) -> Any:
    """Return the type hint of a parameter, from which a schema is made again."""
    if about.get("enum"):
        hint: Any = Literal[tuple(about["enum"])]
    elif about.get("anyOf"):
        hint = _TYPES.get(next((part.get("type") for part in about["anyOf"] if part.get("type") != "null"), ""), Any)
    else:
        hint = _TYPES.get(about.get("type", ""), Any)
    return hint if is_required or hint is Any or about.get("default") is not None else hint | None
