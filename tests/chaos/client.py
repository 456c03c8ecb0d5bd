"""A program that uses instances and compares the state of each with the responses that it got.

Run by the tests of this folder. It prints ``done`` for every call, and ends when its standard input does, with what it
did as its last line; a line that begins with ``wrong`` is one that must not be.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import uuid
from collections import Counter

from aenv import Environment
from aenv.errors import AEnvError, InstanceEnded, InstanceUnreachable

CALLS = 12
SECONDS = 20.0
tally: Counter[str] = Counter()


async def main(url: str, workers: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    await asyncio.gather(*(work(url, stop) for _ in range(workers)))
    print(json.dumps(tally), flush=True)


async def work(url: str, stop: asyncio.Event) -> None:
    while not stop.is_set():
        env = Environment("tally", aenv_url=url, timeout=SECONDS, startup_timeout=SECONDS, max_retries=5, ttl="5m")
        try:
            await env.initialize()
        except AEnvError as error:
            tally[f"not made: {type(error).__name__}"] += 1
            await asyncio.sleep(0.1)
            continue
        tally["made"] += 1
        await use(env)
        with contextlib.suppress(AEnvError):
            await env.release()


async def use(env: Environment) -> None:
    done: set[str] = set()
    never: set[str] = set()
    for _ in range(CALLS):
        key = uuid.uuid4().hex
        try:
            answer = await env.call_tool("add", {"key": key}, timeout=SECONDS)
        except InstanceEnded:
            tally["ended"] += 1
            return
        except InstanceUnreachable as error:
            tally["not sent"] += 1
            if error.details.get("sent") is False:
                never.add(key)
        except AEnvError as error:
            tally[f"unsure: {type(error).__name__}"] += 1
        else:
            if not answer.is_error:
                tally["done"] += 1
                print("done", flush=True)
                done.add(key)
    await compare(env, done, never)


async def compare(env: Environment, done: set[str], never: set[str]) -> None:
    for _ in range(20):
        try:
            seen = (await env.call_tool("all", {}, timeout=SECONDS)).data
        except InstanceEnded:
            tally["ended"] += 1
            return
        except AEnvError:
            await asyncio.sleep(0.5)
            continue
        for what, keys in (
            ("reported as done and was not", done - set(seen["memory"])),
            ("reported as never sent and was done", never & set(seen["memory"])),
            ("done twice", {key for key, count in Counter(seen["memory"]).items() if count > 1}),
            ("forgotten by memory or disk", set(seen["memory"]) ^ set(seen["disk"])),
        ):
            if keys:
                print(f"wrong: {what}: {len(keys)} calls of {env.env_name}", flush=True)
        tally["compared"] += 1
        return
    tally["not compared"] += 1


if __name__ == "__main__":
    os.environ["AENV_LOG_LEVEL"] = "ERROR"
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
