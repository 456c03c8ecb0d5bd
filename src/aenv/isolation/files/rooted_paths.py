"""Resolve paths in a root file system without following symbolic links out of it."""

from __future__ import annotations

import os
import stat

MOST_LINKS = 40
MOST_DEPTH = 256
"""Nesting depth of folders. Python removes trees recursively, and fails at about 900 levels."""


def resolve_in_root(root: str, path: str, *, make: bool = False) -> str:
    """Resolve an absolute path like a process whose root is ``root``; symbolic links never lead out of it.

    ``make``: create missing folders.

    Raises:
        ValueError: a loop of links, too deep a path, or a component that is not a folder.
    """
    at, links = root, 0
    parts = path.split("/")[::-1]
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = at if at == root else os.path.dirname(at)
            continue
        below = os.path.join(at, part)
        try:
            mode = os.lstat(below).st_mode
        except FileNotFoundError:
            if not make:
                raise
            if below.count("/") - root.count("/") > MOST_DEPTH:
                raise ValueError(f"{path[:200]}: more than {MOST_DEPTH} folders deep") from None
            os.mkdir(below, 0o755)
            mode = stat.S_IFDIR
        if stat.S_ISLNK(mode):
            links += 1
            if links > MOST_LINKS:
                raise ValueError(f"{path}: too many levels of symbolic links")
            target = os.readlink(below)
            at = root if target.startswith("/") else at
            parts += target.split("/")[::-1]
        elif stat.S_ISDIR(mode):
            at = below
        else:
            raise ValueError(f"{path}: {part} is not a folder")
    return at
