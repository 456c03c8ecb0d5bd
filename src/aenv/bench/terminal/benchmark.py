"""Run terminal tasks: build the image, run the agent in a container, stop its processes, grade the result."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from aenv.bench.base import BenchJob, Benchmark, NoSolution, Result, WorkOf
from aenv.bench.terminal.compose import Starter
from aenv.bench.terminal.grading import MAX_OUTPUT, Grader
from aenv.bench.terminal.task import TerminalTask, find
from aenv.errors import ConfigError, UsageError
from aenv.images import layered_images
from aenv.images.box import Box
from aenv.images.box_files import pack
from aenv.images.box_network import BoxNetwork
from aenv.images.dockerfile_build import build
from aenv.images.layered_images import BoxImage
from aenv.isolation.limits.cgroups import Cgroup, Cgroups, Limits, group_name
from aenv.isolation.network.egress_process import EgressProcess
from aenv.isolation.network.policy import Network
from aenv.rollout.agents.scripted import nop
from aenv.rollout.attempt import Agent
from aenv.rollout.episode import Episode
from aenv.rollout.task_set import TaskSet
from aenv.tracing.logging import getLogger

log = getLogger("bench")

SERVERS = "servers"
"""Name of a marker file next to the state: servers of the agent were part of what was graded."""
PROCESSES = 4096
GRADING_SHARE, AGENT_SHARE = 10_000, 100
"""CPU weights: tests have time limits, and an agent that runs at the same time must not make them fail."""


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task whose containers run."""

    task: TerminalTask
    image: BoxImage
    box: Box
    folder: Path
    """Folder of its state."""
    containers: AsyncExitStack
    """Closing it ends the containers."""

    async def put_solution(self) -> str:
        """Copy the task's own solution into the container; return the path of its script.

        Raises:
            NoSolution: it has none.
        """
        source, place, script = self.task.solution
        if not source.exists():
            raise NoSolution(f"{self.task.name} has no solution of its own")
        await self.box.unpack(lambda target: pack(target, source, "." if source.is_dir() else source.name), place)
        return script


class TerminalBench(Benchmark):
    """Tasks of Terminal-Bench 1 and of the Harbor format."""

    name = "terminal"
    summary = "Tasks of Terminal-Bench 1 and of the Harbor format."
    agents: ClassVar[Mapping[str, str]] = {
        "oracle": "the task's own solution",
        "nop": "does nothing",
        "COMMAND": "a program on this machine, which reaches the task's container at $AENV_TASK_URL",
    }
    options: ClassVar[Mapping[str, str]] = {
        "tasks": "folder of a task, folder of tasks, or a name below $AENV_TERMINAL_TASKS",
        "only": "names of tasks, separated by commas",
        "network": "network of the tasks: open, none, host, or allowed hosts, separated by commas",
    }

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._network = _network(options.get("network", "open"))
        self._known: dict[str, TerminalTask] | None = None
        self._cgroups: Cgroups | None = None
        self._grading = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))
        self._egress: EgressProcess | None = None

    def tasks(self) -> Sequence[str]:
        return list(self._tasks)

    @property
    def _tasks(self) -> dict[str, TerminalTask]:
        if self._known is None:
            found = {task.name: task for task in find(_tasks_folder(self.given.get("tasks", "")))}
            only = [name for name in self.given.get("only", "").split(",") if name]
            for name in only:
                if name not in found:
                    raise UsageError(f"no such task: {name!r}", {"hint": f"Available: {', '.join(found)}"})
            self._known = {name: found[name] for name in only} if only else found
        return self._known

    def nothing(self) -> Mapping[str, float]:
        """Return no rewards: the tests of these tasks fail on an untouched system, so they are not listed."""
        return {}

    def task(self, name: str) -> TerminalTask:
        """Return a task by its name."""
        return self._tasks[name]

    @asynccontextmanager
    async def opened(self, task: TerminalTask, folder: Path, result: Result) -> AsyncIterator[OpenTask]:
        """Build the image and start the task's containers, until the end of the block or of the agent's work."""
        state = folder / "state"
        (folder / SERVERS).unlink(missing_ok=True)
        if state.exists():
            await layered_images.remove(state)
        image = await self._image(task, result)
        layered_images.new_state(state)
        group = self._group(task, AGENT_SHARE)
        network = self._box_network(task)
        variables = {**task.compose.variables, **task.variables}
        services = Starter(task.compose, network, folder / "services", lambda: self._group(task, AGENT_SHARE))
        async with AsyncExitStack() as containers:
            box = await containers.enter_async_context(network.box(image, state, variables=variables, group=group))
            await containers.enter_async_context(services.beside(box))
            yield OpenTask(task, image, box, folder, containers)

    def episodes(self, work: WorkOf) -> TaskSet:
        """Return the tasks."""
        from aenv.bench.task_sets import TerminalTasks  # which imports this

        return TerminalTasks(self.given, self, work)

    def player(self, agent: str, work: WorkOf) -> Agent | None:
        """Return the agent that does nothing, or the one that runs the task's own solution."""
        if agent == "nop":
            return nop
        return functools.partial(self._run_solution, work) if agent == "oracle" else None

    async def _run_solution(self, work: WorkOf, episode: Episode) -> None:
        [step] = await episode.solution()
        done = await episode.call_tool(step.tool, step.arguments)
        calls = work(episode.task.id).result.calls
        if not done.is_error and calls:
            output, seconds = calls[-1]["output"], calls[-1]["seconds"]
            script = self._tasks[episode.task.id].solution[2]
            calls[-1] = {
                "command": f"bash {script}", "output": output, "returncode": done.data["returncode"], "seconds": seconds
            }  # fmt: skip

    async def graded(self, running: OpenTask, result: Result) -> Result:
        """Grade what the agent has left. Its containers end first, unless their servers are part of the result."""
        task, state = running.task, running.folder / "state"
        if task.compose.services or not await running.box.is_idle():
            (running.folder / SERVERS).touch()
            return await self._graded(task, running.image, state, result, running.box)
        await running.containers.aclose()
        return await self._graded(task, running.image, state, result)

    async def grade(self, job: BenchJob) -> Result:
        task = self._tasks[job.task]
        state = job.folder / "state"
        if not (state / "upper").is_dir():
            raise UsageError(f"{task.name} has left no state to grade", {"hint": "Run it again: aenv bench resume"})
        if (job.folder / SERVERS).exists():
            raise UsageError(
                f"{task.name} was graded with running servers, which have ended", {"hint": "Run it again."}
            )
        result = Result(job.task)
        return await self._graded(task, await self._image(task, result), state, result)

    async def close(self) -> None:
        if self._egress is not None:
            await self._egress.end()
            self._egress = None
        if self._cgroups is not None:
            self._cgroups.remove()
            self._cgroups = None

    async def _image(self, task: TerminalTask, result: Result) -> BoxImage:
        began = time.monotonic()
        image = await build(task.dockerfile, task.context)
        result.seconds["build"] = round(time.monotonic() - began, 3)
        result.outputs["image"] = image.key
        return replace(image, variables={**image.variables, **task.variables})

    async def _graded(
        self, task: TerminalTask, image: BoxImage, state: Path, result: Result, beside: Box | None = None
    ) -> Result:
        async with self._grading:
            began = time.monotonic()
            grader = Grader(task, image, self._box_network(task), functools.partial(self._group, task, GRADING_SHARE))
            try:
                found, done = await grader.grade(state, beside)
            except Exception as error:
                result.failed(error)
            else:
                result.reward = found.reward
                result.error = found.why or result.error
                result.outputs |= {"tests": found.tests, "verifier": done.output[-MAX_OUTPUT:], **found.more}
            result.seconds["verifier"] = round(time.monotonic() - began, 3)
        return result

    def _box_network(self, task: TerminalTask) -> BoxNetwork:
        if self._egress is None:
            self._egress = EgressProcess(lambda name, text: log.info("%s: %s", name, text.strip()))
        network = self._network if task.internet else Network("loopback")
        return BoxNetwork(network, self._egress, task.name, task.compose.names)

    def _group(self, task: TerminalTask, share: int) -> Cgroup | None:
        if self._cgroups is None:
            self._cgroups = Cgroups(group_name("aenv-bench"))
        cpus = min(task.cpus, float(os.cpu_count() or 1))
        group = self._cgroups.make(Limits(memory=task.memory, cpus=cpus, processes=PROCESSES))
        for path in group.paths if group else ():
            for file, value in (("cpu.weight", share), ("cpu.shares", share * 10)):
                if (path / file).exists():
                    (path / file).write_text(str(value))
        return group


def _tasks_folder(text: str) -> Path:
    """Return the folder that ``text`` names: a path, or a name below the folder in AENV_TERMINAL_TASKS."""
    if not text:
        raise UsageError("no tasks given", {"hint": "Name a folder: aenv bench terminal --tasks FOLDER"})
    path = Path(text).expanduser()
    above = os.environ.get("AENV_TERMINAL_TASKS")
    if not path.exists() and above and (Path(above).expanduser() / text).exists():
        return Path(above).expanduser() / text
    if not path.exists():
        hint = "Name a folder, or set AENV_TERMINAL_TASKS to the folder that has it."
        raise ConfigError(f"no tasks at {path}", {"hint": hint})
    return path


def _network(text: str) -> Network:
    try:
        if text == "open":
            return Network.parse(["*"])
        if text == "none":
            return Network("loopback")
        return Network.parse("host" if text == "host" else [host.strip() for host in text.split(",")])
    except ValueError as error:
        raise UsageError(f"network: {error}") from None
