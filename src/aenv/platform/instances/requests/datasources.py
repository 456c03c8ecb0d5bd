"""Datasources that are folders: ``datasource="/data/workspace"`` shows that folder, read-only, under the same path.

Only folders below allowed roots are shown, and no hidden ones: a list of tasks, which names them, may be a stranger's.
Any other text is passed on, for the environment to interpret.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from aenv.engines.base import Engine
from aenv.errors import Forbidden, UsageError
from aenv.isolation.files import volumes
from aenv.isolation.files.volumes import Volume

ROOTS_VARIABLE = "AENV_DATASOURCE_ROOTS"


class DatasourceRoots:
    """The folders of this machine that datasources may be in."""

    def __init__(self, roots: Iterable[str | Path] = (), advice: str = "") -> None:
        """``advice``: how to allow another folder, for messages."""
        self._roots = [Path(os.path.realpath(os.path.expanduser(root))) for root in roots]
        self._advice = advice

    @classmethod
    def of_user(cls) -> DatasourceRoots:
        """Return the roots of a local platform: those of AENV_DATASOURCE_ROOTS, else the user's home and /data."""
        given = os.environ.get(ROOTS_VARIABLE)
        roots = [root for root in given.split(os.pathsep) if root] if given else [str(Path.home()), "/data"]
        return cls(roots, f"set {ROOTS_VARIABLE} before the local platform starts (aenv local stop)")

    def volume(self, datasource: str, engine: Engine) -> Volume | None:
        """Return the mount of a datasource; None if it is not a path, or the engine gets it as it is.

        Raises:
            UsageError: it is a path that cannot be mounted.
            Forbidden: it is not below an allowed root.
        """
        if not datasource.startswith("/") or engine.capabilities.images:
            return None
        if not engine.capabilities.volumes:
            raise UsageError(f"datasource: this platform's engine cannot mount the folder {datasource}; use upload()")
        source = Path(os.path.realpath(datasource))
        if not any(_is_shown(source, root) for root in self._roots):
            known = ", ".join(map(str, self._roots)) or "none"
            raise Forbidden(
                f"datasource: {datasource} is not below an allowed folder of the platform's machine ({known})",
                details={"hint": f"To allow it, {self._advice}."} if self._advice else {},
            )
        if not source.is_dir():
            raise UsageError(f"datasource: there is no folder {datasource} on the platform's machine")
        target = os.path.normpath(datasource)
        wrong = volumes.target_problem(target)
        if wrong is not None:
            raise UsageError(f"datasource: {wrong}")
        return Volume(str(source), target, read_only=True, any_user=True)


def _is_shown(source: Path, root: Path) -> bool:
    """Return whether a folder below a root may be shown: not the user's home itself, and nothing hidden, like keys."""
    if not source.is_relative_to(root):
        return False
    inside = source.relative_to(root).parts
    return not any(part.startswith(".") for part in inside) and (bool(inside) or root != Path.home())
