"""A small root file system for attacks: programs and a Python with pytest, all of it writable by the agent."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import make_root

PROGRAMS = (
    "awk", "bash", "cat", "chmod", "cp", "env", "find", "git", "grep", "ldconfig", "ln", "ls", "mkdir", "mkfifo", "mv",
    "rm", "sed", "seq", "setsid", "sh", "sleep", "sort", "tee", "test", "timeout", "touch", "true", "wc",
)  # fmt: skip
PACKAGES = ("_pytest", "pytest", "pytest-*", "py.py", "pluggy", "pluggy-*", "iniconfig", "packaging", "pygments")
VERSION = f"python3.{sys.version_info.minor}"
LIBRARY = Path(sys.base_prefix, "lib", VERSION)
INSTALLED = "dist-packages" if "dist-packages" in (LIBRARY / "site.py").read_text() else "site-packages"
"""Folder of Python packages; Debian uses another name."""
UNNEEDED = ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "*.a", "__pycache__", "config-*", "*-packages")


def make_system(root: Path) -> Path:
    """Create the system in a new folder."""
    make_root(root, PROGRAMS)
    (root / "etc" / "nsswitch.conf").write_text("passwd: files\n")
    library = root / "usr" / "local" / "lib" / VERSION
    shutil.copytree(LIBRARY, library, ignore=shutil.ignore_patterns(*UNNEEDED))
    (library / INSTALLED).mkdir()
    for pattern in PACKAGES:
        for source in Path(pytest.__file__).parents[1].glob(pattern):
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, library / INSTALLED / source.name)
    programs = root / "usr" / "local" / "bin"
    programs.mkdir()
    shutil.copy(Path(sys.executable).resolve(), programs / VERSION)
    (programs / "python3").symlink_to(VERSION)
    for file in (programs / VERSION, *library.rglob("*.so")):
        libraries = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        for word in (word for word in libraries.split() if word.startswith("/")):
            target = root / (f"usr/lib/{Path(word).name}" if "libpython" in word else word[1:])
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, target)
    return root


def shared_library(target: Path, source: str) -> bytes:
    """Compile a library from a line of C."""
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(target), "-x", "c", "-"], input=source, text=True, check=True)
    return target.read_bytes()
