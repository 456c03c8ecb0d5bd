"""Engines by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aenv.engines.base import Engine
from aenv.engines.gvisor import GvisorEngine
from aenv.engines.native import NativeEngine
from aenv.engines.process import ProcessEngine

ENGINES: dict[str, Callable[[Path, int, str], Engine]] = {
    "native": lambda folder, pool, group: NativeEngine(folder, pool=pool, group=group),
    "gvisor": lambda folder, pool, group: GvisorEngine(folder, group=group),
    "process": lambda folder, pool, group: ProcessEngine(folder),
}
"""Given the folder for sockets, how many sandboxes of one kind to have ready at the most, and the name of the control
group that theirs are below."""

OUTLIVING = frozenset(("native",))
"""Those whose sandboxes can outlive a server."""
