"""An environment's requirements, through every way to run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.errors import LoadError
from tests.conftest import run

ENV = '''
import subprocess

import aenvtestpackage

from aenv import python_variables, register_tool


@register_tool
def number() -> str:
    """Return the package's version and place."""
    return f"{aenvtestpackage.number} {aenvtestpackage.__file__}"


@register_tool
def number_in_a_program() -> str:
    """Return the same of a program."""
    code = "import aenvtestpackage; print(aenvtestpackage.number, aenvtestpackage.__file__, end='')"
    words = ["python", "-c", code]
    return subprocess.run(words, env=python_variables(), capture_output=True, text=True, check=True).stdout
'''
TEST = """
import aenvtestpackage


def test_the_package_is_there():
    assert aenvtestpackage.number == "1.0"
    print("from", aenvtestpackage.__file__)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return tmp_path / "cache"


@pytest.fixture
def own_platform(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a local platform with this test's variables."""
    from aenv.client import local_lease

    monkeypatch.setenv("AENV_RUNTIME_DIR", str(short_folder))
    held = local_lease.lease()
    if held is not None:
        held.close()


@pytest.fixture
def needy(tmp_path: Path) -> Path:
    """A project that needs a package, which it has as a wheel."""
    root = tmp_path / "needy"
    for folder in ("src", "tests", "wheels"):
        (root / folder).mkdir(parents=True)
    (root / "src" / "env.py").write_text(ENV)
    (root / "tests" / "test_env.py").write_text(TEST)
    (root / "config.json").write_text('{"name": "needy", "version": "1.0.0"}')
    info = "aenvtestpackage-1.0.dist-info"
    with zipfile.ZipFile(root / "wheels" / "aenvtestpackage-1.0-py3-none-any.whl", "w") as file:
        file.writestr("aenvtestpackage.py", "number = '1.0'\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: aenvtestpackage\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"aenvtestpackage.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (root / "requirements.txt").write_text("aenvironment>=0.3\n--no-index\n--find-links wheels\naenvtestpackage\n")
    return root


def aenv(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aenv.cli", *args],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=90,
    )


def layers(cache: Path) -> list[Path]:
    return [path for path in (cache / "aenv" / "layers").iterdir() if path.name.isalnum()]


def call(root: Path, *tools: str) -> str:
    async def main() -> str:
        async with Environment(str(root)) as env:
            return "\n".join([str((await env.call_tool(tool)).data) for tool in tools or ("number",)])

    return str(run(main()))


@pytest.mark.long
@pytest.mark.usefixtures("own_platform")
def test_every_way_to_run_an_environment_uses_one_layer(needy: Path, cache: Path) -> None:
    found, in_a_program = call(needy, "number", "number_in_a_program").splitlines()
    assert in_a_program == found
    number, place = found.split()
    assert number == "1.0"
    (layer,) = layers(cache)
    assert Path(place).parent == layer
    tested = aenv("test", "-w", str(needy), "-s")
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert f"from {layer}/aenvtestpackage.py" in tested.stdout
    with subprocess.Popen(
        [sys.executable, "-m", "aenv.cli", "run", str(needy), "-p", "0", "-o", "json", "--no-inspector"],
        stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        try:
            facts: dict[str, Any] = {}
            text = ""
            while not facts:
                line = server.stdout.readline()
                assert line, text
                text += line
                try:
                    facts = json.loads(text)
                except ValueError:
                    continue
        finally:
            server.terminate()
    assert [tool["name"] for tool in facts["tools"]] == ["number", "number_in_a_program"]
    assert layers(cache) == [layer]


@pytest.mark.usefixtures("own_platform")
def test_code_of_an_agent_can_import_the_packages_and_none_of_the_environments_modules(
    needy: Path, cache: Path
) -> None:
    (needy / "src" / "env.py").write_text(
        "from aenv import register_tool, run_python\n"
        "@register_tool\n"
        "def number() -> str:\n"
        "    code = 'import aenvtestpackage; print(aenvtestpackage.number); import env'\n"
        "    run = run_python(code)\n"
        "    return run.stdout + run.stderr.splitlines()[-1]\n"
    )
    assert call(needy) == "1.0\nModuleNotFoundError: No module named 'env'"


@pytest.mark.usefixtures("own_platform")
def test_the_process_engine_uses_the_layer_too(needy: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AENV_ENGINE", "process")
    assert call(needy).startswith(f"1.0 {cache}/aenv/layers/")


@pytest.mark.parametrize("command", ["run", "test"])
def test_a_package_that_does_not_exist_is_exit_code_4(needy: Path, cache: Path, command: str) -> None:
    (needy / "requirements.txt").write_text("--no-index\nno-such-package-of-ours>=2\n")
    where = [str(needy)] if command == "run" else ["-w", str(needy)]
    done = aenv(command, *where)
    assert done.returncode == 4
    assert "requirements.txt: no-such-package-of-ours>=2 cannot be installed" in done.stderr
    assert "Check the names and versions in requirements.txt" in done.stderr


@pytest.mark.parametrize("command", ["run", "test"])
def test_a_repository_is_refused_by_name(needy: Path, cache: Path, command: str) -> None:
    (needy / "requirements.txt").write_text("thing @ git+https://host.example/thing\n")
    where = [str(needy)] if command == "run" else ["-w", str(needy)]
    done = aenv(command, *where)
    assert done.returncode == 4
    assert "'thing @ git+https://host.example/thing' cannot be installed: a repository must be built" in done.stderr


def test_an_environment_says_the_same(needy: Path, cache: Path) -> None:
    (needy / "requirements.txt").write_text("thing @ git+https://host.example/thing\n")
    with pytest.raises(LoadError, match=r"thing @ git.* cannot be installed: a repository must be built"):
        call(needy)


def test_an_index_that_does_not_answer_is_exit_code_1(needy: Path, cache: Path) -> None:
    (needy / "requirements.txt").write_text("--index-url http://127.0.0.1:1/simple\nno-such-package-of-ours\n")
    done = aenv("run", str(needy), UV_HTTP_RETRIES="0", NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    assert done.returncode == 1, done.stderr
    assert "the package index cannot be reached" in done.stderr


def test_a_full_disk_is_no_fault_of_the_requirements(needy: Path, tmp_path: Path) -> None:
    wheel = needy / "wheels" / "aenvtestpackage-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("aenvtestpackage_data.bin", os.urandom(1_000_000))
    small = tmp_path / "small"
    small.mkdir()
    line = f"mount -t tmpfs -o size=200k none {small} && exec {sys.executable} -m aenv.cli test -w {needy}"
    variables = {**os.environ, "XDG_CACHE_HOME": str(small), "UV_CACHE_DIR": str(tmp_path / "uv")}
    done = subprocess.run(["unshare", "-rm", "sh", "-c", line], env=variables, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "aenvtestpackage cannot be installed: no space left on device" in done.stderr
    assert "aenv cache prune" in done.stderr


def test_a_module_that_is_missing_is_explained_by_what_the_requirements_say(needy: Path) -> None:
    command = [sys.executable, "-m", "aenv.main", str(needy), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert f"requirements.txt lists it, but it is not installed here: pip install -r {needy}" in done.stderr
    (needy / "requirements.txt").write_text("aenvironment>=0.3\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "add the package that contains it to requirements.txt: pip install aenvtestpackage" in done.stderr


@pytest.mark.parametrize("template", ["default", "agent"])
def test_a_new_project_never_installs_the_older_package(tmp_path: Path, template: str) -> None:
    from packaging.requirements import Requirement

    from aenv.project import scaffold

    root = scaffold.create("fresh", template=template, parent_dir=tmp_path).root
    (line,) = (root / "requirements.txt").read_text().splitlines()
    wanted = Requirement(line)
    assert wanted.name == "aenvironment"
    assert not wanted.specifier.contains("0.1.7")
    assert wanted.specifier.contains("0.3.0")
    assert "pip install --no-cache-dir -r requirements.txt" in (root / "Dockerfile").read_text()
