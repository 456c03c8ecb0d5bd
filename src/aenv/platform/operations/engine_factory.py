"""Construct the engine that a setting names: by its entry point, or by the URL of a service.

Engines that come with aenv and plug-ins are found and constructed the same way; see docs/reference/engines.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aenv import plugins
from aenv.engines.base import Capabilities, Engine, EngineOptions
from aenv.errors import ConfigError


def create_engine(name: str, folder: Path, options: EngineOptions) -> Engine:
    """Construct the engine of that name. ``folder``: for its sockets.

    Raises:
        ConfigError: there is no such engine, or the entry point does not give an `Engine`.
    """
    registered = _load(name)
    made = registered.create(folder, options) if _is_class(registered) else registered(folder)
    if not isinstance(made, Engine):
        raise ConfigError(f"the plug-in '{name}' is not an aenv.engines.base.Engine")
    return made


def capabilities_of(name: str) -> Capabilities:
    """Return the capabilities of the engine of that name; the defaults if its entry point is a function."""
    registered = _load(name)
    return registered.capabilities if _is_class(registered) else Capabilities()


def check_host(name: str) -> str:
    """Return the engine's note about this host; see `Engine.check_host`."""
    registered = _load(name)
    return registered.check_host() if _is_class(registered) else ""


def engine_names(*, aliases: bool = True) -> list[str]:
    """Return the names of all registered engines, without those at a URL. Without aliases: one name of each."""
    return plugins.names(plugins.ENGINES, aliases=aliases)


def validate_engine_name(name: str) -> str:
    """Return the name of a registered engine, or a URL with a registered scheme, as it is.

    Raises:
        ValueError: there is no such engine; the message names those that exist.
    """
    scheme, separator, _ = name.partition("://")
    group, key = (plugins.ENGINE_SCHEMES, scheme) if separator else (plugins.ENGINES, name)
    if not plugins.has(group, key):
        schemes = " or ".join(f"{each}://..." for each in plugins.names(plugins.ENGINE_SCHEMES))
        raise ValueError(
            f"unknown engine '{name}'; expected one of {', '.join(engine_names())}, or the URL of a service ({schemes})"
        )
    return name


def _load(name: str) -> Any:
    scheme, separator, _ = name.partition("://")
    return plugins.load(plugins.ENGINE_SCHEMES, scheme) if separator else plugins.load(plugins.ENGINES, name)


def _is_class(registered: Any) -> bool:
    """Return whether the entry point is an `Engine` class. Older plug-ins register a function that takes the folder."""
    return isinstance(registered, type) and issubclass(registered, Engine)
