"""Where a server lives on its machine: a name, a folder for sockets, and whom it leaves its instances with.

The next server on the same store and in the same data folder moves into the same home, once the one before is gone,
and finds there what that has left. Servers that run side by side have a home each.
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
from aenv.platform.operations.serve_local import start_janitor

TIDY_SECONDS = 10.0


class StateDirectory:
    """Open it with `enter`."""

    def __init__(self, place: Path, lock: IO[str], runtime: Path, keeper: FdHolderClient | None) -> None:
        self._place = place
        self._lock = lock
        self._janitor: subprocess.Popen[bytes] | None = None
        self.runtime = runtime
        self.keeper = keeper
        self.id = _name_in(place)
        """Names the server in this home, now and later."""

    @classmethod
    async def enter(cls, folder: Path, store: str, patience: float) -> StateDirectory:
        """The first home that nobody is in. ``patience``: seconds that instances wait there for the next server."""
        place, lock = await asyncio.to_thread(_free_place, folder / "servers" / _digest(store))
        before = place / "runtime"
        keeper = await FdHolderClient.found(before.resolve(), patience) if before.is_symlink() else None
        if keeper is not None and patience > 0:
            return cls(place, lock, before.resolve(), keeper)
        if keeper is not None:
            await keeper.end()
        # A short name: a unix socket's path has 107 bytes.
        runtime = Path(tempfile.mkdtemp(prefix="aenv-serve-", dir=socket_parent()))
        home = cls(place, lock, runtime, None)
        home._janitor = start_janitor(runtime, runtime.name)
        before.unlink(missing_ok=True)
        before.symlink_to(runtime)
        if patience > 0:
            assert home._janitor.stdin is not None
            home.keeper = FdHolderClient(runtime, patience, os.dup(home._janitor.stdin.fileno()))
            home.keeper.begin()
        return home

    async def leave(self) -> None:
        """Go, and leave everything as it is for the next server."""
        if self.keeper is not None:
            self.keeper.leave()
        self._dismiss_janitor()
        self._lock.close()

    async def close(self) -> None:
        """Go, and leave nothing."""
        if self.keeper is not None:
            await self.keeper.end()
        self._dismiss_janitor()
        await asyncio.to_thread(self._tidied)
        shutil.rmtree(self.runtime, ignore_errors=True)  # should somebody have killed the janitor
        (self._place / "runtime").unlink(missing_ok=True)
        self._lock.close()

    def _tidied(self) -> None:
        """The janitor may be a child of a server before us, which cannot be waited for."""
        if self._janitor is not None:
            self._janitor.wait()
        deadline = time.monotonic() + TIDY_SECONDS
        while self.runtime.exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _dismiss_janitor(self) -> None:
        if self._janitor is not None and self._janitor.stdin is not None:
            self._janitor.stdin.close()


def _digest(store: str) -> str:
    """A store's URL may have a password in it."""
    return hashlib.sha256(store.encode()).hexdigest()[:12]


def _free_place(folder: Path) -> tuple[Path, IO[str]]:
    number = 1
    while True:
        place = folder / str(number)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (place / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            number += 1
        else:
            return place, lock


def _name_in(place: Path) -> str:
    file = place / "name"
    if not file.exists() or not file.read_text():
        file.write_text(f"{socket.gethostname()}-{secrets.token_hex(4)}")
    return file.read_text()
