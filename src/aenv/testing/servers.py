"""Environment servers for tests: a separate process on a free port, stopped at the end of the block."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 120.0
STOP_SECONDS = 15.0


class Server:
    """A running ``python -m aenv.main``."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Path) -> None:
        self.process = process
        self.url = url
        """URL, also valid as ``AENV_INSTANCE_URL``."""
        self.log = log
        """File with its stderr."""

    @property
    def port(self) -> int:
        """Return the TCP port that it listens on."""
        return int(self.url.rpartition(":")[2])

    def stop(self) -> int:
        """Stop the server with SIGTERM, as a platform does; return its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextmanager
def running(
    path: str | Path, *arguments: str, log: Path, port: int = 0, variables: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Serve the environment at ``path`` while the block runs."""
    command = [sys.executable, "-m", "aenv.main", str(path), "--port", str(port), *arguments]
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(variables or {})},
        )
    with process:
        server = Server(process, "", log)
        try:
            server.url = _wait_for_url(process, log)
            yield server
        finally:
            server.stop()


def _wait_for_url(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.stdout], [], [], 0.5)
        if not ready:
            continue
        line = process.stdout.readline()
        if " at " in line:
            return line.rpartition(" at ")[2].strip()
        if not line:
            break
    process.kill()
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
