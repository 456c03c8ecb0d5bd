"""Engines by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aenv.engines.base import Engine
from aenv.engines.gvisor import GvisorEngine
from aenv.engines.native import NativeEngine
from aenv.engines.process import ProcessEngine

ENGINES: dict[str, Callable[[Path, int, str, int], Engine]] = {
    "native": lambda folder, pool, group, base: NativeEngine(folder, pool=pool, group=group, base_limit=base),
    "gvisor": lambda folder, pool, group, base: GvisorEngine(folder, group=group),
    "process": lambda folder, pool, group, base: ProcessEngine(folder),
}
"""Given the folder for sockets, how many sandboxes of one kind to have ready at the most, the name of the control group
that theirs are below, and the bytes that an image in a project may have when it is unpacked.
"""

OUTLIVING = frozenset(("native",))
"""Those whose sandboxes can outlive a server."""
