"""The signature of a declared function, compiled into a JSON Schema and a validator of its arguments.

Validation is strict for types that JSON has (the string "3" is not an integer) and lenient for others: dates, enums,
paths and sets come as JSON strings and lists.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic import ValidationError as PydanticValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, SchemaValidator, core_schema, to_json, to_jsonable_python
from typing_extensions import TypedDict

from aenv.authoring import docstrings, leniency
from aenv.authoring.output_schema import output_schema
from aenv.errors import InvalidArguments, LoadError

JsonSchema = dict[str, Any]
_UNKNOWN_TYPE = re.compile(r"Unable to generate pydantic-core schema for (<class '.*?'>|.*?)\. ")


class Signature:
    """Parameters, schemas and description of a function."""

    def __init__(self, func: Callable[..., Any], where: str = "") -> None:
        self.where = where or getattr(func, "__qualname__", repr(func))
        try:
            self._parameters = inspect.signature(func).parameters
            self._hints = get_type_hints(_hinted(func), include_extras=True)
        except Exception as error:
            raise LoadError(f"{self.where}: cannot read the signature: {error}") from error
        named = [p for p in self._parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self.names = tuple(p.name for p in named)
        self._positional = tuple(p.name for p in named if p.kind is p.POSITIONAL_ONLY)
        self._open = any(p.kind is p.VAR_KEYWORD for p in self._parameters.values())
        doc = docstrings.parse(inspect.getdoc(func) if _has_own_doc(func) else None, self.names)
        self.description = doc.description
        self._doc = doc
        self._named = named
        self._kinds = {p.name: self._kind(p) for p in named}
        self._validator = self._plain_validator() or self._adapter.validator

    def _kind(self, parameter: inspect.Parameter) -> Any:
        kind = self._hints.get(parameter.name, Any)
        return kind | None if parameter.default is None and kind is not Any else kind

    def _plain_validator(self) -> SchemaValidator | None:
        """Build the validator directly if all parameters have plain JSON types; else return None.

        It equals the one that pydantic's `TypeAdapter` would build. Building that adapter costs more than everything
        else in loading a small environment, and most sandboxes are never asked for a schema.
        """
        fields = {}
        for p in self._named:
            schema = plain_schema(self._kinds[p.name])
            if schema is None:
                return None
            fields[p.name] = core_schema.typed_dict_field(schema, required=p.default is p.empty)
        extra: Any = "allow" if self._open else "forbid"
        config = core_schema.CoreConfig(coerce_numbers_to_str=True)  # where validation is lenient
        return SchemaValidator(core_schema.typed_dict_schema(fields, extra_behavior=extra), config)

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        fields: dict[str, Any] = {}
        for p in self._named:
            kind = self._kinds[p.name]
            if p.name in self._doc.parameters:
                kind = Annotated[kind, Field(description=self._doc.parameters[p.name])]
            fields[p.name] = kind if p.default is p.empty else NotRequired[kind]
        make: Any = TypedDict  # type checkers accept only literal TypedDicts
        arguments = make("arguments", fields)
        arguments.__pydantic_config__ = ConfigDict(
            extra="allow" if self._open else "forbid", arbitrary_types_allowed=False, coerce_numbers_to_str=True
        )
        try:
            return TypeAdapter(arguments)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
            first = str(error).splitlines()[0]
            unknown = _UNKNOWN_TYPE.match(first)  # the rest of that message is about pydantic's own settings
            reason = f"{unknown[1]}; take a type that JSON has, such as str or dict" if unknown else first
            raise LoadError(f"{self.where}: a parameter's type cannot be sent as JSON: {reason}") from error

    @cached_property
    def input_schema(self) -> JsonSchema:
        """JSON Schema of the arguments. Built on first use, since most sandboxes are never asked for it."""
        try:
            schema = self._adapter.json_schema(schema_generator=_Schema)
        except PydanticInvalidForJsonSchema as error:
            raise LoadError(f"{self.where}: a parameter's type has no JSON Schema: {error}") from error
        schema.pop("title", None)
        properties = schema.setdefault("properties", {})
        for p in self._named:
            if p.default is not p.empty:
                try:
                    properties[p.name]["default"] = to_jsonable_python(p.default)
                except ValueError:  # a default that is not JSON is left out
                    continue
        return {"type": "object", **schema}

    @cached_property
    def output_schema(self) -> JsonSchema | None:
        """JSON Schema of the annotated return type: an object with properties, a scalar or a list; else None."""
        return output_schema(self._hints.get("return"), _Schema)

    def validate_json(self, body: bytes | bytearray, *, lenient: bool = False) -> dict[str, Any]:
        """Parse and check arguments from a JSON object. Raises InvalidArguments.

        ``lenient``: accept numbers and flags as text, and numbers where a text is expected; for functions and rewards.
        """
        try:
            return self._validator.validate_json(body or b"{}", strict=True)  # type: ignore[no-any-return]
        except PydanticValidationError as error:
            return self._second_try(body or b"{}", error, lenient)

    def _second_try(self, body: bytes | bytearray, first: PydanticValidationError, function: bool) -> dict[str, Any]:
        """Validate arguments that are not exactly of the declared types; see `aenv.authoring.leniency`.

        ``function``: they are of a function or a reward.
        """
        lenient = function or leniency.is_lenient()
        again = body if lenient else leniency.with_whole_numbers(body, first.errors(include_url=False))
        try:
            if again is not None:
                return self._validator.validate_json(again, strict=not lenient)  # type: ignore[no-any-return]
        except PydanticValidationError as error:
            first = error
        if function and leniency.is_lenient():
            unconverted = leniency.as_sent(body, first.errors(include_url=False))
            if unconverted is not None:
                return unconverted
        raise InvalidArguments(self._explain(first)) from None

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments from a parsed JSON object, by the rules of `validate_json`."""
        return self.validate_json(to_json(arguments))

    def validate_strings(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Check arguments from a query string, where every value is text: "3" is a valid integer."""
        try:
            return self._adapter.validate_python(dict(arguments), strict=False)
        except PydanticValidationError as error:
            raise InvalidArguments(self._explain(error)) from None

    def split(self, arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Split into positional and keyword arguments, for functions with positional-only parameters."""
        return [arguments.pop(name) for name in self._positional if name in arguments], arguments

    def _explain(self, error: PydanticValidationError) -> str:
        lines = []
        for e in error.errors(include_url=False, include_context=False):
            path = ".".join(str(part) for part in e["loc"]) or "arguments"
            if e["type"] == "extra_forbidden":
                lines.append(f"{path}: unknown argument; known: {', '.join(self.names) or 'none'}")
            elif e["type"] == "missing":
                lines.append(f"{path}: missing")
            else:
                problem = leniency.advice(e) or f"{e['msg']}, got {_short(e['input'])}"
                lines.append(f"{path}: {problem}")
        return "; ".join(lines)


_PLAIN: dict[Any, Callable[[], CoreSchema]] = {
    Any: core_schema.any_schema,
    bool: core_schema.bool_schema,
    dict: lambda: core_schema.dict_schema(core_schema.any_schema(), core_schema.any_schema()),
    float: core_schema.float_schema,
    int: core_schema.int_schema,
    list: lambda: core_schema.list_schema(core_schema.any_schema()),
    str: core_schema.str_schema,
}


def plain_schema(kind: Any) -> CoreSchema | None:
    """Return the schema of a plain JSON type, or of a list, dict or optional of such types; else None."""
    try:
        if kind in _PLAIN:
            return _PLAIN[kind]()
    except TypeError:  # the annotation is not hashable
        return None
    origin, inner = get_origin(kind), [plain_schema(part) for part in get_args(kind) if part is not type(None)]
    if not inner or None in inner:
        return None
    if origin is list:
        return core_schema.list_schema(inner[0])
    if origin is dict:
        return core_schema.dict_schema(*inner)
    if origin in (Union, UnionType) and len(inner) == 1:
        return core_schema.nullable_schema(inner[0])  # type: ignore[arg-type]
    return None


class _Schema(GenerateJsonSchema):
    """JSON Schema without titles that repeat a name, since agents pay for every token of a schema."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:
        inner: Any = schema
        while inner.get("type") in ("typed-dict-field", "model-field", "default", "nullable"):
            inner = inner["schema"]
        return bool(inner.get("type") == "any")


def _hinted(func: Callable[..., Any]) -> Any:
    """Return the object that carries the annotations: the innermost function, or an object's ``__call__``."""
    func = inspect.unwrap(getattr(func, "func", func))
    return func if hasattr(func, "__code__") or inspect.ismethod(func) else type(func).__call__


def _has_own_doc(func: Callable[..., Any]) -> bool:
    """Return whether the docstring is the function's own: a partial has functools.partial's, an object its class's."""
    return inspect.isroutine(func)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
