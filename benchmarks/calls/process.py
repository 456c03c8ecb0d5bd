"""Starts servers and clients of the peers, and leaves none of them behind."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from peer import CACHE, HERE, Peer

START_TIMEOUT = 90.0


class Failed(Exception):
    """A peer's server or client did not do its job; the message says what it printed last."""


@dataclass(frozen=True)
class Server:
    pid: int
    url: str


@contextmanager
def serving(peer: Peer) -> Iterator[Server]:
    port = peer.port or _free_port()
    if _listeners(port):
        raise Failed(f"port {port} is taken, and {peer.name} can use no other")
    log = CACHE / f"{peer.name}.server.log"
    arguments = [part.format(port=port) for part in peer.server]
    with log.open("wb") as output, _running([peer.python, *arguments], output, output) as process:
        deadline = time.monotonic() + START_TIMEOUT
        while not _listeners(port) & _sockets(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"server did not start: {_tail(log)}")
            time.sleep(0.05)
        yield Server(process.pid, f"http://127.0.0.1:{port}")


def drive(peer: Peer, server: Server, options: dict[str, float], *, timeout: float) -> dict:
    """Run the peer's client script and return the JSON of its last line."""
    log = CACHE / f"{peer.name}.client.log"
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [peer.python, peer.client, server.url, f"--server={server.pid}", *arguments]
    with log.open("wb") as errors, _running(command, subprocess.PIPE, errors) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"client still busy after {timeout:.0f} s") from None
        if process.returncode:
            raise Failed(f"client failed: {_tail(log)}")
        return json.loads(output.splitlines()[-1])


def import_cost(peer: Peer, statement: str) -> float:
    """CPU seconds of an import statement, the interpreter's own start not counted."""
    code = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    command = [peer.python, "-W", "ignore", "-c", code]
    with _running(command, subprocess.PIPE, subprocess.PIPE) as process:
        output, errors = process.communicate(timeout=START_TIMEOUT)
        if process.returncode:
            raise Failed(errors.decode().strip().splitlines()[-1])
        return float(output.split()[-1])


@contextmanager
def _running(command: list, stdout: object, stderr: object) -> Iterator[subprocess.Popen]:
    """A process in a session of its own: Ctrl-C reaches us alone, and we end the whole group."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AENV_")}
    environment |= {"PYTHONPATH": str(HERE), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    process = subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=HERE, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        for ending in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, ending)
                process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def _listeners(port: int) -> set[str]:
    """The sockets that listen on a port, as /proc names them.

    Asking who listens, and not whether somebody does: a stranger may take a fixed port just before our server.
    """
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and int(local.rpartition(":")[2], 16) == port:
            found.add(f"socket:[{inode}]")
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # it was closed while we looked
            found.add(os.readlink(descriptor))
    return found


def _tail(log: Path) -> str:
    """The last line that speaks of an error, or simply the last one."""
    lines = [line.strip()[:300] for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it printed nothing"])[-1]
