"""Commands that are started in an untrusted folder: nothing in it runs outside of a sandbox."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aenv.engines import package_layers
from aenv.errors import LoadError

SHADOWED = ("aenv", "asyncio", "json", "pip", "subprocess", "tempfile", "uv", "logging", "sitecustomize")


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Return the file that untrusted code creates if it runs."""
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path, mark: Path) -> Path:
    """Create a folder with modules, settings and an interpreter that create the mark when they are used."""
    place = tmp_path / "project"
    for name in SHADOWED:
        (place / name).mkdir(parents=True)
        for file in ("__init__.py", "__main__.py"):
            (place / name / file).write_text(f"open({str(mark)!r}, 'w').close()\n")
    binaries = place / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (place / ".venv" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(sys.executable)}\n")
    for name in ("python", "python3"):
        (binaries / name).write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
        (binaries / name).chmod(0o755)
    (place / "uv.toml").write_text("this is not TOML")
    (place / "pip.conf").write_text("[global]\nindex-url = http://attacker.example\n")
    return place


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "code",
    [
        "from aenv.isolation.host_support import unsupported_reason; unsupported_reason()",
        "from aenv.platform.operations.host_report import examine; examine()",
    ],
)
def test_checking_the_machine_imports_nothing_from_the_folder(folder: Path, mark: Path, code: str) -> None:
    subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, check=True)
    assert not mark.exists()


@pytest.mark.attack("build")
@pytest.mark.parametrize("has_uv", [True, False])
def test_installing_packages_uses_nothing_from_the_folder(
    folder: Path, mark: Path, tmp_path: Path, has_uv: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if not has_uv:
        monkeypatch.setattr("aenv.engines.package_installer.uv_program", lambda: None)
    wanted = package_layers.PackageList(("no-package-of-this-name",), (), ("no-package-of-this-name",))
    with pytest.raises(LoadError) as caught:
        asyncio.run(package_layers.layer(wanted, tmp_path / "layers"))
    assert "no-package-of-this-name" in caught.value.message
    assert "TOML" not in caught.value.message
    assert not mark.exists()
