"""A process that dies while it records loses nothing that was finished, and leaves nothing that is half there."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.trajectory import EpisodeKey, TrajectoryStore
from aenv.trajectory.folder import StoreFolder

ROUNDS = int(os.environ.get("AENV_ROLLOUT_KILL_ROUNDS", "5"))
SEED = int(os.environ.get("AENV_KILL_SEED", "0")) or random.randrange(1, 1 << 32)

WRITER = """
import asyncio, sys
from pathlib import Path
from aenv.trajectory import EpisodeKey, TrajectoryStore

store = TrajectoryStore.open(Path(sys.argv[1]))
store.record(EpisodeKey("run", f"{sys.argv[2]}-open")).append("note", text="never ends")

async def episodes(lane):
    for sample in range(100000):
        recorder = store.record(EpisodeKey("run", f"{sys.argv[2]}-{lane}", sample), {"agent": {"name": "a"}})
        for step in range(5):
            recorder.append("message", role="assistant", content="x" * 2000)
        await recorder.finish("ok", 1.0)
        print(recorder.episode_id, flush=True)

async def main():
    await asyncio.gather(*(episodes(lane) for lane in range(8)))

asyncio.run(main())
"""


def finished_before_death(path: Path, name: str, rounds: random.Random) -> set[str]:
    output = path.with_suffix(f".{name}.out")
    with output.open("w") as out:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], stdout=out)
    enough = rounds.randrange(1, 120)
    while output.read_text().count("\n") < enough:
        assert writer.poll() is None
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    return {line for line in output.read_text().split("\n")[:-1] if line.startswith("ep-")}


@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_nothing_finished_is_lost_when_writers_are_killed(tmp_path: Path) -> None:
    print(f"AENV_KILL_SEED={SEED}")
    rounds = random.Random(SEED)
    done: set[str] = set()
    for number in range(ROUNDS):
        done |= finished_before_death(tmp_path / "store", f"w{number}", rounds)
    with TrajectoryStore.open(tmp_path / "store") as store:
        found = {each.id: each for each in store.all_episodes()}
        assert done <= found.keys()
        assert all(found[each].state == "ended" for each in done)
        assert sum(each.task.endswith("-open") for each in found.values() if each.state == "unfinished") == ROUNDS
        for each in found.values():
            kinds = [event["kind"] for event in store.events(each.id)]
            assert kinds[0] == "begin"
            assert (kinds[-1] == "end") == (each.state == "ended")
            assert each.state == "unfinished" or len(kinds) == 7
        assert len(store.finished("run")) == sum(each.final for each in found.values())
        assert list(StoreFolder(store.path).writers.iterdir()) == []


def test_a_torn_segment_is_cut_and_the_store_goes_on(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path) as store:
        for sample in range(3):
            store.record(EpisodeKey("run", "t", sample)).end("ok", 1)
        (segment,) = StoreFolder(tmp_path).segment_files().values()
    whole = segment.read_bytes()
    for torn in (b"\0" * 5000, whole[: len(whole) // 3 - 7], b"garbage"):
        segment.write_bytes(whole + torn)
        with TrajectoryStore.open(tmp_path) as store:
            assert segment.read_bytes() == whole
            assert len(list(store.all_episodes())) == 3


def test_members_that_were_not_indexed_are_found_again(tmp_path: Path) -> None:
    """As after a power cut that lost the last commits of the index, which is not synced, but not the segment."""
    with TrajectoryStore.open(tmp_path) as store:
        store.record(EpisodeKey("run", "t", 0)).end("ok", 1)
        store.close()
    saved = (tmp_path / "index.sqlite").read_bytes()
    with TrajectoryStore.open(tmp_path) as store:
        store.record(EpisodeKey("run", "t", 1)).end("ok", 0.5)
    (tmp_path / "index.sqlite").write_bytes(saved)
    with TrajectoryStore.open(tmp_path) as store:
        assert [each.score for each in store.all_episodes()] == [1.0, 0.5]


def test_a_torn_last_event_is_cut(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path) as store:
        recorder = store.record(EpisodeKey("run", "t"))
        recorder.append("note", text="kept")
        (live,) = StoreFolder(tmp_path).writers.glob("*/*.jsonl")
        with live.open("ab") as file:
            file.write(b'{"seq":2,"at":1,"kind":"no')
    with TrajectoryStore.open(tmp_path) as store:
        assert [event["kind"] for event in store.events(recorder.episode_id)] == ["begin", "note"]


FULL = """
import json, resource, sys
from pathlib import Path
from aenv.errors import StorageFull
from aenv.trajectory import EpisodeKey, TrajectoryStore

store = TrajectoryStore.open(Path(sys.argv[1]))
store.record(EpisodeKey("run", "before")).end("ok", 1.0)
recorder = store.record(EpisodeKey("run", "full"))
recorder.append("note", text="first")
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
said = []
for size in (limit, 2 * limit):
    try:
        recorder.append("note", text="x" * size)
    except StorageFull as error:
        said.append(error.code)
try:
    recorder.end("ok", 1.0)
except StorageFull as error:
    said.append("end")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
recorder.end("ok", 1.0)
print(json.dumps(said))
"""


@pytest.mark.parametrize("limit", [100, 4000])
def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files stands in for a full disk: a write comes back short, the next one fails."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), str(limit)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[:2] == ["storage_full", "storage_full"]
    with TrajectoryStore.open(tmp_path) as store:
        assert store.finished("run") == {("before", 0), ("full", 0)}
        (full,) = store.episodes(task="full")
        assert [event["kind"] for event in store.events(full.id)] == ["begin", "note", "end"]


SMALL = """
import json, os, sys
from pathlib import Path
from aenv.errors import StorageFull
from aenv.trajectory import EpisodeKey, TrajectoryStore

place = Path(sys.argv[1])
ballast = place / "ballast"
store = TrajectoryStore.open(place / "store")
ballast.write_bytes(b"x" * 2_000_000)
done, said = [], set()
recorder = None
for sample in range(100000):
    try:
        recorder = store.record(EpisodeKey("run", "t", sample))
        for step in range(20):
            recorder.append("note", text=os.urandom(1000).hex())
        recorder.end("ok", 1.0)
        done.append(recorder.episode_id)
    except StorageFull as error:
        said.add(error.code)
        break
ballast.unlink()
if not recorder.ended:
    recorder.append("note", text="there is space again")
recorder.end("ok", 1.0)
done.append(recorder.episode_id)
store.close()
with TrajectoryStore.open(place / "store") as store:
    found = {each.id: each for each in store.all_episodes()}
    whole = all(list(store.events(id))[-1]["kind"] == "end" for id in done)
    print(json.dumps([sorted(said), len(done), set(done) <= found.keys(), whole]))
"""


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    """The disk is a small one in memory, which only the program under test sees."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f"mount -t tmpfs -o size=6m tmpfs {tmp_path}"
    if subprocess.run([*unshare, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine does not let its users mount a file system of their own")
    command = [*unshare, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", SMALL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    said, count, found, whole = json.loads(done.stdout)
    assert said == ["storage_full"]
    assert count > 10
    assert (found, whole) == (True, True)


def test_recording_many_long_episodes_keeps_memory_flat(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from aenv.trajectory import EpisodeKey, TrajectoryStore
store = TrajectoryStore.open(Path(sys.argv[1]))
def some(first, count):
    for sample in range(first, first + count):
        recorder = store.record(EpisodeKey("run", "t", sample))
        for step in range(20):
            recorder.append("message", role="assistant", content="word " * 4000)
        recorder.end("ok", 1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = some(0, 50)
print(some(50, 400) - before)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 * 1024  # kB; the events were 160 MB
