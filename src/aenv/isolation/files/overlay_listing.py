"""Listing of an overlay's upper layer, without following its symbolic links."""

from __future__ import annotations

import json
import os
import re
import stat
import sys

READ = re.compile(r".*\.pth|entry_points\.txt|ld\.so\.cache")
"""Names of files that are listed with their content, which shows whether they are harmless."""
MAX_READ = 1 << 20
"""Bytes of a file's content to read at most."""


def write(layer: str) -> None:
    """Write a layer's entries to stdout as JSON lines: path, kind and text (`images.layered_images.LayerEntry`)."""
    pending = [""]
    while pending:
        folder = pending.pop()
        for entry in os.scandir(os.path.join(layer, folder)):
            path = os.path.join(folder, entry.name)
            about = entry.stat(follow_symlinks=False)
            kind, text = "other", ""
            if stat.S_ISDIR(about.st_mode):
                kind = "opaque" if is_opaque(entry.path) else "folder"
                pending.append(path)
            elif stat.S_ISLNK(about.st_mode):
                kind, text = "link", os.readlink(entry.path)
            elif stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
                kind = "whiteout"
            elif stat.S_ISREG(about.st_mode):
                kind, text = "file", _content(entry.path) if READ.fullmatch(entry.name) else ""
            sys.stdout.write(json.dumps([path, kind, text]) + "\n")
    sys.stdout.flush()


def is_opaque(path: str | os.PathLike[str]) -> bool:
    """Return True if a folder of a layer is opaque: it hides the same folder of lower layers."""
    try:
        return os.getxattr(path, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def _content(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        return file.read(MAX_READ).hex()
