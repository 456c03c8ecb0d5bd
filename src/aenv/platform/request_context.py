"""Request context of the platform's routes, and the envelope of their responses."""

from __future__ import annotations

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
"""Maximum seconds that a request waits for a status to change."""
_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A request with its caller, as a route gets it."""

    request: Request
    caller: Caller
    name: str
    """Id of the instance or service."""
    query: list[tuple[str, str]]

    def one(self, name: str) -> str | None:
        """Return a query parameter, or None."""
        return next((value for key, value in self.query if key == name), None)


Route = Callable[[RequestContext], Awaitable[Answer]]
RouteEntry = tuple[str, str, str, Route]
"""Method, path template, action name (for metrics and the audit log) and handler of a route."""


def refusal(error: AEnvError) -> Response:
    """Return an error as a response. Existing clients read a number in `code` and the text in `message`."""
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
    """Parse an integer query parameter."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidArguments(f"invalid {name} '{text}'; expected a number")
    return int(text)


def wait(text: str | None) -> float:
    """Parse the seconds to wait, capped at `MAX_WAIT`; 0 if invalid."""
    try:
        asked = float(text or "0")
    except ValueError:
        return 0.0
    return min(asked, MAX_WAIT) if asked > 0 else 0.0


def body(model: type[_M], request: Request) -> _M:
    """Parse the JSON body of a request.

    Raises:
        InvalidArguments: it is not JSON, or does not fit the model.
    """
    try:
        return model.model_validate_json(request.body)
    except PydanticValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidArguments(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def envelope(data: Any) -> dict[str, Any]:
    """Wrap data in the envelope that existing clients expect."""
    return {"success": True, "code": 0, "message": "", "data": data}


def ok(data: Any) -> Response:
    """Return a successful response."""
    return Response(200, to_json(envelope(data)))
