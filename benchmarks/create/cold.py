"""Starts a server that has nothing warm, in whatever sandbox its command makes, and calls its first tool.

Runs in the environment of the SDK that calls (ours, or that of aenvironment 0.1.7); prints one JSON line.
Modules of `benchmarks/calls` are on its path.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from load import expect, fresh, short
from proc import descendants, memory

from aenv import Environment

logging.getLogger("aenv").setLevel(logging.WARNING)
PATIENCE = 60.0  # seconds for a server to listen


class Cold:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args

    async def run(self) -> dict[str, object]:
        found: dict[str, list] = {"create_ms": [], "release_ms": [], "uss_mb": [], "pss_mb": [], "errors": []}
        for number in range(self._args.runs + 1):  # the first is for the page cache and does not count
            try:
                measured = await self._one(number)
            except Exception as error:
                found["errors"].append(short(error))
                if number == 0:
                    break
                continue
            print(f"{self._args.name}: {measured['create_ms']:.0f} ms", file=sys.stderr, flush=True)
            for name, value in measured.items() if number else ():
                found[name].append(value)
        return {"asked": self._args.runs, **found}

    async def _one(self, number: int) -> dict[str, float]:
        began = time.perf_counter()
        process = self._start(number)
        try:
            answered = await self._first_answer(process)
            used = memory([process.pid, *descendants(process.pid)])
        finally:
            asked = time.perf_counter()
            self._end(process, number)
        return {
            "create_ms": (answered - began) * 1000,
            "release_ms": (time.perf_counter() - asked) * 1000,
            **{name: used[name] * used["processes"] for name in ("uss_mb", "pss_mb")},
        }

    def _start(self, number: int) -> subprocess.Popen:
        if self._args.address.startswith("unix:"):
            Path(self._args.address.removeprefix("unix:")).unlink(missing_ok=True)
        with open(self._args.log, "ab") as log:
            return subprocess.Popen(
                self._numbered(self._args.command, number),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
            )  # fmt: skip

    def _numbered(self, command: list[str], number: int) -> list[str]:
        return [part.replace("{number}", str(number)) for part in command]

    async def _first_answer(self, process: subprocess.Popen) -> float:
        deadline = time.perf_counter() + PATIENCE
        while not self._listens():
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}: {self._last_words()}")
            expect(time.perf_counter() < deadline, f"nothing listens: {self._last_words()}")
            await asyncio.sleep(0.002)
        os.environ["DUMMY_INSTANCE_IP"] = self._args.address
        async with Environment("bench@1.0.0") as env:
            said = fresh()
            result = await env.call_tool("echo", {"content": said})
            answered = time.perf_counter()
            expect(not result.is_error and f'"{said}"' in result.content[0]["text"], result)
        return answered

    def _listens(self) -> bool:
        scheme, _, rest = self._args.address.partition(":")
        family = socket.AF_UNIX if scheme == "unix" else socket.AF_INET
        host, _, port = rest.removeprefix("//").partition(":")
        with socket.socket(family) as probe:
            try:
                probe.connect(rest if scheme == "unix" else (host, int(port)))
            except OSError:
                return False
        return True

    def _end(self, process: subprocess.Popen, number: int) -> None:
        """Its own way of ending it where there is one, else the process group."""
        if self._args.end:
            command = self._numbered(self._args.end, number)
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _last_words(self) -> str:
        return " ".join(Path(self._args.log).read_text(errors="replace").split())[-160:]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser()
    for name in ("name", "address", "log"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--end", type=json.loads, default=[])
    parser.add_argument("--command", type=json.loads, required=True)
    print(json.dumps(asyncio.run(Cold(parser.parse_args()).run())), flush=True)


if __name__ == "__main__":
    main()
