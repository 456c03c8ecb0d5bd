"""The OpenAPI document of the control plane."""

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
"""Instances in one page, at the most."""
TITLE = "AEnvironment platform"
_ONE = f"{paths.INSTANCES}/{{id}}"
_PROBLEMS = {
    "400": "It cannot be understood, or a value has the wrong shape",
    "401": "The token is missing, wrong, revoked or expired",
    "403": "The token is not good for this, or uses as much as it may",
    "404": "There is no such thing, or it is somebody else's",
    "405": "Another method is meant",
    "408": "It came too slowly",
    "409": "It is there already",
    "410": "The instance has ended; the message says why",
    "413": "It is too large",
    "422": "The instance does not understand it",
    "429": "Too many for now; `Retry-After` says for how long",
    "431": "The headers are too large",
    "502": "The instance, or the server that it is on, does not answer",
    "503": "The store cannot be reached just now; try again",
}


class QueryModel(BaseModel):
    """A question after the question mark."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class FilterQuery(QueryModel):
    """Which instances to list."""

    owner: str | None = None
    status: EnvStatus | None = None
    """Ended ones are listed only when they are asked for so."""
    label: list[Annotated[str, Field(pattern="^[^=]*=")]] = Field(default_factory=list)
    """Like `key=value`; all must fit."""
    limit: Annotated[int, Field(ge=1, le=PAGE)] | None = None
    after: str | None = None
    """The `next` of the page before."""


class InstanceListQuery(FilterQuery):
    """Which instances to list."""

    envName: str | None = None
    """Of which environment: `name`, `name@version` or `*`."""


class ServiceQuery(QueryModel):
    """Which services to list."""

    envName: str | None = None
    """Of which environment: `name`, `name@version` or `*`."""


class DeleteQuery(QueryModel):
    """What goes with it."""

    deleteStorage: bool = False
    """Its storage, too."""


class WaitQuery(QueryModel):
    """How long to wait."""

    wait: Annotated[float, Field(ge=0, le=20)] = 0.0
    """Seconds, for one that is being made."""


class InstanceQuery(WaitQuery):
    """Which instances count."""

    deleted: bool = False
    """Also one that was deleted within the last hour."""


class LogQuery(QueryModel):
    """Which part of a log."""

    tail: Annotated[int, Field(ge=0, le=999_999_999)] | None = None
    """Only so many lines."""
    follow: bool = False
    """As plain text that goes on until the instance ends."""


class PathQuery(QueryModel):
    """Where in the instance."""

    path: Annotated[str, Field(min_length=1)]


class TtlRequest(BaseModel):
    """How long from now; nothing: as long as before."""

    model_config = ConfigDict(extra="forbid")

    ttl: str = Field(default="", max_length=64)


class CommandResult(BaseModel):
    """What came of a command."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool


class InstanceRefusal(BaseModel):
    """Why an instance refused a request."""

    model_config = ConfigDict(extra="allow")

    success: Literal[False]
    code: str | int
    """What instances refuse has a word here, what the platform refuses the HTTP status."""


class WrittenFile(BaseModel):
    """What was written."""

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
        "Make an instance, or with `count` several",
        EnvInstance | list[EnvInstance],
        body=EnvInstanceCreateRequest,
    ),
    _read(f"{paths.INSTANCES}/list", "List instances, the oldest first", InstancePage, query=InstanceListQuery),
    _read(
        f"{paths.INSTANCES}/{{environment}}/list",
        "List instances of an environment, or with `*` all, as older clients ask",
        list[EnvInstance],
        query=FilterQuery,
    ),
    _read(_ONE, "Get an instance", EnvInstance, query=InstanceQuery),
    _instances("DELETE", _ONE, "End an instance", str),
    _instances(
        "PUT", f"{_ONE}/ttl", "Have its time to live count from now", EnvInstance, body=TtlRequest, body_optional=True
    ),
    _read(f"{_ONE}/events", "What happened to it, the oldest first", list[InstanceEvent]),
    _read(f"{_ONE}/logs", "What its tools wrote", str, query=LogQuery, media=("text/plain",)),
    _instances("POST", f"{_ONE}/presign-url", "A URL of a port inside it", PresignedUrl, body=PresignRequest),
    _inside("POST", paths.EXEC, "Run a command in it", CommandResult, body=Command),
    _inside("GET", paths.FILES, "Read a file in it", bytes, query=PathQuery),
    _inside("PUT", paths.FILES, "Write a file in it, of at most 64 MiB", WrittenFile, query=PathQuery, body=bytes),
    _inside("GET", paths.ARCHIVE, "Read a folder in it as a tar", bytes, query=PathQuery, media=("application/x-tar",)),
    _inside("PUT", paths.ARCHIVE, "Unpack a tar into a folder in it", WrittenFile, query=PathQuery, body=bytes),
    _services(
        "POST",
        "",
        "Make a service; its replicas are being made when the answer comes",
        EnvService,
        body=EnvServiceCreateRequest,
    ),
    _services("GET", "/list", "List services", list[EnvService], query=ServiceQuery),
    _services("GET", "/{environment}/list", "List services of an environment, or with `*` all", list[EnvService]),
    _services("GET", "/{id}", "Get a service", EnvService, query=WaitQuery),
    _services("PUT", "/{id}", "Change what is wanted of it", EnvService, body=EnvServiceUpdateRequest),
    _services("DELETE", "/{id}", "End a service", str, query=DeleteQuery),
    _services("GET", "/{id}/events", "What happened to it, the oldest first", list[InstanceEvent]),
    _services("GET", "/{id}/logs", "What its replicas wrote", str, query=LogQuery, media=("text/plain",)),
    _tokens("GET", "", "List tokens", list[PlatformTokenResponse]),
    _tokens("POST", "", "Make a token; it is shown once", PlatformTokenResponse, body=PlatformTokenRequest),
    _tokens("DELETE", "/{id}", "Revoke a token", PlatformTokenResponse),
)


def document(version: str = __version__) -> dict[str, Any]:
    """What every route takes and gives."""
    about = openapi.ApiInfo(
        TITLE, version, "Instances of environments, for many.", InstanceRefusal, _PROBLEMS, token="role"
    )
    return openapi.document(OPERATIONS, about)


if __name__ == "__main__":
    import sys

    sys.stdout.write(json.dumps(document(), indent=1) + "\n")
