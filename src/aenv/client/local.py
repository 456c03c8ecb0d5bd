"""The platform of this user on this machine: find it, or start it."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aenv._version import __version__
from aenv.errors import ConfigError, EnvironmentError
from aenv.schema import paths

START_SECONDS = 30.0
LONGEST_LOG = 4 * 1024 * 1024
"""Bytes after which the next server begins a new log; the one before it is kept."""
IN_MEMORY = "/dev/shm"
"""Where everybody may have folders that live in memory."""
LONGEST_FOLDER = 107 - len("/instances-4194304/01234567.sock")  # a unix socket's path has 107 bytes


@dataclass(frozen=True, slots=True)
class LocalPaths:
    """Where the local platform keeps its things."""

    runtime: Path
    state: Path | None = None
    """What is worth keeping when the runtime folder, which may live in memory, is gone. None: the same folder."""

    @classmethod
    def of_user(cls) -> LocalPaths:
        """``AENV_RUNTIME_DIR``, else the user's runtime folder, else one of their own among those for sockets."""
        given = os.environ.get("AENV_RUNTIME_DIR")
        if given:
            folder = Path(given)
        elif os.environ.get("XDG_RUNTIME_DIR"):
            folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "aenv"
        else:
            folder = Path(for_sockets()) / f"aenv-{os.geteuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise ConfigError(
                f"{folder} must be a folder of yours that nobody else may enter; "
                "remove it, or name another in AENV_RUNTIME_DIR"
            )
        if len(str(folder)) > LONGEST_FOLDER:
            raise ConfigError(f"{folder} is too long a path for sockets; name a shorter one in AENV_RUNTIME_DIR")
        return cls(folder, None if given else _state_folder())

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.runtime / "platform.sock"

    @property
    def log(self) -> Path:
        """What it has to say."""
        return (self.state or self.runtime) / "platform.log"

    @property
    def instances(self) -> Path:
        """The sockets of instances; a new folder for each server."""
        return self.runtime / f"instances-{os.getpid()}"

    @property
    def url(self) -> str:
        """For a client."""
        return f"unix:{self.socket}"


def for_sockets() -> str:
    """Where folders of sockets go. In memory, if they may: on a disk, to name one takes a quarter of a millisecond."""
    if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK | os.X_OK):
        return IN_MEMORY
    return tempfile.gettempdir()


def _state_folder() -> Path | None:
    """One for each machine, as several may share a home; None where the user has no place for such things."""
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        folder = base / "aenv" / socket.gethostname()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter: nobody knows where this user's home is
        return None
    return folder if os.access(folder, os.W_OK) else None


class Lease:
    """An open connection that keeps this process's instances alive. The kernel closes it when the process ends."""

    def __init__(self, connection: socket.socket, name: str, where: LocalPaths) -> None:
        self._connection = connection
        self.name = name
        self.where = where

    @classmethod
    def open(cls, where: LocalPaths) -> Lease:
        """Ask for one. Blocks for as long as a local exchange takes."""
        connection = _connect(where)
        connection.sendall(f"POST {paths.LEASE} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            part = connection.recv(4096)
            if not part:
                raise EnvironmentError("the local platform hung up")
            head += part
        mark = f"{paths.LEASE_HEADER}: ".encode()
        return cls(connection, head.partition(mark)[2].partition(b"\r\n")[0].decode(), where)

    @property
    def alive(self) -> bool:
        """Whether the platform still holds it."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Let go of everything that was created under it."""
        self._connection.close()


_lease: Lease | None = None
_opening = threading.Lock()


def lease() -> Lease | None:
    """This process's lease on the local platform, if it has one that is good."""
    return _lease if _lease is not None and _lease.alive else None


def open_lease() -> Lease:
    """The same, after starting the platform where none runs; may take a second, so call it in a thread."""
    global _lease
    with _opening:
        held = lease()
        if held is None:
            where = LocalPaths.of_user()
            _ensure_running(where)
            _drop()
            held = _lease = Lease.open(where)
        return held


def _forget_after_fork() -> None:
    """A forked child must not keep its parent's instances alive, nor share them."""
    global _opening
    _opening = threading.Lock()
    _drop()


def _drop() -> None:
    global _lease
    if _lease is not None:
        _lease.close()
        _lease = None


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_drop)


def health(where: LocalPaths) -> dict[str, str] | None:
    """What the running platform says of itself; None when there is none."""
    try:
        with contextlib.closing(_connect(where)) as connection:
            connection.settimeout(5.0)
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        data: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])["data"]
    except (OSError, ValueError, KeyError):
        return None
    return data


def _connect(where: LocalPaths) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(where.socket))
    except OSError:
        connection.close()
        raise
    return connection


def _ensure_running(where: LocalPaths) -> None:
    with _locked(where):
        known = health(where)
        if known is not None:
            if known.get("version") == __version__:
                return
            stop(where)  # the package was upgraded under it
        _start(where)


def _start(where: LocalPaths) -> None:
    where.socket.unlink(missing_ok=True)
    if where.log.exists() and where.log.stat().st_size > LONGEST_LOG:
        where.log.replace(where.log.with_name("platform.log.1"))
    with where.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "aenv.cli", "serve", "--local"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "AENV_RUNTIME_DIR": str(where.runtime)},
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if where.socket.exists() and health(where) is not None:
            process.returncode = 0  # it is a daemon: nobody waits for it
            return
        if process.poll() is not None:
            break
        time.sleep(0.01)
    said = where.log.read_text(errors="replace").strip()[-1500:]
    raise EnvironmentError(f"the local platform did not start; it said:\n{said}")


def stop(where: LocalPaths) -> bool:
    """Ask the running platform to end, with all its instances; whether there was one."""
    try:
        with contextlib.closing(_connect(where)) as connection:
            import struct

            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return False
    pid = struct.unpack("3i", credentials)[0]
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 15)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}") and not _is_zombie(pid):
        time.sleep(0.01)
    return True


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def _locked(where: LocalPaths) -> Iterator[None]:
    """One process at a time."""
    with (where.runtime / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_project(env_name: str) -> tuple[str, Path] | None:
    """The project that a name stands for: a path, or the current folder when its config.json has that name.

    What comes back is ``name@version`` and the path.
    """
    looks_like_path = env_name.startswith((".", "/", "~")) or os.sep in env_name
    path = (Path(env_name).expanduser() if looks_like_path else Path()).absolute()
    text = str(path)
    try:
        folder = text if stat.S_ISDIR(os.stat(text).st_mode) else os.path.dirname(text)
    except OSError:
        if not looks_like_path:  # this folder is gone
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
