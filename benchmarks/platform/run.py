"""What a platform bears: 1,000 instances made by 50 clients, called and deleted; beside one client alone.

    python benchmarks/platform/run.py [--instances 1000] [--clients 50] [--calls 10] [--json FILE]

Needs Linux and uv. Everything goes over TCP with a token, through the public SDK: `aenv serve`, its gateway, sandboxes.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "calls"), str(HERE.parent / "create")]  # their helpers; before our own folder

from load import cpu_of_tree  # noqa: E402
from peer import Peer  # noqa: E402
from peers import ours  # noqa: E402
from proc import descendants, memory, system_memory  # noqa: E402
from report import _markdown as markdown  # noqa: E402
from run import machine, numbers, say, stop  # noqa: E402
from summary import percentile  # noqa: E402

CALLED = HERE.parent / "calls" / "peers" / "aenv" / "env.py"
INSTANCES = 3  # generations below the server: its zygote is two processes
SETTLE = 2.0  # seconds: ready sandboxes are made in the background
CONFIG = "[limits]\ncreates_per_second = 0.0\n"


class Platform:
    """`aenv serve` in a data folder of its own."""

    def __init__(self, mine: Peer, folder: Path) -> None:
        self._aenv = mine.python.with_name("aenv")
        self._data = folder / "data"
        self._variables = {name: value for name, value in os.environ.items() if not name.startswith("AENV_")}
        self._variables |= {"AENV_DATA_DIR": str(self._data), "XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder)}
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[None]:
        project = self._folder / "bench"
        (project / "src").mkdir(parents=True)
        shutil.copy(CALLED, project / "src")
        (project / "config.json").write_text('{"name": "bench", "version": "1.0.0"}')
        for words in (["push", "--work-dir", project], ["local", "stop"]):  # which has looked at its tools for it
            subprocess.run([self._aenv, *words], env=self._variables, check=True, stdout=sys.stderr)
        config = self._folder / "serve.toml"
        config.write_text(CONFIG)
        command = [self._aenv, "serve", "--config", config, "--port", "0", "--one-port", "--auth", "--output", "json"]
        log = self._folder / "serve.log"
        with (
            log.open("wb") as errors,
            subprocess.Popen(command, env=self._variables, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                self.pid, self.url = process.pid, self._url(process)
                self.token = self._token()
                yield
            finally:
                process.terminate()
                process.wait(60)

    def left(self) -> list[str]:
        """What should be gone with the server."""
        folders = [str(path) for path in self._folder.glob("aenv-serve-*")]
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/aenv-{self.pid}-*")]
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self._folder) in line]
        return folders + groups + mounts

    def _url(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            if not line:
                sys.exit(f"the platform did not start:\n{(self._folder / 'serve.log').read_text()}")
            text += line
        return json.loads(text)["url"]

    def _token(self) -> str:
        create = [self._aenv, "serve", "token", "create", "--user", "bench", "--output", "json"]
        return json.loads(subprocess.check_output(create, env=self._variables))["token"]


class Fleet:
    """Processes of clients, who all begin a step together."""

    def __init__(self, mine: Peer, platform: Platform, sizes: list[int], open_: ExitStack) -> None:
        self.size = sum(sizes)
        variables = {**os.environ, "BENCH_TOKEN": platform.token, "PYTHONPATH": str(HERE.parent / "calls")}
        self._platform = platform
        self._processes = [
            open_.enter_context(
                subprocess.Popen(
                    [mine.python, HERE / "clients.py", platform.url, f"--clients={size}"],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
                )
            )
            for size in sizes
        ]  # fmt: skip
        for process in self._processes:
            open_.callback(process.kill)
        self._answers()

    def step(self, name: str, each: int) -> dict:
        before = cpu_of_tree(self._platform.pid)
        for process in self._processes:
            assert process.stdin is not None
            print(name, each, file=process.stdin, flush=True)
        answers = self._answers()
        server = cpu_of_tree(self._platform.pid) - before
        times = sorted(ms for answer in answers for ms in answer["ms"])
        seconds = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
        done, failed = len(times), sum(answer["failed"] for answer in answers)
        found = {
            "done": done, "failed": failed, "errors": [error for answer in answers for error in answer["errors"]],
            "per_second": done / seconds, "p50": percentile(times, 50), "p99": percentile(times, 99),
            "server_cpu_ms": server * 1000 / max(done, 1),
            "client_cpu_ms": sum(answer["cpu"] for answer in answers) * 1000 / max(done, 1),
        }  # fmt: skip
        say(f"{self.size} clients: {name}: {found}")
        return found

    def _answers(self) -> list[dict]:
        lines = [process.stdout.readline() for process in self._processes if process.stdout]
        if not all(lines):
            sys.exit("a client has ended")
        return [json.loads(line) for line in lines]


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.found: dict = {"one": {}, "many": {}, "levels": {}}

    def run(self, mine: Peer, platform: Platform) -> None:
        with ExitStack() as open_:
            one = Fleet(mine, platform, [1], open_)
            share, rest = divmod(self._args.clients, self._args.processes)
            sizes = [share + (number < rest) for number in range(self._args.processes)]
            many = Fleet(mine, platform, [size for size in sizes if size], open_)
            one.step("pass", 5)
            self._one(one)
            self._levels(one)
            self._many(many, platform)

    def _one(self, one: Fleet) -> None:
        self.found["one"]["create"] = one.step("create", self._args.single)
        self.found["one"]["call"] = one.step("call", self._args.calls)
        self.found["one"]["delete"] = one.step("delete", self._args.single)

    def _levels(self, one: Fleet) -> None:
        """The same work while so many others are there."""
        alive = 0
        for level in self._args.alive:
            one.step("create", level - alive)
            alive = level
            time.sleep(SETTLE)
            self.found["levels"][level] = one.step("pass", self._args.single)
        one.step("delete", alive)

    def _many(self, many: Fleet, platform: Platform) -> None:
        each = self._args.instances // self._args.clients
        time.sleep(SETTLE)
        before, server = system_memory(), memory([platform.pid])
        found = self.found["many"]
        found["create"] = many.step("create", each)
        found["call"] = many.step("call", self._args.calls)
        pids = descendants(platform.pid, INSTANCES)
        after = system_memory()
        self.found["memory"] = {
            "instances": memory(pids), "server_before": server, "server": memory([platform.pid]),
            "grown_mb": {name: after[name] - before[name] for name in after},
        }  # fmt: skip
        say(f"memory: {self.found['memory']}")
        found["delete"] = many.step("delete", each)
        self.found["alive_at_the_end"] = len(descendants(platform.pid, INSTANCES))


def tables(found: dict, args: argparse.Namespace) -> str:
    head = ["", "each", "per second", "p50, ms", "p99, ms", "CPU of the platform, ms", "errors"]
    rows = [head]
    for who, name in (("one", "one client"), ("many", f"{args.clients} clients")):
        for step, each in found[who].items():
            rows.append([f"{name}: {step}", f"{each['done']:,}", *_figures(each), str(each["failed"])])
    levels = [["alive beside", "create, call and delete: p50, ms", "p99, ms", "CPU of the platform, ms", "ratio"]]
    first = None
    for alive, each in found["levels"].items():
        first = first or each["server_cpu_ms"]
        ratio = f"{each['server_cpu_ms'] / first:.2f}"
        levels.append([f"{alive:,}", f"{each['p50']:.1f}", f"{each['p99']:.1f}", f"{each['server_cpu_ms']:.1f}", ratio])
    return f"{markdown(rows)}\n\n{markdown(levels)}"


def _figures(each: dict) -> list[str]:
    return [f"{each['per_second']:,.0f}", f"{each['p50']:.1f}", f"{each['p99']:.1f}", f"{each['server_cpu_ms']:.2f}"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instances", type=int, default=1000, help="made by all clients together")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--processes", type=int, default=4, help="that the clients are in")
    parser.add_argument("--calls", type=int, default=10, help="of each instance")
    parser.add_argument("--single", type=int, default=50, help="instances of one client alone")
    parser.add_argument("--alive", type=numbers, default="10,100,1000", help="beside which the cost is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    say("aenv: wheel and virtual environment")
    mine, before = ours(), machine()
    bench = Bench(args)
    with tempfile.TemporaryDirectory(prefix="ap-") as folder:  # short: a unix socket's path has 107 characters
        platform = Platform(mine, Path(folder))
        try:
            with platform.running():
                bench.run(mine, platform)
            left = platform.left()
        finally:
            subprocess.run(["chmod", "-R", "u+w", folder], check=False)  # bundles in the cache are read only
    after = machine()
    print(
        f"{before['date']}, {before['cores']} cores ({before['cpu']}), {before['kernel']}, "
        f"Python {before['python']}, load {before['load'][0]} before and {after['load'][0]} after\n"
    )
    print(tables(bench.found, args))
    used = bench.found["memory"]
    print(
        f"\nMemory with {args.instances:,} alive: USS {used['instances']['uss_mb']:.1f} MB and PSS "
        f"{used['instances']['pss_mb']:.1f} MB an instance, the server {used['server']['uss_mb']:.0f} MB "
        f"({used['server_before']['uss_mb']:.0f} MB before), the machine {used['grown_mb']['used'] / 1000:.1f} GB more."
    )
    print(f"Left behind: {', '.join(left) or 'nothing'}")
    if args.json:
        args.json.write_text(json.dumps({"machine": before, "after": after["load"], **bench.found}, indent=1))


if __name__ == "__main__":
    main()
