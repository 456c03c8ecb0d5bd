"""What it costs to fork, checkpoint and rewind a running instance, by the memory and files that it has written.

    python benchmarks/fork/run.py [--memory 16,64,256] [--files 0,100] [--runs 20] [--many 64] [--json FILE]

Needs Linux, and the package in the interpreter that runs this. The local platform runs in a folder of its own.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

CODE = """
from pathlib import Path
from aenv import register_tool

kept = []

@register_tool
def fill(megabytes: int, files: int) -> int:
    kept.append(bytearray(b"x" * (megabytes << 20)))
    for number in range(files):
        (Path("/tmp") / f"file-{number}").write_bytes(b"x" * (1 << 20))
    return megabytes

@register_tool
def ping() -> int:
    return len(kept)
"""


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def show(samples: list[float]) -> str:
    """p50 / p95 in milliseconds."""
    ordered = sorted(samples)
    return f"{statistics.median(ordered):.1f} / {ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]:.1f}"


async def measure(project: Path, memory: int, files: int, runs: int, many: int) -> dict[str, list[float]]:
    from aenv import Environment
    from aenv.errors import AEnvError

    found: dict[str, list[float]] = {name: [] for name in ("fork", "checkpoint", "rewind", "many")}
    async with Environment(str(project), forkable=True) as env:
        await env.call_tool("fill", {"megabytes": memory, "files": files}, timeout=120)
        for _ in range(runs):
            began = time.perf_counter()
            (child,) = await env.fork(1)
            if isinstance(child, AEnvError):
                raise child
            assert (await child.call_tool("ping", {})).data == 1
            found["fork"].append((time.perf_counter() - began) * 1000)
            await child.release()
            began = time.perf_counter()
            checkpoint = await env.checkpoint()
            found["checkpoint"].append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            await env.rewind(checkpoint)
            found["rewind"].append((time.perf_counter() - began) * 1000)
            assert (await env.call_tool("ping", {})).data == 1
            await env.delete_checkpoint(checkpoint)
        for _ in range(2 if many else 0):
            began = time.perf_counter()
            children = await env.fork(many)
            await asyncio.gather(*(child.call_tool("ping", {}) for child in children))
            found["many"].append((time.perf_counter() - began) * 1000)
            await asyncio.gather(*(child.release() for child in children))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--memory", type=numbers, default="16,64,256", help="MB that the instance has written")
    parser.add_argument("--files", type=numbers, default="0,100", help="files of 1 MB each that it has written")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--many", type=int, default=64, help="forks at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aenv-b-", dir="/tmp") as folder:
        os.environ["AENV_RUNTIME_DIR"] = folder
        os.environ.setdefault("AENV_SERVE_MAX_INSTANCES", str(given.many + 8))
        from aenv.client import local_platforms

        project = Path(folder, "forked.py")
        project.write_text(CODE)
        everything = []
        try:
            print(
                f"| memory, MB | files of 1 MB | fork(1) to its answer, ms | checkpoint | rewind | fork({given.many}) |"
            )
            print("|---|---|---|---|---|---|")
            for memory in given.memory:
                for files in given.files:
                    many = given.many if not files and memory <= 64 else 0
                    found = asyncio.run(measure(project, memory, files, given.runs, many))
                    everything.append({"memory": memory, "files": files, **found})
                    cells = [show(found[name]) if found[name] else "–" for name in ("fork", "checkpoint", "rewind")]
                    last = f"{min(found['many']):.0f}" if found["many"] else "–"
                    print(f"| {memory} | {files} | {' | '.join(cells)} | {last} |", flush=True)
        finally:
            for where in local_platforms.all_of_user(local_platforms.LocalPaths(Path(folder))):
                local_platforms.stop(where)
    if given.json:
        given.json.write_text(json.dumps(everything))
    return 0


if __name__ == "__main__":
    sys.exit(main())
