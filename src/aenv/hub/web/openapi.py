"""The OpenAPI document of a hub, made of the very routes that answer."""

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
    about = openapi.ApiInfo(
        "EnvHub", version, "Versioned environments that others can find and run.", ProblemBody, _PROBLEMS, _PATH_SCHEMAS
    )
    return openapi.document(routes, about)
