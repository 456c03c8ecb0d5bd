"""Everything as environment.

The public names load on first touch: an environment's module that says ``from aenv import register_tool``
pays for no HTTP client, no event loop and no MCP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aenv._version import __version__

if TYPE_CHECKING:
    from aenv.authoring.call import current_call
    from aenv.authoring.content import Audio, File, Image
    from aenv.authoring.declarations import (
        get_registry,
        register_function,
        register_health,
        register_reward,
        register_tasks,
        register_tool,
    )
    from aenv.authoring.failures.failure_reward import failure_reason
    from aenv.authoring.fork_hooks import on_fork
    from aenv.authoring.private_files import private
    from aenv.authoring.programs import end_programs
    from aenv.authoring.python_runs import PythonRun, run_python
    from aenv.authoring.python_variables import python_variables
    from aenv.authoring.results import ToolResult
    from aenv.authoring.second_container import SecondContainer, SecondRun, second_container
    from aenv.authoring.tool import Tool
    from aenv.errors import (
        AEnvError,
        EnvironmentError,
        ForkRefused,
        StateDestroyed,
        ToolError,
        UnrecoverableEnvironmentError,
        UserFailed,
    )
    from aenv.schema.instances import EnvInstance, EnvStatus
    from aenv.schema.tasks import Task
    from aenv.sdk.blocking import SyncEnvironment
    from aenv.sdk.environment import Environment
    from aenv.terminal.keys import key_sequence
    from aenv.terminal.pane import Pane
    from aenv.terminal.screen import Screen
    from aenv.tracing.logging import setup_logging

_WHERE = {
    "authoring.declarations": (
        "get_registry", "register_function", "register_health", "register_reward", "register_tasks", "register_tool",
    ),
    "authoring.call": ("current_call",),
    "authoring.fork_hooks": ("on_fork",),
    "authoring.content": ("Audio", "File", "Image"),
    "sdk.environment": ("Environment",),
    "authoring.failures.failure_reward": ("failure_reason",),
    "terminal.keys": ("key_sequence",),
    "tracing.logging": ("setup_logging",),
    "terminal.pane": ("Pane",),
    "authoring.private_files": ("private",),
    "authoring.programs": ("end_programs",),
    "authoring.python_runs": ("PythonRun", "run_python"),
    "authoring.python_variables": ("python_variables",),
    "authoring.results": ("ToolResult",),
    "authoring.second_container": ("SecondContainer", "SecondRun", "second_container"),
    "terminal.screen": ("Screen",),
    "sdk.blocking": ("SyncEnvironment",),
    "authoring.tool": ("Tool",),
    "errors": (
        "AEnvError", "EnvironmentError", "ForkRefused", "StateDestroyed", "ToolError", "UnrecoverableEnvironmentError",
        "UserFailed",
    ),
    "schema.instances": ("EnvInstance", "EnvStatus"),
    "schema.tasks": ("Task",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "AEnvError", "Audio", "EnvInstance", "EnvStatus", "Environment", "EnvironmentError", "File", "ForkRefused",
    "Image", "Pane", "PythonRun", "Screen", "SecondContainer", "SecondRun", "StateDestroyed", "SyncEnvironment", "Task",
    "Tool", "ToolError", "ToolResult", "UnrecoverableEnvironmentError", "UserFailed", "__version__", "current_call",
    "end_programs", "failure_reason", "get_registry", "key_sequence", "on_fork", "private", "python_variables",
    "register_function", "register_health", "register_reward", "register_tasks", "register_tool", "run_python",
    "second_container", "setup_logging",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'aenv' has no attribute {name!r}")
    value = getattr(import_module(f"aenv.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
