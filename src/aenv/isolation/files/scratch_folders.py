"""Temporary folders that name their process, so that those of killed processes can be told from those in use."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"aenv-[a-z]+-(\d+)-[a-z0-9_]{8}")


def scratch_folder(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder, removed at the end of a ``with`` block. ``purpose``: lower-case letters."""
    return tempfile.TemporaryDirectory(prefix=f"aenv-{purpose}-{os.getpid()}-", ignore_cleanup_errors=True)


def scratch_path(purpose: str) -> str:
    """Create a temporary folder that the caller removes, and return its path."""
    return tempfile.mkdtemp(prefix=f"aenv-{purpose}-{os.getpid()}-")


def abandoned() -> Iterator[Path]:
    """Yield the scratch folders of this user whose processes do not run any more."""
    for path in sorted(Path(tempfile.gettempdir()).glob("aenv-*")):
        named = _NAME.fullmatch(path.name)
        try:
            if named and not os.path.exists(f"/proc/{named[1]}") and path.lstat().st_uid == os.geteuid():
                yield path
        except OSError:
            continue  # removed meanwhile
