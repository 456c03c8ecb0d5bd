"""Atomic creation of folders: complete or absent, despite concurrent creators and kills in between."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary sibling of the target, which is renamed to the target if the block succeeds.

    If another process has created the target meanwhile, its folder stays and this one is removed: both are the same.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        yield made
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
