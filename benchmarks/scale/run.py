"""How creates and calls grow with the machine: over cores, instances alive, and client processes.

    python benchmarks/scale/run.py [--cores 1,2,4] [--alive 0,1000] [--clients 1,2,4] [--seconds 10] [--json FILE]

Needs Linux and an interpreter with aenv installed, and nothing else: no package index, no network. Progress goes to
stderr, the tables to stdout. Every point has a local platform of its own, without a pool.
"""

import argparse
import contextlib
import json
import os
import platform as host
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from usage import CpuMeter, busy_seconds, memory_in_use, open_descriptors  # noqa: E402

from aenv import __version__  # noqa: E402
from aenv.client.local_lease import socket_parent  # noqa: E402
from aenv.client.local_platforms import LocalPaths, stop  # noqa: E402

KINDS = ("server", "zygotes", "parents", "instances", "client", "kernel")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Client:
    """A client process, which waits after its preparations until it is told to go on."""

    def __init__(self, runtime: Path, *arguments: object) -> None:
        variables = {**os.environ, "AENV_RUNTIME_DIR": str(runtime), "AENV_POOL": "0"}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "client.py"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        self.pid = self._process.pid

    def line(self) -> str:
        """Return its next line of output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a client ended with {self._process.wait()}")
        return line

    def go_on(self) -> None:
        """Let it do the next part."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def cpu(self) -> float:
        """Return its CPU seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Bench:
    def __init__(self, args: argparse.Namespace, project: Path, runtimes: Path) -> None:
        self._args, self._project, self._runtimes = args, project, runtimes
        self._platforms = 0

    @contextlib.contextmanager
    def _platform(self, cores: int) -> Iterator[Path]:
        """Give a folder for a local platform, and pin what is started within to the first so many cores."""
        everything = os.sched_getaffinity(0)
        self._platforms += 1
        runtime = self._runtimes / str(self._platforms)
        runtime.mkdir(mode=0o700)
        os.sched_setaffinity(0, sorted(everything)[:cores])
        try:
            yield runtime
        finally:
            os.sched_setaffinity(0, everything)
            stop(LocalPaths(runtime))

    def creates(self, cores: int) -> dict[str, object]:
        """Create, call and release in batches; count, and see which processes were busy."""
        args = self._args
        with self._platform(cores) as runtime:
            options = ["--size", args.size, "--seconds", args.seconds, "--warm-up", args.warm_up]
            options += ["--parallel", args.parallel]
            clients = [Client(runtime, "batches", self._project, *options) for _ in range(args.create_clients)]
            try:
                for client in clients:
                    client.line()
                meter, busy = CpuMeter(server_of(runtime)), busy_seconds()
                before = sum(client.cpu() for client in clients)
                began = time.perf_counter()
                for client in clients:
                    client.go_on()
                time.sleep(args.seconds * 0.9)
                spent, seconds = meter.read(), time.perf_counter() - began
                spent["client"] = sum(client.cpu() for client in clients) - before
                busy = (busy_seconds() - busy) / seconds
                found = [json.loads(client.line()) for client in clients]
            finally:
                for client in clients:
                    client.end()
        rate = sum(one["count"] / one["seconds"] for one in found)
        used = {name: spent[name] / seconds for name in KINDS}
        return {"cores": cores, "per_second": rate, "busy": busy, "used": used}

    def calls(self, clients: int, cores: int) -> dict[str, object]:
        """Call instances from several client processes."""
        with self._platform(cores) as runtime:
            started: list[Client] = []
            try:
                options = ["--size", self._args.called, "--seconds", self._args.seconds]
                for _ in range(clients):
                    started.append(Client(runtime, "calls", self._project, *options))
                    started[-1].line()
                busy, began = busy_seconds(), time.perf_counter()
                for client in started:
                    client.go_on()
                found = [json.loads(client.line()) for client in started]
                busy = (busy_seconds() - busy) / (time.perf_counter() - began)
            finally:
                for client in started:
                    client.end()
        return {"clients": clients, "per_second": sum(one["count"] / one["seconds"] for one in found), "busy": busy}

    def alive(self, levels: list[int], cores: int) -> list[dict[str, object]]:
        """Create one after another while many others are alive."""
        facts: list[dict[str, object]] = []
        with self._platform(cores) as runtime:
            options = ["--levels", ",".join(map(str, levels)), "--runs", self._args.runs, "--size", self._args.size]
            client = Client(runtime, "alive", self._project, *options)
            try:
                for level in levels:
                    client.line()
                    time.sleep(2)  # until the kernel has done what creates leave for later
                    server = server_of(runtime) if LocalPaths(runtime).socket.exists() else None
                    facts.append(
                        {
                            "alive": level,
                            "descriptors": open_descriptors(server) if server else 0,
                            "memory_mb": memory_in_use(),
                        }
                    )
                    say(f"{level} alive: {facts[-1]}")
                    client.go_on()
                found = json.loads(client.line())["levels"]
            finally:
                client.end()
        return [{**fact, **found[str(fact["alive"])]} for fact in facts]


def server_of(runtime: Path) -> int:
    """Return the process id of a local platform."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(LocalPaths(runtime).socket))
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def create_table(points: list[dict]) -> str:
    lines = ["| cores | creates/s | per core | " + " | ".join(f"{name}, cores" for name in KINDS) + " | busy in all |"]
    lines.append("|---" * (4 + len(KINDS)) + "|")
    for point in points:
        used = " | ".join(f"{point['used'][name]:.2f}" for name in KINDS)
        rate, cores = point["per_second"], point["cores"]
        lines.append(f"| {cores} | {rate:,.0f} | {rate / cores:.0f} | {used} | {point['busy']:.1f} |")
    return "\n".join(lines)


def alive_table(points: list[dict]) -> str:
    lines = ["| alive | create p50 / p95 / p99, ms | release p50, ms | descriptors per instance | MB per instance |"]
    lines.append("|---" * 5 + "|")
    first = points[0]
    for point in points:
        made, gone = percentiles(point["create_ms"]), percentiles(point["release_ms"])
        more = point["alive"] - first["alive"]
        each = (
            f"{(point['descriptors'] - first['descriptors']) / more:.1f} | "
            f"{(point['memory_mb'] - first['memory_mb']) / more:.1f}"
            if more
            else "– | –"
        )
        lines.append(f"| {point['alive']:,} | {made[0]:.1f} / {made[1]:.1f} / {made[2]:.1f} | {gone[0]:.1f} | {each} |")
    return "\n".join(lines)


def call_table(points: list[dict]) -> str:
    lines = ["| client processes | calls/s | busy cores |", "|---|---|---|"]
    lines += [f"| {point['clients']} | {point['per_second']:,.0f} | {point['busy']:.1f} |" for point in points]
    return "\n".join(lines)


def percentiles(samples: list[float]) -> tuple[float, float, float]:
    cuts = quantiles(samples, n=100)
    return cuts[49], cuts[94], cuts[98]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def arguments() -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    powers = [2**power for power in range(10) if 2**power <= cores]
    default = ",".join(map(str, dict.fromkeys([*powers, cores])))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cores", type=numbers, default=default, help="to pin platform and clients to, for creates")
    parser.add_argument("--alive", type=numbers, default="1,256,1000", help="instances alive while others are created")
    parser.add_argument("--clients", type=numbers, default=default, help="client processes that call")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each figure")
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds of creates before each figure")
    parser.add_argument("--size", type=int, default=64, help="instances in a batch")
    parser.add_argument("--parallel", type=int, default=2, help="batches at the same time, for each client")
    parser.add_argument("--create-clients", type=int, default=1, help="client processes that create")
    parser.add_argument("--called", type=int, default=16, help="instances that each client calls")
    parser.add_argument("--runs", type=int, default=200, help="creates one after another, for each level of --alive")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples")
    return parser.parse_args()


def main() -> None:
    args, cores = arguments(), len(os.sched_getaffinity(0))
    found: dict[str, list] = {"creates": [], "alive": [], "calls": []}
    # Short names: the path of a unix socket has at most 107 characters.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=socket_parent()) as runtimes:
        project = Path(folder) / "project"
        (project / "src").mkdir(parents=True)
        shutil.copy(HERE / "echo_env.py", project / "src")
        bench = Bench(args, project, Path(runtimes))
        for count in args.cores:
            found["creates"].append(bench.creates(count))
            say(f"creates: {found['creates'][-1]}")
        for count in args.clients:
            found["calls"].append(bench.calls(count, cores))
            say(f"calls: {found['calls'][-1]}")
        if args.alive:
            found["alive"] = bench.alive(args.alive, cores)
    print(f"aenv {__version__}, {cores} cores, {host.system()} {host.release()}, Python {host.python_version()}")
    for title, table, points in (
        (f"Create + call + release, in batches of {args.size}", create_table, found["creates"]),
        ("Create one after another, while others are alive", alive_table, found["alive"]),
        (f"Calls, {args.called} instances for each client", call_table, found["calls"]),
    ):
        if points:
            print(f"\n{title}:\n\n{table(points)}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
