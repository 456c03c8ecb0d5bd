"""Removing what programs of others have left, however they have nested it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aenv.isolation.files.trees import remove_tree, size_of_tree

DEEP = 3000
"""Levels: more than Python's recursion limit, and more than a path has room for."""


def nest(folder: Path, levels: int = DEEP) -> None:
    """Folders within folders, each with a file."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "tree"
    made.mkdir()
    return made


@pytest.mark.attack("disk")
def test_a_tree_of_any_depth_is_removed(tree: Path) -> None:
    nest(tree)
    remove_tree(tree)
    assert not tree.exists()


def test_folders_that_nobody_may_enter_are_removed(tree: Path) -> None:
    for name in ("none", "read", "enter"):
        (tree / name / "inner").mkdir(parents=True)
        (tree / name / "inner" / "file").write_text("x")
    for path, mode in (("none/inner", 0), ("none", 0), ("read", 0o400), ("enter", 0o100)):
        (tree / path).chmod(mode)
    remove_tree(tree)
    assert not tree.exists()


@pytest.mark.attack("disk")
def test_what_links_lead_to_stays(tree: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o500)
    (tree / "deep").mkdir()
    for name in ("link", "deep/link"):
        (tree / name).symlink_to(kept)
    remove_tree(tree)
    assert not tree.exists()
    assert kept.stat().st_mode & 0o777 == 0o500
    (tmp_path / "also").symlink_to(kept)
    remove_tree(tmp_path / "also")
    assert kept.is_dir()


@pytest.mark.attack("disk")
def test_what_lies_too_deep_for_a_path_is_measured(tree: Path) -> None:
    nest(tree)
    flat = size_of_tree(str(tree))
    here = os.open(tree, os.O_RDONLY)
    for _ in range(DEEP):
        here, outer = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(outer)
    with open(os.open("large", os.O_CREAT | os.O_WRONLY, dir_fd=here), "wb") as file:
        file.write(b"x" * 1_000_000)
        file.flush()
        os.fsync(file.fileno())
    os.close(here)
    assert size_of_tree(str(tree)) - flat >= 1_000_000
    remove_tree(tree)  # pytest's own way would not


def test_removing_what_is_not_there_is_harmless(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")


def test_removing_stops_when_its_time_is_over(tree: Path) -> None:
    nest(tree, 3)
    remove_tree(tree, seconds=-1)
    assert (tree / "d" / "d" / "d").is_dir()
