"""An OpenAPI document of what a server says of its routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

_HOME = "#/components/schemas/{model}"
_BINARY = "application/octet-stream"
_NUMBERED: dict[str, Any] = {
    "type": "object",
    "properties": {"success": {"const": False}, "code": {"type": "integer"}, "message": {"type": "string"}},
    "required": ["code", "message", "success"],
}
"""A refusal as older clients read it."""


@dataclass(frozen=True)
class Operation:
    """One method of one path: what it takes and gives."""

    method: str
    path: str
    summary: str
    handler: Any = None
    """Who answers, where the server finds its routes here."""
    answer: Any = None
    """The type of ``data`` in the answer; bytes for something that is not JSON."""
    query: type[BaseModel] | None = None
    body: type[BaseModel] | type[bytes] | None = None
    needs: str = ""
    """The scope, or the role, of the token that it takes; nothing: none."""
    legacy: bool = False
    """In the shape that older clients know."""
    tag: str = field(default="environments")
    media: tuple[str, ...] = ()
    """What else an answer may be besides JSON, or instead of it where ``answer`` is bytes."""
    body_optional: bool = False

    @property
    def parameters(self) -> list[str]:
        """The names in the path."""
        return re.findall(r"\{(\w+)\}", self.path)


@dataclass(frozen=True)
class ApiInfo:
    """What a document says besides its routes."""

    title: str
    version: str
    description: str
    problem: type[BaseModel]
    """Why a request failed, in the newer shape."""
    refusals: Mapping[str, str]
    """Statuses, and what they mean."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of names in paths; others are any text."""
    token: str = "scope"
    """What a token has that a route asks for."""


def document(operations: Iterable[Operation], about: ApiInfo) -> dict[str, Any]:
    """What every route takes and gives."""
    schemas: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for each in operations:
        found.setdefault(each.path, {})[each.method.lower()] = _operation(each, about, schemas)
    schemas[about.problem.__name__] = _schema(about.problem, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": about.title, "version": about.version, "description": about.description},
        "paths": found,
        "components": {
            "schemas": schemas,
            "responses": {name: answer for each in (False, True) for name, answer in _refused(about, each).items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def joined(first: dict[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """One document of several, of which the first gives the title.

    Raises:
        ValueError: they call two things by one name.
    """
    paths, parts = dict(first["paths"]), {name: dict(part) for name, part in first["components"].items()}
    for other in others:
        pairs = [(paths, other["paths"]), *((parts[name], part) for name, part in other["components"].items())]
        for whole, more in pairs:
            both = [name for name in whole.keys() & more.keys() if whole[name] != more[name]]
            if both:
                raise ValueError(f"two documents differ in {', '.join(sorted(both))}")
            whole.update(more)
    return {**first, "paths": paths, "components": parts}


def _operation(of: Operation, about: ApiInfo, schemas: dict[str, Any]) -> dict[str, Any]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": about.parameters.get(name, {"type": "string"})}
        for name in of.parameters
    ]
    operation: dict[str, Any] = {
        "operationId": _id(of),
        "summary": of.summary,
        "tags": [of.tag],
        "parameters": [*path, *(_query(of.query, schemas) if of.query else [])],
        "responses": {"200": _success(of, schemas), **_refusals(of, about)},
        "security": [{"token": []}] if of.needs else [{}, {"token": []}],
    }
    if of.needs:
        operation["description"] = f"Needs a token with the {about.token} `{of.needs}`."
    if of.body is not None:
        if of.body is bytes:
            content: dict[str, Any] = {_BINARY: {"schema": {}}}
        else:
            content = {"application/json": {"schema": _schema(of.body, schemas, "validation")}}
        operation["requestBody"] = {"required": not of.body_optional, "content": content}
    return operation


def _success(of: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    if of.answer is bytes:
        return {"description": "The bytes", "content": {media: {"schema": {}} for media in of.media or (_BINARY,)}}
    properties: dict[str, Any] = {"success": {"const": True}, "data": _schema(of.answer, schemas)}
    if of.legacy:
        properties |= {"code": {"const": 0}, "message": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    content |= {media: {"schema": {}} for media in of.media}
    return {"description": "Done", "content": content}


def _refusals(of: Operation, about: ApiInfo) -> dict[str, Any]:
    return {status: {"$ref": f"#/components/responses/{_name(about, status, of.legacy)}"} for status in about.refusals}


def _refused(about: ApiInfo, legacy: bool) -> dict[str, Any]:
    body = _NUMBERED if legacy else {"$ref": _HOME.format(model=about.problem.__name__)}
    return {
        _name(about, status, legacy): {"description": words, "content": {"application/json": {"schema": body}}}
        for status, words in about.refusals.items()
    }


def _name(about: ApiInfo, status: str, legacy: bool) -> str:
    return f"{about.problem.__name__}-{status}{'-older' if legacy else ''}"


def _query(model: type[BaseModel], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=_HOME)
    schemas.update(schema.pop("$defs", {}))
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "description": about.pop("description", ""),
            "schema": about,
        }
        for name, about in schema["properties"].items()
    ]


def _schema(of: Any, schemas: dict[str, Any], mode: str = "serialization") -> dict[str, Any]:
    schema = TypeAdapter(of).json_schema(
        ref_template=_HOME, mode="validation" if mode == "validation" else "serialization"
    )
    schemas.update(schema.pop("$defs", {}))
    return schema


def _id(of: Operation) -> str:
    words = [word.strip("{}") for word in of.path.replace("_", "-").split("/") if word not in ("", "api", "v1")]
    return "-".join([of.method.lower(), *words])
