"""What a task of TAU2-Bench costs: as an instance of tau2-env, and with the benchmark's own code in one process.

    python benchmarks/tau2/run.py [--runs 5] [--alive 16] [--only DOMAIN ...] [--json FILE]

Needs Linux, and a Python with aenv and the benchmark in it: see the README of envs/tau2-env.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[0] = str(HERE.parent / "calls")  # its helpers, and its run.py before our own
sys.path.append(str(HERE.parent / "create"))

from proc import descendants, memory  # noqa: E402
from report import _markdown  # noqa: E402
from run import machine, say  # noqa: E402

from aenv import Environment  # noqa: E402
from aenv.client import local_lease  # noqa: E402

TASKS = {"airline": "8", "retail": "0", "telecom": "", "banking": ""}
"""Tasks without a judge; "" is a domain's first."""
INSTANCES = 3
"""Generations below the server, as in create/: what is there and deeper are instances."""
ENV = "tau2-env@1.0.0"
SECONDS = 300.0
ROWS = {
    "first": "first instance of a task, to its first answer, ms",
    "fork": "each further one, ms",
    "calls": "gold calls of one task",
    "play": "such a call, ms",
    "grade": "graded, with what doing nothing earns, ms",
    "uss": "USS of one more instance, MB",
}


class Ours:
    """A domain, through `Environment`."""

    def __init__(self, domain: str, args: argparse.Namespace) -> None:
        self.domain, self.args = domain, args
        self.found: dict[str, Any] = {"first": [], "fork": [], "play": [], "grade": []}

    def _env(self, task: str) -> Environment:
        variables = {"TAU2_DOMAIN": self.domain, "TAU2_TASK_ID": task, "TAU2_MAX_STEPS": "200"}
        return Environment(ENV, environment_variables=variables, startup_timeout=SECONDS)

    async def run(self) -> dict[str, Any]:
        tasks = await self._listed()
        for task in tasks[: self.args.runs]:
            await self._timed("first", task)
        chosen = TASKS[self.domain] or tasks[0]
        await self._timed("spare", chosen)  # a task is kept loaded once it was asked for again
        for _ in range(self.args.runs):
            await self._timed("fork", chosen)
        for _ in range(self.args.runs):
            await self._play(chosen)
        await self._memory(chosen)
        self.found.pop("spare", None)
        return self.found

    async def _listed(self) -> list[str]:
        async with self._env("") as env:
            named: list[str] = await env.call_function("tau2_list_tasks", {"domain": self.domain}, timeout=SECONDS)
            return named[1:]  # the first is loaded now

    async def _timed(self, what: str, task: str) -> None:
        began = time.perf_counter()
        async with self._env(task) as env:
            await env.call_tool("tau2_get_task_info", {})
            self.found.setdefault(what, []).append((time.perf_counter() - began) * 1000)

    async def _play(self, task: str) -> None:
        async with self._env(task) as env:
            steps = await env.call_function("tau2_get_solution", {}, timeout=SECONDS)
            self.found["calls"] = len(steps) - 1
            for step in steps[:-1]:
                began = time.perf_counter()
                await env.call_tool(step["tool"], step["arguments"])
                self.found["play"].append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            await env.call_tool("done", {}, timeout=SECONDS)
            reward = await env.call_reward({}, timeout=SECONDS)
            self.found["grade"].append((time.perf_counter() - began) * 1000)
            assert reward["total_reward"] == 1.0, reward

    async def _memory(self, task: str) -> None:
        """Of instances that have done something: of those processes that are gone when they are released."""
        envs = [self._env(task) for _ in range(self.args.alive)]
        try:
            for env in envs:
                await env.call_function("tau2_get_status", {}, timeout=SECONDS)
            used = {pid: memory([pid])["uss_mb"] for pid in descendants(server_pid(), INSTANCES)}
        finally:
            for env in envs:
                await env.release()
        left = set(descendants(server_pid(), INSTANCES))
        self.found["uss"] = [size for pid, size in used.items() if pid not in left]


def server_pid() -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(local_lease.LocalPaths.of_user().socket))
        return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def ours(domains: list[str], args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="aenv-b-", dir="/tmp") as folder:
        where = local_lease.LocalPaths(Path(folder) / "run")
        os.environ["AENV_RUNTIME_DIR"], os.environ["AENV_DATA_DIR"] = str(where.runtime), f"{folder}/data"
        try:
            found: dict[str, Any] = {"first ever": asyncio.run(first_ever())}
            for domain in domains:
                say(f"aenv: {domain}")
                found[domain] = asyncio.run(Ours(domain, args).run())
            return found
        finally:
            local_lease.stop(where)


async def first_ever() -> float:
    """With a platform to start, and a parent that imports what the benchmark is made of."""
    began = time.perf_counter()
    async with Environment(ENV, environment_variables={"TAU2_DOMAIN": "mock"}, startup_timeout=SECONDS) as env:
        await env.call_tool("tau2_get_task_info", {})
    return time.perf_counter() - began


def theirs(domain: str, runs: int) -> dict[str, Any]:
    say(f"in one process: {domain}")
    name = {"banking": "banking_knowledge"}.get(domain, domain)
    command = [sys.executable, str(HERE / "own.py"), name, TASKS[domain], f"--runs={runs}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(mine: dict[str, Any], other: dict[str, Any]) -> str:
    rows = [["", *other]]
    rows += [[title, *(cell(mine[domain][kind]) for domain in other)] for kind, title in ROWS.items()]
    for kind, title in (("make", "its environment made, ms"), ("play", "its gold calls, all, ms")):
        rows.append([f"in one process: {title}", *(cell([s * 1000 for s in found[kind]]) for found in other.values())])
    rows.append(["in one process: graded, ms", *(cell([s * 1000 for s in o["grade"]]) for o in other.values())])
    rows.append(["in one process: USS of one more, MB", *(f"{o['one_more_mb']:.1f}" for o in other.values())])
    rows.append(["a process of its own: imported, s", *(f"{o['import']:.1f}" for o in other.values())])
    rows.append(["a process of its own: USS, MB", *(f"{o['uss_mb']:.0f}" for o in other.values())])
    return _markdown(rows)


def cell(samples: Any) -> str:
    if not isinstance(samples, list):
        return str(samples)
    middle = statistics.median(samples)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="samples of each kind")
    parser.add_argument("--alive", type=int, default=16, help="instances whose memory is looked at")
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="DOMAIN")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples")
    args = parser.parse_args()
    before = machine()
    mine = ours(args.only, args)
    other = {domain: theirs(domain, args.runs) for domain in args.only}
    print(f"{before['date']}, {before['cores']} cores, Python {before['python']}, load {before['load'][0]} before\n")
    print(table(mine, other))
    print(f"\nMedians. The first instance ever, with the platform to start: {mine['first ever']:.1f} s.")
    if args.json:
        args.json.write_text(json.dumps({"machine": before, "aenv": mine, "one process": other}, indent=1))


if __name__ == "__main__":
    main()
