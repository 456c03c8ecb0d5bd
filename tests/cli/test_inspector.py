"""With a node and an npx of our own making: a real one would fetch half the internet."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from aenv.cli.mcp.inspector import Inspector

NPX = f"""#!{sys.executable}
import json, os, signal, sys
from pathlib import Path
if not os.fork():  # npx starts a shell which starts node
    signal.pause()
config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
told = {{"args": sys.argv[1:], "config": config, "env": dict(os.environ), "group": os.getpgrp()}}
Path(os.environ["TOLD"] + ".part").write_text(json.dumps(told))
os.rename(os.environ["TOLD"] + ".part", os.environ["TOLD"])
with open(os.environ["PULSE"], "w") as pulse:  # open until every process of the group is gone
    if not os.fork():
        signal.pause()
    signal.pause()
"""


def script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


class FakeNode:
    """A PATH with node and npx; ``told`` is what npx was started with, ``wait_until_gone`` waits for its end."""

    def __init__(self, folder: Path, version: str = "v22.19.0") -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        script(self.bin / "node", f"#!/bin/sh\necho {version}\n")
        script(self.bin / "npx", NPX)
        for tool in ("sh", "git"):
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        self._told, self._pulse = folder / "told.json", folder / "pulse"
        os.mkfifo(self._pulse)
        self.variables = {"PATH": str(self.bin), "TOLD": str(self._told), "PULSE": str(self._pulse)}

    def wait_until_started(self) -> dict[str, Any]:
        self.pulse = self._pulse.open()  # opens when the other side does
        told: dict[str, Any] = json.loads(self._told.read_text())
        return told

    def wait_until_gone(self) -> None:
        with self.pulse:
            assert self.pulse.read() == ""  # ends when the last holder has


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    (tmp_path / "node").mkdir()
    return FakeNode(tmp_path / "node")


def test_it_starts_beside_the_server_and_ends_with_it(serve: Any, project: Path, node: FakeNode) -> None:
    server = serve("--inspector-port", "16274", cwd=project, env=node.variables)
    told = node.wait_until_started()
    assert told["args"][:2] == ["--yes", "@modelcontextprotocol/inspector@2"]
    assert told["config"]["mcpServers"]["my-env"]["url"] == server.facts["mcp_url"]
    assert told["env"]["CLIENT_PORT"] == "16274"
    assert told["env"]["MCP_AUTO_OPEN_ENABLED"] == "false"
    assert told["group"] != os.getpgid(server.process.pid)
    code, said = server.stop()
    assert code == 0
    assert f"http://localhost:16274/?MCP_INSPECTOR_API_TOKEN={told['env']['MCP_INSPECTOR_API_TOKEN']}" in said
    node.wait_until_gone()
    assert not Path(told["args"][told["args"].index("--config") + 1]).parent.exists()


def test_it_ends_when_the_server_is_killed(serve: Any, project: Path, node: FakeNode) -> None:
    server = serve(cwd=project, env=node.variables)
    told = node.wait_until_started()
    server.stop(signal.SIGKILL)
    node.wait_until_gone()
    shutil.rmtree(Path(told["args"][told["args"].index("--config") + 1]).parent)


def test_the_token_reaches_it_and_no_command_line(serve: Any, project: Path, node: FakeNode) -> None:
    server = serve(cwd=project, env={**node.variables, "AENV_TOKEN": "very-secret"})
    told = node.wait_until_started()
    assert told["config"]["mcpServers"]["my-env"]["headers"] == {"Authorization": "Bearer very-secret"}
    family = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    assert not [part for process in family for part in process.cmdline() if "very-secret" in part]
    config = Path(told["args"][told["args"].index("--config") + 1])
    assert config.parent.stat().st_mode & 0o077 == 0
    server.stop()
    node.wait_until_gone()


@pytest.mark.parametrize("option", ["--quiet", "--no-inspector"])
def test_it_stays_away_when_told_to(serve: Any, project: Path, node: FakeNode, option: str) -> None:
    _, said = serve(option, cwd=project, env=node.variables).stop()
    assert "Inspector" not in said


def test_without_node_the_server_runs_and_says_how_to_get_it(serve: Any, project: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    server = serve(cwd=project, env={"PATH": str(tmp_path / "empty")})
    assert server.post("/functions/describe_task", {})
    _, said = server.stop()
    assert "MCP Inspector: not started: there is no node and npx; install Node.js 22.19 or newer" in said


def test_an_old_node_is_told_apart(node: FakeNode, tmp_path: Path) -> None:
    script(node.bin / "node", "#!/bin/sh\necho v20.1.0\n")
    with Inspector(16274, node.variables) as inspector:
        said = inspector.start("my-env", "http://localhost:1/mcp", None)
    assert "this is node v20.1.0" in said
    assert "22.19" in said


def test_a_node_that_never_answers_is_not_waited_for_at_the_end(node: FakeNode) -> None:
    script(node.bin / "node", f"#!{sys.executable}\nimport signal\nsignal.pause()\n")
    with Inspector(16274, node.variables):
        pass


def test_a_port_in_use_is_told(node: FakeNode) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Inspector(port, node.variables) as inspector:
            assert f"port {port} is in use" in inspector.start("my-env", "http://localhost:1/mcp", None)
