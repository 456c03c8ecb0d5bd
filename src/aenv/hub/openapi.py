"""The OpenAPI document, made of the very routes that answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from aenv.hub.route import Route
from aenv.hub.wire import Problem
from aenv.schema.names import NAME_PATTERN, VERSION_PATTERN
from aenv.schema.ref import DIGEST_PATTERN

_HOME = "#/components/schemas/{model}"
_PATH_SCHEMAS = {
    "name": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 253},
    "version": {"type": "string", "pattern": VERSION_PATTERN, "maxLength": 128},
    "digest": {"type": "string", "pattern": DIGEST_PATTERN},
}
_PROBLEMS = {
    "400": "It cannot be understood",
    "401": "The token is missing, wrong, revoked or expired",
    "403": "The token is not good for this",
    "404": "There is no such thing, or it may not be read",
    "405": "Another method is meant",
    "409": "It is there already, with other content",
    "413": "It is too large",
    "422": "A value has the wrong shape",
    "431": "The headers are too large",
    "503": "The store cannot be reached just now; try again",
}


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """What every route takes and gives."""
    schemas: dict[str, Any] = {}
    operations: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    schemas["Problem"] = _schema(Problem, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "EnvHub",
            "version": version,
            "description": "Versioned environments that others can find and run.",
        },
        "paths": operations,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    path = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS.get(name, {"type": "string"})}
        for name in route.parameters
    ]
    operation: dict[str, Any] = {
        "operationId": _id(route),
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*path, *(_query(route.query, schemas) if route.query else [])],
        "responses": {"200": _success(route, schemas), **_refusals(route)},
        "security": [{"token": []}] if route.needs else [{}, {"token": []}],
    }
    if route.needs:
        operation["description"] = f"Needs a token with the scope `{route.needs}`."
    if route.body is bytes:
        content: dict[str, Any] = {"application/octet-stream": {"schema": {}}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.body is not None:
        content = {"application/json": {"schema": _schema(route.body, schemas, "validation")}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _success(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    if route.answer is bytes:
        return {"description": "The bytes", "content": {"application/octet-stream": {"schema": {}}}}
    properties: dict[str, Any] = {"success": {"const": True}, "data": _schema(route.answer, schemas)}
    if route.legacy:
        properties |= {"code": {"const": 0}, "message": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"description": "Done", "content": {"application/json": {"schema": schema}}}


def _refusals(route: Route) -> dict[str, Any]:
    if route.legacy:
        body: dict[str, Any] = {
            "type": "object",
            "properties": {"success": {"const": False}, "code": {"type": "integer"}, "message": {"type": "string"}},
            "required": ["code", "message", "success"],
        }
    else:
        body = {"$ref": _HOME.format(model="Problem")}
    return {
        status: {"description": words, "content": {"application/json": {"schema": body}}}
        for status, words in _PROBLEMS.items()
    }


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


def _id(route: Route) -> str:
    words = [word.strip("{}") for word in route.path.replace("_", "-").split("/") if word not in ("", "api", "v1")]
    return "-".join([route.method.lower(), *words])
