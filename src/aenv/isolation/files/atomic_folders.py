"""Folders that are there as a whole, or not at all, whoever makes them at the same time or is killed in the middle."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A new folder beside the target, to fill: it becomes the target when the context ends well. Who is slower than
    another gives way, for both have made the same.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        yield made
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():  # else somebody was faster
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
