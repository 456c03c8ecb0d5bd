"""Malicious repositories, commits and files of instances."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from aenv.bench.swe import prepare, repositories
from aenv.errors import EnvironmentError, UsageError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (["init", "--quiet", "-b", "main"], ["commit", "--quiet", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], cwd=place, check=True)
    return place


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "commit", ["--upload-pack=touch {mark}", "--upload-pack", "-u", "", "a b", "a;b", "$(touch {mark})"]
)
def test_a_commit_is_never_passed_to_git_as_an_option(repository: Path, tmp_path: Path, commit: str) -> None:
    mark = tmp_path / "ran"
    with pytest.raises(UsageError, match="invalid commit"):
        repositories.checkout(str(repository), commit.format(mark=mark), tmp_path / "tree")
    with pytest.raises(UsageError, match="invalid commit"):
        repositories.version_at(str(repository), commit.format(mark=mark))
    assert not mark.exists()


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "name", ["../secret", "/secret", "a/../../secret", "a/b/c", "--x", "a/-b", "", ".", "..", "a/.."]
)
def test_a_repository_name_has_only_an_owner_and_a_name(repository: Path, name: str) -> None:
    with pytest.raises(UsageError, match="invalid repository name"):
        repositories.source_of(name, str(repository.parent))


def test_a_commit_is_checked_out(repository: Path, tmp_path: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True)
    repositories.checkout(str(repository), head.stdout.strip(), tmp_path / "tree")
    assert (tmp_path / "tree" / ".git").is_dir()


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "name", ["testbed/.git/config", "testbed/.git/hooks/x", "testbed/sub/.git", "python/../testbed/x"]
)
def test_a_sandbox_cannot_return_files_that_git_reads_on_the_host(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    (tmp_path / "testbed").mkdir()
    with pytest.raises(EnvironmentError, match="returned a file"):
        prepare.unpack_changes(packed.getvalue(), tmp_path)
    assert list((tmp_path / "testbed").iterdir()) == []
