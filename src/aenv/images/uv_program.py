"""Find uv, which installs packages and Pythons."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path


def uv_program() -> Path | None:
    """Return the path of uv: beside this interpreter, on the PATH, or of the Python package ``uv``."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None and importlib.util.find_spec("uv") is not None:
        from uv import find_uv_bin

        try:
            found = find_uv_bin()
        except FileNotFoundError:
            return None
    return Path(found).resolve() if found else None
