"""Environment time as a share of a training step, and rollouts/s: TRL with ours, beside TRL with OpenEnv's echo.

    python benchmarks/training/run.py --openenv CHECKOUT [--rounds 3] [--steps 20] [--json FILE]

Needs a package index, and a checkout of https://github.com/meta-pytorch/OpenEnv for its echo environment. TRL, OpenEnv
and this repository are installed in one environment below `.bench/` (once; some gigabytes). The trainer, the model of
100,000 random weights, the tokenizer, the batch and the seed are the same; a round runs each environment once, the
order alternates, and the median of the rounds is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FOLDER = ROOT / ".bench" / "training"
TORCH = "torch==2.13.0"
PATIENCE = 120.0
NAMES = ("aenv", "openenv")
ROWS = (
    ("a step", "step_ms", "ms", False),
    ("of it in the environment", "environment_ms", "ms", False),
    ("share of the environment", "share", "%", False),
    ("rollouts/s of the training", "rollouts_per_second", "", True),
    ("rollouts/s of the environment alone", "environment_rollouts_per_second", "", True),
)
"""What is shown, its unit, and whether more is better."""


def installed() -> Path:
    """Return the interpreter of the environment; it is made where it is missing."""
    python = FOLDER / "bin" / "python"
    done = FOLDER / "installed"
    if not done.is_file():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        wanted = [TORCH, "-e", f"{ROOT}[trl]", "openenv"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
        done.touch()
    return python


@contextmanager
def echo_server(python: Path, checkout: Path) -> Iterator[str]:
    """OpenEnv's echo environment as its own server runs it; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "uvicorn", "echo_env.server.app:app", "--port", str(port), "--log-level", "warning"]
    variables = {**os.environ, "PYTHONPATH": str(checkout / "envs"), "MAX_CONCURRENT_ENVS": "1000"}
    server = subprocess.Popen(list(map(str, command)), env=variables)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("OpenEnv's echo server did not start") from None
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(30)


def trained(python: Path, name: str, url: str, steps: int) -> dict[str, Any]:
    """Train with an environment in a process of its own, and return what it measured."""
    command = [python, HERE / "loop.py", name, "--url", url, "--steps", str(steps)]
    done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def own_platform() -> Iterator[None]:
    """Keep the local platform in a folder of its own, and stop it in the end."""
    from aenv.client import local_platforms

    with tempfile.TemporaryDirectory(prefix="aebt", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ.update({"AENV_RUNTIME_DIR": f"{folder}/run", "XDG_DATA_HOME": f"{folder}/data"})
        try:
            yield
        finally:
            for where in local_platforms.all_of_user(local_platforms.LocalPaths(Path(folder) / "run")):
                local_platforms.stop(where)


def table(rounds: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians as a table, with ratios: how many times worse OpenEnv's is."""
    lines = ["| | aenv | OpenEnv | ratio |", "|---|---|---|---|"]
    for title, key, unit, more_is_better in ROWS:
        ours, theirs = (statistics.median(each[key] for each in rounds[name]) for name in NAMES)
        ratio = ours / theirs if more_is_better else theirs / ours
        scale = 100 if unit == "%" else 1
        cells = [f"{scale * value:.0f}{f' {unit}' if unit else ''}" for value in (ours, theirs)]
        lines.append(f"| {title} | {cells[0]} | {cells[1]} | **{ratio:.2f}** |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--openenv", type=Path, required=True, help="checkout of OpenEnv")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write all rounds here")
    args = parser.parse_args()
    python = installed()
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    with own_platform(), echo_server(python, args.openenv.resolve()) as url:
        for number in range(args.rounds):
            for name in NAMES if number % 2 == 0 else reversed(NAMES):
                found = trained(python, name, url, args.steps)
                print(f"{name}: {found}", file=sys.stderr, flush=True)
                rounds[name].append(found)
    print(f"load {os.getloadavg()[0]:.1f}\n\n{table(rounds)}")
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
