"""Import paths of version 0.1; the code is in ``aenv.authoring``, ``aenv.sdk`` and ``aenv.tracing``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aenv.authoring.declarations import (
        get_function_registry,
        get_registry,
        register_function,
        register_health,
        register_reward,
        register_tool,
    )
    from aenv.errors import (
        EnvironmentError,
        NetworkError,
        ToolError,
        ToolTimeoutError,
        UnrecoverableEnvironmentError,
    )
    from aenv.sdk.environment import Environment

_ERRORS = (
    "EnvironmentError", "NetworkError", "ToolError", "ToolTimeoutError", "UnrecoverableEnvironmentError",
)  # fmt: skip

__all__ = [
    "Environment", "EnvironmentError", "NetworkError", "ToolError", "ToolTimeoutError",
    "UnrecoverableEnvironmentError", "get_function_registry", "get_registry", "register_function",
    "register_health", "register_reward", "register_tool",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'aenv.core' has no attribute {name!r}")
    if name == "Environment":
        module = "aenv.sdk.environment"
    else:
        module = "aenv.errors" if name in _ERRORS else "aenv.authoring.declarations"
    return getattr(import_module(module), name)
