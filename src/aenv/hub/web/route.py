"""Routes: method and path, request and response models, and their OpenAPI description in one declaration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from aenv.errors import InvalidArguments
from aenv.http.messages import Request
from aenv.http.openapi import Operation
from aenv.hub.local_hub import LocalHub

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Request context of a route handler."""

    hub: LocalHub
    request: Request
    path: dict[str, str]

    def query(self, model: type[M]) -> M:
        """Parse the query string. A list is given as repeated names or as ``a,b``."""
        lists = {name for name, field in model.model_fields.items() if "list[" in str(field.annotation)}
        values: dict[str, Any] = {}
        for name, value in parse_qsl(self.request.query.decode("latin-1"), keep_blank_values=True, max_num_fields=100):
            if name in lists:
                values.setdefault(name, []).extend(part for part in value.split(",") if part)
            elif name in values:
                raise InvalidArguments(f"duplicate query parameter {name}")
            else:
                values[name] = value
        return _checked(lambda: model.model_validate(values))

    def body(self, model: type[M]) -> M:
        """Parse the JSON body."""
        return _checked(lambda: model.model_validate_json(self.request.body))


Handler = Callable[[Exchange], Awaitable[Any]]


Route = Operation
"""A method and path with its `Handler`."""


def _checked(read: Callable[[], M]) -> M:
    try:
        return read()
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidArguments(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"the request cannot be parsed: {error}") from None
