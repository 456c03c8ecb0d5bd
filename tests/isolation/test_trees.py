"""Removing and measuring deeply nested folders of untrusted programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aenv.isolation.files.trees import remove_tree, size_of_tree

DEEP = 3000
"""Nesting depth: more than Python's recursion limit, and longer than PATH_MAX."""


def nest(folder: Path, levels: int = DEEP) -> None:
    """Create nested folders, each with a file."""
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


def test_folders_without_permissions_are_removed(tree: Path) -> None:
    for name in ("none", "read", "enter"):
        (tree / name / "inner").mkdir(parents=True)
        (tree / name / "inner" / "file").write_text("x")
    for path, mode in (("none/inner", 0), ("none", 0), ("read", 0o400), ("enter", 0o100)):
        (tree / path).chmod(mode)
    remove_tree(tree)
    assert not tree.exists()


@pytest.mark.attack("disk")
def test_targets_of_symlinks_are_not_removed(tree: Path, tmp_path: Path) -> None:
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
def test_files_deeper_than_the_path_limit_are_measured(tree: Path) -> None:
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
    remove_tree(tree)  # pytest could not


def test_removing_a_missing_tree_is_harmless(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")


def test_removing_stops_at_its_deadline(tree: Path) -> None:
    nest(tree, 3)
    remove_tree(tree, seconds=-1)
    assert (tree / "d" / "d" / "d").is_dir()
