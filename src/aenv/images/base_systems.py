"""Base systems: root file systems that sandboxes can use in place of the host's, by name or from the project itself.

A config.json is untrusted, so it cannot name a host folder: it names a path in the project, or a name that this
machine's user has given to a base (``aenv base add``).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from aenv.errors import ConfigError
from aenv.images.oci_unpack import is_root
from aenv.storage.cache_folders import CacheFolder
from aenv.subprocesses import run_async
from aenv.tracing.logging import getLogger

log = getLogger("bases")

PROJECT_LIMIT = 16 << 30
"""Default limit on the unpacked bytes of an image in a project: projects are untrusted, and a small file can unpack to
a full disk. Bases that this machine's user adds by name may be larger.
"""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class BaseSystem:
    """Unpacked root file system and its environment variables."""

    root: Path
    variables: dict[str, str] = field(default_factory=dict)


def folder() -> Path:
    """Return the folder of unpacked bases, below the user's data folder."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "aenv" / "bases"


def cache() -> CacheFolder:
    """Return the cache of unpacked images. Those with a name are only removed by `remove`."""
    return CacheFolder("bases", folder(), "unpacked base images", pinned=_named_folders, ignored=("names",))


class BaseSystems:
    """Find bases, unpacking images on first use."""

    def __init__(self, limit: int = PROJECT_LIMIT) -> None:
        """Set the limit on the unpacked bytes of an image in a project."""
        self._limit = limit
        self._unpacked: dict[tuple[str, int, int], BaseSystem] = {}
        self._unpacking = asyncio.Lock()

    async def find(self, text: str, project: Path) -> BaseSystem:
        """Return the base that a config.json names.

        Raises:
            ConfigError: there is no such base, or it cannot be unpacked.
        """
        if "/" in text:
            path = (project / text).resolve()
            if not path.is_relative_to(project.resolve()):
                raise ConfigError(
                    f"deployConfig.base: {text} is not in the project; give it a name on this machine "
                    f"(aenv base add NAME {path}) and write that name",
                )
            if not path.exists():
                raise ConfigError(f"deployConfig.base: {path} does not exist")
            return await self._open(path, self._limit)
        link = folder() / "names" / text
        if not _NAME.fullmatch(text) or not link.is_symlink():
            known = ", ".join(names()) or "none"
            raise ConfigError(
                f"deployConfig.base: no base '{text}' on this machine (known: {known}); add it with: "
                f"aenv base add {text} PATH, a root file system, an OCI image layout or a docker save file"
            )
        if not link.exists():
            raise ConfigError(f"deployConfig.base: {link.readlink()}, the folder of '{text}', does not exist any more")
        return await self._open(link.resolve())

    async def add(self, name: str, path: Path) -> BaseSystem:
        """Name a base on this machine; images are unpacked, a folder with a root file system is used in place."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"invalid base name '{name}'; use lower-case letters, digits, dots, dashes and underscores"
            )
        if not path.exists():
            raise ConfigError(f"{path} does not exist")
        base = await self._open(path.resolve())
        link = folder() / "names" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh = link.with_name(f".{name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(base.root)
        fresh.replace(link)
        return base

    async def _open(self, path: Path, limit: int | None = None) -> BaseSystem:
        if path.is_dir() and not (path / "oci-layout").is_file():
            if path.parent.parent == folder() and path.name == "root":
                cache().use(path.parent.name)
                return _load(path.parent)
            if not is_root(entry.name for entry in path.iterdir()):
                raise ConfigError(f"{path} is neither a root file system nor an OCI image layout")
            return BaseSystem(path)
        about = (path / "index.json" if path.is_dir() else path).stat()
        key = (str(path), about.st_mtime_ns, about.st_size)
        async with self._unpacking:
            if key not in self._unpacked or not self._unpacked[key].root.is_dir():
                unpacked = await _unpack(path, limit)
                while cache().use(unpacked.name) is None:  # removed at once, to save space
                    unpacked = await _unpack(path, limit)
                self._unpacked[key] = _load(unpacked)
        return self._unpacked[key]


def names() -> dict[str, Path]:
    """Return the folders of all named bases, by name."""
    links = folder() / "names"
    entries = sorted(links.iterdir()) if links.is_dir() else []
    return {link.name: link.readlink() for link in entries if link.is_symlink() and not link.name.startswith(".")}


def _named_folders() -> set[str]:
    return {path.parent.name for path in names().values()}


def remove(name: str) -> None:
    """Remove a name, and the unpacked base unless another name refers to it."""
    known = names()
    if name not in known:
        raise ConfigError(f"no base '{name}' on this machine")
    (folder() / "names" / name).unlink()
    unpacked = known.pop(name).parent
    if unpacked.parent == folder() and unpacked not in {path.parent for path in known.values()}:
        bases = cache()
        bases.release(unpacked.name)
        bases.remove(unpacked.name, in_use_too=True)


def _load(folder: Path) -> BaseSystem:
    config = json.loads((folder / "image.json").read_text())
    return BaseSystem(folder / "root", config["variables"])


async def _unpack(path: Path, limit: int | None) -> Path:
    log.info("unpacking %s", path)
    command = [sys.executable, "-P", "-m", "aenv.images.oci_unpack", str(path), str(folder())]
    done = await run_async([*command, *([] if limit is None else [str(limit)])], stderr=None, cwd="/")
    answer = json.loads(done.stdout) if done.stdout else {"error": f"unpacking it ended with exit code {done.code}"}
    if "error" in answer:
        raise ConfigError(f"{path} cannot be used as a base: {answer['error']}")
    return Path(answer["path"])
