"""State directory of a server: its name, its folder for sockets, and the fd holder that keeps its instances.

The next server on the same store and in the same data folder takes over the directory once its predecessor is gone, and
adopts the instances left there. Servers that run at the same time have a directory each.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from aenv.client.local_lease import socket_parent
from aenv.engines.fd_holders import FdHolderClient
from aenv.platform.operations.serve_local import start_crash_cleanup

CLEANUP_SECONDS = 10.0


class StateDirectory:
    """The state directory of this server. Open it with `enter`."""

    def __init__(self, slot: Path, lock: IO[str], runtime: Path, fd_holder: FdHolderClient | None) -> None:
        self._slot = slot
        self._lock = lock
        self._cleanup: subprocess.Popen[bytes] | None = None
        self.runtime = runtime
        self.fd_holder = fd_holder
        self.id = _server_name(slot)
        """Name of the server, kept across restarts."""

    @classmethod
    async def enter(cls, folder: Path, store: str, patience: float) -> StateDirectory:
        """Lock the first free directory. ``patience``: seconds that instances wait there for the next server."""
        slot, lock = await asyncio.to_thread(_lock_free_slot, folder / "servers" / _digest(store))
        link = slot / "runtime"
        fd_holder = await FdHolderClient.connect(link.resolve(), patience) if link.is_symlink() else None
        if fd_holder is not None and patience > 0:
            return cls(slot, lock, link.resolve(), fd_holder)
        if fd_holder is not None:
            await fd_holder.end()
        # A short name: the path of a unix socket has at most 107 bytes.
        runtime = Path(tempfile.mkdtemp(prefix="aenv-serve-", dir=socket_parent()))
        state = cls(slot, lock, runtime, None)
        state._cleanup = start_crash_cleanup(runtime, runtime.name)
        link.unlink(missing_ok=True)
        link.symlink_to(runtime)
        if patience > 0:
            assert state._cleanup.stdin is not None
            state.fd_holder = FdHolderClient(runtime, patience, os.dup(state._cleanup.stdin.fileno()))
            state.fd_holder.begin()
        return state

    async def leave(self) -> None:
        """Release the directory and leave everything for the next server."""
        if self.fd_holder is not None:
            self.fd_holder.leave()
        self._release_cleanup()
        self._lock.close()

    async def close(self) -> None:
        """Release the directory and remove everything."""
        if self.fd_holder is not None:
            await self.fd_holder.end()
        self._release_cleanup()
        await asyncio.to_thread(self._wait_for_cleanup)
        shutil.rmtree(self.runtime, ignore_errors=True)  # in case the cleanup process was killed
        (self._slot / "runtime").unlink(missing_ok=True)
        self._lock.close()

    def _wait_for_cleanup(self) -> None:
        """Wait for the cleanup process. It may be a child of a former server, so poll for its effect."""
        if self._cleanup is not None:
            self._cleanup.wait()
        deadline = time.monotonic() + CLEANUP_SECONDS
        while self.runtime.exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _release_cleanup(self) -> None:
        if self._cleanup is not None and self._cleanup.stdin is not None:
            self._cleanup.stdin.close()


def _digest(store: str) -> str:
    """Return a digest of the store's URL, which may contain a password."""
    return hashlib.sha256(store.encode()).hexdigest()[:12]


def _lock_free_slot(folder: Path) -> tuple[Path, IO[str]]:
    number = 1
    while True:
        slot = folder / str(number)
        slot.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (slot / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            number += 1
        else:
            return slot, lock


def _server_name(slot: Path) -> str:
    file = slot / "name"
    if not file.exists() or not file.read_text():
        file.write_text(f"{socket.gethostname()}-{secrets.token_hex(4)}")
    return file.read_text()
