"""JSON Schema of the result that a function's annotation declares.

A result that is an object is described as it is. MCP up to 2025-11-25 knows no other structured content, so for older
clients a scalar or a list is wrapped as ``{"result": value}``, the way FastMCP and the MCP SDK do it. A value that may
be null is always wrapped: the MCP SDK does not send a null.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from aenv.authoring.content import is_content

JsonSchema = dict[str, Any]

_PLAIN: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,),
}  # fmt: skip


def output_schema(returned: Any, generator: type[GenerateJsonSchema]) -> JsonSchema | None:
    """Return the schema of a return annotation: an object with properties, a scalar, or a list of described items.

    None for every other annotation: with a schema, clients reject results without structured content.
    """
    plain = _PLAIN.get(returned) if isinstance(returned, type) else None
    if plain is not None:  # without pydantic, which takes longer than most calls
        return {"type": plain}
    if returned in (None, type(None)) or returned is Any or _contains_content(returned):
        return None
    try:
        schema = TypeAdapter(returned).json_schema(schema_generator=generator, mode="serialization")
    except (PydanticUserError, PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
        return None
    if schema.get("type") == "object":
        return schema if schema.get("properties") else None
    return schema if _is_described(schema, schema.get("$defs", {})) else None


def is_object(schema: JsonSchema) -> bool:
    """Return whether results are objects, which every version of MCP can have as structured content."""
    return schema.get("type") == "object"


def is_wrapped(schema: JsonSchema, *, any_output: bool) -> bool:
    """Return whether the structured content is ``{"result": value}``. ``any_output``: MCP 2026-07-28 or newer."""
    return not is_object(schema) and (not any_output or fits(schema, None))


def wrapped(schema: JsonSchema) -> JsonSchema:
    """Return the schema of ``{"result": value}`` for the schema of a value."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    made = {"type": "object", "properties": {"result": inner}, "required": ["result"], "x-fastmcp-wrap-result": True}
    return {**made, "$defs": schema["$defs"]} if "$defs" in schema else made


def fits(schema: JsonSchema, value: Any) -> bool:
    """Return whether the type of a value is one that the schema of a scalar or a list allows; deeper it is not checked.

    An MCP client rejects a result that does not fit.
    """
    if "anyOf" in schema:
        return any(fits(each, value) for each in schema["anyOf"])
    allowed = _TYPES.get(schema.get("type", ""))
    if allowed is None:
        return True
    if isinstance(value, bool):
        return bool in allowed
    return isinstance(value, allowed)


def _contains_content(annotation: Any) -> bool:
    """Return whether the annotation, or a part of it, is sent as content blocks."""
    return is_content(annotation) or any(_contains_content(part) for part in get_args(annotation))


def _is_described(schema: JsonSchema, definitions: JsonSchema) -> bool:
    """Return whether the schema is that of a scalar, of a list with described items, or of a choice of such."""
    if "$ref" in schema:
        schema = definitions.get(schema["$ref"].rpartition("/")[2], {})
    if "anyOf" in schema:
        return all(_is_described(each, definitions) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return bool(schema.get("items") or schema.get("prefixItems"))
    return schema.get("type") in _TYPES or "enum" in schema or "const" in schema
