"""The command as users run it: a process of its own, with nothing of this machine's settings."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aenv.project import scaffold

Aenv = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "aenv.cli"]
OURS = ("AENV_", "OPENAI_", "NO_COLOR", "MCP_", "DUMMY_", "env")


def variables(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, **(more or {})}


@pytest.fixture
def aenv(tmp_path: Path) -> Aenv:
    """Run a command to its end."""

    def run(
        *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *args], cwd=cwd or tmp_path, env=variables(env), capture_output=True, text=True, timeout=60
        )

    return run


@pytest.fixture
def aenv_command() -> list[str]:
    return COMMAND


@pytest.fixture
def read_until() -> Callable[[list[str], Path, str], str]:
    """What a server says on stdout up to ``end``; then it is stopped."""

    def read(command: list[str], cwd: Path, end: str) -> str:
        with subprocess.Popen(command, cwd=cwd, env=variables(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = ""
            try:
                while not said.endswith(end):
                    line = process.stdout.readline()
                    assert line, f"it ended: {said}"
                    said += line
            finally:
                process.terminate()
        return said

    return read


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A new project with a reward, a tool and a function."""
    return scaffold.create("my-env", parent_dir=tmp_path).root


@dataclass
class Server:
    """An ``aenv run`` that is ready."""

    process: subprocess.Popen[str]
    facts: dict[str, Any]

    def post(self, path: str, body: Any, token: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(self.facts["url"] + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def mcp(self, message: Any) -> str:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        request = urllib.request.Request(self.facts["mcp_url"], json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start ``aenv run`` on a free port and wait until it says that it is ready."""
    with ExitStack() as stack:

        def start(*args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Server:
            process = subprocess.Popen(
                [*COMMAND, "run", "--port", "0", "--output", "json", *args],
                cwd=cwd or tmp_path,
                env=variables(env),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stderr is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line == "}\n":
                    return Server(process, json.loads("".join(lines)))
            raise AssertionError(f"it ended: {process.stderr.read()}")

        yield start
