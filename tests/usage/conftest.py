"""Environments as users run them: a project of ``aenv init``, served by ``aenv run`` on the default port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

AENV = [sys.executable, "-m", "aenv.cli"]
PORT = 8081
PATIENCE = 60.0  # seconds until another server on that port must have ended


def variables(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AENV_", "OPENAI_", "DUMMY_"))}
    return {**kept, **(more or {})}


def _is_taken() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) == 0


@contextmanager
def _aenv_run(project: Path, *arguments: str) -> Iterator[None]:
    log = project.parent / f"{project.name}.log"
    deadline = time.monotonic() + PATIENCE
    while True:
        while _is_taken():
            if time.monotonic() > deadline:
                pytest.fail(f"port {PORT} is in use by another program; these tests need that very port", pytrace=False)
            time.sleep(0.2)
        with log.open("wb") as stderr, _started(project, arguments, stderr) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if f"is ready at http://127.0.0.1:{PORT}" in line:
                yield
                process.send_signal(signal.SIGINT)
                assert process.wait(30) == 0, log.read_text()
                return
            process.wait(30)
        output = log.read_text()
        assert "already in use" in output, output  # another server was faster: wait again


@contextmanager
def _started(project: Path, arguments: tuple[str, ...], stderr: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*AENV, "run", "--quiet", *arguments],
        cwd=project,
        env=variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Path]:
    """Create a project with ``aenv init``, with the given sources as its src/custom_env.py."""

    def make(name: str, source: str | None = None, *options: str) -> Path:
        done = subprocess.run(
            [*AENV, "init", name, *options], cwd=tmp_path, env=variables(), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        project = tmp_path / name
        if source is not None:
            (project / "src" / "custom_env.py").write_text(source, encoding="utf-8")
        return project

    return make


@pytest.fixture
def aenv_run() -> Iterator[Callable[..., None]]:
    """Run ``aenv run --quiet`` in the project until the end of the test."""
    with ExitStack() as stack:
        yield lambda project, *arguments: stack.enter_context(_aenv_run(project, *arguments))


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., str]:
    """Run a script as a user does, with DUMMY_INSTANCE_IP exported, and return its output."""

    def run(text: str, stdin: str = "", more: Mapping[str, str] | None = None) -> str:
        script = tmp_path / "script.py"
        script.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            cwd=tmp_path,
            env=variables({"DUMMY_INSTANCE_IP": "http://localhost", **(more or {})}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
