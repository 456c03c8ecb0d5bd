"""What an instance costs: create, first answer, memory, release; ours beside other sandboxes, in one run.

    python benchmarks/create/run.py [--alive 1,32,256,1024] [--runs 200] [--only NAME ...] [--json FILE]

Needs Linux and uv. Peers that are not installed are named below the table; nothing is installed for them.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "calls"))  # its helpers; before our own folder, for its run.py

import process  # noqa: E402
from peer import Peer  # noqa: E402
from peers import NAMES, Kit, Missing, ours  # noqa: E402
from run import machine, numbers, say, stop  # noqa: E402
from summary import Table  # noqa: E402

CALLED = HERE.parent / "calls" / "peers" / "aenv" / "env.py"


class Bench:
    def __init__(self, args: argparse.Namespace, mine: Peer, folder: Path, runtime: Path) -> None:
        self._args, self._mine, self._folder, self._runtime = args, mine, folder, runtime
        self._project = folder / "project"
        (self._project / "src").mkdir(parents=True)
        shutil.copy(CALLED, self._project / "src")
        self.titles: dict[str, str] = {}
        self.cold: dict[str, dict | str] = {}
        self.native: dict = {}

    def run(self) -> None:
        self.native = self._native("run", 8)
        without = self._native("run0", 0)
        for alive, level in without["levels"].items():
            self.native["levels"][alive] |= level
        self.native["left"] += without["left"]
        kit = Kit(self._mine, self._project, self._folder)
        for name in self._args.only:
            try:
                self.cold[name] = self._peer(kit, name)
            except (Missing, process.Failed) as why:
                self.cold[name] = str(why)
                self.titles.setdefault(name, name)
            say(f"{name}: {self.cold[name]}")

    def _native(self, name: str, pool: int) -> dict:
        args = self._args
        options = {
            "runtime": self._runtime / name,
            "pool": pool,
            "alive": args.alive and ",".join(map(str, args.alive)),
            "batches": ",".join(map(str, args.batches)),
            "runs": args.runs,
            "rounds": args.rounds,
            "idle": args.idle,
        }
        with platform(self._mine, self._runtime / name):
            return self._drive(self._mine.python, "native.py", options, [str(self._project)])

    def _peer(self, kit: Kit, name: str) -> dict | str:
        cold = kit.make(name)
        self.titles[name] = cold.title
        options = {
            "name": name,
            "address": cold.address,
            "log": self._folder / f"{name}.log",
            "runs": self._args.cold_runs,
            "command": json.dumps(cold.command),
            "end": json.dumps(cold.end),
        }
        found = self._drive(cold.python, "cold.py", options, [])
        return found if found["create_ms"] else f"failed: {found['errors'][0]}"

    def _drive(self, python: Path, script: str, options: dict, arguments: list[str]) -> dict:
        """Run a script in another environment; its progress goes where ours does."""
        given = [f"--{name}={value}" for name, value in options.items()]
        with process._running([python, HERE / script, *arguments, *given], subprocess.PIPE, None) as running:
            output, _ = running.communicate()
            if running.returncode:
                raise process.Failed(f"{script} ended with {running.returncode}")
        return json.loads(output.splitlines()[-1])


@contextmanager
def platform(mine: Peer, runtime: Path) -> Iterator[None]:
    """A local platform of our own, which ends with the block, even where its user was killed."""
    runtime.mkdir(mode=0o700)
    try:
        yield
    finally:
        end = (
            "import sys; from pathlib import Path; from aenv.client.local_platforms import LocalPaths, stop; "
            "stop(LocalPaths(Path(sys.argv[1])))"
        )
        subprocess.run([mine.python, "-c", end, runtime], check=False)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--alive", type=numbers, default="1,32,256,1024", help="instances alive while others are made")
    parser.add_argument("--batches", type=numbers, default="64,256", help="how many are asked for at once")
    parser.add_argument("--runs", type=int, default=200, help="creates per figure")
    parser.add_argument("--rounds", type=int, default=3, help="of each batch")
    parser.add_argument("--cold-runs", type=int, default=7, help="creates of each peer")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds to watch idle instances")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    say("aenv: wheel and virtual environment")
    mine, before = ours(), machine()
    ask = "from aenv.client.local_lease import socket_parent; print(socket_parent())"
    sockets = subprocess.run([mine.python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    # Short names: the path of a unix socket has 107 characters.
    with tempfile.TemporaryDirectory(prefix="ab-") as folder, tempfile.TemporaryDirectory(dir=sockets) as runtime:
        bench = Bench(args, mine, Path(folder), Path(runtime))
        bench.run()
    after = machine()
    print(
        f"{before['date']}, {before['cores']} cores ({before['cpu']}), {before['kernel']}, "
        f"Python {before['python']}, load {before['load'][0]} before and {after['load'][0]} after\n"
    )
    table = Table(bench.native, bench.cold, bench.titles)
    print(table)
    print("\np50 / p95 / p99. Bold: over budget. Peers start cold, none alive beside, and show the p50.")
    for missed in table.missed:
        print(f"Missed: {missed}")
    for name, found in bench.cold.items():
        if isinstance(found, str):
            print(f"{name}: {found}")
    print(f"Left behind: {', '.join(bench.native['left']) or 'nothing'}")
    if args.json:
        everything = {"machine": before, "after": after["load"], "aenv": bench.native}
        args.json.write_text(json.dumps(everything | {"cold": bench.cold}, indent=1))


if __name__ == "__main__":
    main()
