"""SWE-bench on images: an image made from this machine's programs, known as a base or to a real Docker."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv import Environment
from aenv.bench.base import BenchJob, Result
from aenv.bench.swe import published_images
from aenv.bench.swe.benchmark import SweBench
from aenv.bench.swe.dataset import Instance, load
from aenv.errors import EnvironmentError
from aenv.images import base_systems, docker_cli
from tests.bench.test_swe import FILES, NAME, row
from tests.local.conftest import _use_platform, platform
from tests.tiny import make_root

__all__ = ["_use_platform", "platform"]

IMAGE = "acme/calc.eval:1"
PROGRAMS = ("bash", "cat", "cp", "env", "find", "git", "grep", "ls", "mkdir", "rm", "sed", "sh", "wc")
ACTIVATE = "conda() { export PATH=/opt/miniconda3/envs/testbed/bin:$PATH; }\n"
PACKAGES = ("_pytest", "pytest", "py.py", "pluggy", "pluggy-*", "iniconfig", "packaging", "pygments")


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a system like SWE-bench's images: the repository with later commits in /testbed, and a conda Python."""
    root = make_root(tmp_path_factory.mktemp("swe-image") / "root", PROGRAMS)
    conda = root / "opt" / "miniconda3"
    python = conda / "envs" / "testbed"
    version = f"python3.{sys.version_info.minor}"
    unneeded = shutil.ignore_patterns("test", "site-packages", "idlelib", "*.a", "__pycache__", "config-*")
    shutil.copytree(Path(sys.base_prefix, "lib", version), python / "lib" / version, ignore=unneeded)
    for library in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
        shutil.copy(library, python / "lib" / library.name, follow_symlinks=False)
    packages = python / "packages"
    packages.mkdir()
    for pattern in PACKAGES:
        for source in Path(pytest.__file__).parents[1].glob(pattern):
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, packages / source.name)
    (python / "bin").mkdir()
    shutil.copy(os.path.realpath(sys.executable), python / "bin" / "python.real")
    home = Path("/", python.relative_to(root))
    (python / "bin" / "python").write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH={home}/lib PYTHONHOME={home} PYTHONPATH={home}/packages\n"
        'exec "${0}.real" "$@"\n'
    )
    (python / "bin" / "pytest").write_text('#!/bin/sh\nexec python -m pytest "$@"\n')
    for name in ("python", "pytest"):
        (python / "bin" / name).chmod(0o755)
    for program in (python / "bin" / "python.real", *Path(python).rglob("*.so")):
        libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for word in libraries.split():
            if word.startswith(("/lib", "/usr/lib")) and not (root / word[1:]).exists():
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    (conda / "bin").mkdir()
    (conda / "bin" / "activate").write_text(ACTIVATE)
    testbed = root / "testbed"
    for name, text in FILES.items():
        (testbed / name).parent.mkdir(parents=True, exist_ok=True)
        (testbed / name).write_text(text)
    git(testbed, "init", "-q")
    git(testbed, "add", "-A")
    git(testbed, "commit", "-qm", "base")
    git(testbed, "checkout", "-q", "-b", "solved")
    (testbed / "secret.txt").write_text("what came later")
    git(testbed, "add", "-A")
    git(testbed, "commit", "-qm", "later")
    git(testbed, "checkout", "-q", "-")
    (testbed / "pyproject.toml").write_text(FILES["pyproject.toml"] + "# changed by set-up\n")
    (testbed / "build.log").write_text("left by set-up")
    return root


@pytest.fixture(scope="module")
def instances(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("swe-on-image")
    base = git(root / "testbed", "rev-parse", "HEAD")
    on_image = {**row(base), "image": IMAGE, "python": "", "requirements": [], "install": []}
    (folder / "instances.jsonl").write_text(json.dumps(on_image) + "\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patched.setenv("XDG_DATA_HOME", str(folder / "data"))
        yield folder / "instances.jsonl"


@pytest.fixture
def named(instances: Path, root: Path) -> Iterator[Path]:
    """Add the image to the bases of this machine."""
    asyncio.run(base_systems.BaseSystems().add("acme-calc.eval-1", root))
    yield instances
    base_systems.remove("acme-calc.eval-1")


def attempt(instances: Path, folder: Path, agent: str) -> Result:
    return asyncio.run(SweBench({"instances": str(instances)}).run(BenchJob(NAME, agent, folder)))


def test_only_the_gold_patch_resolves_the_issue_on_the_image(named: Path, tmp_path: Path) -> None:
    good = attempt(named, tmp_path, "gold")
    assert (good.reward, good.outputs["image"]) == (1.0, IMAGE)
    assert (good.outputs["FAIL_TO_PASS"], good.outputs["PASS_TO_PASS"]) == ("1/1", "1/1")
    nothing = attempt(named, tmp_path, "empty")
    assert (nothing.reward, nothing.outputs["PASS_TO_PASS"]) == (0.0, "1/1")


def test_an_agent_sees_no_later_commits_and_its_patch_excludes_the_set_up(named: Path) -> None:
    async def main() -> None:
        prepared = await SweBench({"instances": str(named)}).prepared(NAME)
        async with Environment(str(prepared.agent)) as env:

            async def shell(command: str) -> str:
                done: Any = (await env.call_tool("shell", {"command": command})).data
                return str(done["output"])

            history = await shell("git log --all --format=%s; git cat-file --batch-all-objects --batch-check; ls")
            assert history.splitlines()[:2] == ["set-up", "base"]
            assert "secret.txt" not in history
            assert "later" not in history
            assert await shell("git status --porcelain") == ""
            assert (await shell("python -m pytest -q tests")).splitlines()[-1].startswith("1 passed")
            await shell("sed -i s/-/+/ calc.py")
            patch = await env.call_function("get_patch", {})
            assert patch.count("diff --git") == 1
            assert "+    return a + b" in patch

    asyncio.run(main())


def test_an_image_without_a_repository_is_rejected(instances: Path, tmp_path: Path) -> None:
    empty = make_root(tmp_path / "empty", ("sh",))
    asyncio.run(base_systems.BaseSystems().add("acme-calc.eval-1", empty))
    try:
        with pytest.raises(EnvironmentError, match="has no repository at /testbed"):
            attempt(instances, tmp_path, "gold")
    finally:
        base_systems.remove("acme-calc.eval-1")


def test_the_image_is_named_by_the_row_or_is_the_official_one(instances: Path) -> None:
    (found,) = load(str(instances))
    assert published_images.name_of(found) == IMAGE
    bare = Instance({**found.row, "image": "", "instance_id": "pallets__flask-5014"}, "", ())
    assert published_images.name_of(bare) == "swebench/sweb.eval.x86_64.pallets_1776_flask-5014:latest"
    assert published_images.name_of(Instance(bare.row, "3.11", ())) == ""


def test_an_unknown_image_is_taken_from_docker(instances: Path, root: Path, tmp_path: Path) -> None:
    engine = asyncio.run(docker_cli.find())
    if isinstance(engine, str):
        pytest.skip(engine)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(root, ".")
    subprocess.run([engine.program, "import", "-", IMAGE], input=packed.getvalue(), check=True, capture_output=True)
    try:
        good = attempt(instances, tmp_path, "gold")
        assert (good.reward, good.outputs["image"]) == (1.0, IMAGE)
    finally:
        subprocess.run([engine.program, "rmi", IMAGE], check=True, capture_output=True)
        base_systems.remove("acme-calc.eval-1")
