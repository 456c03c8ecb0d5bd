"""What tests are run with: what it was when the environment was loaded, and whether it still is that.

On the host's own system nothing of it can be changed. On an image's (`deployConfig.base`) all of it can, by anyone in
the sandbox, and there is no second copy. A file's time of change tells: no program can set it. What the agent has put
before something is moved aside while tests run; what it has replaced cannot be put back, so such a run scores 0.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

RUNNERS = ("bash", "sh", "env", "python", "python3", "pytest", "uv", "uvx", "cat", "grep", "sed", "test", "timeout")
LOADED = (
    "/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/nsswitch.conf", "/etc/profile", "/etc/bash.bashrc",
    "/etc/environment", "/etc/pip.conf", "/etc/ssl/openssl.cnf",
)  # fmt: skip
FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
LIBRARIES = re.compile(
    r"(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|nss_\w+|tinfo|readline|selinux|acl|attr|pcre2?.*|cap|gcc_s|stdc\+\+|z|"
    r"crypto|ssl|ffi|python3.*))([-.].*)?\.so[.\d]*"
)
HOOKS = re.compile(r"(site|user)customize(\..*)?|.*\.pth")
WORD = re.compile(rb"[A-Za-z0-9_\[][\w.+-]*")


class System:
    """The programs, libraries and Pythons that were there when the environment was loaded."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.path = os.environ.get("PATH", os.defpath)
        self._programs: dict[str, str] = {}
        for folder in self.path.split(os.pathsep):
            with contextlib.suppress(OSError):
                for entry in os.scandir(folder):
                    if entry.is_file() and os.access(entry.path, os.X_OK):
                        self._programs.setdefault(entry.name, entry.path)
        self._pythons = self._libraries_of_python()
        self._hooks = {path for library in self._pythons for path in _files(library) if HOOKS.fullmatch(path.name)}

    def replaced(self, tests: dict[str, bytes]) -> list[str]:
        """What these tests are run with that is no more what it was."""
        words = {word.decode() for content in tests.values() for word in WORD.findall(content)}
        changed = []
        for name in sorted((words | set(RUNNERS)) & self._programs.keys()):
            now = shutil.which(name, path=self.path)
            if now is None or any(self._is_younger(hop) for hop in _hops(now)):
                changed.append(now or name)
        changed += [path for path in LOADED if self._is_younger(path)]
        for folder in FOLDERS:
            changed += [str(path) for path in _libraries(folder) if self._is_younger(path)]
        for library in self._pythons:
            for path in _files(library):
                installed = "site-packages" in path.parts or "dist-packages" in path.parts
                if (path in self._hooks if installed else path.parent.name != "__pycache__") and self._is_younger(path):
                    changed.append(str(path))
        return sorted(set(changed))

    def added(self) -> list[Path]:
        """What any Python would run as it starts, and was not there."""
        found = [path for library in self._pythons for path in _files(library)]
        return [
            path for path in found if HOOKS.fullmatch(path.name) and path not in self._hooks and self._is_younger(path)
        ]

    def _libraries_of_python(self) -> list[Path]:
        found = {}
        for name, path in self._programs.items():
            if re.fullmatch(r"python(3(\.\d+)?)?", name):
                for library in Path(os.path.realpath(path)).parents[1].glob("lib/python3*"):
                    if library.is_dir() and not _is_read_only(library):
                        found[library] = None
        return list(found)

    def _is_younger(self, path: str | Path) -> bool:
        """Whether it, or what it leads to, was changed since; a program can set every time of a file but this one."""
        with contextlib.suppress(OSError):
            if not _is_read_only(path):
                return max(os.lstat(path).st_ctime, os.stat(path).st_ctime) >= self.began
        return False


def _is_read_only(path: str | Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _hops(path: str) -> Iterator[str]:
    """A program, and every link on the way to it."""
    for _ in range(40):
        yield path
        if not os.path.islink(path):
            return
        path = os.path.join(os.path.dirname(path), os.readlink(path))


def _libraries(folder: str) -> Iterator[Path]:
    """Those that all programs load, in a folder and in those for this kind of machine."""
    for pattern in ("*", "*-linux-*/*", "glibc-hwcaps/*/*", "*-linux-*/glibc-hwcaps/*/*", "*-linux-*/gconv/*"):
        for path in Path(folder).glob(pattern):
            if LIBRARIES.fullmatch(path.name) or path.parent.name == "gconv":
                yield path


def _files(folder: Path) -> list[Path]:
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]
