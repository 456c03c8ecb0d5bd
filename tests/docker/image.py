"""A container image with Python and aenv, made of files of this machine: no registry is needed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import aenv

NAME = "aenv.test/base:1"
LIBRARY = f"usr/lib/python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"{LIBRARY}/site-packages"
PROGRAMS = ("sh", "cat", "ls", "sleep", "kill", "env", "id")
NEEDED = ("click", "httptools", "mcp", "packaging", "pathspec", "prometheus-client", "pydantic")
_LEFT_OUT = ("test", "tests", "idlelib", "tkinter", "ensurepip", "site-packages", "lib2to3")


def write(path: Path) -> None:
    """Write the image's root file system as a tar file: this interpreter, its libraries, and what aenv needs."""
    with tarfile.open(path, "w") as archive:
        for source, target in {**dict(_programs()), **dict(_interpreter())}.items():
            archive.add(source, target, recursive=False)
        for folder in ("tmp", "app", "etc"):
            made = tarfile.TarInfo(folder)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            archive.addfile(made)


def _programs() -> Iterator[tuple[str, str]]:
    for name in PROGRAMS:
        found = next(Path(folder, name) for folder in ("/usr/bin", "/bin") if Path(folder, name).exists())
        yield str(found.resolve()), f"bin/{name}"
        yield from _libraries(found)


def _interpreter() -> Iterator[tuple[str, str]]:
    python = Path(sys.executable).resolve()
    yield str(python), "usr/bin/python3"
    yield from _libraries(python)
    standard = Path(sysconfig.get_paths()["stdlib"])
    yield from _tree(standard, LIBRARY)
    for module in standard.glob("lib-dynload/*.so"):
        yield from _libraries(module)
    for name in _closure(NEEDED):
        found = distribution(name)
        for file in found.files or ():
            place = Path(str(found.locate_file(file)))
            if ".." not in file.parts and place.is_file():
                yield str(place), f"{SITE}/{file}"
                if place.suffix == ".so":
                    yield from _libraries(place)
    yield from _tree(Path(aenv.__file__).parent, f"{SITE}/aenv")


def _tree(folder: Path, target: str) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        inner = path.relative_to(folder)
        if path.is_file() and not set(inner.parts) & set(_LEFT_OUT):
            yield str(path), f"{target}/{inner}"


def _closure(names: tuple[str, ...]) -> set[str]:
    """Return the installed distributions that these need, by name."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            about = distribution(name)
        except Exception:
            continue
        found.add(name)
        for line in about.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    return found


def _libraries(program: Path) -> Iterator[tuple[str, str]]:
    """Iterate over the shared libraries of a program, with the names that the loader looks for."""
    if str(program) in _seen:
        return
    _seen.add(str(program))
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=60)
    for line in done.stdout.splitlines():
        words = line.split()
        path = words[2] if len(words) > 2 and words[1] == "=>" else words[0]
        if path.startswith("/"):
            yield str(Path(path).resolve()), path[1:]


_seen: set[str] = set()
