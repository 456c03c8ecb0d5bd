"""The store of trajectories: what is recorded can be read again, by any process, page by page."""

from __future__ import annotations

import asyncio
import gzip
import json
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import NotFound, UsageError
from aenv.trajectory import EpisodeKey, EpisodeRecorder, RunRecord, TrajectoryStore
from aenv.trajectory.events import UNGRADED, new_id, score_of
from aenv.trajectory.folder import StoreFolder


def record(store: TrajectoryStore, task: str = "t", sample: int = 0, **begin: Any) -> EpisodeRecorder:
    recorder = store.record(EpisodeKey("run", task, sample), {"environment": {"name": "toy", "version": "1"}, **begin})
    recorder.append("message", role="user", content="Add 1 and 2.")
    recorder.append("message", role="assistant", content="", usage={"prompt_tokens": 7, "completion_tokens": 3})
    recorder.append("call", id="c1", tool="add", arguments={"a": 1, "b": 2}, of="tool")
    recorder.append("result", id="c1", content=[{"type": "text", "text": "3"}], is_error=False, seconds=0.01)
    return recorder


def test_an_episode_is_read_back_as_it_was_recorded(store: TrajectoryStore) -> None:
    recorder = record(store, seed=7, model="m", labels={"a": "b"}, parents=[{"kind": "retry", "episode": "ep-0"}])
    recorder.end("ok", 1.0, cost=0.5)
    summary = store.episode(recorder.episode_id)
    assert (summary.task, summary.sample, summary.state, summary.outcome) == ("t", 0, "ended", "ok")
    assert (summary.reward, summary.score, summary.steps, summary.cost) == (1.0, 1.0, 1, 0.5)
    assert summary.tokens == {"input": 7, "output": 3}
    assert (summary.environment["name"], summary.seed, summary.model) == ("toy", 7, "m")
    assert summary.parents == ({"kind": "retry", "episode": "ep-0"},)
    events = list(store.events(recorder.episode_id))
    assert [event["kind"] for event in events] == ["begin", "message", "message", "call", "result", "end"]
    assert [event["seq"] for event in events] == list(range(6))
    assert summary.events == 6
    assert events[3]["arguments"] == {"a": 1, "b": 2}
    assert events[0]["versions"]["aenv"]
    assert [event["kind"] for event in store.events(recorder.episode_id, start=3, limit=2)] == ["call", "result"]


def test_a_running_episode_can_be_read_while_it_is_recorded(store: TrajectoryStore) -> None:
    recorder = record(store)
    with TrajectoryStore.open(store.path) as other:
        while not other.episodes():
            pass
        assert other.episode(recorder.episode_id).state == "running"
        assert len(list(other.events(recorder.episode_id))) == 5
        recorder.append("note", text="more")
        assert len(list(other.events(recorder.episode_id))) == 6
    assert store.episode(recorder.episode_id).state == "running"  # opening a store does not touch what is alive


def test_an_episode_without_an_end_is_unfinished_after_its_store_closes(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path) as store:
        recorder = record(store)
    with TrajectoryStore.open(tmp_path) as store:
        assert store.episode(recorder.episode_id).state == "unfinished"
        assert len(list(store.events(recorder.episode_id))) == 5
        assert store.finished("run") == set()
    assert list((tmp_path / "writers").iterdir()) == []


def test_an_absent_reward_is_never_a_number(store: TrajectoryStore) -> None:
    for sample, outcome in enumerate(sorted(UNGRADED)):
        recorder = record(store, sample=sample)
        with pytest.raises(UsageError, match="has no reward"):
            recorder.end(outcome, 0.0)  # type: ignore[arg-type]
        recorder.end(outcome)  # type: ignore[arg-type]
        assert store.episode(recorder.episode_id).score is None
    with pytest.raises(UsageError, match="invalid outcome"):
        record(store, sample=9).end("fine")  # type: ignore[arg-type]


def test_a_sample_has_one_final_episode(store: TrajectoryStore) -> None:
    first, second, third = (record(store) for _ in range(3))
    first.end("infra", final=False)
    second.end("ok", 1.0)
    third.end("ok", 0.0)
    assert [store.episode(each.episode_id).final for each in (first, second, third)] == [False, True, False]
    assert store.finished("run") == {("t", 0)}


def test_nothing_is_added_to_an_ended_episode(store: TrajectoryStore) -> None:
    recorder = record(store)
    recorder.end("ok", 1)
    with pytest.raises(UsageError, match="has ended"):
        recorder.append("note", text="late")
    with pytest.raises(UsageError, match="invalid kind"):
        record(store).append("remark", text="?")


def test_a_closed_store_records_nothing(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path) as store:
        recorder = record(store)
    with pytest.raises(UsageError, match="store is closed"):
        recorder.append("note", text="late")


def test_an_episode_is_stored_though_its_task_is_cancelled_while_it_waits(store: TrajectoryStore) -> None:
    async def main() -> None:
        recorders = [store.record(EpisodeKey("r", "t", sample)) for sample in range(20)]
        waiting = [asyncio.ensure_future(recorder.finish("ok", 1.0)) for recorder in recorders]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await store.record(EpisodeKey("r", "t", 20)).finish("ok", 1.0)

    asyncio.run(main())
    assert store.finished("r") == {("t", sample) for sample in range(21)}


def test_pages_follow_the_last_id(store: TrajectoryStore) -> None:
    for number in range(25):
        record(store, f"t{number % 3}", number).end("ok" if number % 2 else "policy", number / 25)
    ids = [each.id for each in store.all_episodes()]
    assert len(ids) == 25
    first = store.episodes(limit=10)
    second = store.episodes(limit=10, after=first[-1].id)
    assert [each.id for each in (*first, *second)] == ids[:20]
    assert [each.id for each in store.episodes(limit=25, newest_first=True)] == ids[::-1]
    assert [each.id for each in store.episodes(newest_first=True, limit=5, after=ids[10])] == ids[9:4:-1]
    assert len(store.episodes(task="t1")) == 8
    assert {each.outcome for each in store.episodes(outcome="policy")} == {"policy"}
    assert len(store.episodes("run", "t2", "ok")) == 4
    assert store.episodes(run="none") == []
    assert store.episodes(task="none") == []
    assert store.counts("run") == {("ended", "ok"): 12, ("ended", "policy"): 13}


def test_a_run_is_stored_once(store: TrajectoryStore) -> None:
    run = store.begin_run(RunRecord("r1", "first", {"samples": 4}, {"team": "x"}))
    again = store.begin_run(RunRecord("r1", "second", {"samples": 5}))
    assert again == run
    assert store.run("r1").request == {"samples": 4}
    store.begin_run(RunRecord("r2"))
    assert [each.id for each in store.runs()] == ["r2", "r1", "demo"]
    with pytest.raises(NotFound):
        store.run("r3")


def test_an_episode_is_found_by_the_beginning_of_its_id(store: TrajectoryStore) -> None:
    one, two = record(store), record(store, sample=1)
    one.end("ok", 1)
    two.end("ok", 1)
    assert store.episode(one.episode_id[:-2]).id == one.episode_id
    with pytest.raises(NotFound, match="ambiguous"):
        store.episode("ep-")
    with pytest.raises(NotFound, match="does not exist"):
        store.episode("ep-nothing")


def test_segments_are_gzip_files_that_other_tools_read(store: TrajectoryStore) -> None:
    ids = []
    for sample in range(3):
        recorder = record(store, sample=sample)
        recorder.end("ok", 1)
        ids.append(recorder.episode_id)
    (segment,) = StoreFolder(store.path).segment_files().values()
    with gzip.open(segment, "rt", encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    assert [event["episode"] for event in events if event["kind"] == "begin"] == ids


def test_a_lost_index_is_built_again_from_the_segments(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path) as store:
        for sample in range(5):
            record(store, sample=sample).end("ok", sample / 5)
        before = list(store.all_episodes())
    for path in tmp_path.glob("index.sqlite*"):
        path.unlink()
    with TrajectoryStore.open(tmp_path) as store:
        assert list(store.all_episodes()) == before
        assert len(list(store.events(before[0].id))) == 6


def test_text_of_any_kind_survives(store: TrajectoryStore) -> None:
    recorder = store.record(EpisodeKey("run", "t"))
    odd = ["line\nbreak", "\u2028 \x00 é 🦆", "a lone surrogate \udcff", {"deep": [1, {"x": None}]}]
    for each in odd:
        recorder.append("note", data=each, number=float("nan"), path=Path("/x"), raw=b"123")
    recorder.end("ok", {"score": 0.25, "parts": {"a": 1}})
    events = list(store.events(recorder.episode_id))
    assert [event["data"] for event in events[1:3]] == odd[:2]
    assert events[4]["data"] == odd[3]
    assert (events[1]["number"], events[1]["path"], events[1]["raw"]) == (None, "/x", "<3 bytes>")
    assert store.episode(recorder.episode_id).score == 0.25


def test_rewards_as_one_number() -> None:
    numbers = [1, True, {"reward": 0.5}, {"total": 2, "a": 1}, {"a": 1}]
    assert [score_of(each) for each in numbers] == [1.0, 1.0, 0.5, 2.0, 1.0]
    assert [score_of(each) for each in ({"a": 1, "b": 2}, {"score": "x"}, None, "x", float("nan"))] == [None] * 5


def test_ids_are_unique_and_sort_by_time() -> None:
    ids = [new_id() for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert ids[0][:13] <= ids[-1][:13]


def test_many_threads_and_coroutines_record_at_once(store: TrajectoryStore) -> None:
    def work(number: int) -> None:
        for sample in range(20):
            record(store, f"thread-{number}", sample).end("ok", 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()

    async def together() -> None:
        await asyncio.gather(*(record(store, "loop", sample).finish("ok", 1) for sample in range(100)))

    asyncio.run(together())
    for thread in threads:
        thread.join()
    assert len(store.finished("run")) == 180


def _record_many(path: str, number: int) -> None:
    with TrajectoryStore.open(Path(path)) as store:
        for sample in range(25):
            record(store, f"process-{number}", sample).end("ok", 1)


def test_many_processes_record_into_one_store(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_record_many, args=(str(tmp_path), number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    with TrajectoryStore.open(tmp_path) as store:
        found = list(store.all_episodes())
        assert len(found) == 100
        assert all(len(list(store.events(each.id))) == 6 for each in found)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_records_for_itself(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path) as store:
        record(store, "parent").end("ok", 1)
        child = os.fork()
        if child == 0:
            record(store, "child").end("ok", 1)
            store.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        record(store, "parent", 1).end("ok", 1)
        assert store.finished("run") == {("parent", 0), ("parent", 1), ("child", 0)}


# --- prune


def test_pruning_removes_episodes_and_gives_space_back(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path) as store:
        kept = [record(store, "keep", sample) for sample in range(3)]
        for recorder in kept:
            recorder.end("ok", 1)
        for sample in range(30):
            record(store, "drop", sample).end("policy", 0)
        running = record(store, "keep", 9)
        held = store.prune(outcome="policy", dry_run=True)
        assert held.episodes == 30
        assert len(list(store.all_episodes())) == 34
    with TrajectoryStore.open(tmp_path) as store:
        before = sum(path.stat().st_size for path in StoreFolder(tmp_path).segment_files().values())
        assert store.prune(outcome="policy") == held
        after = sum(path.stat().st_size for path in StoreFolder(tmp_path).segment_files().values())
        assert after == before - held.bytes
        assert {each.id for each in store.all_episodes()} == {each.episode_id for each in (*kept, running)}
        assert [len(list(store.events(each.episode_id))) for each in kept] == [6, 6, 6]
        record(store, "more").end("ok", 1)
    with TrajectoryStore.open(tmp_path) as store:
        assert len(list(store.all_episodes())) == 5
        store.prune()
        assert StoreFolder(tmp_path).segment_files() == {}
        assert store.runs() == []


def test_pruning_leaves_what_is_running_and_what_is_newer(store: TrajectoryStore) -> None:
    old, running = record(store, "old"), record(store, "running")
    old.end("ok", 1)
    moment = store.episode(old.episode_id).began
    assert store.prune(before=moment).episodes == 0
    assert store.prune().episodes == 1
    running.end("ok", 1)
    assert [each.task for each in store.all_episodes()] == ["running"]


def test_pruning_while_others_record_loses_nothing(tmp_path: Path) -> None:
    kept: list[str] = []

    def work() -> None:
        with TrajectoryStore.open(tmp_path) as store:
            for sample in range(150):
                record(store, "drop", sample).end("policy", 0)
                recorder = record(store, "keep", sample)
                recorder.end("ok", 1)
                kept.append(recorder.episode_id)

    writers = [threading.Thread(target=work) for _ in range(2)]
    for writer in writers:
        writer.start()
    removed = 0
    with TrajectoryStore.open(tmp_path) as store:
        while any(writer.is_alive() for writer in writers):
            removed += store.prune(task="drop").episodes
            for id in kept[-3:]:
                assert len(list(store.events(id))) == 6
        removed += store.prune(task="drop").episodes
        assert removed == 300
        assert {each.id for each in store.all_episodes()} == set(kept)
        assert all(len(list(store.events(id))) == 6 for id in kept)
    with TrajectoryStore.open(tmp_path) as store:
        assert {each.id for each in store.all_episodes()} == set(kept)


@pytest.mark.attack("trajectory")
def test_text_that_utf8_cannot_hold_does_not_keep_other_episodes_from_being_stored(store: TrajectoryStore) -> None:
    """JSON can name a lone surrogate, so a model, an agent or an environment can say one."""
    odd = json.loads('"a\\ud800b"')
    recorder = store.record(EpisodeKey("demo", odd), {"agent": {"name": odd}, "labels": {odd: odd}})
    recorder.append("message", role="assistant", content=odd)
    recorder.end("ok", {"reward": 1.0, "text": odd}, error=odd)
    after = store.record(EpisodeKey("demo", "plain"))
    after.end("ok", 1.0)
    found = {each.id: each for each in store.all_episodes("demo")}
    assert (found[after.episode_id].score, found[after.episode_id].state) == (1.0, "ended")
    assert (found[recorder.episode_id].task, found[recorder.episode_id].error) == ("a?b", "a?b")
    assert [event.get("content") for event in store.events(recorder.episode_id)][1] == "a?b"
