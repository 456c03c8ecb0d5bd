"""A project's ``private/`` folder, as its rewards and tools read it.

In an instance its files are in the memory of the process that runs the author's code, and nowhere else: no program that
a tool starts can open them. Outside of a sandbox (``aenv run``, a unit test) they are read from the disk.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import IO, Any, Literal, overload

from aenv.authoring.destroyed_state import blaming_the_agent
from aenv.isolation.files.trees import remove_tree

FOLDER = "private"
_CONFIG = "config.json"
_held: Mapping[str, bytes] | None = None
_modules: dict[str, ModuleType] = {}


def hold(files: Mapping[str, bytes]) -> None:
    """From now on, these are the files. Called by the runtime of an instance."""
    global _held
    _held = files


def private(name: str = "") -> PrivatePath:
    """A file or a folder of the project's ``private/``; without a name, that folder.

    ``private("answers.json").read_text()`` works in an instance, under ``aenv run`` and in a unit test. Programs that
    tools start cannot read these files in an instance; under ``aenv run`` and with the process engine, they can.
    """
    if _held is not None:
        return PrivatePath(_held, PurePosixPath(name))
    caller = sys._getframe(1).f_globals.get("__file__")
    return PrivatePath(_Disk(_folder_of(Path(caller or "."))), PurePosixPath(name))


class PrivatePath:
    """A place in ``private/``, with the reading methods of `pathlib.Path`."""

    def __init__(self, files: Mapping[str, bytes], path: PurePosixPath) -> None:
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{str(path)!r} is not a path in {FOLDER}/")
        self._files = files
        self._path = path

    @property
    def name(self) -> str:
        """Its last part."""
        return self._path.name or FOLDER

    def __str__(self) -> str:
        return str(FOLDER / self._path)

    def __repr__(self) -> str:
        return f"private({str(self._path)!r})"

    def __truediv__(self, other: str) -> PrivatePath:
        return PrivatePath(self._files, self._path / other)

    def joinpath(self, *parts: str) -> PrivatePath:
        """A place below this one."""
        return PrivatePath(self._files, self._path.joinpath(*parts))

    def exists(self) -> bool:
        """Whether it is a file or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether it is a file."""
        return str(self._path) in self._files

    def is_dir(self) -> bool:
        """Whether it is a folder with something in it."""
        return any(self._path in PurePosixPath(name).parents for name in self._files)

    def iterdir(self) -> Iterator[PrivatePath]:
        """What is in the folder, by name."""
        depth = len(self._path.parts)
        below = [PurePosixPath(name) for name in self._files]
        names = {path.parts[depth] for path in below if self._path in path.parents}
        if not names:
            raise NotADirectoryError(f"there is no folder {self}")
        return (self / name for name in sorted(names))

    def read_bytes(self) -> bytes:
        """The file's content. Raises FileNotFoundError."""
        try:
            return self._files[str(self._path)]
        except KeyError:
            there = ", ".join(sorted(self._files)[:10]) or "nothing"
            raise FileNotFoundError(f"there is no file {self}; in {FOLDER}/ there is: {there}") from None

    def read_text(self, encoding: str = "utf-8") -> str:
        """The file's text."""
        return self.read_bytes().decode(encoding)

    @overload
    def open(self, mode: Literal["r"] = "r", *, encoding: str = "utf-8") -> io.TextIOWrapper: ...
    @overload
    def open(self, mode: Literal["rb"], *, encoding: str = "utf-8") -> io.BytesIO: ...
    def open(self, mode: Literal["r", "rb"] = "r", *, encoding: str = "utf-8") -> IO[Any]:
        """A file object to read it with."""
        content = io.BytesIO(self.read_bytes())
        return content if mode == "rb" else io.TextIOWrapper(content, encoding=encoding)

    def module(self) -> ModuleType:
        """The file as a Python module, run once per process: for a checker that agents are not to read."""
        key = str(self)
        if key not in _modules:
            made = ModuleType(self._path.stem)
            made.__file__ = key
            exec(compile(self.read_bytes(), key, "exec"), made.__dict__)
            _modules[key] = made
        return _modules[key]

    def copy_to(self, target: str | Path) -> Path:
        """Write the file, or all of the folder, to the disk, where other programs can read it: for a verifier that
        needs files, once the agent is done. What is in the way of one of them is replaced; what else is in the target
        folder stays there.

        Raises:
            StateDestroyed: they cannot be written there.
        """
        target = Path(target)
        with blaming_the_agent(f"private files cannot be written to {target}"):
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
    """The files of a folder."""

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
    """The project's, by a file that is in the project."""
    file = file.resolve()
    for folder in file.parents:
        if (folder / _CONFIG).is_file() or (folder / FOLDER).is_dir():
            return folder / FOLDER
    return file.parent / FOLDER
