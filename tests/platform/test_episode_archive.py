"""The archive of episodes: complete or absent, windowed reads, owners apart, and nothing left behind."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aenv.errors import Conflict, InvalidArguments, NotFound, QuotaExceeded, TooLarge, Unavailable
from aenv.platform.trajectories import episode_archive, episode_parts
from aenv.platform.trajectories.archive_index import EpisodeSelection
from aenv.platform.trajectories.episode_archive import EpisodeArchive
from aenv.platform.trajectories.rollout_archiver import RolloutArchiver
from aenv.schema.trajectories import RunUpload, StoredEpisode
from aenv.storage.blobs import DiskBlobs
from aenv.storage.sqlite import SqliteStore
from aenv.trajectory import EpisodeKey, TrajectoryStore
from tests.conftest import run

NOW = 1_800_000_000.0


def events(id: str, count: int = 2, *, ended: bool = True, **begin: Any) -> list[dict[str, Any]]:
    first = {
        "seq": 0, "at": NOW, "kind": "begin", "episode": id, "run": "run-1", "task": {"id": "t"}, "sample": 0,
        "attempt": 0, **begin,
    }  # fmt: skip
    notes = [{"seq": n, "at": NOW + n, "kind": "note", "text": f"note {n}"} for n in range(1, count)]
    end = {"seq": count, "at": NOW + count, "kind": "end", "outcome": "ok", "reward": 1.0, "final": True, "steps": 3}
    return [first, *notes, *([end] if ended else [])]


def body(lines: list[Any]) -> AsyncIterator[bytes]:
    async def pieces() -> AsyncIterator[bytes]:
        data = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines).encode()
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    return pieces()


class Archive(EpisodeArchive):
    """An archive in a folder, whose clock can be moved."""

    def __init__(self, folder: Path, quota: int = 0) -> None:
        self.disk = DiskBlobs(folder / "blobs")
        self.records = SqliteStore(folder / "records.db")
        self.now = NOW
        super().__init__(self.records, self.disk, quota=quota, clock=lambda: self.now)

    async def add(self, owner: str, id: str, count: int = 2, **more: Any) -> StoredEpisode:
        return (await self.put(owner, id, body(events(id, count, **more)), compressed=False))[0]

    async def blobs_on_disk(self) -> int:
        return len([each async for each in self.disk.walk()])


@asynccontextmanager
async def opened(folder: Path, quota: int = 0) -> AsyncIterator[Archive]:
    archive = Archive(folder, quota)
    try:
        yield archive
    finally:
        await archive.records.close()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_parts, "PART_BYTES", 2000)


@pytest.mark.usefixtures("small_parts")
def test_any_window_of_a_long_episode_is_read_from_the_parts_it_lies_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            stored = await archive.add("ann", "ep-1", 500)
            assert stored.events == 501
            assert await archive.blobs_on_disk() > 10
            for start, limit in ((0, 10), (137, 1), (100, 300), (499, 10), (600, 5)):
                page = await archive.events(stored, start, limit)
                assert [each["seq"] for each in page.items] == list(range(start, min(start + limit, 501)))
                end = start + len(page.items)
                assert page.next == (end if page.items and end < 501 else None)

    run(main())


def test_a_page_of_events_is_limited_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_archive, "ANSWER_BYTES", 200)

    async def main() -> None:
        async with opened(tmp_path) as archive:
            stored, at, seen = await archive.add("ann", "ep-1", 20), 0, []
            while True:
                page = await archive.events(stored, at, 1000)
                seen += [each["seq"] for each in page.items]
                assert len(page.items) < 10
                if page.next is None:
                    break
                at = page.next
            assert seen == list(range(21))

    run(main())


def test_the_same_upload_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            first = await archive.add("ann", "ep-1")
            again, fresh = await archive.put("ann", "ep-1", body(events("ep-1")), compressed=False)
            assert (again, fresh) == (first, False)
            with pytest.raises(Conflict, match="with other events"):
                await archive.add("ann", "ep-1", 3)
            assert await archive.blobs_on_disk() == 1
            [counted] = (await archive.runs("ann")).items
            assert counted.episodes == {"ok": 1}

    run(main())


def test_an_unfinished_episode_is_replaced_by_its_finished_form(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            assert (await archive.add("ann", "ep-1", ended=False)).state == "unfinished"
            assert (await archive.add("ann", "ep-1")).state == "ended"
            assert await archive.blobs_on_disk() == 1
            assert (await archive.runs("ann")).items[0].episodes == {"ok": 1}

    run(main())


def test_owners_of_the_same_id_are_kept_apart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            await archive.add("ann", "ep-1")
            await archive.add("bob", "ep-1", 5)
            assert (await archive.get("ann", "ep-1")).events == 3
            assert (await archive.get("bob", "ep-")).events == 6
            with pytest.raises(NotFound, match="ambiguous"):
                await archive.get(None, "ep-1")
            with pytest.raises(NotFound, match="does not exist"):
                await archive.get("eve", "ep-1")
            assert [each.owner for each in (await archive.page(EpisodeSelection("bob"))).items] == ["bob"]
            assert len((await archive.page(EpisodeSelection())).items) == 2
            await archive.delete("ann", [await archive.get("ann", "ep-1")])
            assert len((await archive.events(await archive.get("bob", "ep-1"), 0, 10)).items) == 6
            assert [each.owner for each in (await archive.runs(None)).items] == ["bob"]

    run(main())


def test_filters_and_pages_find_every_episode_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            for n in range(12):
                at: dict[str, Any] = {"at": NOW + n, "sample": n, "task": {"id": f"t{n % 2}"}, "run": f"run-{n % 3}"}
                await archive.add("ann", f"ep-{n:02}", **at)
            for where, wanted in (
                (EpisodeSelection("ann"), set(range(12))),
                (EpisodeSelection("ann", task="t1"), {1, 3, 5, 7, 9, 11}),
                (EpisodeSelection("ann", run="run-0", task="t1", outcome="ok", final=True), {3, 9}),
                (EpisodeSelection("ann", run="none"), set()),
                (EpisodeSelection(state="unfinished"), set()),
            ):
                for newest_first in (False, True):
                    seen: list[int] = []
                    after = None
                    while True:
                        page = await archive.page(where, after=after, limit=2, newest_first=newest_first)
                        seen += [each.sample for each in page.items]
                        after = page.next
                        if after is None:
                            break
                    assert seen == sorted(wanted, reverse=newest_first)
            runs = await archive.runs("ann", limit=2)
            rest = await archive.runs("ann", after=runs.items[-1].id)
            assert {each.id for each in (*runs.items, *rest.items)} == {"run-0", "run-1", "run-2"}
            with pytest.raises(InvalidArguments, match="invalid after"):
                await archive.page(EpisodeSelection("ann"), after="x:\x00")

    run(main())


def test_of_one_sample_one_episode_is_the_result(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            assert (await archive.add("ann", "ep-1")).final
            assert not (await archive.add("ann", "ep-2")).final
            assert (await archive.add("bob", "ep-2")).final
            await archive.delete("ann", [await archive.get("ann", "ep-1")])
            assert (await archive.add("ann", "ep-3")).final

    run(main())


def test_a_quota_limits_the_size_of_a_users_episodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "free") as archive:
            size = (await archive.add("ann", "ep-1")).bytes
        async with opened(tmp_path / "limited", quota=size + size // 2) as archive:
            await archive.add("ann", "ep-1")
            with pytest.raises(QuotaExceeded, match="your trajectories take"):
                await archive.add("ann", "ep-2")
            await archive.check_quota("ann")
            await archive.add("bob", "ep-2")
            await archive.prune(EpisodeSelection("ann"), before=None, dry_run=False, after=None)
            await archive.add("ann", "ep-2")
            with pytest.raises(QuotaExceeded):
                await archive.add("carl", "ep-3", 500)
            assert await archive.blobs_on_disk() == 2

    run(main())


def test_pruning_deletes_what_matches_and_gives_its_space_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            for n in range(4):
                await archive.add("ann", f"ep-{n}", at=NOW + n, sample=n)
            await archive.add("bob", "ep-9")
            old = EpisodeSelection("ann")
            counted = await archive.prune(old, before=NOW + 2, dry_run=True, after=None)
            assert (counted.episodes, counted.next, await archive.blobs_on_disk()) == (2, None, 5)
            pruned = await archive.prune(old, before=NOW + 2, dry_run=False, after=None)
            assert (pruned.episodes, pruned.bytes, await archive.blobs_on_disk()) == (2, counted.bytes, 3)
            assert [each.id for each in (await archive.page(old)).items] == ["ep-2", "ep-3"]
            assert (await archive.runs("ann")).items[0].episodes == {"ok": 2}

    run(main())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "at least its beginning"),
        (["{"], "is not JSON"),
        ([{**events("ep-1")[0], "at": float("nan")}], "is not JSON"),
        ([{"seq": 1}], "'seq'"),
        ([{**events("ep-1")[0], "episode": "ep-2"}], "events of episode 'ep-2'"),
        ([{**events("ep-1")[0], "sample": "0"}], "sample"),
        ([{**events("ep-1")[0], "run": "x" * 2000}], "run"),
        ([events("ep-1")[0], {"seq": 1, "at": 1.0, "kind": "other"}], "'kind'"),
        ([events("ep-1")[0], {"seq": 1, "at": 1.0, "kind": "begin"}], "only that"),
        ([events("ep-1")[0], {"seq": 1, "at": 1.0, "kind": "end", "outcome": "infra", "reward": 0.0}], "no reward"),
        ([events("ep-1")[0], {"seq": 1, "at": 1.0, "kind": "end", "outcome": "ok", "steps": "many"}], "malformed"),
        ([events("ep-1")[0], {"seq": 1, "at": 1.0, "kind": "end", "outcome": "ok", "tokens": []}], None),
        ([*events("ep-1"), {"seq": 3, "at": 1.0, "kind": "note"}], "after the end"),
    ],
)
def test_invalid_events_are_refused_and_leave_nothing(tmp_path: Path, lines: list[Any], message: str | None) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            if message is None:
                await archive.put("ann", "ep-1", body(lines), compressed=False)
                return
            with pytest.raises(InvalidArguments, match=message):
                await archive.put("ann", "ep-1", body(lines), compressed=False)
            assert await archive.blobs_on_disk() == 0
            assert (await archive.page(EpisodeSelection())).items == []

    run(main())


def test_compressed_bodies_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "".join(f"{json.dumps(each)}\n" for each in events("ep-1", 50)).encode()
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(data) + packer.flush()

    async def pieces(data: bytes) -> AsyncIterator[bytes]:
        yield data

    async def main() -> None:
        async with opened(tmp_path) as archive:
            for bad in (data, packed[:-20], packed + b"more", b""):
                with pytest.raises(InvalidArguments, match=r"gzip|cut off|bytes after"):
                    await archive.put("ann", "ep-1", pieces(bad), compressed=True)
            stored, fresh = await archive.put("ann", "ep-1", pieces(packed), compressed=True)
            assert (fresh, stored.events) == (True, 51)
            monkeypatch.setattr(episode_parts, "MAX_EVENT_BYTES", 100)
            with pytest.raises(TooLarge):
                await archive.put("ann", "ep-2", pieces(b'{"' + b"x" * 200), compressed=False)

    run(main())


def test_blobs_of_an_upload_that_a_crash_cut_off_are_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            commit = archive.records.commit

            async def broken(*changes: Any) -> int:
                if any(change.space == "trajectory" for change in changes):
                    raise Unavailable("the store is gone")
                return await commit(*changes)

            monkeypatch.setattr(archive.records, "commit", broken)
            with pytest.raises(Unavailable):
                await archive.add("ann", "ep-1")
            monkeypatch.undo()
            assert await archive.blobs_on_disk() == 1
            assert await archive.clean() == 0, "the upload may still be in progress"
            archive.now += episode_archive.LEFT_BEHIND_SECONDS + 1
            assert (await archive.clean(), await archive.blobs_on_disk()) == (1, 0)
            await archive.add("ann", "ep-1")
            archive.now += episode_archive.LEFT_BEHIND_SECONDS + 1
            assert (await archive.clean(), await archive.blobs_on_disk()) == (0, 1)

    run(main())


def test_what_a_server_recorded_before_a_crash_is_archived_once(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    with TrajectoryStore.open(folder) as store:
        ids = []
        for sample in range(3):
            recorder = store.record(EpisodeKey("run-1", "t", sample), {"labels": {"owner": "ann"}})
            recorder.append("note", text="x")
            ids.append(recorder.episode_id)
            if sample < 2:
                recorder.end("ok", 1.0)

    async def main() -> None:
        async with opened(tmp_path) as archive:
            with TrajectoryStore.open(folder) as store:
                archiver = RolloutArchiver(archive, lambda: store)
                archiver.start()
                await archiver.finish("run-1")
                page = await archive.page(EpisodeSelection("ann"))
                assert {each.id: each.state for each in page.items} == dict(
                    zip(ids, ("ended", "ended", "unfinished"), strict=True)
                )
                assert list(store.events(ids[0])) == (await archive.events(page.items[0], 0, 10)).items
                await archive.delete("ann", [await archive.get("ann", ids[0])])
                await archiver.finish("run-1")
                with pytest.raises(NotFound):
                    await archive.get("ann", ids[0])
                await archive.put_run("ann", RunUpload(id="run-2", created=NOW))
                await archiver.close()

    run(main())


def test_an_episode_that_is_being_recorded_is_seen_by_its_owner(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as archive:
            with TrajectoryStore.open(tmp_path / "own") as store:
                archiver = RolloutArchiver(archive, lambda: store)
                recorder = store.record(EpisodeKey("run-1", "t"), {"labels": {"owner": "ann"}})
                recorder.append("note", text="x")
                id = recorder.episode_id
                [seen] = archiver.recording(EpisodeSelection("ann"), 10)
                assert (seen.id, seen.state, seen.owner) == (id, "running", "ann")
                assert archiver.recording(EpisodeSelection("bob"), 10) == []
                assert archiver.find("bob", id) is None
                assert archiver.find("ann", id) == seen
                assert [each["kind"] for each in archiver.events(id, 0, 10).items] == ["begin", "note"]
                assert archiver.events(id, 0, 1).next == 1
                recorder.end("ok", 1.0)
                assert archiver.recording(EpisodeSelection("ann"), 10) == []

    run(main())
