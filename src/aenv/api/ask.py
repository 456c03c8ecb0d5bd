"""One request, as a route of the platform sees it, and the envelope of its answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic import ValidationError as PydanticValidationError
from pydantic_core import to_json

from aenv.api.access import Caller
from aenv.errors import InvalidArguments
from aenv.runtime.messages import Answer, Request, Response

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, as a route sees it."""

    request: Request
    caller: Caller
    name: str
    """What stands after ``/env-instance/``."""
    query: list[tuple[str, str]]

    def one(self, name: str) -> str | None:
        """A value of the query."""
        return next((value for key, value in self.query if key == name), None)


Route = Callable[[Ask], Awaitable[Answer]]
More = tuple[str, re.Pattern[str], str, Route]
"""A method, what its path looks like, what it is called in metrics and in the audit log, and who answers."""


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
