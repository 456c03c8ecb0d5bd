"""Grading: the task's own tests, in a fresh view of the files that the agent has left, when all its processes are gone.

The view is a new layer over the agent's, so its state stays as it was and can be graded again. In it, the agent's own
/tests and /logs are gone, and what the tests are run with is the image's own (`aenv.bench.terminal.pristine`). Python
and uv are ours, shown read-only, with an empty cache.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from aenv.bench.terminal import verdict
from aenv.bench.terminal.file_changes import Changes, ImageFiles
from aenv.bench.terminal.pristine import RestorePlan, RestorePlanner
from aenv.bench.terminal.task import Task
from aenv.bench.terminal.verdict import Verdict
from aenv.errors import EnvironmentTimeoutError, Unavailable
from aenv.images import layered_images, verifier_tools
from aenv.images.box import PATH, Box, BoxResult
from aenv.images.box_files import add, add_tree
from aenv.images.box_network import BoxNetwork
from aenv.images.layered_images import BoxImage
from aenv.images.verifier_tools import TOOLS
from aenv.isolation.limits.cgroups import Cgroup

SAID = 20_000
"""Characters of the verifier's output that are kept."""
HOME = "/root"
SETTINGS = ("pytest.ini", ".pytest.ini", "pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")
WROTE_NOTHING = 97
_WITNESS = f"""
trap 'case $BASH_COMMAND in (*">"*/logs/verifier/reward.txt*) __wrote=$BASH_COMMAND;;
(source* | trap* | exit* | cat\\ * | echo\\ * | printf\\ * | ls\\ * | true | :) ;; (*) __wrote=;; esac' DEBUG
trap 'trap - DEBUG; case $__wrote in ("echo 0 "* | "echo \\"0\\" "*) exit {WROTE_NOTHING};; esac' EXIT
set -o functrace
__wrote=
source "$0"
"""
"""Remembers, in the memory of the verifier's own shell, that the last thing it did was to write a reward of 0. What its
tests have run could have written another one since.
"""
_UV = {
    "UV_TOOL_DIR": "/var/cache/aenv-uv/tools",
    "UV_VENV_CLEAR": "1",
    **{
        f"BASH_FUNC_{name}%%": f'() {{ case "$*" in *astral.sh/uv*) return 0;; esac; command {name} "$@"; }}'
        for name in ("curl", "wget")
    },
}
"""uv is there already: what a script would download to install it is neither needed nor run, whoever answers."""


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades one task."""

    task: Task
    image: BoxImage
    way_out: BoxNetwork
    group: Callable[[], Cgroup | None] = lambda: None

    async def grade(self, state: Path, beside: Box | None = None) -> tuple[Verdict, BoxResult]:
        """Grade what is in a state. ``beside``: a box whose servers are part of it; its network is shared, and nothing
        else: neither does it see the verifier, nor do its files change any more for who grades them.

        Raises:
            Unavailable: the verifier cannot start, whatever the agent did.
            EnvironmentTimeoutError: it took longer than it may.
        """
        found, done, plan = await self._once(state, beside)
        if found.reward is not None and not done.timed_out:
            return replace(found, more={**found.more, **plan.told()}), done
        seconds = self.task.verifier_seconds
        why = f"it took longer than {seconds:g} s" if done.timed_out else found.why
        clean, said, _ = await self._once(None, None)
        if said.timed_out:
            raise EnvironmentTimeoutError(
                f"the verifier took longer than {seconds:g} s", details={"budget": "verifier", "seconds": seconds}
            )
        if clean.reward is None:
            raise Unavailable(f"the verifier could not start: {clean.why}\n{said.output[-1500:]}")
        return Verdict(
            0.0, f"the verifier starts, but not on what the agent has left: {why}", more=dict(plan.told())
        ), done

    async def _once(self, state: Path | None, beside: Box | None) -> tuple[Verdict, BoxResult, RestorePlan]:
        place = Path(tempfile.mkdtemp(prefix="aenv-grade-", dir=layered_images.layer_folder("unfinished")))
        try:
            if state is not None and beside is not None:
                (place / "seen").mkdir()
                await layered_images.copy(state / "upper", place / "seen" / "upper")
                state = place / "seen"
            scratch = layered_images.new_state(place / "state")
            plan = await self._plan(state) if state is not None else RestorePlan()
            done = await self._run(state, scratch, beside, plan)
            return self._verdict(scratch, done), done, plan
        finally:
            await layered_images.remove(place)

    async def _plan(self, state: Path) -> RestorePlan:
        """What is to be put back in what the agent has left."""
        files, changes = ImageFiles(self.image), await Changes.of(state)
        planner = RestorePlanner(self.task, files, changes, self._path, {**self.image.variables, **self.task.variables})
        return await asyncio.to_thread(planner.plan)

    @property
    def _path(self) -> str:
        return self.image.variables.get("PATH", PATH)

    async def _run(self, state: Path | None, scratch: Path, beside: Box | None, plan: RestorePlan) -> BoxResult:
        above = (str(state / "upper"),) if state is not None else ()
        shown, variables = await verifier_tools.tools_for(self.task.script)
        files = {f"{HOME}/.local/bin/env": f'export PATH="{TOOLS}/bin:$PATH"\n'} if shown else {}
        if ImageFiles(self.image).find("etc/ld.so.preload") is None:
            files["/etc/ld.so.preload"] = ""
        own = {
            **self.task.variables, **variables, **(_UV if shown else {}), **self.task.verifier_variables,
            "PATH": f"{TOOLS}/bin:{self._path}", "HOME": HOME, "TEST_DIR": "/tests",
        }  # fmt: skip
        async with self.way_out.box(
            self.image, scratch, shown=shown, files=files, extra_layers=above, group=self.group(), network_of=beside
        ) as box:
            await box.remove("/tests", "/logs", "/var/cache/aenv-uv", *_paths(plan.removed, files))
            await box.unpack(lambda target: _pack_tests(self.task, target), "/")
            await box.unpack(lambda target: _pack_files(plan.restored, target), "/")
            cwd = self.image.cwd if (await box.exec(["/bin/bash", "-c", ":"], cwd=self.image.cwd)).code == 0 else "/"
            return await box.exec(
                ["/bin/bash", *self._words], cwd=cwd, env=own, timeout=self.task.verifier_seconds, merge_stderr=True,
                kill_others=True,
            )  # fmt: skip

    @property
    def _words(self) -> list[str]:
        """What bash is told. That of Terminal-Bench 1 grades by its exit code, so nothing is added to it."""
        return ["-c", _WITNESS, self.task.verifier] if self.task.format == "harbor" else [self.task.verifier]

    def _verdict(self, scratch: Path, done: BoxResult) -> Verdict:
        if self.task.format == "terminal-bench-1":
            return verdict.of_first(done.output, done.code)
        logs = scratch / "upper"
        for name in ("logs", "verifier"):
            logs /= name
            if logs.is_symlink() or not logs.is_dir():
                return Verdict(None, "it left nothing in /logs/verifier")
        found = verdict.of_harbor(logs, self.task.script)
        if done.code == WROTE_NOTHING and found.reward:
            return replace(found, reward=0.0, why="the reward is not the one that the verifier has written last")
        return found


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
        if not any((task.folder / "tests" / name).exists() for name in SETTINGS):
            text = b"[pytest]\n"
            member = tarfile.TarInfo("tests/pytest.ini")
            member.size, member.mode = len(text), 0o644
            archive.addfile(member, io.BytesIO(text))


def _paths(removed: Iterable[str], mounted: Mapping[str, str]) -> list[str]:
    """Paths to remove; what is mounted over is not seen."""
    return [f"/{path}" for path in sorted(removed) if f"/{path}" not in mounted]


def _pack_files(files: Mapping[str, Path], target: object) -> None:
    with tarfile.open(fileobj=target, mode="w|") as archive:  # type: ignore[call-overload]
        for path, source in sorted(files.items()):
            add(archive, source, path)
