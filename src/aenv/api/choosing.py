"""Which engine is meant: one of ours, somebody's plug-in, or somebody's service."""

from __future__ import annotations

from pathlib import Path

from aenv import plugins
from aenv.api.engines import ENGINES
from aenv.engines.base import Engine
from aenv.engines.bases import PROJECT_LIMIT
from aenv.engines.standard import StandardEngine
from aenv.errors import ConfigError


def choose(
    name: str, folder: Path, *, pool: int, group: str, token: str = "", base_limit: int = PROJECT_LIMIT
) -> Engine:
    """The engine of that name, or at that URL. ``group``: the control group that its sandboxes' are below.
    ``base_limit``: bytes that an image in a project may have when it is unpacked.

    Raises:
        ConfigError: there is none of that name, or it is no engine.
    """
    if name in ENGINES:
        return ENGINES[name](folder, pool, group, base_limit)
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
