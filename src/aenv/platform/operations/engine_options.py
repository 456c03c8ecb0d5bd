"""Engines by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aenv.engines.base import Engine
from aenv.engines.gvisor import GvisorEngine
from aenv.engines.native.engine import NativeEngine
from aenv.engines.process import ProcessEngine
from aenv.images.base_systems import PROJECT_LIMIT


@dataclass(frozen=True, slots=True)
class Options:
    """What an administrator decides for all sandboxes of a platform."""

    pool: int
    """How many sandboxes of one kind to have ready, at the most."""
    group: str
    """The name of the control group that theirs are below."""
    fork: bool = True
    """Whether they may be forks of a common parent."""
    base_limit: int = PROJECT_LIMIT
    """Bytes that an image in a project may have when it is unpacked."""


ENGINES: dict[str, Callable[[Path, Options], Engine]] = {
    "native": lambda folder, own: NativeEngine(
        folder, pool=own.pool, group=own.group, fork=own.fork, base_limit=own.base_limit
    ),
    "gvisor": lambda folder, own: GvisorEngine(folder, group=own.group),
    "process": lambda folder, own: ProcessEngine(folder),
}
"""Each takes the folder for its sockets."""

OUTLIVING = frozenset(("native",))
"""Those whose sandboxes can outlive a server."""
