"""Engines by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aenv.engines.base import Engine
from aenv.engines.gvisor import GvisorEngine
from aenv.engines.native import NativeEngine
from aenv.engines.process import ProcessEngine

ENGINES: dict[str, Callable[[Path, int], Engine]] = {
    "native": lambda folder, pool: NativeEngine(folder, pool=pool),
    "gvisor": lambda folder, pool: GvisorEngine(folder),
    "process": lambda folder, pool: ProcessEngine(folder),
}
"""Given the folder for sockets, and how many sandboxes of one kind to have ready at the most."""
