"""MCP over stdio: ``aenv run --stdio``, ``aenv mcp serve``, and the configuration that ``aenv mcp config`` prints."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from aenv.cli.mcp.mcp_hosts import HOSTS
from aenv.project import scaffold
from tests.cli.conftest import COMMAND, Aenv, variables
from tests.conftest import run
from tests.local.conftest import platform as platform

NOISY = """
import os
import subprocess
import sys

from aenv import current_call, register_tool

print("printed at import")
os.write(1, b"written to the descriptor\\n")


@register_tool
def shout(text: str) -> str:
    print("printed in a call")
    subprocess.run(["echo", "printed by a program"], check=True)
    subprocess.run(["echo", "printed by a program with all descriptors"], check=True, close_fds=False)
    sys.__stdout__.write("{}\\n")
    os.system("echo printed by a shell")
    sys.stdout.flush()
    return text.upper()


@register_tool
def stdin_of_programs() -> str:
    return subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout


@register_tool
def steps(count: int) -> int:
    for step in range(count):
        current_call().progress(step + 1, count, f"step {step + 1}")
    return count
"""


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    """A project that prints wherever it can."""
    root = scaffold.create("noisy", parent_dir=tmp_path).root
    (root / "src" / "custom_env.py").write_text(NOISY)
    return root


@pytest.fixture
def sandboxed(platform: Any) -> dict[str, str]:
    """Variables with which the local platform of this module is used."""
    return {"AENV_RUNTIME_DIR": str(platform.runtime)}


async def use(command: str, arguments: list[str], env: dict[str, str], cwd: Path | None = None) -> dict[str, Any]:
    """Talk to a server as a desktop host does, with the official client."""
    parameters = StdioServerParameters(command=command, args=arguments, env=env, cwd=cwd)
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        about = await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        said = await session.call_tool("shout", {"text": "hello"})
        wrong = await session.call_tool("shout", {})
        stdin = await session.call_tool("stdin_of_programs", {})
        await session.call_tool("steps", {"count": 2}, progress_callback=on_progress)
    return {
        "name": about.server_info.name,
        "version": about.server_info.version,
        "tools": tools,
        "said": said.content[0].text,  # type: ignore[union-attr]
        "structured": said.structured_content,
        "wrong": wrong.is_error,
        "stdin": stdin.content[0].text,  # type: ignore[union-attr]
        "progress": seen,
    }


def test_a_project_speaks_mcp_over_stdio_whatever_its_code_prints(noisy: Path) -> None:
    told = run(use(COMMAND[0], [*COMMAND[1:], "run", "--stdio"], variables(), noisy))
    assert told == {
        "name": "noisy", "version": "1.0.0", "tools": ["shout", "stdin_of_programs", "steps"], "said": "HELLO",
        "structured": {"result": "HELLO"}, "wrong": True, "stdin": "",
        "progress": [(1, 2, "step 1"), (2, 2, "step 2")],
    }  # fmt: skip


def test_stdout_carries_protocol_messages_only_and_the_end_of_stdin_ends_the_server(noisy: Path) -> None:
    version = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": version},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    done = subprocess.run(
        [*COMMAND, "run", str(noisy), "--stdio"],
        input="".join(json.dumps(message) + "\n" for message in messages),
        capture_output=True,
        text=True,
        env=variables(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1]
    assert "printed at import" in done.stderr
    assert "written to the descriptor" in done.stderr


def test_a_broken_project_says_why_on_stderr(noisy: Path, aenv: Aenv) -> None:
    (noisy / "src" / "custom_env.py").write_text("import no_such_module\n")
    done = aenv("run", str(noisy), "--stdio")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no_such_module" in done.stderr


@pytest.mark.parametrize("more", [["--port", "8081"], ["--reload"], ["--output", "json"]])
def test_stdio_is_refused_with_options_of_a_port(noisy: Path, aenv: Aenv, more: list[str]) -> None:
    done = aenv("run", str(noisy), "--stdio", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--stdio cannot be combined with {more[0]}" in done.stderr


def test_the_printed_configuration_of_a_project_starts_a_server_that_answers(noisy: Path, aenv: Aenv) -> None:
    done = aenv("mcp", "config", ".", cwd=noisy)
    assert done.returncode == 0, done.stderr
    assert "Claude Desktop" in done.stderr
    entry = json.loads(done.stdout)["mcpServers"]["noisy"]
    assert Path(entry["command"]).is_absolute()
    told = run(use(entry["command"], entry["args"], variables(entry.get("env")), Path("/")))
    assert told["said"] == "HELLO"


@pytest.mark.long
def test_the_printed_configuration_of_an_environment_starts_it_in_a_sandbox(
    noisy: Path, aenv: Aenv, sandboxed: dict[str, str], tmp_path: Path
) -> None:
    data = {"AENV_DATA_DIR": str(tmp_path / "data"), **sandboxed}
    pushed = aenv("push", cwd=noisy, env=data)
    assert pushed.returncode == 0, pushed.stderr
    done = aenv("mcp", "config", "noisy", "--for", "vscode", "--env", "AENV_RUNTIME_DIR", env=data)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    entry = json.loads(done.stdout)["servers"]["noisy"]
    assert entry["args"][-3:] == ["mcp", "serve", "noisy"]
    told = run(use(entry["command"], entry["args"], variables(entry["env"]), Path("/")))
    assert (told["said"], told["structured"], told["wrong"]) == ("HELLO", {"result": "HELLO"}, True)
    assert told["progress"] == [(1, 2, "step 1"), (2, 2, "step 2")]
    assert (told["name"], told["version"]) == ("noisy", "1.0.0")
    assert told["tools"] == ["shout", "stdin_of_programs", "steps"]


@pytest.mark.parametrize(
    ("name", "ours"), [("noisy", True), ("noisy@1.0.0", True), ("noisy@2.0.0", False), ("noisy@1", False)]
)
def test_a_named_version_is_taken_from_the_hub_unless_the_project_here_has_it(
    noisy: Path, aenv: Aenv, name: str, ours: bool
) -> None:
    done = aenv("mcp", "config", name, cwd=noisy)
    arguments = json.loads(done.stdout)["mcpServers"]["noisy"]["args"]
    assert arguments[-3:] == (["run", str(noisy), "--stdio"] if ours else ["mcp", "serve", name])
    assert (f"the project at {noisy}" if ours else f"It serves {name} of the hub") in done.stderr


def test_an_environment_that_cannot_be_served_is_reported_on_stderr_alone(
    aenv: Aenv, sandboxed: dict[str, str], tmp_path: Path
) -> None:
    done = aenv("mcp", "serve", "nosuch", env={"AENV_DATA_DIR": str(tmp_path / "data"), **sandboxed})
    assert (done.returncode, done.stdout) == (1, "")
    assert "nosuch" in done.stderr


def test_an_environment_that_the_hub_does_not_have_is_printed_with_a_warning(aenv: Aenv, tmp_path: Path) -> None:
    done = aenv("mcp", "config", "nosuch", env={"AENV_DATA_DIR": str(tmp_path / "data")})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mcpServers"]["nosuch"]["env"] == {"AENV_DATA_DIR": str(tmp_path / "data")}
    assert "there is no environment nosuch in this hub" in done.stderr
    down = aenv("mcp", "config", "nosuch", env={"AENV_HUB_URL": "http://127.0.0.1:9"})
    assert (down.returncode, "the hub could not be asked" in down.stderr) == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("host", HOSTS)
def test_every_host_gets_command_arguments_and_variables(host: str, aenv: Aenv, tmp_path: Path) -> None:
    where = {"AENV_SYSTEM_URL": "http://platform", "AENV_API_KEY": "s3cret"}
    done = aenv("mcp", "config", "weather@2.0.0", "--for", host, "--as", "my weather", env=where)
    assert done.returncode == 0, done.stderr
    document = tomllib.loads(done.stdout) if host == "codex" else json.loads(done.stdout)
    (servers,) = document.values()
    entry = servers["my weather"]
    assert entry["command"].startswith(str(Path(sys.executable).parent))
    assert entry["args"][-3:] == ["mcp", "serve", "weather@2.0.0"]
    assert entry["env"] == {"AENV_SYSTEM_URL": "http://platform"}
    assert "s3cret" not in done.stdout + done.stderr


def test_a_variable_that_is_not_set_is_refused(aenv: Aenv) -> None:
    done = aenv("mcp", "config", "weather", "--env", "NO_SUCH_VARIABLE")
    assert (done.returncode, done.stdout) == (2, "")
    assert "NO_SUCH_VARIABLE is not set here" in done.stderr
