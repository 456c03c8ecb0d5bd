"""Restore the programs that run the verifier from the image, so that the agent cannot tamper with them.

The verifier sees the agent's files, since they are what is graded. But the programs that its scripts and tests name,
the libraries that all programs load, Python's standard library, and the files that shells, loaders and tools read at
start-up are restored from the image, or removed if the image does not have them. Files of the agent that the verifier
may still use, because the image has no replacement, are declared in the result.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path

from aenv.bench.terminal.file_changes import Changes, ImageFiles
from aenv.bench.terminal.task import TerminalTask
from aenv.images.layered_images import LayerEntry


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _any(patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(translate(each) for each in patterns.split()))


PLUMBING = _words(
    "apt apt-get awk base64 basename bash bunzip2 cat chgrp chmod chown cmp comm cp curl cut dash date dd diff dirname "
    "dpkg echo egrep env expr false fgrep find gawk grep gunzip gzip head hostname id install jq kill ldconfig ln ls "
    "mawk md5sum mkdir mkfifo mktemp mv nohup od paste printenv printf ps pwd readlink realpath rm rmdir sed seq sh "
    "sha1sum sha256sum sha512sum sleep sort split stat su sudo tac tail tar tee test timeout touch tr true uname uniq "
    "unzip uv uvx wc wget which whoami xargs xz yes zcat"
)
"""Programs that verifier scripts commonly use, in addition to those that they name."""
RUNNERS = frozenset(("pip", "pip3", "pytest", "python", "python3", "tox", "nox", "node", "npm", "npx", "make", "git"))
SYSTEM = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
LIBRARIES = re.compile(
    r"(ld-linux.*|ld-[\d.]+|ld-musl.*|lib(c|m|dl|pthread|rt|util|resolv|nss_\w+|nsl|anl|crypt|tinfo|ncursesw?|readline|"
    r"selinux|acl|attr|pcre2?-?8?|pcre|cap|gmp|mpfr|gcc_s|stdc\+\+|z|zstd|lzma|bz2|md|crypto|ssl|ffi|expat|python3[\d.]*|"
    r"systemd|uuid|blkid|audit|pam\w*|c\.musl.*))([-.].*)?\.so([.\d]*)"
)
"""Libraries that these programs load. Other libraries may be the agent's work."""
LIBRARY_FOLDERS = re.compile(r"(usr/|usr/local/)?lib(x?32|64|exec)?/")
START_UP = _any(
    "etc/ld.so.preload etc/nsswitch.conf etc/profile etc/profile.d/* etc/bash.bashrc etc/bashrc etc/environment "
    "etc/inputrc etc/pip.conf usr/pip.conf usr/local/pip.conf etc/xdg/pip/* etc/xdg/uv/* etc/uv/* etc/npmrc etc/wgetrc "
    "etc/curlrc etc/apt/apt.conf etc/apt/apt.conf.d/* etc/apt/preferences* etc/dpkg/dpkg.cfg* etc/sudo.conf "
    "etc/ssl/openssl.cnf usr/lib/ssl/openssl.cnf etc/python3*/* etc/gai.conf etc/host.conf *lib*/gconv/* "
    "root/.config/uv/* root/.config/pip/* root/.pip/* root/.curlrc root/.wgetrc root/.netrc root/.npmrc "
    "root/.pydistutils.cfg root/.local/bin/uv root/.local/bin/uvx root/.local/bin/env root/.cache/pip/*"
)
"""Files that shells, loaders and tools read at start-up. A star also matches slashes."""
SHELLS = _any("root/.bashrc root/.bash_profile root/.bash_login root/.bash_aliases root/.profile root/.bash_logout")
"""Start-up files that are the work in some tasks. They are restored only if the verifier's scripts read them."""
SOURCED = re.compile(r"(bashrc|bash_profile|\.profile|/etc/profile)|\b(ba)?sh\s+-\w*[il]")
HOOK = re.compile(r"(site|user)customize(\..*)?")
PACKAGES = re.compile(r".*/(site|dist)-packages/")
TEST_RUNNERS = re.compile(
    r"_?pytest(_\w+|-[\w.]+)?|pluggy|iniconfig|py|_?hypothesis\w*|coverage|xdist|execnet|pytest.*"
)
SETTINGS = (
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    "pyproject.toml",
    "tox.ini",
    "setup.cfg",
    "setup.py",
    "conftest.py",
)
VENV = re.compile(r"(?:\buv\s+venv|-m\s+venv|\bvirtualenv)\s+(?:-\S+\s+)*([\w./-]+)")
FROM_HERE = re.compile(r"\bpython[\d.]*\s+(?:-\w\s+)*(-[cm]\b|-\s|-$|<<)|\buv\s+(?:run|init|add|sync)\b", re.MULTILINE)
"""Python commands that import modules from the working directory."""
WORD = re.compile(r"[A-Za-z0-9_\[][\w.+-]*")
MOST_TEXT = 1 << 20
DIRECT = re.compile(
    r"(?:^|[;&|({!]|\b(?:if|elif|while|until|then|do|else))\s*(?:\w+=\S*\s+)*(?:env\s+|exec\s+|timeout\s+\S+\s+)*"
    r"(?:python[\d.]*|pytest|pip3?)\b",
    re.MULTILINE,
)
"""Scripts that run the image's Python, instead of ours through uv."""
_MODULES = sys.stdlib_module_names | {"lib-dynload", "__pycache__"}
NAMED_FILES = ("BASH_ENV", "ENV", "LD_PRELOAD", "PYTHONSTARTUP")
"""Variables of an image that name a file to run."""


@dataclass(slots=True)
class RestorePlan:
    """Changes to the agent's files before the verifier sees them."""

    removed: set[str] = field(default_factory=set)
    restored: dict[str, Path] = field(default_factory=dict)
    """Files of the image by path."""
    declared: set[str] = field(default_factory=set)
    """Files of the agent that the verifier may use."""

    def as_json(self) -> dict[str, list[str]]:
        """Return the paths for the result."""
        found = {"removed": self.removed - {*self.restored}, "restored": {*self.restored}, "declared": self.declared}
        return {kind: sorted(f"/{path}" for path in paths) for kind, paths in found.items() if paths}


class RestorePlanner:
    """Compares the agent's files with the image."""

    def __init__(
        self, task: TerminalTask, image: ImageFiles, changes: Changes, path: str, variables: dict[str, str]
    ) -> None:
        self._task = task
        self._image = image
        self._changes = changes
        self._variables = variables
        self._cwd = image.folder(image.image.cwd)
        self._scripts, self._words = _read(task)
        folders = [*path.split(":"), *(f"/{each}" for each in SYSTEM)]
        self._folders = list(dict.fromkeys(image.folder(each) for each in folders if each.startswith("/")))
        self._pythons = self._standard_libraries()
        self._loaded = self._libraries()
        self._plan = RestorePlan()

    def plan(self) -> RestorePlan:
        """Return the complete plan."""
        self._programs()
        for entry in self._changes.files():
            if self._runs_before(entry) or self._replaces(entry.path) or self._shadows(entry.path):
                self._restore(entry.path)
        for library in self._pythons:
            self._restore_library(library)
        for name in NAMED_FILES:
            for path in self._variables.get(name, "").split(":"):
                if path.startswith("/"):
                    self._restore(path.strip("/"))
        for name in VENV.findall(self._scripts):
            self._drop(os.path.normpath(os.path.join(f"/{self._cwd}", name)).strip("/"))
        return self._plan

    def _programs(self) -> None:
        """Restore the programs that the verifier's files name and those that all scripts use, at the image's paths."""
        known: dict[str, str] = {}
        for folder in self._folders:
            for name in self._image.names(folder):
                known.setdefault(name, folder)
        always = PLUMBING | RUNNERS
        names = (self._words | always) - set(self._task.agent_programs)
        for place, folder in enumerate(self._folders):
            blocked = self._changes.in_the_way(f"{folder}/x")
            if blocked is not None:
                self._drop(blocked)
                continue
            for name in names:
                path = f"{folder}/{name}"
                if self._changes.seen(path) != "agent" or self._image.find(path) is not None:
                    continue
                if name in known and place < self._folders.index(known[name]):
                    self._drop(path)
                elif name in PLUMBING and name not in known and folder not in SYSTEM[2:]:
                    self._drop(path)  # no package installs it there
                elif name in always or name in known:
                    self._plan.declared.add(path)
        for name in names & known.keys():
            path = f"{known[name]}/{name}"
            if name in always or self._changes.seen(path) != "gone":
                self._restore(path)

    def _runs_before(self, entry: LayerEntry) -> bool:
        """Return whether the file is read or run at the start-up of a shell, loader, tool or Python."""
        path, name = entry.path, os.path.basename(entry.path)
        if any(HOOK.fullmatch(part) for part in path.split("/")) or START_UP.fullmatch(path) or path in SETTINGS:
            return True
        if SHELLS.fullmatch(path):
            return bool(SOURCED.search(self._scripts))
        packages = PACKAGES.match(path)
        if packages is not None and DIRECT.search(self._scripts) and self._image.names(packages[0].rstrip("/")):
            if name.endswith(".pth"):
                return _runs(entry)
            return name == "entry_points.txt" and b"pytest11" in bytes.fromhex(entry.text)
        return path == "etc/ld.so.cache" and not self._is_harmless(entry)

    def _replaces(self, path: str) -> bool:
        """Return whether the file replaces a file of the image that the verifier runs with."""
        name = os.path.basename(path)
        packages = PACKAGES.match(path)
        if packages is not None:
            runner = TEST_RUNNERS.fullmatch(path[packages.end() :].split("/")[0])
            return bool(runner) and self._image.find(path) is not None
        if name == "pyvenv.cfg":
            return self._image.find(path) is not None
        return name in self._loaded and bool(LIBRARY_FOLDERS.match(path))

    def _shadows(self, path: str) -> bool:
        """Return whether the verifier's Python would import the file instead of a standard or test module."""
        roots = [each.strip("/") for each in self._variables.get("PYTHONPATH", "").split(":") if each.startswith("/")]
        if FROM_HERE.search(self._scripts):
            roots.append(self._cwd)
            if path in (f"{self._cwd}/{each}" for each in (".venv", "uv.toml")) or path.startswith(
                f"{self._cwd}/.venv/"
            ):
                return True
        for root in roots:
            if path.startswith(f"{root}/"):
                name = path[len(root) + 1 :].split("/")[0].split(".")[0]
                return name in sys.stdlib_module_names or bool(TEST_RUNNERS.fullmatch(name))
        return False

    def _restore_library(self, library: str) -> None:
        """Restore the standard library of one of the image's Pythons, but not its installed packages."""
        for path in self._image.below(library):
            if not PACKAGES.match(f"{path}/") and self._changes.seen(path) != "image":
                self._restore(path)
        for entry in self._changes.files():
            if not entry.path.startswith(f"{library}/") or PACKAGES.match(f"{entry.path}/"):
                continue
            top = entry.path[len(library) + 1 :].split("/")[0].split(".")[0]
            compiled = entry.path.endswith((".pyc", ".pyo"))
            if self._image.find(entry.path) is None and (compiled or top not in _MODULES):
                self._drop(entry.path)
        version = re.sub(r"\D", "", os.path.basename(library))
        self._restore(f"{os.path.dirname(library)}/python{version}.zip")

    def _standard_libraries(self) -> set[str]:
        """Return the folders of the standard libraries of the image's Pythons."""
        found = set()
        for folder in self._folders:
            for name in self._image.names(folder):
                if re.fullmatch(r"python(3(\.\d+)?)?", name):
                    real = self._image.folder(f"{folder}/{name}")
                    above = f"{os.path.dirname(os.path.dirname(real))}/lib".strip("/")
                    names = self._image.names(above)
                    found |= {f"{above}/{each}" for each in names if re.fullmatch(r"python3\.\d+", each)}
        return found

    def _libraries(self) -> set[str]:
        """Return the names of the image's libraries that the verifier's programs load."""
        folders = ["usr/lib", "usr/lib64", "lib", "lib64", "usr/local/lib"]
        folders += [f"usr/lib/{name}" for name in self._image.names("usr/lib") if "-linux-" in name]
        folders += [f"lib/{name}" for name in self._image.names("lib") if "-linux-" in name]
        return {name for folder in folders for name in self._image.names(folder) if LIBRARIES.fullmatch(name)}

    def _is_harmless(self, cache: LayerEntry) -> bool:
        """Return whether a loader cache points every library of the verifier's programs to a path of the image."""
        try:
            found = [path for name, path in _cached(bytes.fromhex(cache.text)) if name in self._loaded]
        except (ValueError, struct.error):
            return False
        return all(self._image.find(self._image.folder(path)) is not None for path in found)

    def _restore(self, path: str) -> None:
        """Restore a file of the image with the links that lead to it, or remove it if the image does not have it."""
        try:
            real, hops = self._image.resolve(path)
        except FileNotFoundError:
            self._drop(path)
            return
        for hop in dict.fromkeys([*hops, real]):
            source = self._image.find(hop)
            if self._changes.seen(hop) == "image" or source is None or (source.is_dir() and not source.is_symlink()):
                continue
            blocked = self._changes.in_the_way(hop)
            if blocked is not None:
                self._drop(blocked)
            self._drop(hop)
            self._plan.restored[hop] = source

    def _drop(self, path: str) -> None:
        if path in self._changes.entries and self._changes.entries[path].kind != "whiteout":
            self._plan.removed.add(path)


def _read(task: TerminalTask) -> tuple[str, set[str]]:
    """Return the text of a verifier's scripts, and every word of its files."""
    scripts, words = [task.script], set(WORD.findall(task.script))
    for source, _ in task.tests:
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file() and not file.is_symlink() and file.stat().st_size < MOST_TEXT:
                text = file.read_bytes().decode(errors="replace")
                words |= set(WORD.findall(text))
                scripts += [text] if file.suffix in (".sh", ".bash", "") else []
    return "\n".join(scripts).replace("\\\n", " "), words


def _runs(entry: LayerEntry) -> bool:
    """Return whether a .pth file contains a line that Python executes, instead of adding it to the path."""
    if entry.kind != "file":
        return True
    lines = bytes.fromhex(entry.text).decode(errors="replace").splitlines()
    return any(line.startswith(("import ", "import\t")) for line in lines)


def _cached(data: bytes) -> Iterable[tuple[str, str]]:
    """Parse a loader cache: names of libraries and their paths."""
    magic = b"glibc-ld.so.cache1.1"
    start = data.index(magic)
    (count,) = struct.unpack_from("=I", data, start + len(magic))

    def text(offset: int) -> str:
        return data[start + offset : data.index(b"\0", start + offset)].decode(errors="replace")

    def entries() -> Iterator[tuple[str, str]]:
        for number in range(count):
            _, key, value = struct.unpack_from("=iII", data, start + 48 + 24 * number)
            yield text(key), text(value)

    return entries()
