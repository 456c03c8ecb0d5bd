"""OpenAPI document of the control plane."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aenv._version import __version__
from aenv.http import openapi
from aenv.http.openapi import Operation
from aenv.platform.access.token_routes import PlatformTokenRequest, PlatformTokenResponse
from aenv.runtime.sandbox_routes import Command
from aenv.schema import paths
from aenv.schema.instances import (
    EnvInstance,
    EnvInstanceCreateRequest,
    EnvService,
    EnvServiceCreateRequest,
    EnvServiceUpdateRequest,
    EnvStatus,
    InstanceEvent,
    InstancePage,
    PresignedUrl,
    PresignRequest,
)

PAGE = 1000
"""Maximum number of instances in a page."""
TITLE = "AEnvironment platform"
_ONE = f"{paths.INSTANCES}/{{id}}"
_PROBLEMS = {
    "400": "Malformed request, or a value of the wrong type",
    "401": "The token is missing, invalid, revoked or expired",
    "403": "The token does not allow this, or its quota is used up",
    "404": "Not found, or owned by another user",
    "405": "Wrong method",
    "408": "The request arrived too slowly",
    "409": "It exists already",
    "410": "The instance has ended; the message says why",
    "413": "The body is too large",
    "422": "The instance rejected the arguments",
    "429": "Too many requests; retry after `Retry-After` seconds",
    "431": "The headers are too large",
    "502": "The instance, or the server that runs it, does not answer",
    "503": "The store is not reachable at the moment; try again",
}


class QueryModel(BaseModel):
    """Base of query parameters."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class FilterQuery(QueryModel):
    """Filters for instances."""

    owner: str | None = None
    status: EnvStatus | None = None
    """Ended instances are listed only if this asks for their status."""
    label: list[Annotated[str, Field(pattern="^[^=]*=")]] = Field(default_factory=list)
    """A label as `key=value`; an instance must have all of them."""
    limit: Annotated[int, Field(ge=1, le=PAGE)] | None = None
    after: str | None = None
    """`next` of the previous page."""


class InstanceListQuery(FilterQuery):
    """Filters for instances, with the environment."""

    envName: str | None = None
    """Environment: `name`, `name@version` or `*`."""


class ServiceQuery(QueryModel):
    """Filters for services."""

    envName: str | None = None
    """Environment: `name`, `name@version` or `*`."""


class DeleteQuery(QueryModel):
    """Options for deleting a service."""

    deleteStorage: bool = False
    """Delete its storage, too."""


class WaitQuery(QueryModel):
    """Time to wait for a change."""

    wait: Annotated[float, Field(ge=0, le=20)] = 0.0
    """Seconds to wait while it is being created."""


class InstanceQuery(WaitQuery):
    """Options for getting an instance."""

    deleted: bool = False
    """Also find an instance that was deleted within the last hour."""


class LogQuery(QueryModel):
    """Part of a log."""

    tail: Annotated[int, Field(ge=0, le=999_999_999)] | None = None
    """Only this many lines from the end."""
    follow: bool = False
    """Stream the log as plain text until the instance ends."""


class PathQuery(QueryModel):
    """Path of a file or folder in the instance."""

    path: Annotated[str, Field(min_length=1)]


class TtlRequest(BaseModel):
    """New time to live, from now; empty: as long as before."""

    model_config = ConfigDict(extra="forbid")

    ttl: str = Field(default="", max_length=64)


class CommandResult(BaseModel):
    """Exit code and output of a command."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool


class InstanceRefusal(BaseModel):
    """Error response of an instance."""

    model_config = ConfigDict(extra="allow")

    success: Literal[False]
    code: str | int
    """Error code as a word from instances; HTTP status from the platform."""


class WrittenFile(BaseModel):
    """Path and size of what was written."""

    model_config = ConfigDict(extra="allow")

    path: str
    size: int


def _instances(method: str, path: str, summary: str, answer: Any, **more: Any) -> Operation:
    return Operation(method, path, summary, answer=answer, legacy=True, tag="instances", needs="user", **more)


def _read(path: str, summary: str, answer: Any, **more: Any) -> Operation:
    return Operation("GET", path, summary, answer=answer, legacy=True, tag="instances", needs="read-only", **more)


def _inside(method: str, path: str, summary: str, answer: Any, **more: Any) -> Operation:
    return Operation(method, f"{_ONE}{path}", summary, answer=answer, needs="user", tag="inside", **more)


def _services(method: str, path: str, summary: str, answer: Any, **more: Any) -> Operation:
    needs = "read-only" if method == "GET" else "user"
    return Operation(
        method, paths.SERVICES + path, summary, answer=answer, needs=needs, legacy=True, tag="services", **more
    )


def _tokens(method: str, path: str, summary: str, answer: Any, **more: Any) -> Operation:
    return Operation(
        method, paths.PLATFORM_TOKENS + path, summary, answer=answer, needs="admin", legacy=True, tag="tokens", **more
    )


OPERATIONS = (
    _instances(
        "POST",
        paths.INSTANCES,
        "Create an instance, or several with `count`",
        EnvInstance | list[EnvInstance],
        body=EnvInstanceCreateRequest,
    ),
    _read(f"{paths.INSTANCES}/list", "List instances, the oldest first", InstancePage, query=InstanceListQuery),
    _read(
        f"{paths.INSTANCES}/{{environment}}/list",
        "List instances of an environment, or all with `*`, in the shape of older clients",
        list[EnvInstance],
        query=FilterQuery,
    ),
    _read(_ONE, "Get an instance", EnvInstance, query=InstanceQuery),
    _instances("DELETE", _ONE, "Delete an instance", str),
    _instances("PUT", f"{_ONE}/ttl", "Restart its time to live", EnvInstance, body=TtlRequest, body_optional=True),
    _read(f"{_ONE}/events", "List its events, the oldest first", list[InstanceEvent]),
    _read(f"{_ONE}/logs", "Get the output of its tools", str, query=LogQuery, media=("text/plain",)),
    _instances("POST", f"{_ONE}/presign-url", "Create a URL of a port inside it", PresignedUrl, body=PresignRequest),
    _inside("POST", paths.EXEC, "Run a command in it", CommandResult, body=Command),
    _inside("GET", paths.FILES, "Read a file in it", bytes, query=PathQuery),
    _inside("PUT", paths.FILES, "Write a file in it, of at most 64 MiB", WrittenFile, query=PathQuery, body=bytes),
    _inside("GET", paths.ARCHIVE, "Read a folder in it as a tar", bytes, query=PathQuery, media=("application/x-tar",)),
    _inside("PUT", paths.ARCHIVE, "Unpack a tar into a folder in it", WrittenFile, query=PathQuery, body=bytes),
    _services(
        "POST",
        "",
        "Create a service; its replicas start after the response",
        EnvService,
        body=EnvServiceCreateRequest,
    ),
    _services("GET", "/list", "List services", list[EnvService], query=ServiceQuery),
    _services("GET", "/{environment}/list", "List services of an environment, or all with `*`", list[EnvService]),
    _services("GET", "/{id}", "Get a service", EnvService, query=WaitQuery),
    _services("PUT", "/{id}", "Update a service", EnvService, body=EnvServiceUpdateRequest),
    _services("DELETE", "/{id}", "Delete a service", str, query=DeleteQuery),
    _services("GET", "/{id}/events", "List its events, the oldest first", list[InstanceEvent]),
    _services("GET", "/{id}/logs", "Get the output of its replicas", str, query=LogQuery, media=("text/plain",)),
    _tokens("GET", "", "List tokens", list[PlatformTokenResponse]),
    _tokens("POST", "", "Create a token; it is shown once", PlatformTokenResponse, body=PlatformTokenRequest),
    _tokens("DELETE", "/{id}", "Revoke a token", PlatformTokenResponse),
)


def document(version: str = __version__) -> dict[str, Any]:
    """Return the OpenAPI document."""
    about = openapi.ApiInfo(
        TITLE, version, "Create and use instances of environments.", InstanceRefusal, _PROBLEMS, token="role"
    )
    return openapi.document(OPERATIONS, about)


if __name__ == "__main__":
    import sys

    sys.stdout.write(json.dumps(document(), indent=1) + "\n")
