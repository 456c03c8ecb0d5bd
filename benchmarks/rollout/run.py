"""What an episode costs: 10,000 of a small environment with a scripted agent, beside the same calls without a runner.

    python benchmarks/rollout/run.py [--episodes 10000] [--concurrency 16]

An episode creates an instance, makes two tool calls, is graded and recorded, and releases the instance. Printed:
episodes per second, CPU per episode in the runner and in the platform with its instances, and the runner's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aenv import Environment
from aenv.client import local_platforms
from aenv.rollout import Episode, rollout
from aenv.trajectory import TrajectoryStore

SOURCE = '''
from aenv import register_reward, register_tool

total = 0

@register_tool
def add(number: int) -> int:
    """Add to the total."""
    global total
    total += number
    return total

@register_reward
def reached(wanted: int) -> float:
    return float(total == wanted)
'''
TICKS = os.sysconf("SC_CLK_TCK")


async def agent(episode: Episode) -> None:
    for number in (1, 2):
        await episode.call("add", number=number)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"t{n}", "prompt": "Add 1 and 2.", "reward": {"arguments": {"wanted": 3}}} for n in range(count)]


class Meter:
    """CPU seconds of this process, and of the local platform with everything below it."""

    def __init__(self) -> None:
        self._began, self._runner, self._platform = time.perf_counter(), _own(), _platform_cpu()

    def read(self, episodes: int) -> dict[str, float]:
        seconds = time.perf_counter() - self._began
        return {
            "episodes": episodes,
            "episodes_per_second": round(episodes / seconds, 1),
            "runner_cpu_ms": round((_own() - self._runner) / episodes * 1000, 3),
            "platform_cpu_ms": round((_platform_cpu() - self._platform) / episodes * 1000, 3),
            "runner_rss_mb": round(_rss_mb(), 1),
        }


def _own() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _platform_cpu() -> float:
    """Return the CPU time of all processes that descend from a local platform of this run, the ended ones included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    servers: set[int] = set()
    mark = f"AENV_RUNTIME_DIR={os.environ['AENV_RUNTIME_DIR']}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            environ = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        pid = int(name)
        parents[pid] = int(fields[1])
        used[pid] = sum(int(value) for value in fields[11:15]) / TICKS
        if mark in environ.split(b"\0") and pid != os.getpid():
            servers.add(pid)
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in servers} - servers
        servers |= below
        grown = bool(below)
    return sum(used.get(pid, 0.0) for pid in servers)


def _rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def bare(project: str, count: int, concurrency: int) -> dict[str, float]:
    """Make the same calls without a runner, without records."""
    room = asyncio.Semaphore(concurrency)
    meter = Meter()

    async def one() -> None:
        async with room, Environment(project) as env:
            for number in (1, 2):
                await env.call_tool("add", {"number": number})
            assert await env.call_reward({"wanted": 3}) == 1.0

    await asyncio.gather(*(one() for _ in range(count)))
    return meter.read(count)


async def run(project: str, count: int, concurrency: int, store: TrajectoryStore) -> list[dict[str, float]]:
    """Run the rollout; read the meter at a tenth and at the end."""
    meter, readings, done = Meter(), [], 0
    marks = {count // 10, count}
    async for result in rollout(project, agent=agent, tasks=rows(count), concurrency=concurrency, store=store):
        assert (result.outcome, result.reward) == ("ok", 1.0), result
        done += 1
        if done in marks:
            readings.append(meter.read(done))
    return readings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp") as folder:
        os.environ |= {"AENV_RUNTIME_DIR": folder, "AENV_LOCAL_LINGER": "5"}
        project = Path(folder, "adding.py")
        project.write_text(SOURCE)
        asyncio.run(bare(str(project), 50, given.concurrency))  # warm: the platform, the zygote, the parents
        found: dict[str, Any] = {"bare": asyncio.run(bare(str(project), given.episodes // 10, given.concurrency))}
        with TrajectoryStore.open(Path(folder, "store")) as store:
            found["rollout"] = asyncio.run(run(str(project), given.episodes, given.concurrency, store))
        for where in local_platforms.all_of_user(local_platforms.LocalPaths(Path(folder))):
            local_platforms.stop(where)
    print(json.dumps(found, indent=2))
    first, last = found["rollout"]
    overhead = last["runner_cpu_ms"] - found["bare"]["runner_cpu_ms"]
    print(f"overhead of the runner and the records: {overhead:.2f} ms of CPU per episode", file=sys.stderr)
    print(f"memory from {first['episodes']:g} to {last['episodes']:g} episodes: "
          f"{last['runner_rss_mb'] - first['runner_rss_mb']:+.1f} MB", file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
