"""A process's lease on the user's local platform, and projects given by path."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import stat
import threading
from pathlib import Path

from aenv.client.local_platforms import LocalPaths, connect, ensure_running, health, socket_parent, stop
from aenv.errors import ConfigError, EnvironmentError
from aenv.schema import paths

__all__ = ["Lease", "LocalPaths", "find_project", "socket_parent", "drop", "health", "lease", "open_lease", "stop"]


OPEN_TRIES = 3


class Lease:
    """An open connection that keeps this process's instances alive. The kernel closes it when the process ends."""

    def __init__(self, connection: socket.socket, name: str, where: LocalPaths) -> None:
        self._connection = connection
        self.name = name
        self.where = where

    @classmethod
    def open(cls, where: LocalPaths) -> Lease:
        """Request a lease. Blocks for one local exchange.

        Raises:
            OSError: no platform runs, or it is just ending.
        """
        connection = connect(where)
        connection.sendall(f"POST {paths.LEASE} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            part = connection.recv(4096)
            if not part:
                raise ConnectionResetError("the local platform closed the connection")
            head += part
        mark = f"{paths.LEASE_HEADER}: ".encode()
        return cls(connection, head.partition(mark)[2].partition(b"\r\n")[0].decode(), where)

    @property
    def alive(self) -> bool:
        """True while the platform holds the lease."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Give up the lease. The platform ends everything that was created under it."""
        self._connection.close()


_lease: Lease | None = None
_opening = threading.Lock()


def lease() -> Lease | None:
    """Return this process's lease on the local platform, if it has a valid one."""
    return _lease if _lease is not None and _lease.alive else None


def open_lease() -> Lease:
    """Return this process's lease, starting the platform if necessary. May block for a second: call it in a thread."""
    global _lease
    with _opening:
        held = lease()
        if held is None:
            where = LocalPaths.of_user()
            drop()
            held = _lease = _open_with_retry(where)
        return held


def _open_with_retry(where: LocalPaths) -> Lease:
    """Open a lease. An unused platform may exit between the check and the request: then start it again."""
    for _ in range(OPEN_TRIES):
        ensure_running(where)
        with contextlib.suppress(OSError):
            return Lease.open(where)
    raise EnvironmentError("the local platform closes every connection; see: aenv local logs")


def _drop_after_fork() -> None:
    """Drop the lease in a forked child, which must not share its parent's instances or keep them alive."""
    global _opening
    _opening = threading.Lock()
    drop()


def drop() -> None:
    """Give up this process's lease, if it has one. The platform ends everything that was created under it."""
    global _lease
    if _lease is not None:
        _lease.close()
        _lease = None


os.register_at_fork(after_in_child=_drop_after_fork)
atexit.register(drop)


def find_project(env_name: str) -> tuple[str, Path] | None:
    """Find the project of a name: a path, or the current folder if its config.json has that name.

    Returns ``name@version`` and the path.
    """
    looks_like_path = env_name.startswith((".", "/", "~")) or os.sep in env_name
    path = (Path(env_name).expanduser() if looks_like_path else Path()).absolute()
    text = str(path)
    try:
        folder = text if stat.S_ISDIR(os.stat(text).st_mode) else os.path.dirname(text)
    except OSError:
        if not looks_like_path:  # the current folder was removed
            return None
        raise ConfigError(f"there is no project at {path}") from None
    name, version = _identity(folder)
    if looks_like_path:
        own = name or path.stem.replace("_", "-") or "environment"
        return f"{own}@{version}" if version else own, path
    wanted, _, wanted_version = env_name.partition("@")
    if name == wanted and wanted_version in ("", version):
        return env_name, path
    return None


def opens_environments(source: str) -> bool:
    """Return whether code of the project at that path may open other environments, which are looked up in the hub."""
    try:
        folder = source if stat.S_ISDIR(os.stat(source).st_mode) else os.path.dirname(source)
    except OSError:
        return False
    for place in (folder, os.path.dirname(os.path.abspath(folder))):
        with contextlib.suppress(OSError), open(f"{place}/config.json", "rb") as file:
            return b'"environments"' in file.read()
    return False


def _identity(folder: str) -> tuple[str | None, str | None]:
    for place in (folder, os.path.dirname(os.path.abspath(folder))):
        try:
            with open(f"{place}/config.json", "rb") as file:
                config = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config.get("name"), config.get("version")
    return None, None
