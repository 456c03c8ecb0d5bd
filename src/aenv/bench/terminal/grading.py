"""Grading: the task's own tests, in a fresh view of the files that the agent has left, when all its processes are gone.

The view is a new layer over the agent's, so its state stays as it was and can be graded again. What the agent could
have left in wait for the tests is not in it: its own /tests and /logs, settings and start-up files that pytest, Python,
the loader and uv look for, and other programs in place of those that the tests' scripts are made of. Python and uv are
ours, shown read-only, with an empty cache.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aenv.bench.terminal import verdict
from aenv.bench.terminal.task import Task
from aenv.bench.terminal.verdict import Verdict
from aenv.engines.boxes import images, tools
from aenv.engines.boxes.box import PATH, Box, Done
from aenv.engines.boxes.images import Image
from aenv.engines.boxes.outside import WayOut
from aenv.engines.boxes.packing import add, add_tree
from aenv.engines.boxes.tools import TOOLS
from aenv.errors import EnvironmentTimeoutError, Unavailable
from aenv.isolation.images import inside
from aenv.isolation.limits import Cgroup

SAID = 20_000
"""Characters of the verifier's output that are kept."""
_SETTINGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "conftest.py")
_CUSTOMIZED = re.compile(r"(?:site|user)customize\.py|(?:site|user)customize\..*\.pyc")
_PROGRAMS = frozenset((
    "apt", "apt-get", "bash", "cat", "chmod", "cp", "curl", "dash", "dpkg", "echo", "env", "grep", "head", "ln", "ls",
    "mkdir", "mv", "pytest", "rm", "sed", "sh", "sleep", "tail", "tar", "tee", "test", "touch", "tr", "uname", "uv",
    "uvx", "wget", "which",
))  # fmt: skip
"""What scripts of verifiers are made of."""
_BINARIES = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades one task."""

    task: Task
    image: Image
    way_out: WayOut
    group: Callable[[], Cgroup | None] = lambda: None

    async def grade(self, state: Path, beside: Box | None = None) -> tuple[Verdict, Done]:
        """Grade what is in a state. ``beside``: a box whose servers are part of it; its network is shared, and nothing
        else: neither does it see the verifier, nor do its files change any more for who grades them.

        Raises:
            Unavailable: the verifier cannot start, whatever the agent did.
            EnvironmentTimeoutError: it took longer than it may.
        """
        found, done = await self._once(state, beside)
        if done.timed_out:
            seconds = self.task.verifier_seconds
            raise EnvironmentTimeoutError(
                f"the verifier took longer than {seconds:g} s", details={"budget": "verifier", "seconds": seconds}
            )
        if found.reward is not None:
            return found, done
        clean, said = await self._once(None, None)
        if clean.reward is None:
            raise Unavailable(f"the verifier could not start: {clean.why}\n{said.output[-1500:]}")
        return Verdict(0.0, f"the verifier starts, but not on what the agent has left: {found.why}"), done

    async def _once(self, state: Path | None, beside: Box | None) -> tuple[Verdict, Done]:
        place = Path(tempfile.mkdtemp(prefix="aenv-grade-", dir=images.layer_folder("unfinished")))
        try:
            if state is not None and beside is not None:
                (place / "seen").mkdir()
                await images.copy(state / "upper", place / "seen" / "upper")
                state = place / "seen"
            scratch = images.new_state(place / "state")
            done = await self._run(state, scratch, beside)
            return self._verdict(scratch, done), done
        finally:
            await images.remove(place)

    async def _run(self, state: Path | None, scratch: Path, beside: Box | None) -> Done:
        above = (str(state / "upper"),) if state is not None else ()
        home = "/root"
        shown, variables = await tools.found_for(self.task.script)
        files = {f"{home}/.local/bin/env": f'export PATH="{TOOLS}/bin:$PATH"\n'} if shown else {}
        if not _has(self.image, "etc/ld.so.preload"):
            files["/etc/ld.so.preload"] = ""
        own = {
            **self.task.variables, **variables, **self.task.verifier_variables,
            "PATH": f"{TOOLS}/bin:{self.image.variables.get('PATH', PATH)}", "HOME": home, "TEST_DIR": "/tests",
        }  # fmt: skip
        async with self.way_out.box(
            self.image, scratch, shown=shown, files=files, above=above, group=self.group(), beside=beside
        ) as box:
            await box.remove("/tests", "/logs", "/var/cache/aenv-uv", *(suspects(state, self.image) if state else ()))
            await box.unpack(lambda target: _pack_tests(self.task, target), "/")
            if state is not None:
                await _restore(self.image, state, box)
            cwd = self.image.cwd if (await box.exec(["test", "-d", self.image.cwd])).code == 0 else "/"
            return await box.exec(
                ["/bin/bash", self.task.verifier], cwd=cwd, env=own, timeout=self.task.verifier_seconds, joined=True
            )

    def _verdict(self, scratch: Path, done: Done) -> Verdict:
        if self.task.format == "terminal-bench-1":
            return verdict.of_first(done.output, done.code)
        logs = scratch / "upper"
        for name in ("logs", "verifier"):
            logs /= name
            if logs.is_symlink() or not logs.is_dir():
                return Verdict(None, "it left nothing in /logs/verifier")
        return verdict.of_harbor(logs, self.task.script)


def _pack_tests(task: Task, target: object) -> None:
    """As /tests, and an empty /logs/verifier. pytest looks for settings in and above the folder of the tests: it finds
    them there, and looks no further.
    """
    with tarfile.open(fileobj=target, mode="w|") as archive:  # type: ignore[call-overload]
        for source, name in task.tests:
            if source.is_dir():
                add_tree(archive, source, os.path.normpath(f"tests/{name}"))
            else:
                add(archive, source, f"tests/{name}")
        for name in ("logs", "logs/verifier", "logs/agent", "logs/artifacts"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        if not any((task.folder / "tests" / name).exists() for name in _SETTINGS[:-1]):
            text = b"[pytest]\n"
            member = tarfile.TarInfo("tests/pytest.ini")
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text))


def suspects(state: Path, image: Image) -> Iterator[str]:
    """Files of the agent's that would run before, or in place of, the verifier: they are left out of its view."""
    upper = state / "upper"
    for name in _SETTINGS:
        if _at(upper, name) and not _has(image, name):
            yield f"/{name}"
    for name in (
        ".config/uv",
        ".config/pip",
        ".pip",
        ".curlrc",
        ".wgetrc",
        ".netrc",
        ".local/bin/uv",
        ".local/bin/uvx",
    ):
        if _at(upper, f"root/{name}") and not _has(image, f"root/{name}"):
            yield f"/root/{name}"
    for folder, _, names in os.walk(upper):
        below = os.path.relpath(folder, upper)
        for name in names:
            path = os.path.normpath(os.path.join(below, name))
            if _CUSTOMIZED.fullmatch(name) and not _has(image, path):
                yield f"/{path}"
    for folder in _BINARIES:
        for name in _PROGRAMS:
            path = f"{folder}/{name}"
            if _at(upper, path) and not _has(image, path) and _elsewhere(image, name):
                yield f"/{path}"


async def _restore(image: Image, state: Path, box: images.Box) -> None:
    """Programs of the image's that the agent has replaced, as they were."""
    for folder in _BINARIES:
        for name in sorted(_PROGRAMS):
            path = f"{folder}/{name}"
            original = _find(image, path)
            if original is not None and _at(state / "upper", path):
                await box.remove(f"/{path}")
                await box.unpack(lambda target, p=path, o=original: _pack_one(o, p, target), "/")  # type: ignore[misc]


def _pack_one(source: Path, name: str, target: object) -> None:
    with tarfile.open(fileobj=target, mode="w|") as archive:  # type: ignore[call-overload]
        add(archive, source, name)


def _elsewhere(image: Image, name: str) -> bool:
    return any(_has(image, f"{folder}/{name}") for folder in _BINARIES)


def _has(image: Image, path: str) -> bool:
    return _find(image, path) is not None


def _find(image: Image, path: str) -> Path | None:
    """A file of an image's, in the uppermost of its layers that has one."""
    for layer in reversed(image.layers):
        found = _at(Path(layer), path)
        if found is not None:
            about = found.lstat()
            gone = stat.S_ISCHR(about.st_mode) and about.st_rdev == 0
            return None if gone else found
    for place, source in image.shown.items():
        if f"/{path}".startswith(f"{place}/"):
            found = Path(source + f"/{path}"[len(place) :])
            return found if os.path.lexists(found) else None
    return None


def _at(root: Path, path: str) -> Path | None:
    """What is at a path of a tree; links on the way lead nowhere but into the tree."""
    folder, name = os.path.split(path)
    try:
        found = Path(inside(str(root), folder), name)
    except (OSError, ValueError):
        return None
    return found if os.path.lexists(found) else None
