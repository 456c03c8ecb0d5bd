"""Base systems in projects and their size limit."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from aenv.errors import ConfigError
from aenv.images import base_systems
from aenv.images.base_systems import BaseSystems
from tests.conftest import run

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return base_systems.folder()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a root file system of two megabytes, compressed to two kilobytes."""
    made = tmp_path / "project"
    made.mkdir()
    with tarfile.open(made / "root.tar.gz", "w:gz") as archive:
        for name, size in (("bin/sh", 10), ("etc/zeros", MEGABYTE), ("usr/zeros", MEGABYTE)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    assert (made / "root.tar.gz").stat().st_size < MEGABYTE // 100
    return made


@pytest.mark.attack("images")
def test_a_project_base_over_the_limit_is_refused_and_leaves_nothing(project: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match=f"more than {MEGABYTE} bytes"):
        run(BaseSystems(MEGABYTE).find("./root.tar.gz", project))
    assert list(folder.iterdir()) == []


def test_a_project_base_within_the_limit_is_unpacked(project: Path) -> None:
    found = run(BaseSystems(3 * MEGABYTE).find("./root.tar.gz", project))
    assert (found.root / "etc" / "zeros").stat().st_size == MEGABYTE


def test_a_base_added_by_name_may_exceed_the_project_limit(project: Path) -> None:
    small = BaseSystems(MEGABYTE)
    run(small.add("large", project / "root.tar.gz"))
    assert (run(small.find("large", project)).root / "usr" / "zeros").is_file()
