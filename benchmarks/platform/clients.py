"""Some of the clients. Runs in an environment with aenv; a step for every line of its input, a JSON line for each.

Every client has connections of its own and does one thing after another. `benchmarks/calls` is on its path.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from load import expect, fresh, short

from aenv import Environment


class Clients:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._held: list[list[Environment]] = [[] for _ in range(args.clients)]
        self._ms: list[float] = []
        self._errors: Counter[str] = Counter()

    async def step(self, name: str, count: int) -> dict[str, object]:
        """``count`` is for each client."""
        self._ms, self._errors = [], Counter()
        cpu, began = time.process_time(), time.monotonic()
        work = {"create": self._create, "call": self._call, "delete": self._delete, "pass": self._pass}[name]
        await asyncio.gather(*(work(held, count) for held in self._held))
        return {
            "began": began, "ended": time.monotonic(), "cpu": time.process_time() - cpu,
            "ms": self._ms, "errors": self._errors.most_common(5), "failed": self._errors.total(),
        }  # fmt: skip

    async def _timed(self, work: Callable[[], Awaitable[object]]) -> bool:
        began = time.perf_counter()
        try:
            await work()
        except Exception as error:
            self._errors[short(error)] += 1
            return False
        self._ms.append((time.perf_counter() - began) * 1000)
        return True

    async def _create(self, held: list[Environment], count: int) -> None:
        for _ in range(count):
            env = self._new()
            if await self._timed(env.initialize):
                held.append(env)

    async def _call(self, held: list[Environment], count: int) -> None:
        for _ in range(count):
            for env in held:
                await self._timed(lambda env=env: self._echo(env))

    async def _delete(self, held: list[Environment], count: int) -> None:
        for _ in range(min(count, len(held))):
            await self._timed(held.pop().release)

    async def _pass(self, held: list[Environment], count: int) -> None:
        """Made, called once and deleted, one after another: timed as a whole."""
        for _ in range(count):
            await self._timed(self._through)

    async def _through(self) -> None:
        env = self._new()
        try:
            await env.initialize()
            await self._echo(env)
        finally:
            await env.release()

    def _new(self) -> Environment:
        return Environment("bench@1.0.0", aenv_url=self._args.url, api_key=os.environ["BENCH_TOKEN"], ttl="1h")

    async def _echo(self, env: Environment) -> None:
        said = fresh()
        result = await env.call_tool("echo", {"content": said})
        expect(not result.is_error and f'"{said}"' in result.content[0]["text"], result)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, required=True)
    clients = Clients(parser.parse_args())
    print("{}", flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, count = line.split()
        print(json.dumps(await clients.step(name, int(count))), flush=True)


asyncio.run(main())
