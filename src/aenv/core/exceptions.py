"""Names that existing code imports from here."""

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
