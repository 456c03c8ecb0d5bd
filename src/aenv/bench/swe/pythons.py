"""Install the Python of an instance's tests, with its packages, into a relocatable folder for sandboxes.

uv installs the packages, from wheels only: building a package would run its code outside of a sandbox. uv caches
downloads, so a second instance of the same repository takes seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from aenv.errors import EnvironmentError
from aenv.isolation.files import rootfs
from aenv.project.lock import find_uv
from aenv.subprocesses import run
from aenv.tracing.logging import getLogger

log = getLogger("bench.swe")

_NO_WHEEL = re.compile(r"(?<=Wheels are required for `)[^`]+|[\w.-]+(?=[=~<>]=?\S+ has no (?:usable )?wheels)")
_UNNEEDED = shutil.ignore_patterns("__pycache__", "test", "idlelib", "tkinter", "turtledemo", "*.a", "site-packages")
_TRIES = 20


def install(folder: Path, version: str, pins: Sequence[str], build: Sequence[str], repository: Path) -> list[str]:
    """Make ``folder/python``, and ``folder/interpreter`` if sandboxes cannot see the host's interpreter.

    Return the packages that could not be installed in the requested version.

    Raises:
        EnvironmentError: the Python version or a package is not available.
    """
    chosen = _interpreter(version)
    target = folder / "python"
    _make(target, chosen, version)
    python = str(target / "bin" / "python")
    needed = [*(build or ("pip", "setuptools", "wheel")), *_build_requirements(repository)]
    left_out = _packages(python, _one_each(needed), [])
    left_out += _packages(python, list(pins), ["--no-deps"])
    if build:
        left_out += _packages(python, list(build), ["--no-deps"])  # the other packages may have changed these versions
    _relocate(folder, target)
    return left_out


def _one_each(lines: Sequence[str]) -> list[str]:
    """Return the first line for each package."""
    found: dict[str, str] = {}
    for line in lines:
        found.setdefault(_plain(_name_of(line.strip())), line)
    return list(found.values())


def _interpreter(version: str) -> str:
    """Return an interpreter of this machine, else the version itself, which uv downloads."""
    if not version or version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = run([find_uv(), "python", "find", "--no-python-downloads", version], cwd="/")
    if found.ok:
        return found.stdout.strip()
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    here = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    return str(here[-1]) if here else version


def _build_requirements(repository: Path) -> list[str]:
    try:
        project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
        return [str(line) for line in project["build-system"]["requires"]]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return []


def _packages(python: str, wanted: list[str], options: list[str]) -> list[str]:
    """Install packages; one without a wheel is replaced by a later version that has one. Return the replacements."""
    other: dict[str, str] = {}
    for _ in range(_TRIES):
        lines = [line for line in (other.get(line, line) for line in wanted) if line]
        if not lines:
            break
        common = ["pip", "install", "--quiet", "--no-progress", "--color", "never", "--only-binary", ":all:"]
        command = [find_uv(), *common, "--python", python, *options, "--requirement", "-"]
        done = run(command, stdin="\n".join(lines), cwd="/", env=_variables())
        if done.ok:
            break
        message = " ".join(done.stderr.split())
        missing = {_plain(name) for name in _NO_WHEEL.findall(message)}
        changed = {line: _next_best(line, other.get(line)) for line in wanted if _plain(_name_of(line)) in missing}
        if not changed or all(other.get(line) == "" for line in changed):
            raise EnvironmentError(f"cannot install packages:\n{done.stderr.strip()[-1500:]}")
        other |= changed
    if other:
        log.warning("other versions than requested, for lack of wheels: %s", _describe(other))
    return [_describe({line: instead}) for line, instead in other.items()]


def _variables() -> dict[str, str]:
    """Return the environment variables of this process with uv's cache enabled, so that it queries Python only once.

    A later query would run the .pth files of the packages that are installed by then.
    """
    return {name: value for name, value in os.environ.items() if name != "UV_NO_CACHE"}


def _next_best(pin: str, tried: str | None) -> str:
    """Return the next requirement to try: a later bug fix, then any later version, then none."""
    name, equals, version = pin.partition("==")
    if not equals or tried == "":
        return ""
    if tried is None:
        return f"{name}~={version}" if version.count(".") else f"{name}>={version}"
    return "" if ">=" in tried else f"{name}>={version}"


def _describe(other: dict[str, str]) -> str:
    return ", ".join(f"{line} ({instead or 'left out'})" for line, instead in other.items())


def _name_of(line: str) -> str:
    return re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _make(target: Path, python: str, version: str) -> None:
    command = [find_uv(), "venv", "--quiet", "--relocatable", "--python", python, str(target)]
    done = run(command, cwd="/")
    if not done.ok:
        which = f"Python {version}" if version else python
        raise EnvironmentError(
            f"{which} is not installed, and uv cannot download it: {done.stderr.strip()[-800:]}",
            details={"hint": f"Install {which}: in PATH, with pyenv, or with `uv python install {version}`."},
        )


def _relocate(folder: Path, target: Path) -> None:
    """Make the Python work at its path in sandboxes; copy an interpreter that they cannot see."""
    python = target / "bin" / "python"
    query = "import sys; print(sys.base_prefix); print(f'python{sys.version_info[0]}.{sys.version_info[1]}')"
    # -S: site would run the .pth files of the packages, which are untrusted.
    output = run([str(python), "-I", "-S", "-c", query]).checked().stdout
    prefix, name = output.split()
    if rootfs.is_below(prefix, (*rootfs.SYSTEM, *rootfs.interpreter_paths())):
        return
    inside = folder / "interpreter"
    shutil.copytree(prefix, inside, symlinks=True, ignore=_UNNEEDED)
    (inside / "lib" / name / "site-packages").mkdir(exist_ok=True)
    settings = target / "pyvenv.cfg"
    lines = [
        f"home = {rootfs.PROJECT}/interpreter/bin" if line.startswith("home") else line
        for line in settings.read_text().splitlines()
    ]
    settings.write_text("\n".join(lines) + "\n")
    python.unlink()
    python.symlink_to(f"../../interpreter/bin/{name}")
