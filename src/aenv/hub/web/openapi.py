"""The OpenAPI document of a hub, generated from its routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aenv.http import openapi
from aenv.hub.web.bodies import ProblemBody
from aenv.hub.web.route import Route
from aenv.schema.names import NAME_PATTERN, VERSION_PATTERN
from aenv.schema.ref import DIGEST_PATTERN

_PATH_SCHEMAS = {
    "name": {"type": "string", "pattern": NAME_PATTERN, "maxLength": 253},
    "version": {"type": "string", "pattern": VERSION_PATTERN, "maxLength": 128},
    "digest": {"type": "string", "pattern": DIGEST_PATTERN},
}
_PROBLEMS = {
    "400": "The request is malformed",
    "401": "The token is missing, wrong, revoked or expired",
    "403": "The token does not permit this",
    "404": "Not found, or not readable by the caller",
    "405": "The path does not support this method",
    "409": "It exists already, with other content",
    "413": "The request is too large",
    "422": "A value is invalid",
    "431": "The headers are too large",
    "503": "The store is unreachable; try again",
}


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI document of routes."""
    about = openapi.ApiInfo(
        "EnvHub", version, "Versioned environments that others can find and run.", ProblemBody, _PROBLEMS, _PATH_SCHEMAS
    )
    return openapi.document(routes, about)
