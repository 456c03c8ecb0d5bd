"""Caches on disk: uses are recorded, what is in use stays, and the rest is removed oldest first."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aenv.storage.cache_folders import CacheEntry, CacheFolder, prune, tree_size

NOW = time.time()


@pytest.fixture
def cache(tmp_path: Path) -> CacheFolder:
    return CacheFolder("things", tmp_path / "things", "things")


def make(cache: CacheFolder, name: str, size: int = 100_000, age: float = 7200.0) -> Path:
    """Create an entry that was last used ``age`` seconds ago, by a process that has ended."""
    path = cache.folder / name
    path.mkdir(parents=True)
    (path / "file").write_bytes(os.urandom(size))
    path.chmod(0o555)
    assert cache.use(name) == path
    cache.release(name)
    os.utime(cache.folder / ".used" / name, (NOW - age, NOW - age))
    return path


def entries(cache: CacheFolder) -> dict[str, CacheEntry]:
    return {entry.name: entry for entry in cache.entries()}


def test_an_entry_that_does_not_exist_cannot_be_used(cache: CacheFolder) -> None:
    assert cache.use("missing") is None
    assert list(cache.entries()) == []


def test_an_entry_shows_its_size_and_last_use(cache: CacheFolder) -> None:
    path = make(cache, "one", age=5000.0)
    entry = entries(cache)["one"]
    assert entry.bytes == tree_size(path) >= 100_000
    assert entry.last_used == pytest.approx(NOW - 5000.0, abs=1)
    assert not entry.in_use
    assert entries(cache)["one"] == entry, "its size is remembered, and looking is no use"


def test_an_entry_that_this_process_uses_is_not_removed(cache: CacheFolder) -> None:
    path = make(cache, "one")
    assert cache.use("one") == path
    assert entries(cache)["one"].in_use
    done = prune([cache])
    assert (done.removed, done.kept_in_use) == ((), 1)
    cache.release("one")
    assert [entry.name for entry in prune([cache]).removed] == ["one"]
    assert not path.exists()
    assert cache.use("one") is None


def test_an_entry_that_another_process_uses_is_not_removed(cache: CacheFolder) -> None:
    path = make(cache, "one")
    code = (
        "import sys; from pathlib import Path; from aenv.storage.cache_folders import CacheFolder;"
        "assert CacheFolder('things', Path(sys.argv[1]), '').use('one'); print('used', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(cache.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"used\n"
        assert prune([cache]).removed == ()
        assert path.is_dir()
        user.kill()
    assert [entry.name for entry in prune([cache]).removed] == ["one"]


def test_what_was_not_used_for_longest_is_removed_first_and_only_until_the_budget_is_met(cache: CacheFolder) -> None:
    for name, age in (("new", 4000.0), ("old", 9000.0), ("older", 20000.0)):
        make(cache, name, age=age)
    budget = entries(cache)["new"].bytes + entries(cache)["old"].bytes
    assert [entry.name for entry in prune([cache], budget=budget).removed] == ["older"]
    assert set(entries(cache)) == {"new", "old"}


def test_what_was_used_lately_stays_although_the_budget_is_exceeded(cache: CacheFolder) -> None:
    make(cache, "new", age=60.0)
    make(cache, "old", age=9000.0)
    done = prune([cache], budget=0, unused_seconds=3600.0)
    assert [entry.name for entry in done.removed] == ["old"]


def test_a_dry_run_removes_nothing(cache: CacheFolder) -> None:
    path = make(cache, "one")
    assert [entry.name for entry in prune([cache], dry_run=True).removed] == ["one"]
    assert path.is_dir()


def test_a_named_entry_is_not_removed(tmp_path: Path) -> None:
    cache = CacheFolder("things", tmp_path, "things", pinned=lambda: {"named"})
    make(cache, "named")
    assert prune([cache]).removed == ()


def test_the_unfinished_entry_of_a_killed_process_is_removed_within_any_budget(cache: CacheFolder) -> None:
    left = cache.folder / "one.abcd_123"
    left.mkdir(parents=True)
    os.utime(left, (NOW - 100_000, NOW - 100_000))
    young = cache.folder / "two.abcd_123"
    young.mkdir()
    assert entries(cache)["one.abcd_123"].unfinished
    done = prune([cache], budget=1 << 40)
    assert [entry.path for entry in done.removed] == [left]
    assert young.is_dir()


def test_what_a_killed_removal_left_is_deleted_by_the_next(cache: CacheFolder) -> None:
    make(cache, "one")
    left = cache.folder / ".used" / "two.99999999.removed"
    (left / "folder").mkdir(parents=True)
    prune([cache])
    assert not left.exists()


def test_files_with_several_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(100_000))
    alone = tree_size(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    assert tree_size(tmp_path) == alone
