"""The environments that are shipped with aenv."""

from __future__ import annotations

from pathlib import Path

import aenv


def folder() -> Path:
    """Return their folder: inside the installed package, or at the top of a source checkout."""
    package = Path(aenv.__file__).parent
    inside = package / "envs"
    return inside if inside.is_dir() else package.parents[1] / "envs"
