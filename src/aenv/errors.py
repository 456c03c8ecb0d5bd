"""Exceptions of the package: one tree, each class with a code, an HTTP status and a fault.

``fault`` decides what a trainer may do with an episode:

- ``policy``   the agent made the mistake (bad arguments, no such tool), or its processes ended the instance: part of
  the episode.
- ``env``      the author's code raised, or ended the instance; the author should look at it. A failed call is part of
  the episode. A reward that raised, or an instance that ended, leaves the episode without a reward.
- ``infra``    aenv, the network or the machine failed: the episode says nothing about the agent and has no reward.
- ``timeout``  a time budget ran out; ``details["budget"]`` names the budget.
- ``user``     a simulated user failed, such as the model behind it: the episode says nothing about the agent.
- ``caller``   the program that uses the SDK or the command line made the mistake.

A response carries ``code``. The client looks the class up in a table; it never imports a class named by a peer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

Fault = Literal["policy", "env", "infra", "timeout", "user", "caller"]


class AEnvError(Exception):
    """Base class of every error that this package raises on purpose.

    Args:
        message: For people: what is wrong and what to do about it.
        details: For programs, such as ``budget``, ``sent`` or ``retry_after``. Sent in responses.

    Example:
        ```python
        try:
            await env.call_tool("add", {"a": 1, "b": 2})
        except AEnvError as error:
            print(error.code, error.fault, error.message, error.details)
        ```
    """

    code: ClassVar[str] = "internal"
    """Stable name of the error, in responses and in metric labels."""
    status: ClassVar[int] = 500
    """HTTP status of a response that carries the error."""
    fault: Fault = "infra"
    """Responsible party: ``policy``, ``env``, ``infra``, ``timeout``, ``user`` or ``caller``."""
    retryable: bool = False
    """True if the same request may succeed later."""
    exit_code: ClassVar[int] = 1
    """Exit status of the command line."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})


# --- mistakes of the caller ----------------------------------------------------------------------------------


class UsageError(AEnvError):
    """A command or a method was called with arguments, or in a state, in which it cannot work."""

    code, status, fault, exit_code = "usage", 400, "caller", 2


class BuildFailed(AEnvError):
    """The image builder failed; the message holds its last line of output."""

    code, fault = "build_failed", "caller"


class ValidationError(AEnvError):
    """A value has the wrong type or shape."""

    code, status = "validation", 422
    fault: Fault = "policy"


# --- environments and instances ------------------------------------------------------------------------------


class NetworkError(AEnvError):
    """The server could not be reached, or the connection broke."""

    code, status, retryable = "network", 502, True


class EnvironmentError(AEnvError):
    """An operation on an environment or its instance failed.

    ``env_name`` is the environment as it was given to `Environment`, or None. The name hides the built-in
    ``EnvironmentError`` (an alias of ``OSError``) in modules that import it.
    """

    code = "environment"

    def __init__(self, message: str, env_name: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, details)
        self.env_name = env_name


class ConfigError(EnvironmentError):
    """A setting or a config.json is invalid."""

    code, status, fault, exit_code = "config", 400, "caller", 3

    def __init__(self, message: str, details: Mapping[str, Any] | None = None, env_name: str | None = None) -> None:
        super().__init__(message, env_name, details)


class LoadError(EnvironmentError):
    """The author's code could not be imported; the message names the file and the line."""

    code, status, fault, exit_code = "load", 500, "env", 4

    def __init__(self, message: str, details: Mapping[str, Any] | None = None, env_name: str | None = None) -> None:
        super().__init__(message, env_name, details)


class InvalidUse(EnvironmentError, UsageError):
    """A program passed an invalid argument to an `Environment`, or used one after its release."""

    code, status, fault, exit_code = "invalid_use", 400, "caller", 2


class Unauthorized(EnvironmentError):
    """The token is missing or wrong."""

    code, status, fault = "unauthorized", 401, "caller"


class Forbidden(EnvironmentError):
    """The token is valid but does not allow this request."""

    code, status, fault = "forbidden", 403, "caller"


class ImageUnavailable(EnvironmentError):
    """A container image cannot be pulled, or cannot be used; the message has its name and the reason."""

    code, status, fault = "image_unavailable", 502, "env"


class InstanceUnreachable(EnvironmentError, NetworkError):
    """The instance could not be reached, or the connection broke.

    ``details["sent"]`` is true when the call had been sent before the connection broke. Such a call may have run, so
    it is never retried.
    """

    code, status = "unreachable", 502


class InstanceEnded(EnvironmentError):
    """The instance has ended; the message says why, and ``details["ended_by"]`` gives the reason in one word.

    ``details["sent"]`` is true when the connection broke during a call, which may have run.

    ``fault`` depends on the cause: ``policy`` if processes of the agent ended the instance, for example by exceeding
    the memory limit; ``env`` if the author's code did; ``timeout`` if its time to live ran out; otherwise ``infra``.
    """

    code, status = "instance_ended", 410

    @classmethod
    def because(
        cls, name: str, reason: str | None, fault: str | None = None, *, ended_by: str | None = None
    ) -> InstanceEnded:
        """Return the error for instance ``name``; an unknown or missing ``fault`` becomes ``infra``."""
        error = cls(ended_message(name, reason), details={"ended_by": ended_by} if ended_by else None)
        error.fault = _fault(fault, error.fault)
        return error


def ended_message(name: str, reason: str | None) -> str:
    """Return the message of every error about an instance that has ended."""
    return f"instance {name} has ended: {reason}"


class QuotaExceeded(Forbidden):
    """The token's quota is used up."""

    code, status, fault = "quota_exceeded", 403, "caller"


class UnrecoverableEnvironmentError(EnvironmentError):
    """The instance was unreachable several times in a row; calls are refused until a health probe succeeds."""

    code, status = "unrecoverable", 503


class EnvironmentTimeoutError(EnvironmentError, TimeoutError):
    """A function, a reward or the start-up exceeded its time budget.

    ``details["budget"]`` names the budget (``startup`` or ``call``), ``details["seconds"]`` gives its length.
    """

    code, status, fault = "timeout", 504, "timeout"


class FunctionFailed(EnvironmentError):
    """The author's function, reward or health check raised."""

    code, fault = "function_failed", "env"


class StateDestroyed(EnvironmentError):
    """The agent has destroyed what it would be graded on. Raised by the author's reward function.

    `Environment.call_reward` then returns the failure reward that config.json declares. For a failure that the agent
    cannot have caused, raise any other exception: the reward is then absent.

    Example:
        ```python
        @register_reward
        def solved() -> float:
            if not database.exists():
                raise StateDestroyed("the agent has removed the database")
            return score(database)
        ```
    """

    code, status, fault = "state_destroyed", 409, "policy"


class UserFailed(EnvironmentError):
    """The simulated user of an environment failed. Raised by the author's tool, function or reward.

    The episode says nothing about the agent: it has the outcome ``user`` and no reward.

    Example:
        ```python
        @register_tool
        def ask_user(question: str) -> str:
            try:
                return user_model(question)
            except ConnectionError as error:
                raise UserFailed(f"the model of the user is unreachable: {error}") from error
        ```
    """

    code, status, fault = "user_failed", 502, "user"


class InvalidArguments(EnvironmentError, ValidationError):
    """The arguments do not match the signature of the tool, function or reward."""

    code, status, fault = "invalid_arguments", 422, "caller"


class NotJson(EnvironmentError):
    """The caller's arguments cannot be serialized as JSON; nothing was sent."""

    code, status, fault = "not_json", 400, "caller"


class NotFound(EnvironmentError):
    """No environment, instance, function or reward has that name."""

    code, status, fault = "not_found", 404, "caller"


class Conflict(EnvironmentError):
    """The name is ambiguous, or the object exists already."""

    code, status, fault = "conflict", 409, "caller"


class InvalidBundle(EnvironmentError):
    """A bundle is incomplete or unsafe; ``details["missing"]`` lists the missing blobs."""

    code, status, fault = "invalid_bundle", 422, "caller"


class TooLarge(EnvironmentError):
    """The request body exceeds the size limit."""

    code, status, fault = "too_large", 413, "caller"


class RateLimited(EnvironmentError):
    """Too many requests; retry after ``details["retry_after"]`` seconds."""

    code, status, retryable = "rate_limited", 429, True


class Unavailable(EnvironmentError):
    """The server is running but cannot answer at the moment."""

    code, status, retryable = "unavailable", 503, True


class ForkRefused(EnvironmentError):
    """A running instance cannot be forked or checkpointed as it is; ``details["obstacles"]`` says what is in the way.

    The instance runs on. The message names every obstacle and its cure.
    """

    code, status, fault = "fork_refused", 409, "env"


class StorageFull(EnvironmentError):
    """The disk, or a quota on it, has no space left. What was stored before is intact."""

    code, status = "storage_full", 507


class Overloaded(Unavailable):
    """The platform is at capacity and no slot became free in time; retry after ``details["retry_after"]`` seconds."""

    code = "overloaded"


class CapacityExhausted(Overloaded):
    """The machine has no room for another instance now; the message names the resource. Retry later."""

    code = "capacity"


# --- tools ---------------------------------------------------------------------------------------------------


class ToolError(AEnvError):
    """A tool call gave no result. ``tool_name`` is the name as it was called."""

    code = "tool"
    fault: Fault = "env"

    def __init__(self, message: str, tool_name: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, details)
        self.tool_name = tool_name


class ToolNotFound(ToolError):
    """The qualified tool name (``env@version/tool``) belongs to another environment."""

    code, status, fault = "tool_not_found", 404, "policy"


class ToolTimeoutError(ToolError, TimeoutError):
    """The tool gave no answer within the call's ``timeout`` seconds. It may have run, so the call is not retried."""

    code, status, fault = "tool_timeout", 504, "timeout"

    def __init__(
        self,
        message: str,
        tool_name: str | None = None,
        timeout: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, tool_name, {"budget": "call", "seconds": timeout, **(details or {})})
        self.timeout = timeout


class ToolServerError(ToolError):
    """The instance gave no valid answer to the call. The tool may have run, so the call is not retried.

    ``status_code`` is the HTTP status of the answer, or None if there was none.
    """

    code, status, fault = "tool_server", 502, "infra"

    def __init__(
        self,
        message: str,
        tool_name: str | None = None,
        status_code: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, tool_name, details)
        self.status_code = status_code


# --- responses -----------------------------------------------------------------------------------------------


def problem(error: AEnvError) -> dict[str, Any]:
    """Return the JSON body of a response that carries ``error``. Existing clients read ``success`` and ``error``."""
    body: dict[str, Any] = {
        "success": False,
        "error": error.message,
        "code": error.code,
        "fault": error.fault,
    }
    if error.details:
        body["details"] = error.details
    return body


_BY_CODE: dict[str, type[EnvironmentError]] = {
    cls.code: cls
    for cls in (
        Unauthorized, Forbidden, EnvironmentTimeoutError, FunctionFailed, InvalidArguments, NotFound, Conflict,
        InvalidBundle, TooLarge, RateLimited, Unavailable, InstanceUnreachable, InstanceEnded, QuotaExceeded,
        Overloaded, CapacityExhausted, StateDestroyed, ConfigError, LoadError, UserFailed, ImageUnavailable,
        ForkRefused,
    )
}  # fmt: skip
_BY_STATUS: dict[int, type[EnvironmentError]] = {
    cls.status: cls
    for cls in _BY_CODE.values()
    if cls
    not in (
        FunctionFailed,
        InvalidBundle,
        InstanceUnreachable,
        InstanceEnded,
        QuotaExceeded,
        Overloaded,
        CapacityExhausted,
        StateDestroyed,
        ForkRefused,
        ConfigError,
        LoadError,
        UserFailed,
        ImageUnavailable,
    )
}


def from_answer(status: int, body: Mapping[str, Any], *, env_name: str | None = None) -> EnvironmentError:
    """Return the error that a response carries, chosen by its code, else by its HTTP status."""
    message = str(body.get("error") or body.get("message") or f"HTTP status {status}")
    raw = body.get("details")
    details: dict[str, Any] = dict(raw) if isinstance(raw, Mapping) else {}
    # Routes of older clients have a number in `code`; the name of the error is then in `error_code`.
    cls = _BY_CODE.get(str(body.get("error_code") or body.get("code"))) or _BY_STATUS.get(status) or EnvironmentError
    error = cls(message, env_name=env_name, details=details)
    if cls in (EnvironmentError, InstanceEnded):
        error.fault = _fault(body.get("fault"), error.fault)
    error.details.setdefault("status", status)
    return error


def without_json(status: int, url: object, kind: str, setting: str) -> EnvironmentError:
    """Return the error of an answer that is no JSON object: from a proxy, or from a server that is no ``kind``."""
    hint = f"Is this the address of a {kind}? It comes from {setting}."
    return from_answer(status, {"error": f"{url} answered HTTP {status} without JSON", "details": {"hint": hint}})


def _fault(given: object, default: Fault) -> Fault:
    """Return ``given`` if it is a known fault, else ``default``."""
    return next((known for known in get_args(Fault) if known == given), default)
