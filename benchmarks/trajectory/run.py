"""What recording, opening and listing cost in a store of 1,000 and of 1,000,000 episodes.

    python benchmarks/trajectory/run.py [--sizes 1000,1000000] [--events 8] [--writers 2] [--folder DIR] [--json FILE]

Every episode is recorded through the public API, by processes that record several episodes at a time: a begin, some
messages, calls and results of about 300 bytes each, and an end that is durable. Nothing is kept in memory between
episodes; the peak of each process is reported. Reading is measured in a fresh process.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aenv.trajectory import EpisodeKey, RunRecord, TrajectoryStore

LANES = 64
TASKS = 1000
TEXT = "the agent looks for a file reads it changes two lines runs tests and says what it found in them"


def record(path: Path, first: int, count: int, events: int) -> None:
    chance = random.Random(first)
    texts = [" ".join(chance.choices(TEXT.split(), k=55)) for _ in range(256)]
    waiting = iter(range(first, first + count))

    async def lane(store: TrajectoryStore) -> None:
        for number in waiting:
            key = EpisodeKey(f"run-{number // 100_000}", f"task-{number % TASKS}", number // TASKS)
            begin = {"environment": {"name": "bench", "version": "1.0"}, "agent": {"name": "scripted"}, "seed": number}
            recorder = store.record(key, begin)
            for step in range(events - 2):
                recorder.append("message", role="assistant", content=texts[(number + step) % 256])
            await recorder.finish("ok" if number % 5 else "policy", float(number % 3 == 0))

    async def lanes(store: TrajectoryStore) -> None:
        await asyncio.gather(*(lane(store) for _ in range(LANES)))

    with TrajectoryStore.open(path) as store:
        asyncio.run(lanes(store))


def fill(path: Path, size: int, events: int, writers: int) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    share = size // writers
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=record, args=(path, each * share, share, events)) for each in range(writers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    disk = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return {
        "episodes per second": size / seconds,
        "CPU per episode, ms": cpu / size * 1000,
        "memory of a writer, MB": after.ru_maxrss / 1024,
        "disk per episode, bytes": disk / size,
    }


def timed(work: Callable[[], Any], runs: int = 50) -> float:
    """Return the median in milliseconds."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def read(path: Path, size: int, answer: Any) -> None:
    def reopen() -> None:
        TrajectoryStore.open(path).close()

    chance = random.Random(7)
    with TrajectoryStore.open(path) as store:
        run = store.runs(limit=1)[0].id
        middle = store.episodes(run=f"run-{size // 200_000}", limit=min(1000, size // 2))[-1].id
        ids = [each.id for each in store.episodes(limit=200, newest_first=True)]
        answer.send(
            {
                "open, ms": timed(reopen),
                "first page of 100, ms": timed(lambda: store.episodes(newest_first=True)),
                "page in the middle, ms": timed(lambda: store.episodes(after=middle)),
                "page of a run, ms": timed(lambda: store.episodes(run=run, after=None)),
                "page of a run and an outcome, ms": timed(lambda: store.episodes(run=run, outcome="policy")),
                "page of a task, ms": timed(lambda: store.episodes(task=f"task-{chance.randrange(TASKS)}")),
                "one episode with its events, ms": timed(lambda: list(store.events(chance.choice(ids)))),
                "memory of the reader, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )


def measure(folder: Path, size: int, events: int, writers: int) -> dict[str, float]:
    path = folder / str(size)
    with TrajectoryStore.open(path) as store:
        for number in range(max(1, size // 100_000)):
            store.begin_run(RunRecord(f"run-{number}"))
    figures = fill(path, size, events, writers)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    reader = spawn.Process(target=read, args=(path, size, there))
    reader.start()
    figures |= here.recv()
    reader.join()
    shutil.rmtree(path)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,1000000")
    parser.add_argument("--events", type=int, default=8)
    parser.add_argument("--writers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [int(each) for each in options.sizes.split(",")]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = {size: measure(Path(folder), size, options.events, options.writers) for size in sizes}
    print(f"| | {' | '.join(f'{size:,}' for size in sizes)} |\n|---|{'---|' * len(sizes)}")
    for name in results[sizes[0]]:
        print(f"| {name} | {' | '.join(f'{results[size][name]:,.2f}' for size in sizes)} |")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
