"""Built-in environments: their projects are valid, and every hub is seeded with them."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import aenv
from aenv.hub import builtin
from aenv.hub.local_hub import LocalHub
from aenv.hub.open_hub import HubLocation, open_catalog
from aenv.project import manifest
from tests.conftest import run
from tests.hub.parts import push

PROJECTS = builtin.projects()
BRIEF = {"hello-env", "mini-program", "weather-demo"}
"""Projects whose own tests take few seconds."""


def test_hello_env_is_built_in() -> None:
    assert "hello-env" in [project.name for project in PROJECTS]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_the_stored_schemas_of_a_built_in_env_match_its_code(project: Path) -> None:
    if project.name == "tau2-env" and importlib.util.find_spec("tau2_bench_data"):
        pytest.skip("TAU2-Bench is installed here, and has the tools of a task offered as well")
    done = subprocess.run(
        [sys.executable, "-m", "aenv.runtime.describe", str(project)], capture_output=True, check=True, timeout=60
    )
    assert json.loads((project / builtin.SCHEMAS).read_text()) == json.loads(done.stdout)


@pytest.mark.parametrize(
    "project",
    [pytest.param(each, marks=() if each.name in BRIEF else pytest.mark.long) for each in PROJECTS],
    ids=lambda project: project.name,
)
def test_the_config_of_a_built_in_env_is_valid_and_its_tests_pass(project: Path, tmp_path: Path) -> None:
    loaded = manifest.load(project)
    assert loaded.warnings == ()
    assert loaded.manifest.name == project.name
    schema = project / json.loads((project / "config.json").read_text())["$schema"]
    assert json.loads(schema.read_text()) == manifest.schema()
    copy = tmp_path / project.name
    shutil.copytree(project, copy, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "aenv.cli", "test", "-q"], cwd=copy, check=True, timeout=110)


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_built_in_env_imports_only_public_names_of_aenv(project: Path) -> None:
    for file in (project / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "aenv":
                assert node.module == "aenv", f"{file}: {node.module}"
                assert {alias.name for alias in node.names} <= set(aenv.__all__)
            if isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("aenv")]


def test_the_wheel_contains_the_built_in_envs(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert uv, "uv is part of the test dependencies"
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", tmp_path, root], check=True, timeout=110)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    shutil.unpack_archive(wheel, site, "zip")
    code = "from aenv.hub import builtin; print(builtin.folder(), [p.name for p in builtin.projects()])"
    printed = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True
    ).stdout
    assert printed.split()[0] == str(site / "aenv" / "envs")
    assert "hello-env" in printed
    assert not list((site / "aenv" / "envs").rglob("*.pyc"))


# --- in a hub


@pytest.fixture
def envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "envs"
    shutil.copytree(builtin.folder(), folder)
    monkeypatch.setattr(builtin, "folder", lambda: folder)
    return folder


def in_a_hub(tmp_path: Path, work: Callable[[LocalHub], object]) -> None:
    async def main() -> None:
        hub = LocalHub(open_catalog(HubLocation.of(str(tmp_path / "hub" / "hub.db"))))
        try:
            await work(hub)  # type: ignore[misc]
        finally:
            await hub.close()

    run(main())


def test_a_new_version_of_a_built_in_env_is_added_when_the_hub_is_opened(tmp_path: Path, envs: Path) -> None:
    async def first(hub: LocalHub) -> None:
        assert (await hub.get("hello-env")).version == "1.0.0"

    async def second(hub: LocalHub) -> None:
        assert (await hub.get("hello-env")).version == "1.1.0"
        assert (await hub.get("hello-env", "1.0.0")).builtin

    in_a_hub(tmp_path, first)
    config = envs / "hello-env" / "config.json"
    config.write_text(config.read_text().replace('"1.0.0"', '"1.1.0"'))
    in_a_hub(tmp_path, second)


def test_a_built_in_env_does_not_replace_a_users_env_of_the_same_name(
    tmp_path: Path, envs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (envs / "hello-env").rename(tmp_path / "later")

    async def first(hub: LocalHub) -> None:
        await push(hub, "hello-env", "0.1.0", "mine")

    async def second(hub: LocalHub) -> None:
        found = await hub.get("hello-env")
        assert (found.version, found.builtin) == ("0.1.0", False)
        assert (await push(hub, "hello-env", "0.2.0", "mine")).outcome == "created"

    in_a_hub(tmp_path, first)
    (tmp_path / "later").rename(envs / "hello-env")
    in_a_hub(tmp_path, second)


def test_a_broken_built_in_env_does_not_break_the_hub(tmp_path: Path, envs: Path) -> None:
    broken = envs / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")

    async def check(hub: LocalHub) -> None:
        assert "hello-env" in [item.name for item in (await hub.list()).items]

    in_a_hub(tmp_path, check)


def test_opening_a_seeded_hub_again_writes_nothing(tmp_path: Path) -> None:
    async def main() -> list[int]:
        revisions = []
        for _ in range(2):
            hub = LocalHub(open_catalog(HubLocation.of(str(tmp_path / "hub" / "hub.db"))))
            await hub.list()
            found = await hub.catalog.store.get("meta", "builtin")
            assert found is not None
            revisions.append(found.revision)
            await hub.close()
        return revisions

    first, second = run(main())
    assert first == second
