"""People with machines of their own: a home, a data folder and a local platform that nobody else has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import left_in, stop_all

COMMAND = [sys.executable, "-m", "aenv.cli"]
OFFLINE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "UV_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
}
"""Whatever looks for the network finds none."""


@dataclass
class Person:
    """Somebody at a shell."""

    home: Path
    runtime: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AENV_", "XDG_", "DUMMY_", "HUB_", "env"))
        }
        own = {"HOME": str(self.home), "AENV_RUNTIME_DIR": str(self.runtime), "NO_COLOR": "1", "PATH": "/usr/bin:/bin"}
        return {**kept, **OFFLINE, **own, **self.variables}

    def aenv(self, *args: str, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*COMMAND, *args], cwd=cwd or self.home, env=self.env, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == code, (
            f"aenv {' '.join(args)} exits with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        return done

    def json(self, *args: str, cwd: Path | None = None) -> Any:
        return json.loads(self.aenv(*args, cwd=cwd).stdout)

    def python(self, text: str, cwd: Path | None = None) -> str:
        """Run a script; what it prints."""
        done = subprocess.run(
            [sys.executable, "-c", text],
            cwd=cwd or self.home,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Callable[..., Person]]:
    """Make somebody; at the end their platforms end."""
    made: list[Person] = []

    def make(**variables: str) -> Person:
        home = tmp_path / f"home-{len(made)}"
        home.mkdir()
        runtime = Path(tempfile.mkdtemp(prefix="aenv-t-", dir="/tmp"))  # a socket's path is short
        made.append(Person(home, runtime, variables))
        return made[-1]

    yield make
    for each in made:
        stop_all(each.runtime)
        left = left_in(each.runtime)
        log = "".join(path.read_text() for path in each.runtime.glob("*/platform.log"))
        shutil.rmtree(each.runtime)
        assert not left
        assert "Traceback" not in log
