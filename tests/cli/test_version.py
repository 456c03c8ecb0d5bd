import json
import platform
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

import aenv as package
from aenv.cli.commands.setup.version import facts

FIELDS = {
    "version", "source", "build_version", "build_commit", "build_date", "build_branch", "python_version",
    "build_host", "git_commit", "git_branch", "git_date", "git_describe", "dirty", "platform",
}  # fmt: skip


def test_short_is_the_version_alone(aenv: Any) -> None:
    assert aenv("version", "-s").stdout == f"{package.__version__}\n"


@pytest.mark.parametrize("option", [["--json"], ["-j"], ["-o", "json"]])
def test_json_has_every_field_and_nothing_beside_it(aenv: Any, option: list[str]) -> None:
    done = aenv("version", *option)
    found = json.loads(done.stdout)
    assert set(found) == FIELDS
    assert found["version"] == package.__version__
    assert found["python_version"] == platform.python_version()
    assert done.stderr == ""


def test_people_see_what_is_known(aenv: Any) -> None:
    said = aenv("version").stdout
    assert package.__version__ in said
    assert "None" not in said


def test_the_machine_s_name_is_not_told(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert found["build_host"] is None
    assert socket.gethostname() not in str(found["platform"])


def test_an_installed_package_knows_no_commit(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert found["source"] == "package"
    assert [found[key] for key in FIELDS if key.startswith("git_")] == [None] * 4
    assert found["dirty"] is None


def git(folder: Path, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *args], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    (tmp_path / "src" / "aenv").mkdir(parents=True)
    (tmp_path / "src" / "aenv" / "x.py").write_text("")
    git(tmp_path, "init", "-b", "trunk")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    return tmp_path


def test_a_checkout_knows_its_commit_and_whether_it_was_changed(checkout: Path) -> None:
    found = facts(checkout)
    assert found["source"] == "checkout"
    assert found["git_commit"] == found["build_commit"] == git(checkout, "rev-parse", "HEAD")
    assert (found["git_branch"], found["dirty"]) == ("trunk", False)
    (checkout / "src" / "aenv" / "x.py").write_text("changed")
    assert facts(checkout)["dirty"] is True


def test_a_checkout_on_no_branch_has_no_branch(checkout: Path) -> None:
    git(checkout, "checkout", "--detach")
    assert facts(checkout)["git_branch"] is None


def test_a_checkout_without_git_or_without_a_commit_is_fine(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(checkout))
        assert facts(checkout)["git_commit"] is None
    shutil.rmtree(checkout / ".git")
    git(checkout, "init")
    assert facts(checkout)["git_commit"] is None


def test_git_s_own_variables_do_not_lead_elsewhere(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert facts(checkout)["git_branch"] == "trunk"
