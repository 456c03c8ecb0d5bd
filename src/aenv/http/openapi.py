"""Builds an OpenAPI document from a server's operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

_SCHEMA_REF = "#/components/schemas/{model}"
_BINARY = "application/octet-stream"
_LEGACY_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {"success": {"const": False}, "code": {"type": "integer"}, "message": {"type": "string"}},
    "required": ["code", "message", "success"],
}
"""Error body in the shape of older clients."""


@dataclass(frozen=True)
class Operation:
    """A method of a path, with its parameters, body and response."""

    method: str
    path: str
    summary: str
    handler: Any = None
    """Function that answers, on servers that route by these operations."""
    answer: Any = None
    """Type of ``data`` in the response; bytes for a response that is not JSON."""
    query: type[BaseModel] | None = None
    body: type[BaseModel] | type[bytes] | None = None
    needs: str = ""
    """Scope or role that the token must have; empty: no token needed."""
    legacy: bool = False
    """Uses the response envelope of older clients."""
    tag: str = field(default="environments")
    media: tuple[str, ...] = ()
    """Media types of the response besides JSON, or instead of it where ``answer`` is bytes."""
    body_optional: bool = False

    @property
    def parameters(self) -> list[str]:
        """Names of the path parameters."""
        return re.findall(r"\{(\w+)\}", self.path)


@dataclass(frozen=True)
class ApiInfo:
    """Title, version and shared parts of a document."""

    title: str
    version: str
    description: str
    problem: type[BaseModel]
    """Body of an error response in the current shape."""
    refusals: Mapping[str, str]
    """Error statuses and their descriptions."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Schemas of path parameters; a parameter without one is any string."""
    token: str = "scope"
    """Word for what a token must have: scope or role."""


def document(operations: Iterable[Operation], about: ApiInfo) -> dict[str, Any]:
    """Return the OpenAPI document of these operations."""
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


def merge_documents(first: dict[str, Any], *others: Mapping[str, Any]) -> dict[str, Any]:
    """Merge documents; the first one gives the title.

    Raises:
        ValueError: two documents define the same name differently.
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
    body = _LEGACY_ERROR if legacy else {"$ref": _SCHEMA_REF.format(model=about.problem.__name__)}
    return {
        _name(about, status, legacy): {"description": words, "content": {"application/json": {"schema": body}}}
        for status, words in about.refusals.items()
    }


def _name(about: ApiInfo, status: str, legacy: bool) -> str:
    return f"{about.problem.__name__}-{status}{'-older' if legacy else ''}"


def _query(model: type[BaseModel], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=_SCHEMA_REF)
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
        ref_template=_SCHEMA_REF, mode="validation" if mode == "validation" else "serialization"
    )
    schemas.update(schema.pop("$defs", {}))
    return schema


def _id(of: Operation) -> str:
    words = [word.strip("{}") for word in of.path.replace("_", "-").split("/") if word not in ("", "api", "v1")]
    return "-".join([of.method.lower(), *words])
