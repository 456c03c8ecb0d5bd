"""Existing code of users runs unchanged: environments are defined, published, served and called as three documents
print it. Each test names the repairs that the printed code needs; `documents.py` has the code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import stop_all
from tests.platform.parts import serving
from tests.usage.conftest import AENV, variables
from tests.usage.documents import PRINTED

IMPORT = "import asyncio\nfrom aenv import Environment\n\n"
"""Repair of fragments that begin with `async with`: the import that the document shows elsewhere."""


@pytest.mark.parametrize("name", PRINTED)
def test_the_code_that_is_kept_here_is_that_of_the_document(name: str) -> None:
    printed = PRINTED[name]
    if not printed.is_there:
        pytest.skip(f"the document (../shared/seeds/{printed.document}*) is not beside this repository")
    assert printed.is_kept(), printed.code


def as_script(fragment: str, end: str = "") -> str:
    """Turn a fragment with a top-level ``async with`` into a script."""
    body = textwrap.indent(f"{fragment}\n{end}", "    ")
    return f"{IMPORT}async def main():\n{body}\n\nasyncio.run(main())\n"


@pytest.mark.parametrize("arguments", [(), ("./src",)], ids=["aenv run", "aenv run ./src"])
def test_an_environment_defined_as_printed_is_called_as_printed(
    arguments: tuple[str, ...],
    make_project: Callable[..., Path],
    aenv_run: Callable[..., None],
    run_script: Callable[..., str],
) -> None:
    project = make_project("swe-env", PRINTED["an environment"].code)
    aenv_run(project, *arguments)
    output = run_script(PRINTED["its use"].code).splitlines()
    assert output[0].startswith("[{'type': 'text', 'text': ")
    assert output[1:] == ["Function result: 30", "Reward: 1.0"]


WRITE_FILE = '''
from pathlib import Path

from aenv import register_tool


@register_tool
def write_file(path: str, content: str) -> dict:
    """Write a file."""
    Path("written").mkdir(exist_ok=True)
    return {"bytes": Path("written", path).write_text(content)}
'''


def test_a_file_is_written_as_printed(
    make_project: Callable[..., Path], aenv_run: Callable[..., None], run_script: Callable[..., str]
) -> None:
    project = make_project("mini-program", WRITE_FILE)
    aenv_run(project)
    run_script(as_script(PRINTED["a file"].code))
    assert (project / "written" / "index.html").read_text() == "<html>...</html>"


@pytest.mark.parametrize("name", ["a message", "an agent"])
def test_an_agent_is_called_as_printed(
    name: str, make_project: Callable[..., Path], aenv_run: Callable[..., None], run_script: Callable[..., str]
) -> None:
    aenv_run(make_project("agent-b", None, "--template", "agent"))
    output = run_script(as_script(PRINTED[name].code, "print(response.content)"))
    assert output.startswith("[{'type': 'text', 'text': 'Hello!")


def test_a_described_tool_and_its_reward_are_served_as_printed(
    make_project: Callable[..., Path], aenv_run: Callable[..., None], run_script: Callable[..., str]
) -> None:
    module = f"{PRINTED['a described tool'].code}\n{PRINTED['a reward'].code}\n"
    aenv_run(make_project("my-env", module))
    show = """
async with Environment("my-env") as env:
    print([(tool["name"].rpartition("/")[2], tool["description"].splitlines()[0]) for tool in tools])
    print((await env.call_tool("my_tool", {"param1": "it"})).data)
    print(await env.call_reward({"code": "", "test_results": {"passed": False}}))
"""
    tools, result, reward = run_script(as_script(PRINTED["an opened environment"].code, show)).splitlines()
    assert tools.startswith("[('my_tool', '")
    assert result == "{'result': 'Processed it'}"
    assert reward == "-0.5"


@pytest.fixture
def at_home(sandboxes: None) -> Iterator[Mapping[str, str]]:
    """The variables of a user who has a home, a local platform, and no builder of images."""
    with tempfile.TemporaryDirectory(prefix="aenv-t-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        for name in ("docker", "podman", "buildah"):
            (home / name).write_text("#!/bin/sh\nexit 1\n")
            (home / name).chmod(0o755)
        path = os.pathsep.join([str(home), str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"HOME": folder, "XDG_CACHE_HOME": f"{folder}/cache", "XDG_DATA_HOME": f"{folder}/data"}
        yield variables({**own, "AENV_RUNTIME_DIR": f"{folder}/run", "PATH": path})
        stop_all(home / "run")


def test_an_environment_is_built_published_and_called_as_printed(at_home: Mapping[str, str], tmp_path: Path) -> None:
    """Repairs: `cd` into the project, whose `aenv init` is printed twice; `asyncio.run` around the call."""

    def said(*command: str, folder: Path = tmp_path) -> str:
        done = subprocess.run(command, cwd=folder, env=at_home, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said("bash", "-c", "aenv init my-env")
    (tmp_path / "my-env" / "src" / "custom_env.py").write_text(PRINTED["a tool"].code)
    assert "my-env@1.0.0 published" in said("bash", "-c", "cd my-env && aenv build && aenv push")
    assert "my-env" in said("bash", "-c", "aenv list")
    assert "was there already" in said("bash", "-c", "aenv push my-env"), "a folder, as the third document has it"
    (tmp_path / "call.py").write_text(as_script(PRINTED["its call"].code, "print(result.is_error, result.text)"))
    assert said(sys.executable, "-W", "error", "call.py").startswith("False ")


def test_a_remote_environment_is_created_and_released_as_printed(
    sandboxes: None, run_script: Callable[..., str]
) -> None:
    """Repairs: the address of the platform; `await` before `release()`, which the document names without code."""
    with (
        tempfile.TemporaryDirectory(prefix="aenv-t-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        serving(Path(folder), auth=False) as platform,
    ):
        code = PRINTED["a remote environment"].code.replace("http://aenv-service/", f"{platform.url}/")
        end = "print(len(await mini_terminal.list_tools()) > 0)\nawait mini_terminal.release()\n"
        assert run_script(as_script(code, end), more={"DUMMY_INSTANCE_IP": ""}) == "True\n"
        command = [*AENV, "instance", "list", "--output", "json"]
        listed = subprocess.run(
            command, env=variables({"AENV_SYSTEM_URL": platform.url}), capture_output=True, text=True, timeout=60
        )
        assert '"items": []' in listed.stdout or listed.stdout.strip() == "[]", listed.stdout + listed.stderr
