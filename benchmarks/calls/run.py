"""What a call costs: ours beside the field, in one run on one machine.

    python benchmarks/calls/run.py [--only NAME ...] [--sessions 1,32,256,1024] [--json FILE]

Rounds go around all peers, so that a busy minute of the machine hits all of them; the table shows medians.
"""

import argparse
import json
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from peer import OURS, PEERS, Peer, prepare, source
from process import Failed, drive, import_cost, serving
from report import Results, table


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._peers = [peer for peer in PEERS if peer.name in args.only]
        self.results: Results = {peer.name: {"imports": {}, "cost": {}, "sessions": {}} for peer in self._peers}

    def run(self) -> None:
        for peer in self._peers:
            say(f"{peer.name}: virtual environment")
            prepare(peer)
            self.results[peer.name]["version"] = peer.version
        self._imports()
        self._costs()
        self._crowds()

    def table(self) -> str:
        return table(self._peers, self.results, self._args.sessions)

    def _imports(self) -> None:
        for peer in self._peers:  # once uncounted: bytecode and page cache
            attempt(import_cost, peer, peer.imports[1])
        for _, peer in self._rounds():
            for index, statement in enumerate(peer.imports):
                found = attempt(import_cost, peer, statement)
                say(f"{peer.name}: {statement}: {found}")
                self._note(peer, "imports", index, found)

    def _costs(self) -> None:
        for number, peer in self._rounds():
            found = attempt(self._drive, peer)
            say(f"{peer.name}: cost of a call, round {number + 1}: {found}")
            for kind, sample in ({"tool": found} if isinstance(found, str) else found).items():
                self._note(peer, "cost", kind, sample)

    def _crowds(self) -> None:
        for size in self._args.sessions:
            slow: set[str] = set()  # not asked again
            for number, peer in self._rounds():
                if peer.name in slow:
                    continue
                began = time.monotonic()
                found = attempt(self._drive, peer, size)
                say(f"{peer.name}: {size} sessions, round {number + 1}: {found}")
                self._note(peer, "sessions", size, found)
                if time.monotonic() - began > self._args.cap / 2:
                    slow.add(peer.name)

    def _rounds(self) -> Iterator[tuple[int, Peer]]:
        for number in range(self._args.rounds):
            turn = number % len(self._peers)
            for peer in self._peers[turn:] + self._peers[:turn]:
                yield number, peer

    def _drive(self, peer: Peer, sessions: int = 0) -> dict:
        options = {"sessions": sessions, "seconds": self._args.seconds, "cap": self._args.cap}
        with serving(peer) as server:
            return drive(peer, server, options, timeout=2 * self._args.cap + 60)

    def _note(self, peer: Peer, part: str, name: str | int, found: object) -> None:
        self.results[peer.name][part].setdefault(name, []).append(found)


def attempt(measure: Callable, *args: object) -> object:
    """A peer that fails is a result (the reason, as a string), not the end of the run."""
    try:
        return measure(*args)
    except Failed as failure:
        return str(failure)


def machine() -> dict[str, object]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model[0].partition(":")[2].strip() if model else platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "source": source(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--sessions", type=numbers, default="1,32,256,1024", help="how many are open at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one sample")
    parser.add_argument("--cap", type=float, default=60.0, help="longest a cell may open, and then call")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def stop(number: int, _: object) -> None:
    """An exception, so that every server and client is ended on the way out."""
    sys.exit(128 + number)


def main() -> None:
    args = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bench, before = Bench(args), machine()
    bench.run()
    after = machine()
    print(
        f"{before['date']}, {before['cores']} cores ({before['cpu']}), {before['kernel']}, "
        f"Python {before['python']}, load {before['load'][0]} before and {after['load'][0]} after\n"
    )
    print(bench.table())
    if before["source"] != after["source"]:
        print("\nsrc/ was edited during this run, so our column is a mixture of versions.")
    if OURS.name in args.only and len(args.only) > 1:
        print(f"\nBold: how many times worse than {OURS.title}.")
    if args.json:
        args.json.write_text(json.dumps({"machine": before, "after": after["load"], **bench.results}, indent=1))


if __name__ == "__main__":
    main()
