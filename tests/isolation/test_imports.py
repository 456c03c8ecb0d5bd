"""The runtime never imports modules that an agent's programs write."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aenv.client.instance_client import InstanceClient
from aenv.engines.base import SandboxSpec
from aenv.engines.native.engine import NativeEngine
from aenv.errors import FunctionFailed
from aenv.http.url import ServerUrl
from aenv.sdk.blocking import SyncEnvironment
from tests.conftest import run
from tests.isolation.conftest import make_project
from tests.isolation.host import Platform

HEAD = """
import importlib, json, os, subprocess, sys
from pathlib import Path
from aenv import register_function, register_reward, register_tool
"""
ENVIRONMENT = (
    HEAD
    + """
import helpers.eager
from pkg import eager as packaged
import generated_before_start

sys.path.append("/app/vendored")
sys.path.append("/tmp/extra")
sys.path.append("")
ANSWER = "the hidden answer"


@register_tool
def shell(command: str) -> str:
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True)
    return done.stdout + done.stderr


@register_reward
def solved(answer: str = "") -> float:
    import _grading as lazy
    return lazy.grade(answer, ANSWER)


@register_function
def lazily(name: str) -> dict:
    os.chdir("/tmp")
    module = importlib.import_module(name)
    return {"file": getattr(module, "__file__", None), "who": getattr(module, "WHO", None)}


@register_function
def files() -> dict:
    import inspect
    import importlib.resources
    import pkgutil
    import pickle
    from helpers import _lazy as lazy
    return {
        "beside": (Path(__file__).parent / "beside.txt").read_text(),
        "file": __file__,
        "source": inspect.getsource(lazy.of_the_author),
        "resource": (importlib.resources.files("helpers") / "data.txt").read_text(),
        "data": pkgutil.get_data("helpers", "data.txt").decode(),
        "pickled": pickle.loads(pickle.dumps(lazy.Thing(7))).value,
        "module": lazy.Thing.__module__,
        "relative": Path("src/beside.txt").read_text(),
    }
"""
)
LAZY = "WHO = 'the author'\n"
FILES = {
    "src/a_first.py": "from pathlib import Path\nPath('/app/src/generated_before_start.py').write_text('WHO = 1')\n",
    "src/helpers/__init__.py": "",
    "src/helpers/eager.py": LAZY,
    "src/helpers/_lazy.py": LAZY + "def of_the_author():\n    return 1\nclass Thing:\n    def __init__(self, value):\n"
    "        self.value = value\n",
    "src/helpers/data.txt": "shipped",
    "src/namespace/_lazy.py": LAZY,
    "src/_own/deep/lazy.py": LAZY,
    "src/_own/__init__.py": "",
    "src/pkg/__init__.py": "",
    "src/pkg/eager.py": LAZY,
    "src/pkg/_lazy.py": LAZY,
    "src/_grading.py": "def grade(answer, expected):\n    return float(answer == expected)\n",
    "src/agents/__init__.py": LAZY,
    "src/idna.py": LAZY,  # as an installed package is called
    "src/beside.txt": "beside",
    "vendored/vendored_lazy.py": LAZY,
}
CHEAT = "def grade(answer, expected):\\n    return 1.0\\nWHO = 'the agent'\\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_project(tmp_path_factory.mktemp("imports"), ENVIRONMENT, name="graded")
    for name, text in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


@pytest.fixture(params=["loaded", "forked"])
def env(request: pytest.FixtureRequest, project: Path, platform: Platform) -> Iterator[SyncEnvironment]:
    """An instance that has loaded its code itself, or is a fork of one that has."""
    if request.param == "loaded":
        with SyncEnvironment(str(project), arguments=[request.node.name]) as made:
            yield made
        return
    for _ in range(3):  # what is asked for once or twice is not made from one that is loaded
        with SyncEnvironment(str(project)) as made:
            pass
    with SyncEnvironment(str(project)) as made:
        yield made


def plant(env: SyncEnvironment, *paths: str) -> None:
    """Write modules, as an agent with a shell would, in all the ways that Python would find them."""
    for path in paths:
        said = env.call_tool(
            "shell",
            {"command": f'mkdir -p $(dirname {path}) && rm -rf {path} && printf "{CHEAT}" > {path} && cat {path}'},
        )
        assert "the agent" in said.text, said.text


def lazily(env: SyncEnvironment, name: str) -> Any:
    return env.call_function("lazily", {"name": name})


@pytest.mark.attack("grading")
def test_a_planted_module_does_not_make_the_reward(env: SyncEnvironment) -> None:
    plant(env, "/app/src/_grading.py", "/app/src/_grading/__init__.py")
    assert env.call_reward({"answer": "wrong"}) == 0.0


@pytest.mark.attack("grading")
@pytest.mark.parametrize(
    "name",
    [
        "helpers._lazy",
        "pkg._lazy",
        "namespace._lazy",
        "_own.deep.lazy",
        "agents",
        "idna",
        "vendored_lazy",
        "src.pkg._lazy",
    ],
)
def test_a_module_of_the_author_is_imported_as_it_was_shipped(env: SyncEnvironment, name: str) -> None:
    path = name.removeprefix("src.").replace(".", "/")
    for root in ("/app/src", "/app/vendored", "/app", "/tmp", "/tmp/extra"):
        plant(env, f"{root}/{path}.py", f"{root}/{path}/__init__.py")
        env.call_tool("shell", {"command": f"rm -rf {root}/{path.split('/')[0]}/__pycache__"})
    found = lazily(env, name)
    assert found["who"] == "the author"
    assert found["file"].startswith("/app/")


@pytest.mark.attack("grading")
@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("aenv.extra", ["/app/src/aenv/extra.py", "/app/src/aenv/__init__.py"]),
        ("mcp_of_mine", ["/app/src/mcp_of_mine.py", "/app/mcp_of_mine.py"]),
        ("helpers.planted", ["/app/src/helpers/planted.py"]),
        ("planted_package", ["/app/src/planted_package/__init__.py", "/app/src/planted_package/x.py"]),
        ("of_the_current_folder", ["/tmp/of_the_current_folder.py", "/app/of_the_current_folder.py"]),
        ("extra_one", ["/tmp/extra/extra_one.py"]),
        ("of_the_home", ["/home/env/.local/lib/python3/site-packages/of_the_home.py", "/home/env/of_the_home.py"]),
    ],
)
def test_a_module_that_was_not_shipped_is_not_found(env: SyncEnvironment, name: str, paths: list[str]) -> None:
    plant(env, *paths)
    with pytest.raises(FunctionFailed, match="No module named"):
        lazily(env, name)


@pytest.mark.attack("grading")
@pytest.mark.parametrize("name", ["pydantic", "mcp", "anyio", "json.tool", "tomllib", "this", "antigravity"])
def test_installed_modules_are_not_shadowed_by_planted_ones(env: SyncEnvironment, name: str) -> None:
    path = name.replace(".", "/")
    plant(env, f"/app/src/{path}.py", f"/app/{path}.py", f"/app/src/{path}/__init__.py", f"/app/src/{path}/x.py")
    found = lazily(env, name)
    assert found["who"] is None
    assert not found["file"].startswith("/app")


@pytest.mark.attack("grading")
def test_bytecode_in_the_projects_folder_is_not_run(env: SyncEnvironment) -> None:
    compiling = (
        "import py_compile, importlib.util; py_compile.compile('/tmp/evil.py', "
        "importlib.util.cache_from_source('/app/src/pkg/_lazy.py'), "
        "invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"
    )
    command = f'echo "WHO = \'the agent\'" > /tmp/evil.py && {sys.executable} -c "{compiling}"; ls /app/src/pkg/*'
    assert ".pyc" in env.call_tool("shell", {"command": command}).text
    assert lazily(env, "pkg._lazy")["who"] == "the author"


def test_the_authors_files_are_where_they_expect_them(env: SyncEnvironment) -> None:
    found = env.call_function("files", {})
    assert found == {
        "beside": "beside", "file": "/app/src/graded_env.py", "source": "def of_the_author():\n    return 1\n",
        "resource": "shipped", "data": "shipped", "pickled": 7, "module": found["module"], "relative": "beside",
    }  # fmt: skip
    assert found["module"] in ("helpers._lazy", "src.helpers._lazy")


def test_the_projects_folder_can_be_changed_and_the_snapshot_cannot(env: SyncEnvironment) -> None:
    said = env.call_tool("shell", {"command": "echo new > /app/src/beside.txt && cat /app/src/beside.txt"})
    assert said.text == "new\n"
    said = env.call_tool("shell", {"command": "echo new > /.project/src/beside.txt; cat /.project/src/beside.txt"})
    assert "Read-only" in said.text
    assert said.text.startswith("beside")


def test_the_hosts_files_are_unchanged(env: SyncEnvironment, project: Path) -> None:
    plant(env, "/app/src/helpers/eager.py")
    assert (project / "src/helpers/eager.py").read_text() == LAZY
    assert json.loads((project / "config.json").read_text())["name"] == "graded"


@pytest.mark.attack("grading")
def test_packages_below_a_writable_place_cannot_be_moved_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter or its packages may live in /tmp, of which each instance has its own."""
    top = Path(tempfile.mkdtemp(prefix="aenv-packages-", dir="/tmp"))
    top.chmod(0o755)
    packages = top / "deep" / "site"
    packages.mkdir(parents=True)
    (packages / "installed_lazily.py").write_text(LAZY)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
    project = make_project(tmp_path, name="below")
    attack = f"mv {top} /tmp/away; mv {top}/deep {top}/away; mkdir -p {packages}; echo 'WHO = 1' > {packages}/{{}}.py"
    importing = {"code": "import installed_lazily; result = installed_lazily.WHO"}

    async def main() -> Any:
        engine = NativeEngine(top / "native", pool=0)
        try:
            ref = await engine.start(SandboxSpec("below@1.0.0", project, project))
            client = InstanceClient(ServerUrl.parse(ref.data_url), token=ref.token)
            try:
                shell = {"command": attack.format("installed_lazily")}
                await client.exchange("POST", "/tools/shell", json.dumps(shell).encode(), timeout=60.0)
                answer = await client.exchange("POST", "/tools/python", json.dumps(importing).encode(), timeout=60.0)
                return json.loads(answer["data"]["content"][0]["text"])
            finally:
                client.close()
        finally:
            await engine.close()

    try:
        assert run(main()) == {"value": "the author"}
    finally:
        shutil.rmtree(top)
