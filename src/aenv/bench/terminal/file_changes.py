"""The files of an image, and the agent's changes to them: two untrusted trees.

Nothing here follows a symbolic link of either tree on this machine. The agent's files are read by the root user of
containers, since this user may have no permission to read them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aenv.images import layered_images
from aenv.images.layered_images import BoxImage

MOST_LINKS = 40
Seen = Literal["image", "agent", "gone"]


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files of an image, by paths without a leading slash."""

    image: BoxImage

    def find(self, path: str) -> Path | None:
        """Return the file on this machine that holds ``path`` of the image, or None. Links are not followed."""
        for place, source in self.image.shown.items():
            if f"/{path}" == place or f"/{path}".startswith(f"{place}/"):
                found, _ = _literal(Path(source), f"/{path}"[len(place) + 1 :])
                return found
        for layer in reversed(self.image.layers):
            found, hidden = _literal(Path(layer), path)
            if found is not None:
                return None if is_whiteout(found) else found
            if hidden:
                return None
        return None

    def names(self, folder: str) -> set[str]:
        """Return the names in a folder."""
        found: set[str] = set()
        place = self.find(folder)
        if place is None or place.is_symlink() or not place.is_dir():
            return found
        for layer in (*self.image.layers, *(str(place),)):
            there = place if layer == str(place) else _literal(Path(layer), folder)[0]
            if there is not None and not there.is_symlink() and there.is_dir():
                found |= set(os.listdir(there))
        return {name for name in found if self.find(f"{folder}/{name}") is not None}

    def resolve(self, path: str) -> tuple[str, list[str]]:
        """Return the real path that ``path`` leads to, and all links on the way followed by that path.

        Raises:
            FileNotFoundError: the path does not exist in the image.
        """
        left, at, hops = path.strip("/").split("/")[::-1], "", list[str]()
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                at = os.path.dirname(at)
                continue
            below = f"{at}/{part}" if at else part
            found = self.find(below)
            if found is None or len(hops) > MOST_LINKS:
                raise FileNotFoundError(path)
            if found.is_symlink():
                hops.append(below)
                target = os.readlink(found)
                at = "" if target.startswith("/") else at
                left += target.split("/")[::-1]
            else:
                at = below
        return at, [*hops, at]

    def folder(self, path: str) -> str:
        """Return the real path of a folder without links, or ``path`` if the image does not have it."""
        try:
            return self.resolve(path)[0]
        except FileNotFoundError:
            return path.strip("/")

    def below(self, folder: str) -> Iterator[str]:
        """Yield all files and links below a folder."""
        for name in sorted(self.names(folder)):
            path = f"{folder}/{name}"
            found = self.find(path)
            if found is not None and found.is_dir() and not found.is_symlink():
                yield from self.below(path)
            else:
                yield path


@dataclass(frozen=True, slots=True)
class Changes:
    """The files that an agent has changed, by path."""

    entries: dict[str, layered_images.LayerEntry]

    @classmethod
    async def of(cls, state: Path) -> Changes:
        """Return the changes in the state of a box."""
        return cls({each.path: each async for each in layered_images.entries(state / "upper")})

    def files(self) -> Iterator[layered_images.LayerEntry]:
        """Return the changed entries that exist and are not folders."""
        return (each for each in self.entries.values() if each.kind not in ("folder", "opaque", "whiteout"))

    def seen(self, path: str) -> Seen:
        """Return whose file is visible at a path; ``gone``: none, since the image's file is removed or hidden."""
        hidden = False
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            entry = self.entries.get("/".join(parts[:count]))
            if entry is None:
                return "gone" if hidden else "image"
            if entry.kind == "whiteout":
                return "gone"
            if count == len(parts):
                return "agent"
            if entry.kind not in ("folder", "opaque"):
                return "gone"
            hidden = hidden or entry.kind == "opaque"
        return "image"

    def in_the_way(self, path: str) -> str | None:
        """Return a file or link of the agent that has replaced a parent folder of ``path``, or None."""
        parts = path.split("/")
        for count in range(1, len(parts)):
            entry = self.entries.get("/".join(parts[:count]))
            if entry is not None and entry.kind not in ("folder", "opaque"):
                return entry.path if entry.kind != "whiteout" else None
        return None


def is_whiteout(path: Path) -> bool:
    """Return whether a file of a layer is a whiteout, which marks a removed file."""
    about = path.lstat()
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == 0


def _literal(root: Path, path: str) -> tuple[Path | None, bool]:
    """Return the file at ``path`` of one layer if all its parents are folders, and whether it hides lower layers."""
    at, hidden = root, False
    parts = [part for part in path.split("/") if part]
    for count, part in enumerate(parts, 1):
        at = at / part
        try:
            mode = at.lstat().st_mode
        except OSError:
            return None, hidden
        if count < len(parts):
            if not stat.S_ISDIR(mode):
                return None, True
            hidden = hidden or layered_images.is_opaque(at)
    return at, hidden
