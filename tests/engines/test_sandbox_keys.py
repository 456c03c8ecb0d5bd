"""Keys of requests: they change with a project's files, and a batch scans these once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aenv.engines.base import SandboxSpec
from aenv.engines.native import sandbox_keys
from aenv.engines.native.sandbox_keys import SandboxKeys


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The projects that were scanned. Each scan takes a while by the clock of the keys."""
    found: list[Path] = []

    def scan(project: Path, files: object = None) -> str:
        found.append(project)
        return f"scan {len(found)}"

    monkeypatch.setattr(sandbox_keys, "fingerprint", scan)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("aenv.engines.native.sandbox_keys.time.monotonic", lambda: now[0])
    return now


def request(project: Path, at: float, **variables: str) -> SandboxSpec:
    return replace(SandboxSpec("mine@1.0.0", project, project, variables), requested_at=at)


def test_the_requests_of_a_batch_share_one_scan(tmp_path: Path, scans: list[Path], clock: list[float]) -> None:
    keys = SandboxKeys()
    batch = [request(tmp_path, 100.0, NUMBER=str(number)) for number in range(10)]
    found = set()
    for spec in batch:
        found.add(keys.exact(spec))
        keys.family(spec)
        clock[0] += 0.004
    assert len(scans) == 1
    assert len(found) == 10, "they differ in a variable"


def test_a_later_request_scans_again(tmp_path: Path, scans: list[Path], clock: list[float]) -> None:
    keys = SandboxKeys()
    before = keys.family(request(tmp_path, 100.0))
    clock[0] += 0.002
    assert keys.family(request(tmp_path, clock[0])) != before
    assert len(scans) == 2


def test_a_scan_is_not_reused_for_long(tmp_path: Path, scans: list[Path], clock: list[float]) -> None:
    keys = SandboxKeys()
    spec = request(tmp_path, 100.0)
    keys.exact(spec)
    clock[0] += 2 * sandbox_keys.FRESH_SECONDS
    keys.exact(spec)
    assert len(scans) == 2


def test_projects_do_not_share_scans(tmp_path: Path, scans: list[Path], clock: list[float]) -> None:
    keys = SandboxKeys()
    keys.exact(request(tmp_path / "one", 100.0))
    keys.exact(request(tmp_path / "other", 100.0))
    assert scans == [tmp_path / "one", tmp_path / "other"]


def test_a_changed_file_changes_all_keys(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text("one")
    keys = SandboxKeys()
    before = keys.exact(SandboxSpec("mine@1.0.0", tmp_path, tmp_path))
    (tmp_path / "env.py").write_text("another")
    assert SandboxKeys().exact(SandboxSpec("mine@1.0.0", tmp_path, tmp_path)) != before
