"""Which engine is meant: one of ours, somebody's plug-in, or somebody's service."""

from __future__ import annotations

from pathlib import Path

from aenv import plugins
from aenv.engines.base import Engine
from aenv.engines.standard import StandardEngine
from aenv.errors import ConfigError
from aenv.platform.operations.engine_options import ENGINES, Options


def choose(name: str, folder: Path, options: Options, *, token: str = "") -> Engine:
    """Return the engine of that name, or at that URL. ``token``: for one at a URL.

    Raises:
        ConfigError: there is none of that name, or it is no engine.
    """
    if name in ENGINES:
        return ENGINES[name](folder, options)
    if "://" in name:
        return StandardEngine(name, token)
    made = plugins.load(plugins.ENGINES, name)(folder)
    if not isinstance(made, Engine):
        raise ConfigError(f"the plug-in '{name}' is no aenv.engines.base.Engine")
    return made


def known(name: str) -> str | None:
    """What is wrong with the name, if anything is."""
    if name in ENGINES or name.startswith(("http://", "https://")):
        return None
    found = plugins.names(plugins.ENGINES)
    if name in found:
        return None
    return f"'{name}' is no engine; there are {', '.join([*ENGINES, *found])}, and services at their URL, http://..."
