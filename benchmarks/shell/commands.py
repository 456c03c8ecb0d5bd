"""The commands, the same for every peer: a client script says how to open a session, this module does the rest.

It runs inside each peer's own virtual environment, so it may use the standard library only. It prints one JSON line.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable

Run = Callable[[str], Awaitable[tuple[str, int]]]
"""Run a command; its output and its exit status."""
Open = Callable[[], Awaitable[Run]]

MEGABYTE = "head -c 740000 /dev/zero | base64"
WARM_UP = 5
_numbers = itertools.count()


async def echo(run: Run) -> None:
    """A builtin: nothing but the way there and back."""
    number = next(_numbers)
    check(await run(f"echo message {number}"), (f"message {number}", 0))


async def program(run: Run) -> None:
    """A program with a status of its own."""
    check(await run("/bin/false"), ("", 1))


async def script(run: Run) -> None:
    """Two thousand characters on many lines."""
    lines = "\n".join(f"total=$((${{total:-0}} + {number})) # padding padding padding" for number in range(40))
    check(await run(f"total=0\n{lines}\necho $total"), ("780", 0))


async def megabyte(run: Run) -> None:
    """Much output; that it is cut is fine, that it is missing is not."""
    text, status = await run(MEGABYTE)
    text = text.strip()
    check((text[:3] + text[-3:], status), ("AAAAA=", 0))


KINDS = {"echo": echo, "program": program, "script": script, "megabyte": megabyte}


def check(seen: tuple[str, int], wanted: tuple[str, int]) -> None:
    if (seen[0].strip(), seen[1]) != wanted:
        raise RuntimeError(f"unexpected answer: {seen}"[:200])


async def measure(open_session: Open, runs: int, sessions: int) -> dict[str, object]:
    await open_session()  # the first may have to start more than itself
    began = time.perf_counter()
    run = await open_session()
    await echo(run)
    found: dict[str, object] = {"open": [1000 * (time.perf_counter() - began)]}
    for name, kind in KINDS.items():
        found[name] = await timed(kind, run, runs)
    found["rate"] = [await rate([await open_session() for _ in range(sessions)], runs)]
    return found


async def timed(kind: Callable[[Run], Awaitable[None]], run: Run, runs: int) -> list[float] | str:
    """Milliseconds of each, one after another; why it did not work, if it did not."""
    try:
        for _ in range(WARM_UP):
            await kind(run)
        times = []
        for _ in range(runs):
            began = time.perf_counter()
            await kind(run)
            times.append(1000 * (time.perf_counter() - began))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:120]
    return times


async def rate(open_sessions: list[Run], runs: int) -> float:
    """Commands per second, all sessions at the same time."""

    async def use(run: Run) -> None:
        for _ in range(runs // 4):
            await echo(run)

    for run in open_sessions:
        await echo(run)
    began = time.perf_counter()
    await asyncio.gather(*(use(run) for run in open_sessions))
    return len(open_sessions) * (runs // 4) / (time.perf_counter() - began)


def main(session: Callable[[str], Awaitable[Open]]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("where")
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--sessions", type=int, required=True)
    args = parser.parse_args()

    async def work() -> dict[str, object]:
        return await measure(await session(args.where), args.runs, args.sessions)

    print(json.dumps(asyncio.run(work())))
