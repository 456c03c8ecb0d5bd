"""MCP Inspector beside a running environment: a web page to call its tools by hand.

It is a Node program of the MCP project, fetched by ``npx`` on first use. The server never waits for it and never
fails because of it. It lives in a process group of its own, so Ctrl-C reaches the server first; and it is tied to
a pipe, so that it ends even when this process is killed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PACKAGE = "@modelcontextprotocol/inspector@2"
NODE = (22, 19)  # required by Inspector 2
_PATIENCE = 5.0

# Runs the command, waits for the pipe to close, ends the whole group. The trap keeps this shell alive through its
# own TERM, to be the last one out.
_TIED_TO_A_PIPE = 'trap : TERM; "$@" & child=$!; read -r _; kill -TERM 0; wait "$child"; kill -KILL 0'


class Inspector:
    """A context manager: looks for Node on entry, starts Inspector on request, ends it on exit."""

    def __init__(self, port: int, variables: Mapping[str, str] | None = None) -> None:
        self._port = port
        self._variables = dict(os.environ if variables is None else variables)
        self._node = self._ask_node()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, mcp_url: str, token: str | None) -> str:
        """Start Inspector for a server. Return a sentence for the user, whether it worked or not."""
        if why := self._cannot():
            return why
        key = secrets.token_hex(16)
        self._folder = Path(tempfile.mkdtemp(prefix="aenv-inspector-"))
        config, log = self._folder / "servers.json", self._folder / "inspector.log"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        server = {"type": "streamable-http", "url": mcp_url, "headers": headers}
        config.write_text(json.dumps({"mcpServers": {name: server}}))  # not on the command line, which ps shows
        command = ["npx", "--yes", PACKAGE, "--config", str(config)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ["sh", "-c", _TIED_TO_A_PIPE, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    "MCP_AUTO_OPEN_ENABLED": "false",
                    **self._variables,
                    "CLIENT_PORT": str(self._port),
                    "MCP_SANDBOX_PORT": "0",
                    "MCP_INSPECTOR_API_TOKEN": key,
                },
            )
        address = f"http://localhost:{self._port}/?MCP_INSPECTOR_API_TOKEN={key}"
        return f"{address}\n(it takes a moment, longer the first time; its log: {log})"

    def close(self) -> None:
        """Stop Inspector and wait for it. Idempotent."""
        if self._node is not None:
            self._node.kill()
            self._node.communicate()
            self._node = None
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _ask_node(self) -> subprocess.Popen[bytes] | None:
        """Start the version check early and read it later, so that the user does not wait."""
        path = self._variables.get("PATH")
        if not all(shutil.which(tool, path=path) for tool in ("sh", "npx")):
            return None
        node = shutil.which("node", path=path)
        if node is None:
            return None
        return subprocess.Popen([node, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _cannot(self) -> str | None:
        wanted = ".".join(map(str, NODE))
        advice = f"install Node.js {wanted} or newer from https://nodejs.org and run this again"
        if self._node is None:
            return f"not started: there is no node and npx; {advice}"
        try:
            said, _ = self._node.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            return "not started: node does not answer"
        self._node = None
        version = re.match(rb"v(\d+)\.(\d+)", said)
        if version is None or (int(version[1]), int(version[2])) < NODE:
            return f"not started: this is node {said.decode(errors='replace').strip()}; {advice}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                return f"not started: port {self._port} is in use; choose another with --inspector-port"
        return None
