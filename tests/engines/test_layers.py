from __future__ import annotations

import asyncio
import hashlib
import resource
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from aenv.engines.package_layers import layer, requirements_of
from aenv.engines.static_imports import imported_by, packages_of
from aenv.errors import LoadError
from aenv.schema.requirements import stamp


def asked(folder: Path, text: str) -> list[str]:
    (folder / "requirements.txt").write_text(text)
    return requirements_of(folder)


def test_only_missing_packages_are_required(tmp_path: Path) -> None:
    assert requirements_of(tmp_path) == []
    text = "# ours\naenvironment>=0.1\n\npytest\nno-such-package-a==1.0 # why\n"
    text += "no-such-package-b[x]>=2 ; python_version > '3'\n"
    assert asked(tmp_path, text) == [
        "no-such-package-a==1.0",
        "no-such-package-b[x]>=2 ; python_version > '3'",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "evil @ file:///tmp/evil",
        "--target=/etc",
        "-r other.txt",
        "./local",
        "/abs",
        "git+https://host/x",
        "-e .",
        "a>=1 --pre",
        "a==1 --hash=md5:0",
    ],
)
def test_a_line_that_would_run_code_on_the_host_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(LoadError, match="only names and versions"):
        asked(tmp_path, f"{line}\n")


HASH = f"--hash=sha256:{'0' * 64}"


def test_a_lock_counts_as_long_as_it_belongs_to_the_requirements(tmp_path: Path) -> None:
    asked(tmp_path, "no-such-package-a\n")
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        f"{stamp(b'no-such-package-a' + bytes([10]))}\n"
        f"no-such-package-a==1.5 ; python_version > '3' \\\n    {HASH} \\\n    {HASH}\n"
        f"pytest=={version('pytest')} \\\n    {HASH}\n"
    )
    (line,) = requirements_of(tmp_path)
    assert line.split() == ["no-such-package-a==1.5", ";", "python_version", ">", "'3'", HASH, HASH]
    assert asked(tmp_path, "no-such-package-a>=1\n") == ["no-such-package-a>=1"]


def test_a_lock_that_would_run_code_on_the_host_is_refused(tmp_path: Path) -> None:
    asked(tmp_path, "a\n")
    (tmp_path / "requirements.lock").write_text(f"{stamp(b'a' + bytes([10]))}\n--index-url http://evil.example\n")
    with pytest.raises(LoadError, match=r"requirements\.lock.*only names and versions"):
        requirements_of(tmp_path)


def test_packages_are_installed_as_locked_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "aenvtestpackage-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        info = "aenvtestpackage-1.0.dist-info"
        file.writestr("aenvtestpackage.py", "x = 1\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: aenvtestpackage\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"aenvtestpackage.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    for name, value in {"UV_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}.items():
        monkeypatch.setenv(name, value)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = asyncio.run(layer([f"aenvtestpackage==1.0 --hash=sha256:{digest}"], tmp_path / "layers"))
    assert (made / "aenvtestpackage.py").is_file()
    with pytest.raises(LoadError, match=r"aenvtestpackage==1\.0 cannot be installed"):
        asyncio.run(layer([f"aenvtestpackage==1.0 {HASH}"], tmp_path / "layers"))
    assert list((tmp_path / "layers").iterdir()) == [made]


def test_third_party_imports_are_told_from_the_projects_own(tmp_path: Path) -> None:
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text(
        "import json, numpy.linalg\nfrom helper import x\nfrom . import b\nfrom aenv import register_tool\n"
        "from src.b import y\nfrom inner import z\ndef f():\n    import lazy\n"
        "try:\n    import torch\nexcept ImportError:\n    import other\n"
    )
    (tmp_path / "src" / "helper.py").write_text("import this is broken")
    (tmp_path / "src" / "b.py").write_text("from collections import abc\n")
    (tmp_path / "src" / "test_a.py").write_text("import pytest\n")
    assert imported_by(tmp_path) == ["json", "numpy.linalg", "torch", "collections"]


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "text",
    ["-" * 200_000 + "1", "(" * 5000, "a" + ".a" * 200_000, "x\0", "import json\n" * 500_000],
)  # fmt: skip
def test_code_that_is_hard_to_parse_only_hides_its_own_imports(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").write_text("import torch\n")
    assert imported_by(tmp_path) == ["torch"]


@pytest.mark.attack("build")
def test_a_project_that_is_hard_to_parse_takes_no_memory_of_the_platform(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a\n" * 2_000_000)  # 4 GB, and half a minute
    (tmp_path / "b.py").write_text("import torch\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(packages_of(tmp_path)) in (["torch"], [])  # without it where the time did not suffice
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_packages_are_those_that_the_project_imports(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\nimport b\n")
    (tmp_path / "b.py").write_text("import numpy\n")
    assert asyncio.run(packages_of(tmp_path)) == ["torch", "numpy"]
    assert asyncio.run(packages_of(tmp_path, ["b.py"])) == ["numpy"]


@pytest.mark.attack("build")
def test_links_in_circles_are_not_followed(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).symlink_to(".")
    (tmp_path / "a.py").write_text("import torch\n")
    assert imported_by(tmp_path) == ["torch"]
