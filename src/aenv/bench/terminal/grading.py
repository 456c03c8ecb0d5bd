"""Grading: run the task's tests on the agent's files, after all processes of the agent have ended.

The tests run in a new layer above the agent's, so the agent's state does not change and can be graded again. In that
layer, the agent's /tests and /logs are removed, and the programs that run the tests are restored from the image
(`aenv.bench.terminal.pristine`). Python and uv are ours, mounted read-only, with an empty cache.
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
from aenv.bench.terminal.task import TerminalTask
from aenv.bench.terminal.verdict import Verdict
from aenv.errors import EnvironmentTimeoutError, Unavailable
from aenv.images import layered_images, verifier_tools
from aenv.images.box import PATH, Box, BoxResult
from aenv.images.box_files import add, add_tree
from aenv.images.box_network import BoxNetwork
from aenv.images.layered_images import BoxImage
from aenv.images.verifier_tools import TOOLS
from aenv.isolation.limits.cgroups import Cgroup

MAX_OUTPUT = 20_000
"""Characters of the verifier's output that are kept."""
HOME = "/root"
SETTINGS = ("pytest.ini", ".pytest.ini", "pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")
WROTE_ZERO = 97
"""Exit code of the wrapped script if the last thing that it wrote was a reward of 0."""
_WITNESS = f"""
trap 'case $BASH_COMMAND in (*">"*/logs/verifier/reward.txt*) __wrote=$BASH_COMMAND;;
(source* | trap* | exit* | cat\\ * | echo\\ * | printf\\ * | ls\\ * | true | :) ;; (*) __wrote=;; esac' DEBUG
trap 'trap - DEBUG; case $__wrote in ("echo 0 "* | "echo \\"0\\" "*) exit {WROTE_ZERO};; esac' EXIT
set -o functrace
__wrote=
source "$0"
"""
"""Wrapper of the verifier's script. It records in the memory of the verifier's shell that the script's last action was
to write a reward of 0. Code that the tests have run could have overwritten the file since.
"""
_UV = {
    "UV_TOOL_DIR": "/var/cache/aenv-uv/tools",
    "UV_VENV_CLEAR": "1",
    **{
        f"BASH_FUNC_{name}%%": f'() {{ case "$*" in *astral.sh/uv*) return 0;; esac; command {name} "$@"; }}'
        for name in ("curl", "wget")
    },
}
"""Variables for uv, which is installed already: downloads of its installer are skipped, whatever the server sends."""


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades a task."""

    task: TerminalTask
    image: BoxImage
    network: BoxNetwork
    group: Callable[[], Cgroup | None] = lambda: None

    async def grade(self, state: Path, beside: Box | None = None) -> tuple[Verdict, BoxResult]:
        """Grade the state of a box.

        ``beside`` is a box whose running servers are part of the result. Only its network is shared: it cannot see the
        verifier, and the graded files are a copy that it cannot change.

        Raises:
            Unavailable: the verifier does not start, even on an untouched system.
            EnvironmentTimeoutError: the verifier exceeds its time limit even on an untouched system.
        """
        found, done, plan = await self._once(state, beside)
        if found.reward is not None and not done.timed_out:
            return replace(found, more={**found.more, **plan.as_json()}), done
        seconds = self.task.verifier_seconds
        why = f"it took longer than {seconds:g} s" if done.timed_out else found.why
        clean, clean_run, _ = await self._once(None, None)
        if clean_run.timed_out:
            raise EnvironmentTimeoutError(
                f"the verifier took longer than {seconds:g} s", details={"budget": "verifier", "seconds": seconds}
            )
        if clean.reward is None:
            raise Unavailable(f"the verifier could not start: {clean.why}\n{clean_run.output[-1500:]}".rstrip())
        return Verdict(
            0.0, f"the verifier starts, but not on the files of the agent: {why}", more=dict(plan.as_json())
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
        """Return the files to restore or remove before grading."""
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
        async with self.network.box(
            self.image, scratch, shown=shown, files=files, extra_layers=above, group=self.group(), network_of=beside
        ) as box:
            await box.remove("/tests", "/logs", "/var/cache/aenv-uv", *_paths(plan.removed, files))
            await box.unpack(lambda target: _pack_tests(self.task, target), "/")
            await box.unpack(lambda target: _pack_files(plan.restored, target), "/")
            cwd = self.image.cwd if (await box.exec(["/bin/bash", "-c", ":"], cwd=self.image.cwd)).code == 0 else "/"
            return await box.exec(
                ["/bin/bash", *self._bash_arguments], cwd=cwd, env=own, timeout=self.task.verifier_seconds,
                merge_stderr=True, kill_others=True,
            )  # fmt: skip

    @property
    def _bash_arguments(self) -> list[str]:
        """Arguments of bash. The script of Terminal-Bench 1 grades by its exit code, so it is not wrapped."""
        return ["-c", _WITNESS, self.task.verifier] if self.task.format == "harbor" else [self.task.verifier]

    def _verdict(self, scratch: Path, done: BoxResult) -> Verdict:
        if self.task.format == "terminal-bench-1":
            return verdict.of_terminal_bench_1(done.output, done.code)
        logs = scratch / "upper"
        for name in ("logs", "verifier"):
            logs /= name
            if logs.is_symlink() or not logs.is_dir():
                return Verdict(None, "it wrote nothing to /logs/verifier")
        found = verdict.of_harbor(logs, self.task.script)
        if done.code == WROTE_ZERO and found.reward:
            return replace(found, reward=0.0, why="the reward is not the one that the verifier wrote last")
        return found


def _pack_tests(task: TerminalTask, target: object) -> None:
    """Pack /tests and an empty /logs/verifier.

    pytest searches for settings in the folder of the tests and above. A pytest.ini in /tests ends the search there.
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
    """Return the paths to remove, without those that a mount covers."""
    return [f"/{path}" for path in sorted(removed) if f"/{path}" not in mounted]


def _pack_files(files: Mapping[str, Path], target: object) -> None:
    with tarfile.open(fileobj=target, mode="w|") as archive:  # type: ignore[call-overload]
        for path, source in sorted(files.items()):
            add(archive, source, path)
