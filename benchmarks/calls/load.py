"""The load, the same for every peer: a client script says how to open a session, this module does the rest.

It runs inside each peer's own virtual environment, so it may use the standard library only.
It prints one JSON line and leaves without closing the sessions: closing is not what we measure,
and the server is thrown away after each run.
"""

import argparse
import asyncio
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

Call = Callable[[], Awaitable[None]]
Calls = dict[str, Call]
Session = Callable[[str], AbstractAsyncContextManager[Calls]]

CALLS = 10  # per session and turn
OPENING = 32  # at once; with 8, aenvironment opened a tenth fewer of 1,024 before the cap
WARM_UP = 30
TICKS = os.sysconf("SC_CLK_TCK")

_numbers = itertools.count()


def fresh() -> str:
    """What to say next: never the same twice, so that no cache can answer for a tool."""
    return f"message {next(_numbers)}"


def expect(condition: bool, seen: object = None) -> None:
    """A wrong answer is an error like any other (and `assert` is off under -O)."""
    if not condition:
        raise RuntimeError(f"unexpected answer: {seen}"[:200])


def cpu_of_tree(root: int) -> float:
    """CPU seconds of a process and all its descendants, those already reaped included.

    The kernel rounds to ticks of 10 ms, so samples shorter than a second say little.
    """
    used: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(int(field) for field in fields[11:15])
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        total += used.get(pid, 0)
        todo += children.get(pid, [])
    return total / TICKS


class Meter:
    """Wall time and CPU time of both sides since it was made."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._server_cpu = cpu_of_tree(server)
        self._cpu, self._wall = time.process_time(), time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._wall

    def read(self, calls: int) -> dict[str, float]:
        seconds, client = self.seconds, time.process_time() - self._cpu
        server = cpu_of_tree(self._server) - self._server_cpu
        per_call = 1000 / max(calls, 1)
        return {
            "calls": calls,
            "seconds": seconds,
            "client_ms": client * per_call,
            "server_ms": server * per_call,
        }


async def cost(session: Session, args: argparse.Namespace) -> dict[str, object]:
    """What one call costs, one after another in one session, for each kind of call the peer has."""
    context = session(args.url)  # held: a session that is collected is a session closed
    calls = await context.__aenter__()
    found: dict[str, object] = {}
    for kind, call in calls.items():
        for _ in range(WARM_UP):
            await call()
        meter, done = Meter(args.server), 0
        while meter.seconds < args.seconds:
            await call()
            done += 1
        found[kind] = meter.read(done)
    return found


class Crowd:
    """Opens all sessions, then lets every one of them do its calls, all at the same time.

    Opening and calling have `cap` seconds each; what was reached by then is what is reported.
    """

    def __init__(self, session: Session, args: argparse.Namespace) -> None:
        self._session, self._args = session, args
        self._open: list[AbstractAsyncContextManager[Calls]] = []  # held as well
        self._gate = asyncio.Semaphore(OPENING)
        self._go = asyncio.Event()
        self._refusals: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._done = 0

    async def run(self) -> dict[str, object]:
        size, cap = self._args.sessions, self._args.cap
        self._meter = Meter(self._args.server)
        loop = asyncio.get_running_loop()
        settled = [loop.create_future() for _ in range(size)]
        members = [loop.create_task(self._member(opened)) for opened in settled]
        await asyncio.wait(settled, timeout=cap + 5)
        report = {"sessions": size, "opened": len(self._open), "open_seconds": self._meter.seconds}

        self._meter = Meter(self._args.server)
        self._go.set()
        _, late = await asyncio.wait(members, timeout=cap)
        return (
            report
            | self._meter.read(self._done)
            | {
                "finished": not late,
                "errors": self._errors.total(),
                "first_errors": self._errors.most_common(3),
                "first_refusals": self._refusals.most_common(3),
            }
        )

    async def _member(self, settled: asyncio.Future[None]) -> None:
        """One session. A task of its own, because some SDKs tie a session to the task that opened it."""
        try:
            async with self._gate:
                if self._meter.seconds > self._args.cap:
                    return
                context = self._session(self._args.url)
                call = (await context.__aenter__())["tool"]
                await call()  # some connect on the first call only
        except Exception as error:
            self._refusals[short(error)] += 1
            return
        finally:
            settled.set_result(None)
        if self._go.is_set():  # too late to be counted
            return
        self._open.append(context)
        await self._go.wait()
        await self._turn(call)
        while self._meter.seconds < self._args.seconds:
            await self._turn(call)

    async def _turn(self, call: Call) -> None:
        for _ in range(CALLS):
            if self._meter.seconds > self._args.cap:
                return
            try:
                await call()
                self._done += 1
            except Exception as error:
                self._errors[short(error)] += 1


def short(error: Exception) -> str:
    return " ".join(repr(error).split())[:200]


def run(session: Session) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--server", type=int, required=True, help="process id, whose CPU time is read")
    parser.add_argument("--sessions", type=int, default=0, help="0 measures the cost of single calls")
    parser.add_argument("--seconds", type=float, default=2.0, help="measure for at least this long")
    parser.add_argument("--cap", type=float, default=60.0)
    args = parser.parse_args()

    async def main() -> None:
        report = await (Crowd(session, args).run() if args.sessions else cost(session, args))
        print(json.dumps(report), flush=True)
        os._exit(0)

    asyncio.run(main())
