"""Earlier import path of the errors; the code is in ``aenv.errors``."""

from aenv.errors import (
    AEnvError,
    EnvironmentError,
    NetworkError,
    ToolError,
    ToolServerError,
    ToolTimeoutError,
    UnrecoverableEnvironmentError,
    ValidationError,
)

__all__ = [
    "AEnvError",
    "EnvironmentError",
    "NetworkError",
    "ToolError",
    "ToolServerError",
    "ToolTimeoutError",
    "UnrecoverableEnvironmentError",
    "ValidationError",
]
