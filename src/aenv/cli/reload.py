"""``aenv run --reload``: serve in a child process, and replace it when a file of the project changes.

A process of its own for each version of the code: a module that was imported once cannot be taken back.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from aenv.cli.output import note

POLL_SECONDS = 0.3
HURRY_SECONDS = 1.0
"""Time for running calls to end before the old server is stopped at once."""
SKIPPED = {"__pycache__", "node_modules", "site-packages"}
WATCHED = {"config.json", "requirements.txt", "pyproject.toml"}
"""Files besides Python code. Others may be data that the environment itself writes."""

Snapshot = dict[str, tuple[int, int, int]]


class Reloader:
    """Runs a command, and runs it again after each change of the project's code."""

    def __init__(self, command: Sequence[str], root: Path, variables: Mapping[str, str]) -> None:
        self._command = list(command)
        self._root = root
        self._variables = dict(variables)
        self._stopping = False
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, on_tick: Callable[[], None] = lambda: None) -> int:
        """Run until SIGINT or SIGTERM; return the exit code of the last child."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._forward)
        seen = snapshot(self._root)
        self._start()
        reported = False
        while not self._stopping:
            code = self._wait(POLL_SECONDS)
            if code is not None and not reported and not self._stopping:
                note(f"The server ended with exit code {code}; waiting for a change of the code")
                reported = True
            on_tick()
            now = snapshot(self._root)
            if now != seen and not self._stopping:
                note(f"Reloading: {_changed(self._root, seen, now)}")
                seen, reported = now, False
                self._stop()
                self._start()
        while (code := self._wait(HURRY_SECONDS)) is None:
            pass
        return code

    def _start(self) -> None:
        """Start the command in a process group of its own, so that Ctrl-C reaches it once, from here."""
        self._child = subprocess.Popen(
            self._command, env=self._variables, process_group=0, preexec_fn=_die_with_parent()
        )

    def _stop(self) -> None:
        child = self._child
        assert child is not None
        while child.poll() is None:  # the second signal ends running calls
            child.terminate()
            self._wait(HURRY_SECONDS)

    def _wait(self, seconds: float) -> int | None:
        assert self._child is not None
        if self._child.returncode is not None:
            time.sleep(0 if self._stopping else seconds)
            return self._child.returncode
        try:
            return self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        if self._child is not None:
            self._child.send_signal(number)


def snapshot(root: Path) -> Snapshot:
    """Return the identity of each file whose change reloads the server."""
    found: Snapshot = {}
    for path in _watched(str(root)):
        try:
            about = os.stat(path)
        except OSError:  # removed in the meantime
            continue
        found[path] = (about.st_mtime_ns, about.st_size, about.st_ino)
    return found


def _watched(root: str) -> Iterator[str]:
    private = os.path.join(root, "private")
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        folders[:] = [name for name in folders if not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))]
        for name in files:
            if name.endswith(".py") or name in WATCHED or folder.startswith(private):
                yield os.path.join(folder, name)


def _changed(root: Path, before: Snapshot, after: Snapshot) -> str:
    names = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    shown = ", ".join(os.path.relpath(path, root) for path in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def free_port(host: str) -> int:
    """Return a free TCP port, which stays the same for all children."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Return whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _die_with_parent() -> Callable[[], None] | None:
    """Return what a child does first, so that it ends if this process is killed."""
    if sys.platform != "linux":
        return None
    from aenv.isolation.kernel import linux

    return lambda: linux.die_with_parent(signal.SIGTERM)
