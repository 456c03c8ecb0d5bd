"""Every error of the project: one tree, each class with its code, its HTTP status and whose fault it is.

Whose fault decides what a trainer may do with an episode:

- ``policy``   the agent asked for something wrong (bad arguments, no such tool): part of the episode.
- ``env``      the author's code raised: part of the episode, and worth a look by the author.
- ``infra``    ours or the machine's: the episode says nothing about the agent, so it has no reward.
- ``timeout``  a time budget ran out; ``details["budget"]`` says which one.
- ``caller``   the program that uses the SDK or the command line made a mistake.

The wire carries ``code``; the client looks the class up in a table and never imports one that a peer names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

Fault = Literal["policy", "env", "infra", "timeout", "caller"]


class AEnvError(Exception):
    """Anything that this package raises on purpose."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    fault: Fault = "infra"
    retryable: bool = False
    exit_code: ClassVar[int] = 1
    """What the command line exits with."""

    def __init__(self, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})


# --- the caller's own mistakes -------------------------------------------------------------------------------


class ConfigError(AEnvError):
    """A setting or a config.json that cannot be used as it is."""

    code, status, fault, exit_code = "config", 400, "caller", 3


class UsageError(AEnvError):
    """A command or a method was called in a way that cannot work."""

    code, status, fault, exit_code = "usage", 400, "caller", 2


class LoadError(AEnvError):
    """The author's code could not be imported; the message has the file and the line."""

    code, status, fault, exit_code = "load", 500, "env", 4


class BuildFailed(AEnvError):
    """The builder of images failed; its last line is in the message."""

    code, fault = "build_failed", "caller"


class ValidationError(AEnvError):
    """A value has the wrong shape."""

    code, status, fault = "validation", 422, "policy"


# --- the way to the environment ------------------------------------------------------------------------------


class NetworkError(AEnvError):
    """The other side could not be reached, or the connection broke."""

    code, status, retryable = "network", 502, True


class EnvironmentError(AEnvError):
    """Something about an environment or its instance went wrong."""

    code = "environment"

    def __init__(self, message: str, env_name: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, details)
        self.env_name = env_name


class InvalidUse(EnvironmentError, UsageError):
    """A program passed something to an environment that cannot work, or used one after its release."""

    code, status, fault, exit_code = "invalid_use", 400, "caller", 2


class Unauthorized(EnvironmentError):
    """The token is missing or wrong."""

    code, status, fault = "unauthorized", 401, "caller"


class Forbidden(EnvironmentError):
    """The request is understood, and not allowed."""

    code, status, fault = "forbidden", 403, "caller"


class InstanceUnreachable(EnvironmentError, NetworkError):
    """The instance could not be reached, or the connection broke; ``details["sent"]`` says which.

    What was sent may have run, so a call is never sent again.
    """

    code, status = "unreachable", 502


class InstanceEnded(EnvironmentError):
    """The instance is there no more; the message says why, and ``details["ended_by"]`` in one word.

    ``details["sent"]`` is true when the connection broke in the middle of a call, which may have run.

    Its fault depends on the end: `policy` where the agent's own processes brought it about, such as by using up the
    memory limit; `env` where the author's code did; `timeout` at the end of its time to live; otherwise `infra`.
    """

    code, status = "instance_ended", 410

    @classmethod
    def because(
        cls, name: str, reason: str | None, fault: str | None = None, *, ended_by: str | None = None
    ) -> InstanceEnded:
        """The end of one instance; without a fault it is `infra`."""
        error = cls(f"instance {name} has ended: {reason}", details={"ended_by": ended_by} if ended_by else None)
        error.fault = _fault(fault, error.fault)
        return error


class QuotaExceeded(Forbidden):
    """The token already uses as much as it may."""

    code, status, fault = "quota_exceeded", 403, "caller"


class UnrecoverableEnvironmentError(EnvironmentError):
    """Calls kept failing on the way to the instance, so they are refused until a probe succeeds."""

    code, status = "unrecoverable", 503


class EnvironmentTimeoutError(EnvironmentError, TimeoutError):
    """A function, reward or start-up took longer than its budget; ``details["budget"]`` names it."""

    code, status, fault = "timeout", 504, "timeout"


class FunctionFailed(EnvironmentError):
    """The author's function, reward or health check raised."""

    code, fault = "function_failed", "env"


class StateDestroyed(EnvironmentError):
    """For a reward to raise when the agent has destroyed what it would be graded on, such as a file that was there.

    `call_reward` then gives the environment's declared failure reward. For what the agent cannot have done, raise
    anything else: the reward is absent then.
    """

    code, status, fault = "state_destroyed", 409, "policy"


class InvalidArguments(EnvironmentError, ValidationError):
    """The arguments do not fit the signature of what was called."""

    code, status, fault = "invalid_arguments", 422, "policy"


class NotJson(EnvironmentError):
    """The program passed arguments that JSON cannot carry; nothing was sent."""

    code, status, fault = "not_json", 400, "caller"


class NotFound(EnvironmentError):
    """There is no environment, instance, function or reward of that name."""

    code, status, fault = "not_found", 404, "caller"


class Conflict(EnvironmentError):
    """More than one thing could be meant, or the thing is already there."""

    code, status, fault = "conflict", 409, "caller"


class InvalidBundle(EnvironmentError):
    """A bundle that is not whole or not safe; ``details["missing"]`` lists the blobs that are not there."""

    code, status, fault = "invalid_bundle", 422, "caller"


class TooLarge(EnvironmentError):
    """The request's body is over the limit."""

    code, status, fault = "too_large", 413, "caller"


class RateLimited(EnvironmentError):
    """Too many requests for now; ``details["retry_after"]`` says for how long."""

    code, status, retryable = "rate_limited", 429, True


class Unavailable(EnvironmentError):
    """The other side is there and cannot answer just now."""

    code, status, retryable = "unavailable", 503, True


class Overloaded(Unavailable):
    """The platform is full, and no place came free in time; ``details["retry_after"]`` says when to try again."""

    code = "overloaded"


# --- tools ---------------------------------------------------------------------------------------------------


class ToolError(AEnvError):
    """A tool call that gave no result."""

    code = "tool"
    fault: Fault = "env"

    def __init__(self, message: str, tool_name: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, details)
        self.tool_name = tool_name


class ToolNotFound(ToolError):
    """The name belongs to another environment."""

    code, status, fault = "tool_not_found", 404, "policy"


class ToolTimeoutError(ToolError, TimeoutError):
    """The tool took longer than the call's timeout. It may have run, so it is not sent again."""

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
    """The instance did not answer the call as it should. It may have run, so it is not sent again."""

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


# --- the wire ------------------------------------------------------------------------------------------------


def problem(error: AEnvError) -> dict[str, Any]:
    """What an error looks like in an answer. ``success`` and ``error`` are what existing clients read."""
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
        Overloaded, StateDestroyed,
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
        StateDestroyed,
    )
}


def from_answer(status: int, body: Mapping[str, Any], *, env_name: str | None = None) -> EnvironmentError:
    """The error that an answer stands for, by its code, else by its HTTP status."""
    message = str(body.get("error") or body.get("message") or f"HTTP status {status}")
    raw = body.get("details")
    details: dict[str, Any] = dict(raw) if isinstance(raw, Mapping) else {}
    # Where older clients want a number in `code`, the word is in `error_code`.
    cls = _BY_CODE.get(str(body.get("error_code") or body.get("code"))) or _BY_STATUS.get(status) or EnvironmentError
    error = cls(message, env_name, details)
    if cls in (EnvironmentError, InstanceEnded):
        error.fault = _fault(body.get("fault"), error.fault)
    error.details.setdefault("status", status)
    return error


def _fault(given: object, default: Fault) -> Fault:
    """A fault that came over the wire, if it is one that we know."""
    return next((known for known in get_args(Fault) if known == given), default)
