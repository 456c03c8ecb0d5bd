"""OpenAPI document of the control plane."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aenv._version import __version__
from aenv.http import openapi
from aenv.http.openapi import Operation
from aenv.platform.access.token_routes import PlatformTokenRequest, PlatformTokenResponse
from aenv.schema import paths
from aenv.schema.inside import MOST_ENTRIES, Command, CommandResult, FileInfo, ProcessInfo, SignalRequest
from aenv.schema.instances import (
    ActivityAnswer,
    CheckpointRequest,
    EnvInstance,
    EnvInstanceCreateRequest,
    EnvPool,
    EnvPoolCreateRequest,
    EnvService,
    EnvServiceCreateRequest,
    EnvServiceUpdateRequest,
    EnvStatus,
    ForkOutcome,
    InstanceEvent,
    InstanceForkRequest,
    InstancePage,
    PresignedUrl,
    PresignRequest,
    RewindRequest,
)
from aenv.schema.rollouts import RolloutInfo, RolloutRequest, ServedEpisode
from aenv.schema.trajectories import (
    EPISODES_PER_PAGE,
    EVENTS_PER_PAGE,
    EpisodeOutcome,
    EpisodePage,
    EpisodeState,
    EventPage,
    PruneAnswer,
    PruneRequest,
    RunPage,
    RunUpload,
    StoredEpisode,
    StoredRun,
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
    "409": "It exists already, or an instance cannot be forked as it is",
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


class RolloutQuery(QueryModel):
    """How to answer a request for a rollout."""

    stream: bool = True
    """False: answer with the state at once; follow it at `/rollouts/{id}/stream`."""


class StreamQuery(QueryModel):
    """Selection of the episodes to send."""

    after: Annotated[int, Field(ge=0)] = 0
    """Number of the first episode to send. `Last-Event-ID` does the same after a broken connection."""
    trace: bool = True
    """Send the events of each episode."""


class OwnerQuery(QueryModel):
    """Selection of a user."""

    owner: str | None = None
    """User whose trajectories are meant; an administrator sees those of all."""


class EpisodeQuery(OwnerQuery):
    """Filters for episodes."""

    run: str | None = None
    task: str | None = None
    outcome: EpisodeOutcome | None = None
    state: EpisodeState | None = None
    final: bool | None = None
    """Only episodes that are, or are not, the result of their sample."""
    newest_first: bool = False
    """The newest first; otherwise in the order of their beginning."""
    limit: Annotated[int, Field(ge=1, le=EPISODES_PER_PAGE)] = 100
    after: str | None = None
    """`next` of the previous page, or the id of an episode."""


class EventQuery(OwnerQuery):
    """Window of events."""

    start: Annotated[int, Field(ge=0)] = 0
    """Number of the first event."""
    limit: Annotated[int, Field(ge=1, le=EVENTS_PER_PAGE)] = 100


class RunQuery(OwnerQuery):
    """Filters for runs."""

    run: str | None = None
    """Only the run of this id."""
    limit: Annotated[int, Field(ge=1, le=EPISODES_PER_PAGE)] = 100
    after: str | None = None
    """`next` of the previous page, or the id of a run."""


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


class ActivityQuery(QueryModel):
    """The create request."""

    request_id: str = ""
    """``request_id`` of the create request."""


class LogQuery(QueryModel):
    """Part of a log."""

    tail: Annotated[int, Field(ge=0, le=999_999_999)] | None = None
    """Only this many lines from the end."""
    follow: bool = False
    """Stream the log as plain text until the instance ends."""


class PathQuery(QueryModel):
    """Path of a file or folder in the instance."""

    path: Annotated[str, Field(min_length=1)]


class ListFilesQuery(PathQuery):
    """Folder to list."""

    depth: Annotated[int, Field(ge=1, le=64)] = 1
    """Levels of folders to list."""
    limit: Annotated[int, Field(ge=1, le=MOST_ENTRIES)] = 10_000
    """Maximum number of entries; with more, the request is refused."""


class RecursiveQuery(PathQuery):
    """Path, with or without what is below it."""

    recursive: bool = False
    """Include folders below it, and what is in them."""


class ProcessQuery(QueryModel):
    """Time to wait for the end of a process."""

    wait: Annotated[float, Field(ge=0, le=30)] = 0.0
    """Seconds to wait for the end of a detached process."""


class StdinQuery(QueryModel):
    """End of the input."""

    eof: bool = False
    """Close standard input after this."""


class TtlRequest(BaseModel):
    """New time to live, from now; empty: as long as before."""

    model_config = ConfigDict(extra="forbid")

    ttl: str = Field(default="", max_length=64)


class InstanceRefusal(BaseModel):
    """Error response of an instance."""

    model_config = ConfigDict(extra="allow")

    success: Literal[False]
    code: str | int
    """Error code as a word from instances; HTTP status from the platform."""


class AffectedPath(BaseModel):
    """Path that was made or removed."""

    path: str


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


def _rollouts(
    method: str, path: str, summary: str, answer: Any, needs: Literal["user", "read-only"] = "user", **more: Any
) -> Operation:
    return Operation(
        method, paths.ROLLOUTS + path, summary, answer=answer, needs=needs, legacy=True, tag="rollouts", **more
    )


def _trajectories(
    method: str, path: str, summary: str, answer: Any, needs: Literal["user", "read-only"] = "user", **more: Any
) -> Operation:
    return Operation(method, path, summary, answer=answer, needs=needs, legacy=True, tag="trajectories", **more)


_EPISODE = f"{paths.TRAJECTORIES}/{{id}}"

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
        paths.ACTIVITY,
        "Get what a create request of the caller waits for, such as the installation of packages",
        ActivityAnswer,
        query=ActivityQuery,
    ),
    _read(
        f"{paths.INSTANCES}/{{environment}}/list",
        "List instances of an environment, or all with `*`, in the shape of older clients",
        list[EnvInstance],
        query=FilterQuery,
    ),
    _read(_ONE, "Get an instance", EnvInstance, query=InstanceQuery),
    _instances("DELETE", _ONE, "Delete an instance", str),
    _instances("PUT", f"{_ONE}/ttl", "Restart its time to live", EnvInstance, body=TtlRequest, body_optional=True),
    _instances("POST", f"{_ONE}/fork", "Fork it while it runs", list[ForkOutcome], body=InstanceForkRequest),
    _instances(
        "POST", f"{_ONE}/checkpoint", "Make a checkpoint of it", EnvInstance, body=CheckpointRequest, body_optional=True
    ),
    _instances("POST", f"{_ONE}/rewind", "Take it back to a checkpoint", EnvInstance, body=RewindRequest),
    _read(f"{_ONE}/branches", "List its forks and checkpoints, and theirs", list[EnvInstance]),
    _read(f"{_ONE}/events", "List its events, the oldest first", list[InstanceEvent]),
    _read(f"{_ONE}/logs", "Get the output of its tools", str, query=LogQuery, media=("text/plain",)),
    _instances("POST", f"{_ONE}/presign-url", "Create a URL of a port inside it", PresignedUrl, body=PresignRequest),
    _inside(
        "POST",
        paths.EXEC,
        "Run a command in it: at once, as a stream of JSON lines (`stream`), or detached (`detach`)",
        CommandResult | ProcessInfo,
        body=Command,
        media=("application/x-ndjson",),
    ),
    _inside(
        "GET", paths.EXEC, "List processes that callers started in it; with a WebSocket, run one", list[ProcessInfo]
    ),
    _inside(
        "GET",
        f"{paths.EXEC}/{{process}}",
        "Get a process; with a WebSocket, attach to it",
        ProcessInfo,
        query=ProcessQuery,
    ),
    _inside(
        "GET",
        f"{paths.EXEC}/{{process}}/output",
        "Follow the output of a detached process",
        bytes,
        media=("application/x-ndjson",),
    ),
    _inside(
        "POST",
        f"{paths.EXEC}/{{process}}/stdin",
        "Write to a process's standard input",
        None,
        body=bytes,
        query=StdinQuery,
    ),
    _inside("POST", f"{paths.EXEC}/{{process}}/signal", "Send a signal to a process", None, body=SignalRequest),
    _inside("GET", paths.FILES, "Read a file in it", bytes, query=PathQuery),
    _inside("PUT", paths.FILES, "Write a file in it, of at most 64 MiB", WrittenFile, query=PathQuery, body=bytes),
    _inside("DELETE", paths.FILES, "Remove a file or folder in it", AffectedPath, query=RecursiveQuery),
    _inside("GET", paths.FILE_STAT, "Describe a file or folder in it", FileInfo, query=PathQuery),
    _inside("GET", paths.FILE_LIST, "List a folder in it", list[FileInfo], query=ListFilesQuery),
    _inside("POST", paths.FOLDER, "Make a folder in it, with those above it", AffectedPath, query=PathQuery),
    _inside(
        "GET",
        paths.FILE_WATCH,
        "Follow changes of a file or folder in it",
        bytes,
        query=RecursiveQuery,
        media=("application/x-ndjson",),
    ),
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
    Operation(
        "POST",
        paths.POOLS,
        "Keep instances of an environment ready",
        answer=EnvPool,
        body=EnvPoolCreateRequest,
        needs="user",
        legacy=True,
        tag="pools",
    ),
    Operation(
        "GET",
        f"{paths.POOLS}/list",
        "List the warm pools",
        answer=list[EnvPool],
        needs="read-only",
        legacy=True,
        tag="pools",
    ),
    Operation(
        "DELETE",
        f"{paths.POOLS}/{{environment}}",
        "End the warm pool of an environment",
        answer=str,
        needs="user",
        legacy=True,
        tag="pools",
    ),
    _rollouts(
        "POST",
        "",
        "Run an agent over tasks, and get every episode as it ends, as server-sent events",
        RolloutInfo,
        body=RolloutRequest,
        query=RolloutQuery,
        media=("text/event-stream",),
    ),
    _rollouts("GET", "", "List rollouts, the newest first", list[RolloutInfo], "read-only"),
    _rollouts("GET", "/{id}", "Get the state of a rollout", RolloutInfo, "read-only"),
    _rollouts(
        "GET",
        "/{id}/stream",
        "Follow a rollout: its finished episodes, then the others as they end, as server-sent events",
        str,
        "read-only",
        query=StreamQuery,
        media=("text/event-stream",),
    ),
    _rollouts("GET", "/{id}/episodes/{episode}", "Get a finished episode with its events", ServedEpisode, "read-only"),
    _rollouts("DELETE", "/{id}", "Cancel a rollout", RolloutInfo),
    _trajectories("GET", paths.TRAJECTORIES, "List recorded episodes", EpisodePage, "read-only", query=EpisodeQuery),
    _trajectories(
        "GET",
        _EPISODE,
        "Get an episode by its id or the beginning of it, without its events",
        StoredEpisode,
        "read-only",
        query=OwnerQuery,
    ),
    _trajectories(
        "GET", f"{_EPISODE}/events", "Get some events of an episode", EventPage, "read-only", query=EventQuery
    ),
    _trajectories(
        "PUT",
        _EPISODE,
        "Store an episode: its events as lines of JSON, which may be compressed with gzip",
        StoredEpisode,
        body=bytes,
    ),
    _trajectories("DELETE", _EPISODE, "Delete an episode", StoredEpisode),
    _trajectories(
        "POST",
        paths.TRAJECTORIES_PRUNE,
        "Delete episodes, a limited number with each request",
        PruneAnswer,
        body=PruneRequest,
    ),
    _trajectories("GET", paths.TRAJECTORY_RUNS, "List runs, the newest first", RunPage, "read-only", query=RunQuery),
    _trajectories("POST", paths.TRAJECTORY_RUNS, "Store a run, unless it exists", StoredRun, body=RunUpload),
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
