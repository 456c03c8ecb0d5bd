"""Import rules in a sandbox: modules come from the project as shipped, and never from a place that an agent can write.

Programs that a tool starts run beside the runtime, as the same user, and may change the project's folder. The runtime
must not import a module that they wrote: it would run with the answers and the reward in its memory. So the
project is mounted twice, once to be changed (the live folder) and once read-only (the snapshot). Modules have the
names and the ``__file__`` of the live folder, and the code of the snapshot.

Once the environment is loaded (`Imports.seal`), nothing is imported from any other writable place either. Code that the
author loads by an explicit path, with ``exec`` or ``runpy``, is the author's own decision.
"""

from __future__ import annotations

import errno
import importlib.machinery
import importlib.util
import os
import sys
import zipimport
from collections.abc import Mapping
from importlib.abc import PathEntryFinder
from types import ModuleType
from typing import Any, cast

Spec = importlib.machinery.ModuleSpec
_SOURCE = importlib.machinery.SOURCE_SUFFIXES
_LOADERS: tuple[tuple[type, list[str]], ...] = (
    (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
    (importlib.machinery.SourceFileLoader, _SOURCE),
    (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
)


class Imports:
    """The rules of one process. ``live`` is the project's folder, ``snapshot`` the same folder, read-only."""

    def __init__(self, live: str, snapshot: str) -> None:
        self._live = live.rstrip("/")
        self._snapshot = snapshot.rstrip("/")
        self.sealed = False
        self._known: set[str] = set()
        """Path entries that were used before any of the environment's code ran."""

    def install(self) -> None:
        """Apply the rules from now on."""
        sys.path_hooks.insert(0, self._finder)
        for place in [place for place in sys.path_importer_cache if self.shipped(place) is not None]:
            del sys.path_importer_cache[place]
        self._known = set(sys.path_importer_cache)

    def seal(self) -> None:
        """Note that the environment is loaded: from now on, files in writable places may be an agent's."""
        self.sealed = True
        for place in set(sys.path_importer_cache) - self._known:
            if is_writable(place):
                del sys.path_importer_cache[place]

    def shipped(self, path: str) -> str | None:
        """Return the snapshot's path of a file in the live folder; None for a path outside of it."""
        path = os.path.normpath(path if path.startswith("/") else os.path.join(os.getcwd(), path))
        if path == self._live or path.startswith(f"{self._live}/"):
            return self._snapshot + path[len(self._live) :]
        return None

    def spec(self, name: str, path: str, *, is_package: bool = False) -> Spec | None:
        """Return the spec of a module in a source file of the live folder."""
        shipped = self.shipped(path)
        loader = ShippedSource(name, path, self) if shipped is not None and os.path.exists(shipped) else None
        locations = [os.path.dirname(path)] if is_package else None
        return importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=locations)

    def _finder(self, place: str) -> PathEntryFinder:
        """Find modules, as a hook of ``sys.path_hooks``; ImportError leaves a place to the other hooks."""
        shipped = self.shipped(place)
        if shipped is not None:
            if os.path.isfile(shipped):
                return cast(PathEntryFinder, zipimport.zipimporter(shipped))
            return _ShippedFinder(os.path.normpath(os.path.join(os.getcwd(), place)), shipped, self)
        if self.sealed and is_writable(place):
            return _NothingFinder()
        raise ImportError


class ShippedSource(importlib.machinery.SourceFileLoader):
    """A source file of the live folder, read from the snapshot."""

    def __init__(self, name: str, path: str, imports: Imports) -> None:
        super().__init__(name, path)
        self._imports = imports

    def get_data(self, path: str) -> bytes:
        shipped = self._imports.shipped(path) or path
        if self._imports.sealed and os.path.islink(shipped) and is_writable(shipped):
            raise OSError(errno.EPERM, "the link leads to a place that an agent can write", path)
        return super().get_data(shipped)

    def path_stats(self, path: str) -> Mapping[str, float]:
        return super().path_stats(self._imports.shipped(path) or path)

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no bytecode: the snapshot is read-only, and the live folder is not read."""


class _ShippedFinder(PathEntryFinder):
    """Modules in one folder of the project."""

    def __init__(self, live: str, shipped: str, imports: Imports) -> None:
        self._live = live
        self._shipped = importlib.machinery.FileFinder(shipped, *_LOADERS)
        self._generated = importlib.machinery.FileFinder(live, *_LOADERS)
        self._imports = imports

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> Spec | None:
        found = self._shipped.find_spec(fullname, target)
        if found is None:
            # Generated by the environment's own code while it was loaded.
            return None if self._imports.sealed else self._generated.find_spec(fullname, target)
        if isinstance(found.loader, importlib.machinery.SourceFileLoader):
            is_package = found.submodule_search_locations is not None
            return self._imports.spec(fullname, self._live_path(found.loader.path), is_package=is_package)
        if found.submodule_search_locations is not None:
            found.submodule_search_locations = [self._live_path(path) for path in found.submodule_search_locations]
        return found

    def _live_path(self, shipped: str) -> str:
        return self._live + shipped[len(self._shipped.path) :]

    def invalidate_caches(self) -> None:
        self._shipped.invalidate_caches()
        self._generated.invalidate_caches()


class _NothingFinder(PathEntryFinder):
    """Finds nothing, in a place that an agent can write."""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> Spec | None:
        return None

    def invalidate_caches(self) -> None:
        """Do nothing: there is no cache."""


def is_writable(place: str) -> bool:
    """Return whether a folder, which need not exist, is on a writable file system."""
    place = os.path.realpath(place)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return not os.statvfs(place).f_flag & os.ST_RDONLY
