"""Tools of an environment as tools of smolagents."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from aenv.adapters.agents.agent_tools import AgentTool, framework, tools_of
from aenv.sdk.model_formats import unique_names

if TYPE_CHECKING:
    from aenv.sdk.environment import Environment

_TYPES = ("string", "boolean", "integer", "number", "array", "object", "null")


async def tools(env: Environment) -> list[Any]:
    """Return a Tool for each tool, for ``ToolCallingAgent`` and ``CodeAgent``.

    Agents of smolagents are blocking: in asyncio, run them with ``asyncio.to_thread``. Names are made valid in Python.
    """
    smolagents = framework("smolagents", "smolagents")

    class SmolagentsTool(smolagents.Tool):  # type: ignore[misc, name-defined]
        skip_forward_signature_validation = True
        output_type = "string"

        def __init__(self, name: str, tool: AgentTool) -> None:
            self.name = name
            self.description = tool.description
            self.inputs = _inputs(tool.schema)
            self._tool = tool
            super().__init__()

        def forward(self, *positional: Any, **arguments: Any) -> str:
            # Code of a CodeAgent passes arguments by position too.
            return self._tool.text_blocking({**dict(zip(self.inputs, positional, strict=False)), **arguments})

    found = await tools_of(env)
    names = unique_names([_identifier(tool.name) for tool in found])
    return [SmolagentsTool(name, tool) for name, tool in zip(names, found, strict=True)]


def _identifier(name: str) -> str:
    valid = name.replace("-", "_")
    return f"{valid}_" if keyword.iskeyword(valid) else valid


def _inputs(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters as smolagents wants them: each with a description, plain types, and no references."""
    required, definitions = schema.get("required") or (), schema.get("$defs") or {}
    made = {}
    for name, described in (schema.get("properties") or {}).items():
        shape = _one_shape(_inlined(described, definitions, ()))
        shape["description"] = shape.get("description") or name
        if name not in required:
            shape["nullable"] = True
        made[name] = shape
    return made


def _one_shape(shape: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema without alternatives, which smolagents cannot read unless all have plain types."""
    options = shape.pop("anyOf", [])
    used = [option for option in options if option.get("type") != "null"]
    if len(used) < len(options):
        shape["nullable"] = True
    if len(used) == 1:
        shape = {**used[0], **shape}
    elif used:
        shape["type"] = [option.get("type") for option in used]
    kinds = shape.get("type", "any")
    if not all(kind in _TYPES for kind in (kinds if isinstance(kinds, list) else [kinds])):
        shape["type"] = "any"
    return shape


def _inlined(value: Any, definitions: dict[str, Any], inside: tuple[str, ...]) -> Any:
    """Return a schema with its references replaced; smolagents passes on only the parameters, not the definitions."""
    if isinstance(value, list):
        return [_inlined(each, definitions, inside) for each in value]
    if not isinstance(value, dict):
        return value
    rest = {name: _inlined(each, definitions, inside) for name, each in value.items() if name != "$ref"}
    if "$ref" not in value:
        return rest
    name = str(value["$ref"]).removeprefix("#/$defs/")
    if name in inside or name not in definitions:  # a type that contains itself
        return {"type": "object", **rest}
    return {**_inlined(definitions[name], definitions, (*inside, name)), **rest}
