"""One request, as a route of the platform sees it, and the envelope of its answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic import ValidationError as PydanticValidationError
from pydantic_core import to_json

from aenv.errors import AEnvError, InvalidArguments
from aenv.http.messages import Answer, Request, Response
from aenv.platform.access.platform_tokens import Caller

MAX_WAIT = 20.0
"""Seconds that a request for a status waits at the most for it to change."""
_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request, as a route sees it."""

    request: Request
    caller: Caller
    name: str
    """Of the instance or the service that is meant."""
    query: list[tuple[str, str]]

    def one(self, name: str) -> str | None:
        """A value of the query."""
        return next((value for key, value in self.query if key == name), None)


Route = Callable[[RequestContext], Awaitable[Answer]]
More = tuple[str, re.Pattern[str], str, Route]
"""A method, what its path looks like, what it is called in metrics and in the audit log, and who answers."""


def refusal(error: AEnvError) -> Response:
    """Why not. Existing clients read a number in `code` and the words in `message`."""
    status = 400 if error.status == 422 else error.status
    body = {
        "success": False, "code": status, "message": error.message, "data": None, "error": error.message,
        "error_code": error.code, "fault": error.fault, "details": error.details,
    }  # fmt: skip
    headers = b"content-type: application/json\r\n"
    if "retry_after" in error.details:
        headers += b"retry-after: %d\r\n" % int(error.details["retry_after"])
    if status == 401:
        headers += b'www-authenticate: Bearer realm="aenv"\r\n'
    return Response(status, to_json(body), headers)


def number(name: str, text: str | None) -> int | None:
    """A whole number of the query."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidArguments(f"{name}: '{text}' is not a number")
    return int(text)


def wait(text: str | None) -> float:
    """Seconds, as many as anybody may wait."""
    try:
        asked = float(text or "0")
    except ValueError:
        return 0.0
    return min(asked, MAX_WAIT) if asked > 0 else 0.0


def body(model: type[_M], request: Request) -> _M:
    """The JSON that was sent.

    Raises:
        InvalidArguments: it is none, or not of that shape.
    """
    try:
        return model.model_validate_json(request.body)
    except PydanticValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidArguments(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def envelope(data: Any) -> dict[str, Any]:
    """As existing clients know it."""
    return {"success": True, "code": 0, "message": "", "data": data}


def ok(data: Any) -> Response:
    """An answer in it."""
    return Response(200, to_json(envelope(data)))
