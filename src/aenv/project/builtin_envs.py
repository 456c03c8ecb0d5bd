"""Where the environments lie that come with aenv."""

from __future__ import annotations

from pathlib import Path

import aenv


def folder() -> Path:
    """Inside the installed package, or beside the sources in a checkout."""
    package = Path(aenv.__file__).parent
    inside = package / "envs"
    return inside if inside.is_dir() else package.parents[1] / "envs"
