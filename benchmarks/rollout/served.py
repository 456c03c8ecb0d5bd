"""What an episode of a served rollout costs: 1,000 through ``POST /rollouts``, beside the local runner.

    python benchmarks/rollout/served.py [--episodes 1000] [--concurrency 16]

The same episodes by the same agent (`gold`: two tool calls) twice: by the runner in this process with a local platform,
and by a platform (``aenv serve``) that streams the results here and keeps the episodes. Printed: episodes per second,
and CPU per episode in this process and in the platform with its instances.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from run import SOURCE, Meter

from aenv.client import local_platforms
from aenv.client.platform_client import ApiClient
from aenv.rollout import rollout
from aenv.trajectory import TrajectoryStore

SOLUTION = [{"tool": "add", "arguments": {"number": number}} for number in (1, 2)]
WARM = 50


def tasks(count: int) -> list[dict[str, Any]]:
    given = {"instruction": "Add 1 and 2.", "reward": {"arguments": {"wanted": 3}}, "solution": SOLUTION}
    return [{"id": f"t{number}", **given} for number in range(count)]


def write_project(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "adding.py").write_text(SOURCE)
    (folder / "config.json").write_text(json.dumps({"name": "adding", "version": "1.0.0"}))
    return folder


async def local(project: Path, count: int, concurrency: int, store: TrajectoryStore) -> dict[str, float]:
    """Run the episodes here, with a local platform."""
    meter = Meter()
    async for result in rollout(str(project), agent="gold", tasks=tasks(count), concurrency=concurrency, store=store):
        assert (result.outcome, result.reward) == ("ok", 1.0), result
    return meter.read(count)


async def served(url: str, count: int, concurrency: int, *, trace: bool) -> dict[str, float]:
    """Let a platform run the episodes, and check that it keeps them."""
    meter, done = Meter(), 0
    async with ApiClient(url) as api:
        async for result in api.rollouts.run(
            environment="adding@1.0.0", agent="gold", tasks=tasks(count), concurrency=concurrency, trace=trace
        ):
            assert (result.outcome, result.reward) == ("ok", 1.0), result
            done += 1
        reading = meter.read(done)
        newest = (await api.trajectories.runs(limit=1)).items[0]
        assert newest.episodes == {"ok": count}, newest
    return reading


@contextmanager
def platform(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "aenv.cli", "serve", "--port", "0", "--one-port", "--no-auth", "-o", "json"]
    with Path(folder, "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        lines.append(process.stdout.readline())
        assert lines[-1], Path(folder, "serve.log").read_text()
    try:
        yield json.loads("".join(lines))["url"]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=16)
    given = parser.parse_args()
    count, at_once = given.episodes, given.concurrency
    with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        project = write_project(folder / "adding")
        own = {"AENV_RUNTIME_DIR": name, "AENV_LOCAL_LINGER": "5", "AENV_DATA_DIR": f"{name}/data", "TMPDIR": name}
        os.environ |= own
        found: dict[str, Any] = {}
        with TrajectoryStore.open(folder / "store") as store:
            asyncio.run(local(project, WARM, at_once, store))
            found["local runner"] = asyncio.run(local(project, count, at_once, store))
        for where in local_platforms.all_of_user(local_platforms.LocalPaths(folder)):
            local_platforms.stop(where)
        push = [sys.executable, "-m", "aenv.cli", "push", "-w", str(project), "--no-load", "--no-lock", "--public"]
        subprocess.run(push, check=True, capture_output=True)
        with platform(folder) as url:
            asyncio.run(served(url, WARM, at_once, trace=True))
            found["served, with events"] = asyncio.run(served(url, count, at_once, trace=True))
            found["served, results only"] = asyncio.run(served(url, count, at_once, trace=False))
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
