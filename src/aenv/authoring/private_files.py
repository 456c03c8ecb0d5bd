"""Access of rewards and tools to the project's ``private/`` folder.

In an instance, its files exist only in the memory of the process that runs the author's code: no program that a tool
starts can open them. Outside of a sandbox (``aenv run``, a unit test) they are read from disk.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import IO, Any, Literal, overload

from aenv.authoring.failures.destroyed_state import raising_state_destroyed
from aenv.isolation.files.trees import remove_tree

FOLDER = "private"
_CONFIG = "config.json"
_held: Mapping[str, bytes] | None = None
_modules: dict[str, ModuleType] = {}


def hold(files: Mapping[str, bytes]) -> None:
    """Serve `private` from ``files`` in memory. Called by the runtime of an instance."""
    global _held
    _held = files


def private(name: str = "") -> PrivatePath:
    """Return a file or folder of the project's ``private/``; without a name, that folder.

    It works in an instance, under ``aenv run`` and in a unit test. In an instance, programs that tools start cannot
    read these files; under ``aenv run`` and with the process engine, they can.

    Args:
        name: Path below ``private/``.

    Raises:
        ValueError: the path leads out of ``private/``.

    Example:
        ```python
        answers = json.loads(private("answers.json").read_text())
        ```
    """
    if _held is not None:
        return PrivatePath(_held, PurePosixPath(name))
    caller = sys._getframe(1).f_globals.get("__file__")
    return PrivatePath(_Disk(_folder_of(Path(caller or "."))), PurePosixPath(name))


class PrivatePath:
    """A path below ``private/``, with the reading methods of `pathlib.Path`."""

    def __init__(self, files: Mapping[str, bytes], path: PurePosixPath) -> None:
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{str(path)!r} is not a path in {FOLDER}/")
        self._files = files
        self._path = path

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self._path.name or FOLDER

    def __str__(self) -> str:
        return str(FOLDER / self._path)

    def __repr__(self) -> str:
        return f"private({str(self._path)!r})"

    def __truediv__(self, other: str) -> PrivatePath:
        return PrivatePath(self._files, self._path / other)

    def joinpath(self, *parts: str) -> PrivatePath:
        """Return a path below this one."""
        return PrivatePath(self._files, self._path.joinpath(*parts))

    def exists(self) -> bool:
        """Return whether the path is a file or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Return whether the path is a file."""
        return str(self._path) in self._files

    def is_dir(self) -> bool:
        """Return whether the path is a folder; empty folders do not count."""
        return any(self._path in PurePosixPath(name).parents for name in self._files)

    def iterdir(self) -> Iterator[PrivatePath]:
        """Return the paths in the folder, sorted by name. Raises NotADirectoryError."""
        depth = len(self._path.parts)
        below = [PurePosixPath(name) for name in self._files]
        names = {path.parts[depth] for path in below if self._path in path.parents}
        if not names:
            raise NotADirectoryError(f"no such folder: {self}")
        return (self / name for name in sorted(names))

    def read_bytes(self) -> bytes:
        """Return the content of the file. Raises FileNotFoundError."""
        try:
            return self._files[str(self._path)]
        except KeyError:
            existing = ", ".join(sorted(self._files)[:10]) or "nothing"
            raise FileNotFoundError(f"no such file: {self}; {FOLDER}/ contains: {existing}") from None

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the text of the file. Raises FileNotFoundError."""
        return self.read_bytes().decode(encoding)

    @overload
    def open(self, mode: Literal["r"] = "r", *, encoding: str = "utf-8") -> io.TextIOWrapper: ...
    @overload
    def open(self, mode: Literal["rb"], *, encoding: str = "utf-8") -> io.BytesIO: ...
    def open(self, mode: Literal["r", "rb"] = "r", *, encoding: str = "utf-8") -> IO[Any]:
        """Open the file for reading. Raises FileNotFoundError."""
        content = io.BytesIO(self.read_bytes())
        return content if mode == "rb" else io.TextIOWrapper(content, encoding=encoding)

    def module(self) -> ModuleType:
        """Import the file as a Python module, once per process: for a checker that agents must not read."""
        key = str(self)
        if key not in _modules:
            made = ModuleType(self._path.stem)
            made.__file__ = key
            exec(compile(self.read_bytes(), key, "exec"), made.__dict__)
            _modules[key] = made
        return _modules[key]

    def copy_to(self, target: str | Path) -> Path:
        """Copy the file or folder to disk, where other programs can read it, and return ``target``.

        For a verifier that needs files, after the agent is done. A file, link or folder that is in the way is
        replaced; everything else in the target folder stays.

        Raises:
            StateDestroyed: the files cannot be written to ``target``.
        """
        target = Path(target)
        with raising_state_destroyed(f"private files cannot be written to {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._write(target)
        return target

    def _write(self, target: Path) -> None:
        if self.is_file():
            if target.is_dir() and not target.is_symlink():
                remove_tree(target)
            target.unlink(missing_ok=True)
            with target.open("xb") as file:
                file.write(self.read_bytes())
            return
        below = list(self.iterdir())
        if target.is_symlink() or not target.is_dir():
            target.unlink(missing_ok=True)
        target.mkdir(exist_ok=True)
        for place in below:
            place._write(target / place.name)


class _Disk(Mapping[str, bytes]):
    """The files below a folder, read on demand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return iter(sorted(path.relative_to(self._folder).as_posix() for path in files))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _folder_of(file: Path) -> Path:
    """Return the ``private/`` folder of the project that contains ``file``."""
    file = file.resolve()
    for folder in file.parents:
        if (folder / _CONFIG).is_file() or (folder / FOLDER).is_dir():
            return folder / FOLDER
    return file.parent / FOLDER
