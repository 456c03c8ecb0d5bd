"""What a shell command costs: mini-terminal beside SWE-ReX, in one run on one machine.

    python benchmarks/shell/run.py [--runs 100] [--sessions 16] [--rounds 3] [--json FILE]

Needs Linux and uv. Rounds go around all peers, so that a busy minute of the machine hits all of them.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path[0] = str(HERE.parent / "calls")  # its helpers, and its run.py before our own

import process  # noqa: E402
from peer import OURS, Peer, prepare  # noqa: E402
from report import _markdown  # noqa: E402
from run import machine, say, stop  # noqa: E402

REX = Peer(
    "swe-rex",
    ("swe-rex==1.4.0", "aiohttp"),  # which its client needs and does not ask for
    package="swe-rex",
    server=("-m", "swerex.server", "--host", "127.0.0.1", "--port", "{port}", "--auth-token", "bench"),
    client=str(HERE / "swerex_client.py"),
    imports=("import swerex", "from swerex.runtime.remote import RemoteRuntime"),
)
ROWS = {
    "open": "a session, to its first answer, ms",
    "echo": "a builtin (`echo`), ms",
    "program": "a program (`/bin/false`), ms",
    "script": "40 lines, 2,000 characters, ms",
    "megabyte": "1 MB of output, ms",
    "rate": "commands/s, {sessions} sessions at once",
}
PEERS = {
    "aenv": (OURS, "mini-terminal, sandboxed"),
    "remote": (REX, f"{REX.requirement[0]}, its server"),
    "inside": (REX, f"{REX.requirement[0]}, in the same process"),
}
Results = dict[str, dict[str, list]]


@contextmanager
def place(name: str) -> Iterator[str]:
    """Where the client finds the peer: a folder for a local platform, an address, or nothing."""
    if name == "aenv":
        with tempfile.TemporaryDirectory(prefix="aenv-b-", dir="/tmp") as folder:
            try:
                yield folder
            finally:
                end = "import sys; from aenv.client import local_lease as l; l.stop(l.LocalPaths(l.Path(sys.argv[1])))"
                subprocess.run([OURS.python, "-c", end, folder], check=False)
    elif name == "remote":
        with process.serving(REX) as server:
            yield server.url
    else:
        yield "-"


def drive(name: str, args: argparse.Namespace) -> dict:
    peer, _ = PEERS[name]
    script = HERE / ("aenv_client.py" if peer is OURS else "swerex_client.py")
    with place(name) as where:
        command = [peer.python, script, where, f"--runs={args.runs}", f"--sessions={args.sessions}"]
        with process._running(command, subprocess.PIPE, subprocess.PIPE) as running:
            output, errors = running.communicate(timeout=600)
            if running.returncode:
                raise process.Failed((errors.decode().strip().splitlines() or ["it printed nothing"])[-1])
    return json.loads(output.splitlines()[-1])


def table(results: Results, sessions: int) -> str:
    rows = [["", *(title for _, title in PEERS.values())]]
    for kind, title in ROWS.items():
        ours = [s for s in results["aenv"].get(kind, []) if not isinstance(s, str)]
        row = [title.format(sessions=sessions)]
        for name in PEERS:
            row.append(cell(kind, results[name].get(kind, []), ours if name != "aenv" else []))
        rows.append(row)
    return _markdown(rows)


def cell(kind: str, samples: list, ours: list) -> str:
    good = sorted(sample for sample in samples if not isinstance(sample, str))
    if not good:
        return f"failed: {samples[0] if samples else 'not measured'}"
    middle = statistics.median(good)
    if kind == "rate":
        text, ratio = f"{middle:,.0f}", statistics.median(ours) / middle if ours else 0
    else:
        text = f"{middle:.2f} / {good[int(len(good) * 0.99)]:.2f}" if len(good) > 10 else f"{middle:.1f}"
        ratio = middle / statistics.median(ours) if ours else 0
    return f"{text}, **{ratio:.0f}x**" if ratio else text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="commands of each kind and round")
    parser.add_argument("--sessions", type=int, default=16, help="how many at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    for peer in (OURS, REX):
        prepare(peer)
    before = machine()
    results: Results = {name: {} for name in PEERS}
    for number in range(args.rounds):
        for name in PEERS:
            say(f"{name}: round {number + 1}")
            try:
                found = drive(name, args)
            except process.Failed as why:
                found = {kind: [str(why)] for kind in ROWS}
            for kind, samples in found.items():
                results[name].setdefault(kind, []).extend(samples if isinstance(samples, list) else [samples])
    print(f"{before['date']}, {before['cores']} cores, Python {before['python']}, load {before['load'][0]} before\n")
    print(table(results, args.sessions))
    print("\np50 / p99. Bold: how many times worse than ours.")
    if args.json:
        args.json.write_text(json.dumps({"machine": before, **results}, indent=1))


if __name__ == "__main__":
    main()
