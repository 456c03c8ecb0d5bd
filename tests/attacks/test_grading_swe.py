"""Attacks on `swe`: patches that contain more than a solution."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.attacks.swe import LINK, PATCHES, RAW
from tests.bench.test_swe import GOLD, NAME, attempt, instances
from tests.local.conftest import _use_platform, platform

__all__ = ["_use_platform", "instances", "platform"]


def patch_of(files: dict[str, str | bytes], repository: Path, target: Path) -> str:
    """Return a patch as git writes it, including links and binary files."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(target)]
    subprocess.run(["git", "clone", "-q", str(repository), str(target)], check=True)
    subprocess.run([*git, "checkout", "-q", "HEAD~1"], check=True)
    for name, content in files.items():
        path = target / name
        if path.is_dir() and not path.is_symlink():
            subprocess.run([*git, "rm", "-rq", name], check=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.endswith(LINK):
            path.symlink_to(content.removesuffix(LINK))
        else:
            path.write_text(content)
    subprocess.run([*git, "add", "-Af"], check=True)
    return subprocess.run([*git, "diff", "--cached", "--binary"], check=True, capture_output=True, text=True).stdout


def earned(patch: str, instances: Path, folder: Path) -> tuple[float | None, bool | None]:
    """Return the reward, and whether the run is reported as trusted."""
    result = attempt(instances, folder, patch=patch)
    report = folder / "report.json"
    return result.reward, json.loads(report.read_text())[NAME]["trusted"] if report.exists() else None


@pytest.mark.long
@pytest.mark.attack("grading")
@pytest.mark.parametrize("how", PATCHES)
def test_a_malicious_patch_earns_nothing(how: str, instances: Path, tmp_path: Path) -> None:
    repository = instances.parent / "repos" / "acme" / "calc"
    patch = patch_of(PATCHES[how], repository, tmp_path / "clone")
    assert patch
    assert earned(patch, instances, tmp_path)[0] == 0.0


@pytest.mark.attack("grading")
@pytest.mark.parametrize("how", RAW)
def test_a_patch_that_git_would_not_write_earns_nothing(how: str, instances: Path, tmp_path: Path) -> None:
    assert earned(RAW[how], instances, tmp_path)[0] == 0.0


@pytest.mark.parametrize("how", ["a conftest.py that spares random names", "sitecustomize", "other tests"])
def test_a_solution_with_other_changes_in_its_patch_is_a_solution(how: str, instances: Path, tmp_path: Path) -> None:
    repository = instances.parent / "repos" / "acme" / "calc"
    patch = patch_of(PATCHES[how], repository, tmp_path / "clone") + GOLD
    assert earned(patch, instances, tmp_path) == (1.0, True)
    report = json.loads((tmp_path / "report.json").read_text())[NAME]
    assert [*report["removed"], *report["restored"]] == sorted(PATCHES[how])
