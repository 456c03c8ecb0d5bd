"""The earlier package, aenvironment 0.1.7, unmodified, in a virtual environment of its own."""

from __future__ import annotations

import fcntl
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EARLIER = "aenvironment==0.1.7"


@pytest.fixture(scope="session")
def earlier(pytestconfig: pytest.Config) -> Path:
    """Folder of its programs, installed once and kept in pytest's cache."""
    cache = pytestconfig.cache
    folder = (cache.mkdir("older-clients") if cache else Path("/tmp/aenv-older-clients")) / EARLIER
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # another process of this run may install it, too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder)
    return folder / "bin"


def _install(folder: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", EARLIER]
    done = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        if any("connect" in line or "dns" in line or "timed out" in line for line in map(str.lower, lines)):
            pytest.skip(f"the package registry cannot be reached: {lines[-1]}")
        raise AssertionError(done.stderr)
    (folder / "complete").touch()


@contextmanager
def earlier_server(programs: Path, project: Path, port: int = 0) -> Iterator[str]:
    """Run its server in a container's way, `python -m aenv.main DIR`, and give ``host:port`` once it listens."""
    with socket.create_server(("127.0.0.1", port)) as free:
        port = free.getsockname()[1]
    command = [programs / "python", "-m", "aenv.main", project, "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        try:
            assert run.stdout is not None
            said = b""
            for line in run.stdout:
                said += line
                if b"Uvicorn running on" in line:
                    break
            else:
                pytest.fail(said.decode())
            yield f"127.0.0.1:{port}"
        finally:
            run.terminate()
            run.communicate()
