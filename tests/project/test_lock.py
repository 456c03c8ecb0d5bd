"""Locking requirements. uv looks in a folder of wheels here, so no network is needed."""

import os
import zipfile

import pytest

from aenv.errors import ConfigError, UsageError
from aenv.project.lock import find_uv, lock
from aenv.schema.requirements import is_current


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Two versions of a package and one that it needs, and nothing else to be had."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, version, needs in (("needed", "3.1", ""), ("wanted", "1.0", "needed"), ("wanted", "1.1", "needed")):
        info = f"{name}-{version}.dist-info"
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
            f"Requires-Dist: {needs}\n" if needs else ""
        )
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", about)
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    return folder


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    return root


def locked(root):
    lines = (root / "requirements.lock").read_text().splitlines()
    return [line.rstrip("\\ ") for line in lines if line and not line.startswith((" ", "#"))]


def test_everything_that_is_needed_is_locked_with_digests(project, wheels):
    (project / "requirements.txt").write_text("aenvironment\nwanted<1.1  # a comment\n")
    assert lock(project)
    assert locked(project) == ["needed==3.1", "wanted==1.0"]
    text = (project / "requirements.lock").read_text()
    assert text.count("--hash=sha256:") == 2
    assert str(wheels) not in text


def test_what_is_locked_stays_and_needs_no_network(project, wheels, monkeypatch):
    (project / "requirements.txt").write_text("wanted==1.0\n")
    lock(project)
    before = (project / "requirements.lock").read_bytes()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("UV_FIND_LINKS", "/nowhere")
    assert not lock(project)
    assert (project / "requirements.lock").read_bytes() == before


def test_changed_requirements_keep_the_versions_that_still_fit(project, wheels):
    (project / "requirements.txt").write_text("wanted<1.1\n")
    lock(project)
    (project / "requirements.txt").write_text("wanted\n")
    assert lock(project)
    assert "wanted==1.0" in locked(project)
    assert lock(project, upgrade=True)
    assert "wanted==1.1" in locked(project)
    assert is_current((project / "requirements.lock").read_text(), (project / "requirements.txt").read_bytes())


@pytest.mark.parametrize(
    "text", ["", "aenvironment\n", "# nothing\n\naenvironment>=0.1 ; python_version > '3'\n", None]
)
def test_nothing_to_lock_needs_no_uv_and_leaves_no_lock(project, text, monkeypatch):
    monkeypatch.setattr("aenv.project.lock.find_uv", lambda: pytest.fail("uv was asked for"))
    if text is not None:
        (project / "requirements.txt").write_text(text)
    (project / "requirements.lock").write_text("old")
    assert lock(project)
    assert not (project / "requirements.lock").exists()
    assert not lock(project)


def test_what_cannot_be_had_is_told_and_changes_nothing(project, wheels):
    (project / "requirements.txt").write_text("wanted>=9\n")
    with pytest.raises(ConfigError, match="wanted>=9"):
        lock(project)
    assert os.listdir(project) == ["requirements.txt"]


def test_without_uv_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    with pytest.raises(UsageError, match="uv") as caught:
        find_uv()
    assert caught.value.details["hint"] == "Install it: pip install uv"
