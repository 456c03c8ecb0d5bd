"""Create, call, grade and release instances, while a second task kills processes of the platform at random.

What must hold: every episode ends; a reward is right or it is an error of the infrastructure, never another number;
when the platform is stopped, nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from aenv import Environment
from aenv.errors import AEnvError
from tests.isolation.host import Platform, Process, forget_lease

EPISODE_SECONDS = 300.0
"""An episode that takes longer hangs: every wait on its way is bounded by less."""
BLAMELESS = ("infra", "timeout")
"""Faults that a killed process may lead to."""
CODE = """
{at_import}
import os, subprocess
from aenv import register_reward, register_tool

@register_tool
def work(number: int) -> int:
    program = subprocess.run(["/bin/sh", "-c", "echo $((%d * 3))" % number], capture_output=True, text=True)
    with open("/tmp/result", "w") as file:
        file.write(program.stdout)
    return int(program.stdout)

@register_reward
def grade() -> float:
    with open("/tmp/result") as file:
        return float(int(file.read()) + int(os.environ["NUMBER"]))
"""
KINDS = {
    "forked": "",
    "loaded by each": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a program of its own": "",
}


@dataclass
class Summary:
    """What came of it."""

    seed: int
    creates: int = 0
    right: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Rewards that were not the right ones, and errors that blame somebody else."""
    hung: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        """Whether all that must hold did."""
        return not (self.wrong or self.hung or self.left)

    def text(self) -> str:
        """For people."""
        lines = [
            f"creates: {self.creates}, of which {self.right} ended with the right reward "
            f"and {sum(self.errors.values())} with an error of the infrastructure",
            f"errors: {dict(self.errors.most_common())}",
            f"kills: {sum(self.kills.values())}: {dict(sorted(self.kills.items()))}",
            f"wrong rewards or faults: {len(self.wrong)}; hangs: {len(self.hung)}; left behind: {len(self.left)}",
            f"seed {self.seed}, {self.seconds:.0f} s",
        ]
        return "\n".join([*lines, *self.wrong[:20], *self.hung[:20], *self.left[:20]])


def make_projects(folder: Path) -> list[Path]:
    """One for each way in which instances come about."""
    made = []
    for number, (kind, at_import) in enumerate(KINDS.items()):
        project = folder / f"soak{number}"
        (project / "src").mkdir(parents=True)
        deploy = {"fork": False} if kind == "a program of its own" else {}
        config = {"name": project.name, "version": "1.0.0", "deployConfig": deploy}
        (project / "config.json").write_text(json.dumps(config))
        (project / "src" / "env.py").write_text(CODE.replace("{at_import}", at_import))
        made.append(project)
    return made


def kind_of(process: Process) -> str:
    """What a process of the platform is."""
    command = process.command
    if "serve --local" in command and process.depth == 1:
        return "server"
    if "crash_cleanup" in command:
        return "crash cleanup"
    if "fd_holder" in command:
        return "fd holder"
    if process.depth == 1:
        return "outer zygote"
    if process.depth == 2:
        return "zygote"
    if process.is_traced:
        return "child made ahead"
    if process.is_preloaded:
        return "preloaded parent"
    if process.runs_author_code:
        return "instance" if process.is_first else "program of a tool"
    return "zygote of a parent, its init, or a sandbox made ahead"


async def soak(
    folder: Path, platform: Platform, *, creates: int, seed: int, at_once: int = 12, kill_every: float = 0.25
) -> Summary:
    """Run ``creates`` episodes, with a kill every ``kill_every`` seconds on average."""
    began, dice = time.monotonic(), random.Random(seed)
    summary = Summary(seed)
    projects = make_projects(folder)
    weights = (20, 3, 1)
    numbers = iter(range(creates))
    stop = asyncio.Event()
    killer = asyncio.create_task(_kill(platform, random.Random(seed + 1), summary, kill_every, stop))
    workers = [
        asyncio.create_task(_work(numbers, projects, weights, dice, summary)) for _ in range(min(at_once, creates))
    ]
    await asyncio.gather(*workers)
    stop.set()
    await killer
    await _once_more(projects[0], summary)
    await asyncio.to_thread(_end, platform, summary)
    summary.seconds = time.monotonic() - began
    return summary


async def _work(
    numbers: object, projects: list[Path], weights: tuple[int, ...], dice: random.Random, summary: Summary
) -> None:
    for number in numbers:  # type: ignore[attr-defined]
        project = dice.choices(projects, weights)[0]
        summary.creates += 1
        try:
            await asyncio.wait_for(_episode(project, number, summary), EPISODE_SECONDS)
        except TimeoutError:
            summary.hung.append(f"episode {number} of {project.name}")


async def _episode(project: Path, number: int, summary: Summary) -> None:
    env = Environment(str(project), environment_variables={"NUMBER": str(number)}, timeout=60, max_retries=3)
    try:
        await env.initialize()
        answer = await env.call_tool("work", {"number": number}, timeout=60)
        if answer.is_error:
            summary.errors["tool was killed"] += 1  # the program that it had started
            return
        reward = await env.call_reward({}, timeout=60)
        if reward != {"reward": 4.0 * number} and reward != 4.0 * number:
            summary.wrong.append(f"episode {number} of {project.name}: reward {reward!r}, not {4.0 * number}")
        else:
            summary.right += 1
    except AEnvError as error:
        summary.errors[error.code] += 1
        if error.fault not in BLAMELESS:
            summary.wrong.append(f"episode {number} of {project.name}: {error.fault} is blamed: {error}")
    finally:
        with contextlib.suppress(AEnvError):
            await env.release()


async def _once_more(project: Path, summary: Summary) -> None:
    """Use the platform when nothing is killed any more: what two killed processes left, the next platform removes."""
    for _ in range(10):
        before = summary.right
        await _episode(project, 0, summary)
        if summary.right > before:
            summary.right -= 1
            return
    summary.wrong.append("no episode works when nothing is killed any more")


async def _kill(platform: Platform, dice: random.Random, summary: Summary, every: float, stop: asyncio.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), dice.expovariate(1 / every))
        processes = await asyncio.to_thread(platform.processes)
        kinds: dict[str, list[Process]] = {}
        for process in processes:
            if process.pid != os.getpid():
                kinds.setdefault(kind_of(process), []).append(process)
        # An instance is killed more often than what all instances need: else hardly any would get to its end.
        choices = [kind for kind in kinds for _ in range(6 if kind in ("instance", "program of a tool") else 1)]
        if choices and not stop.is_set():
            kind = dice.choice(choices)
            if kind in ("server", "crash cleanup", "fd holder", "outer zygote", "zygote") and dice.random() < 0.7:
                continue
            dice.choice(kinds[kind]).kill()
            summary.kills[kind] += 1


def _end(platform: Platform, summary: Summary) -> None:
    try:
        platform.stop()
    except AssertionError as error:
        summary.left.append(str(error))
    forget_lease()
