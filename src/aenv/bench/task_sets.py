"""The tasks of benchmarks for `aenv rollout`: any agent of a rollout runs on them, and they are graded as ever."""

from __future__ import annotations

import asyncio
import shlex
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aenv.authoring.call import Call
from aenv.authoring.results import ToolResult
from aenv.authoring.signature import Signature
from aenv.bench.bare_world import BareWorld
from aenv.bench.base import BenchJob, Result, TaskWork, WorkOf
from aenv.bench.built_in import ENDPOINTS, START_SECONDS, BuiltInBenchmark
from aenv.bench.registry import opened
from aenv.bench.stopwatch import measured
from aenv.bench.swe.benchmark import MARGIN, NETWORK, PATCH, SweBench
from aenv.bench.terminal.benchmark import OpenTask, TerminalBench
from aenv.bench.terminal.task import is_task
from aenv.bench.terminal.terminal_tools import TerminalTools
from aenv.errors import EnvironmentError
from aenv.images import layered_images
from aenv.rollout.task_set import TaskSet
from aenv.rollout.world import World
from aenv.runtime.calls.endpoints import EndpointCatalog
from aenv.schema.tasks import Task, TaskLimits, TaskStep
from aenv.sdk.environment import Environment

SOLUTION_MARGIN = 60.0
"""Seconds by which the command of a solution may outlive the budget, which is to end it."""


class BuiltInTasks(TaskSet):
    """Tasks of a benchmark with a built-in environment."""

    def __init__(self, benchmark: BuiltInBenchmark, work: WorkOf | None = None) -> None:
        super().__init__([], benchmark.env, score=benchmark.score)
        self._benchmark = benchmark
        self._work = work
        self._ended: dict[str, float] = {}

    async def tasks(self) -> Sequence[Task]:
        if not self._tasks:
            names = await asyncio.to_thread(self._benchmark.tasks)
            self._tasks = [Task(id=name, variables=self._variables(name)) for name in names]
        return self._tasks

    def _variables(self, name: str) -> dict[str, str]:
        """Return the variables of a task, without keys: they are not recorded."""
        return {key: value for key, value in self._benchmark.variables(name).items() if key not in ENDPOINTS}

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[World]:
        variables = self._benchmark.variables(task.id)
        env = Environment(self.environment, environment_variables=variables, startup_timeout=START_SECONDS, ttl="4h")
        seconds = self._work(task.id).result.seconds if self._work is not None else {}
        async with AsyncExitStack() as stack:
            with measured(seconds, "start"):
                await stack.enter_async_context(env)
            yield env
            if task.id in self._ended:
                seconds["grade"] = round(time.monotonic() - self._ended.pop(task.id), 3)

    async def prepare(self, world: World, task: Task) -> str:
        return await self._benchmark.instruction(_environment(world))

    async def finish(self, world: World, task: Task) -> None:
        if self._work is not None:
            self._ended[task.id] = time.monotonic()
        await self._benchmark.finish(_environment(world))

    async def solution(self, world: World, task: Task) -> list[TaskStep]:
        steps = await world.call_function(self._benchmark.solution, {}, timeout=START_SECONDS)
        return [TaskStep(tool=step["tool"], arguments=step["arguments"]) for step in steps]

    async def close(self) -> None:
        await self._benchmark.close()


def _environment(world: World) -> Environment:
    assert isinstance(world, Environment)
    return world


class TerminalWorld(BareWorld):
    """The container of a terminal task."""

    def __init__(self, running: OpenTask, bench: TerminalBench, result: Result) -> None:
        """``result`` gets the calls of the agent, and the tests."""
        super().__init__("terminal")
        self.running = running
        self._bench = bench
        self._result = result
        tools = TerminalTools(running.box, running.image, result.calls.append)
        self._tools = tools
        self._catalog = EndpointCatalog(tools.registry())

    async def list_tools(self) -> list[dict[str, Any]]:
        return [tool.model_dump(exclude_none=True) for tool in self._catalog.listed_tools]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None = None, timeout: float | None = None
    ) -> ToolResult:
        def read(signature: Signature) -> dict[str, Any]:
            return signature.validate(arguments or {})

        outcome = await self._catalog.call_tool(tool_name, read, Call(tool_name))
        content = outcome.content
        return ToolResult(
            content.blocks, content.is_error, fault=outcome.fault, structured=content.structured,
            is_json=content.is_json,
        )  # fmt: skip

    async def call_reward(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None, *, name: str | None = None
    ) -> float:
        """Grade the state of the container, as `aenv bench` does. The task sets the time limit."""
        self._tools.close()  # its shell is no server of the agent
        result = await self._bench.graded(self.running, self._result)
        if result.reward is None:
            error = EnvironmentError(result.error or "the verifier gave no verdict")
            error.fault = result.fault or "env"
            raise error
        return result.reward

    def close(self) -> None:
        """End the terminal and the threads of the tools."""
        self._tools.close()
        self._catalog.workers.close()


class TerminalTasks(TaskSet):
    """Tasks of Terminal-Bench 1 and of the Harbor format, in containers without Docker."""

    def __init__(
        self, options: Mapping[str, str], bench: TerminalBench | None = None, work: WorkOf | None = None
    ) -> None:
        super().__init__([], "terminal")
        self._bench = bench or TerminalBench(options)
        self._work = work

    @staticmethod
    def reads_folder(path: Path) -> bool:
        """Return whether the folder is a task, or contains tasks."""
        return is_task(path) or any(is_task(below) for below in path.iterdir() if below.is_dir())

    async def tasks(self) -> Sequence[Task]:
        if not self._tasks:
            known = [self._bench.task(name) for name in self._bench.tasks()]
            self._tasks = [
                Task(
                    id=task.name, instruction=task.instruction, limits=TaskLimits(seconds=task.agent_seconds),
                    environment="terminal", metadata={"format": task.format},
                )
                for task in known
            ]  # fmt: skip
        return self._tasks

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            if self._work is not None:
                folder, result = self._work(task.id).job.folder, self._work(task.id).result
            else:
                folder = Path(tempfile.mkdtemp(prefix="rollout-", dir=layered_images.layer_folder("unfinished")))
                result = Result(task.id)
                stack.push_async_callback(layered_images.remove, folder)
            found = self._bench.task(task.id)
            running = await stack.enter_async_context(self._bench.opened(found, folder, result))
            world = TerminalWorld(running, self._bench, result)
            stack.callback(world.close)
            yield world

    async def solution(self, world: World, task: Task) -> list[TaskStep]:
        assert isinstance(world, TerminalWorld)
        script = await world.running.put_solution()
        found = self._bench.task(task.id)
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in found.solution_variables.items())
        command = f"{variables} /bin/bash {script}".strip()
        seconds = (task.limits.seconds or found.agent_seconds) + SOLUTION_MARGIN
        return [TaskStep(tool="execute_command", arguments={"command": command, "timeout": seconds})]

    async def close(self) -> None:
        await self._bench.close()


class SweWorld:
    """The repository of an issue, for an agent. Its reward runs the tests on the agent's patch, elsewhere."""

    def __init__(self, env: Environment, bench: SweBench, work: TaskWork) -> None:
        self.env_name = env.env_name
        self.list_tools = env.list_tools
        self.call_tool = env.call_tool
        self.call_function = env.call_function
        self._bench = bench
        self._work = work

    async def call_reward(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None, *, name: str | None = None
    ) -> float:
        patch: str = await self.call_function("get_patch", {}, timeout=MARGIN)
        return await _swe_reward(self._bench, self._work, patch)


class PatchWorld(BareWorld):
    """An issue for agents that need no repository: they give a patch, or none."""

    def __init__(self, bench: SweBench, work: TaskWork) -> None:
        super().__init__("swebench")
        self.patch = ""
        self._bench = bench
        self._work = work

    async def call_reward(
        self, arguments: dict[str, Any] | None = None, timeout: float | None = None, *, name: str | None = None
    ) -> float:
        return await _swe_reward(self._bench, self._work, self.patch)


async def _swe_reward(bench: SweBench, work: TaskWork, patch: str) -> float:
    (work.job.folder / PATCH).write_text(patch, newline="")
    await bench.graded(work.job, patch, work.result)
    if work.result.reward is None:
        raise EnvironmentError(work.result.error or "the tests gave no verdict")
    return work.result.reward


class SweTasks(TaskSet):
    """Issues of SWE-bench."""

    def __init__(self, options: Mapping[str, str], bench: SweBench | None = None, work: WorkOf | None = None) -> None:
        super().__init__([], "swebench")
        self._bench = bench or SweBench(options)
        self._work = work

    async def tasks(self) -> Sequence[Task]:
        if not self._tasks:
            self._tasks = [Task(id=name, environment="swebench") for name in await asyncio.to_thread(self._bench.tasks)]
        return self._tasks

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            if self._work is not None:
                work = self._work(task.id)
            else:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="aenv-swe-"))
                work = TaskWork(BenchJob(task.id, "", Path(folder)), Result(task.id))
            with measured(work.result.seconds, "prepare"):
                prepared = await self._bench.prepared(task.id)
            work.result.outputs |= {"image": prepared.image} if prepared.image else {}
            if work.job.agent in self._bench.built_in:
                yield PatchWorld(self._bench, work)
                return
            env = Environment(str(prepared.agent), network=NETWORK, ttl="4h")
            yield SweWorld(await stack.enter_async_context(env), self._bench, work)

    async def prepare(self, world: World, task: Task) -> str:
        if isinstance(world, PatchWorld):
            return ""
        about: dict[str, Any] = await world.call_function("get_task", {})
        return str(about["instruction"])

    async def solution(self, world: World, task: Task) -> list[TaskStep]:
        patch = self._bench.gold_patch(task.id)
        command = f"printf %s {shlex.quote(patch)} | git apply --whitespace=nowarn -"
        return [TaskStep(tool="shell", arguments={"command": command})] if patch else []

    async def close(self) -> None:
        await self._bench.close()


def _built_in(name: str, options: Mapping[str, str]) -> BuiltInTasks:
    benchmark = opened(name, options)
    assert isinstance(benchmark, BuiltInBenchmark)
    return BuiltInTasks(benchmark)


def tau2(options: Mapping[str, str]) -> TaskSet:
    """Return the tasks of TAU2-Bench."""
    return _built_in("tau2", options)


def bfcl(options: Mapping[str, str]) -> TaskSet:
    """Return the tasks of BFCL multi-turn."""
    return _built_in("bfcl", options)


def reasoning_gym(options: Mapping[str, str]) -> TaskSet:
    """Return the tasks of Reasoning Gym."""
    return _built_in("reasoning-gym", options)
