"""Measures our own instances through the public SDK. Runs in an environment with aenv; prints one JSON line.

Modules of `benchmarks/calls` are on its path.
"""

import argparse
import asyncio
import glob
import itertools
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from load import cpu_of_tree, expect, fresh, short
from proc import TICKS, cpu, descendants, memory, system_memory

_numbers = itertools.count()
WARM_UP = 5
SETTLE = 1.0  # seconds after many were made: the pool is filled in the background
# What each has of its own, seconds between waves, instances of a wave.
KINDS = (("load", "arguments", 0.02, 1), ("pool", "", 0.5, 6))
FORKED = ("fork", "environment_variables", 0.02, 1)
INSTANCES = 3  # generations below the server: its zygote is two processes


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def unique() -> dict[str, str]:
    """Variables that no ready sandbox has."""
    return {"BENCH_NUMBER": str(next(_numbers))}


class Series:
    """Creates one after another, in waves: a wave is released before the next, and ``gap`` seconds are between them."""

    def __init__(self, project: str, runs: int, *, own: str, gap: float, wave: int = 1) -> None:
        self._project, self._own, self._gap, self._wave = project, own, gap, wave
        self._waves = -(-runs // wave)
        self._errors: Counter[str] = Counter()
        self._create: list[float] = []
        self._release: list[float] = []

    async def run(self) -> dict[str, object]:
        for _ in range(WARM_UP):
            await self._one_wave()
        self._create, self._release, self._errors = [], [], Counter()
        for _ in range(self._waves):
            await self._one_wave()
        return {
            "asked": self._waves * self._wave,
            "create_ms": self._create,
            "release_ms": self._release,
            "errors": self._errors.most_common(3),
        }

    async def _one_wave(self) -> None:
        made = []
        for _ in range(self._wave):
            began = time.perf_counter()
            own = {"arguments": list(unique().values()), "environment_variables": unique()}
            env = Environment(self._project, **({self._own: own[self._own]} if self._own else {}))
            made.append(env)
            try:
                await echo(env)
            except Exception as error:
                self._errors[short(error)] += 1
            else:
                self._create.append((time.perf_counter() - began) * 1000)
        for env in made:
            began = time.perf_counter()
            await env.release()
            self._release.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(self._gap)


class Crowd:
    """Instances that stay alive while others are measured. Each has answered once."""

    def __init__(self, project: str) -> None:
        self._project = project
        self._batches: list = []
        self.alive = 0

    async def grow(self, size: int) -> None:
        while self.alive < size:
            count = min(128, size - self.alive)
            batch = Environment.batch(self._project, count)
            self._batches.append(batch)
            await asyncio.gather(*[echo(env) for env in await batch.all()])
            self.alive += count
        await asyncio.sleep(SETTLE)

    async def end(self) -> float:
        began = time.perf_counter()
        for batch in self._batches:
            await batch.release()
        return time.perf_counter() - began


class Native:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._crowd = Crowd(args.project)
        self.report: dict[str, object] = {"levels": {}, "batches": {}}

    async def run(self) -> None:
        self.report["first_seconds"] = await self._first()
        if self._args.pool:
            await self._batches()
        await self._levels()
        if self._crowd.alive >= 500 and self._args.pool:
            self.report["idle"] = await self._idle()
        seconds = await self._crowd.end()
        say(f"aenv: {self._crowd.alive:,} released in {seconds:.1f} s")

    async def _first(self) -> float:
        """Start the local server and the zygote, too."""
        began = time.perf_counter()
        async with Environment(self._args.project) as env:
            await echo(env)
            seconds = time.perf_counter() - began
        say(f"aenv: first ever {seconds:.2f} s")
        return seconds

    async def _batches(self) -> None:
        for size in self._args.batches:
            for _ in range(self._args.rounds):
                began = time.perf_counter()
                try:
                    async with Environment.batch(self._args.project, size, environment_variables=unique()) as batch:
                        await asyncio.gather(*[self._answer(env) async for env in batch])
                        seconds = time.perf_counter() - began
                    found: object = size / seconds
                except Exception as error:
                    found = short(error)
                say(f"aenv: {size} at once, per second: {found}")
                self.report["batches"].setdefault(size, []).append(found)
                await asyncio.sleep(SETTLE)

    def _answer(self, env: object) -> asyncio.Task:
        """Call each as soon as it is there."""
        return asyncio.create_task(echo(env))

    async def _levels(self) -> None:
        runs, before = self._args.runs, None
        for alive in self._args.alive:
            await self._crowd.grow(alive)
            if before is None:
                before = (alive, system_memory())
            else:
                self.report["memory"] = self._memory(*before)
            level = {}
            for name, own, gap, wave in KINDS if self._args.pool else (FORKED,):
                level[name] = await Series(self._args.project, runs, own=own, gap=gap, wave=wave).run()
                middle = sorted(level[name]["create_ms"])[runs // 2 : runs // 2 + 1]
                say(f"aenv: {alive:,} alive, {name}: p50 {middle} ms, errors {level[name]['errors']}")
            self.report["levels"][alive] = level

    def _memory(self, others: int, before: dict[str, float]) -> dict[str, object]:
        pids = descendants(server_pid(), INSTANCES)
        after = system_memory()
        grown = {name: (after[name] - before[name]) for name in after}
        found = {"alive": len(pids), "added": len(pids) - others, "grown_mb": grown, **memory(pids)}
        say(f"aenv: memory {found}")
        return found

    async def _idle(self) -> dict[str, float]:
        """CPU of instances that nobody calls."""
        await asyncio.sleep(SETTLE)
        server = server_pid()
        pids = descendants(server, INSTANCES)
        used, tree, began = cpu(pids), cpu_of_tree(server), time.perf_counter()
        await asyncio.sleep(self._args.idle)
        seconds, now = time.perf_counter() - began, cpu(pids)
        ticks = sum(now[pid] - used[pid] for pid in used if pid in now)
        found = {
            "instances": len(now),
            "seconds": seconds,
            "instances_ms_per_s": ticks / TICKS * 1000 / seconds,
            "platform_ms_per_s": (cpu_of_tree(server) - tree) * 1000 / seconds,
        }
        say(f"aenv: idle {found}")
        return found


async def echo(env: "Environment") -> None:
    said = fresh()
    result = await env.call_tool("echo", {"content": said})
    expect(not result.is_error and f'"{said}"' in result.content[0]["text"], result)


def server_pid() -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(local_lease.LocalPaths.of_user().socket))
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("project")
    parser.add_argument("--runtime", required=True, help="folder of the local platform")
    parser.add_argument("--alive", type=numbers, required=True)
    parser.add_argument("--batches", type=numbers, required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--idle", type=float, required=True)
    parser.add_argument("--pool", type=int, required=True, help="ready sandboxes; without any, only forks are measured")
    return parser.parse_args()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bench = Native(args)
    try:
        asyncio.run(bench.run())
        server = server_pid()
        processes = {pid: start_time(pid) for pid in descendants(server, 0)}
    finally:
        local_lease.stop(local_lease.LocalPaths.of_user())
    bench.report["left"] = left_behind(server, processes)
    print(json.dumps(bench.report), flush=True)


def left_behind(server: int, processes: dict[int, str]) -> list[str]:
    """What should have gone with the platform: processes, control groups, sockets."""
    time.sleep(SETTLE)
    found = [f"process {pid}" for pid, began in processes.items() if start_time(pid) == began]
    for folder in ("", "memory", "pids", "cpu"):
        found += glob.glob(os.path.join("/sys/fs/cgroup", folder, f"aenv-{server}-*"))
    found += [str(path) for name in ("i-*", "*.sock") for path in Path(args.runtime).rglob(name)]
    return found


def start_time(pid: int) -> str:
    """With its id, this names a process for good."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        return "gone" if fields[0] == "Z" else fields[19]
    return "gone"


if __name__ == "__main__":
    args = arguments()
    # Before aenv is imported: it reads some of them then. Bytecode as users have it.
    for name in ("AENV_INSTANCE_URL", "DUMMY_INSTANCE_IP", "AENV_SYSTEM_URL", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH"):
        os.environ.pop(name, None)
    os.environ["AENV_RUNTIME_DIR"] = args.runtime
    os.environ["AENV_POOL"] = str(args.pool)
    import logging

    from aenv import Environment
    from aenv.client import local_lease

    logging.getLogger("aenv").setLevel(logging.WARNING)
    main()
