"""Everything as environment.

The public names load on first touch: an environment's module that says ``from aenv import register_tool``
pays for no HTTP client, no event loop and no MCP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aenv._version import __version__

if TYPE_CHECKING:
    from aenv.core.call import current_call
    from aenv.core.content import Audio, File, Image
    from aenv.core.declarations import (
        get_registry,
        register_function,
        register_health,
        register_reward,
        register_tool,
    )
    from aenv.core.environment import Environment
    from aenv.core.failure import failure_reason
    from aenv.core.keys import key_sequence
    from aenv.core.logging import setup_logging
    from aenv.core.pane import Pane
    from aenv.core.private import private
    from aenv.core.programs import end_programs
    from aenv.core.python import PythonRun, run_python
    from aenv.core.results import ToolResult
    from aenv.core.screen import Screen
    from aenv.core.sync import SyncEnvironment
    from aenv.core.tool import Tool
    from aenv.errors import AEnvError, EnvironmentError, StateDestroyed, ToolError, UnrecoverableEnvironmentError
    from aenv.schema.instance import EnvInstance, EnvStatus

_WHERE = {
    "core.declarations": (
        "get_registry", "register_function", "register_health", "register_reward", "register_tool",
    ),
    "core.call": ("current_call",),
    "core.content": ("Audio", "File", "Image"),
    "core.environment": ("Environment",),
    "core.failure": ("failure_reason",),
    "core.keys": ("key_sequence",),
    "core.logging": ("setup_logging",),
    "core.pane": ("Pane",),
    "core.private": ("private",),
    "core.programs": ("end_programs",),
    "core.python": ("PythonRun", "run_python"),
    "core.results": ("ToolResult",),
    "core.screen": ("Screen",),
    "core.sync": ("SyncEnvironment",),
    "core.tool": ("Tool",),
    "errors": ("AEnvError", "EnvironmentError", "StateDestroyed", "ToolError", "UnrecoverableEnvironmentError"),
    "schema.instance": ("EnvInstance", "EnvStatus"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "AEnvError", "Audio", "EnvInstance", "EnvStatus", "Environment", "EnvironmentError", "File", "Image", "Pane",
    "PythonRun", "Screen", "StateDestroyed", "SyncEnvironment", "Tool", "ToolError", "ToolResult",
    "UnrecoverableEnvironmentError", "__version__", "current_call", "end_programs", "failure_reason", "get_registry",
    "key_sequence", "private", "register_function", "register_health", "register_reward", "register_tool", "run_python",
    "setup_logging",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'aenv' has no attribute {name!r}")
    value = getattr(import_module(f"aenv.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
