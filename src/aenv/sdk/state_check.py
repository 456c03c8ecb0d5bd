"""Grade an instance by its state: calls that change nothing are made, and their results compared with expected ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

from aenv.authoring.results import ToolResult
from aenv.schema.tasks import StateProbe

_IGNORED = "(ignored)"
ANY = "*"
"""Stands in a path for every item of a list."""


class Observed(Protocol):
    """An instance whose state is observed."""

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool; see `Environment.call_tool`."""
        ...

    def call_function(
        self, function_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> Awaitable[Any]:
        """Call a function; see `Environment.call_function`."""
        ...


async def observe(world: Observed, probe: StateProbe, timeout: float | None = None) -> dict[str, Any]:
    """Return what a probe shows: ``{"value": RESULT}``, or ``{"error": true}`` if the tool refuses the call.

    Raises:
        AEnvError: the instance is lost, or a function of the environment failed.
    """
    if probe.tool is None:
        return {"value": await world.call_function(probe.function or "", probe.arguments, timeout)}
    result = await world.call_tool(probe.tool, probe.arguments, timeout)
    if failed(result):
        return {"error": True}
    return {"value": result.content if result.data is None and result.content else result.data}


def failed(result: ToolResult) -> bool:
    """Return whether a call failed: an error result, an object with an ``error``, or a text that begins so."""
    data = result.data
    if result.is_error or (isinstance(data, dict) and bool(data.get("error"))):
        return True
    return isinstance(data, str) and data[:5].lower() == "error"


async def grade_state(world: Observed, probes: Sequence[StateProbe], timeout: float | None = None) -> dict[str, Any]:
    """Return ``score`` 1 if every probe shows what is expected, else 0; and the calls that show something else.

    ``state`` is a digest of everything that the probes show, apart from the paths to ignore.

    Raises:
        AEnvError: the instance is lost, a call took longer than ``timeout``, or a function of the environment failed.
    """
    different = []
    state = hashlib.sha256()
    for probe in probes:
        observed = await observe(world, probe, timeout)
        state.update(_text(masked(observed, _paths(probe.ignore))).encode() + b"\0")
        if not same(observed, probe.expected, probe.ignore):
            different.append(probe.tool or probe.function)
    return {"score": 0.0 if different else 1.0, "different": different, "state": f"sha256:{state.hexdigest()}"}


def same(one: Any, other: Any, ignore: Iterable[str] = ()) -> bool:
    """Return whether two observations are equal, apart from the paths to ignore."""
    paths = _paths(ignore)
    return _text(masked(one, paths)) == _text(masked(other, paths))


def masked(value: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Return the value with a constant in the place of what the paths name."""
    if any(not path for path in paths):
        return _IGNORED
    if not paths:
        return value
    if isinstance(value, dict):
        return {key: masked(item, _below(paths, _escaped(key))) for key, item in value.items()}
    if isinstance(value, list):
        below = _below(paths, ANY)
        return [masked(item, below) for item in value]
    return value


def differing_paths(one: Any, other: Any, path: tuple[str, ...] = ()) -> set[str]:
    """Return the paths at which two observations differ. A path of a list's items stands for all of them."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return set().union(*(differing_paths(one[key], other[key], (*path, _escaped(key))) for key in one))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return set().union(*(differing_paths(a, b, (*path, ANY)) for a, b in zip(one, other, strict=True)))
    return set() if _text(one) == _text(other) else {"/".join(path)}


def _paths(ignore: Iterable[str]) -> list[tuple[str, ...]]:
    return [tuple(path.split("/")) for path in ignore]


def _below(paths: Sequence[tuple[str, ...]], key: str) -> list[tuple[str, ...]]:
    return [path[1:] for path in paths if path[0] == key]


def _escaped(key: str) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
