"""Private files that are copied for a verifier into a folder that the agent could change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from aenv.authoring.private_files import PrivatePath
from aenv.errors import StateDestroyed

FILES = {"test_one.py": b"one", "deep/test_two.py": b"two"}


def _file_for_folder(target: Path) -> None:
    target.write_text("")


def _link_for_folder(target: Path) -> None:
    (target.parent / "elsewhere").mkdir()
    target.symlink_to(target.parent / "elsewhere")


def _pipe_for_file(target: Path) -> None:
    target.mkdir()
    os.mkfifo(target / "test_one.py")


def _link_for_file(target: Path) -> None:
    target.mkdir()
    (target / "test_one.py").symlink_to(target.parent / "victim")


def _folder_for_file(target: Path) -> None:
    (target / "test_one.py" / "inner").mkdir(parents=True)


def _file_for_inner_folder(target: Path) -> None:
    target.mkdir()
    (target / "deep").write_text("")


@pytest.mark.attack("grading")
@pytest.mark.parametrize(
    "prepare",
    [_file_for_folder, _link_for_folder, _pipe_for_file, _link_for_file, _folder_for_file, _file_for_inner_folder],
)
def test_files_in_the_way_are_replaced(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    (tmp_path / "victim").write_text("kept")
    target = tmp_path / "tests"
    prepare(target)
    PrivatePath(FILES, PurePosixPath()).copy_to(target)
    assert {name: (target / name).read_bytes() for name in FILES} == FILES
    assert not target.is_symlink()
    assert (tmp_path / "victim").read_text() == "kept"


def test_other_files_of_the_folder_are_kept(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    PrivatePath(FILES, PurePosixPath()).copy_to(tmp_path)
    assert (tmp_path / "other").read_text() == "kept"


@pytest.mark.attack("grading")
def test_an_unwritable_target_counts_as_destroyed_by_the_agent(tmp_path: Path) -> None:
    (tmp_path / "tests").write_text("")
    with pytest.raises(StateDestroyed, match="private files cannot be written"):
        PrivatePath(FILES, PurePosixPath()).copy_to(tmp_path / "tests" / "inner")
