"""Find, start and stop the local platforms of this user.

There is one per interpreter and version (see `aenv.client.platform_identity`), each in a folder of its own below
the user's runtime folder. A running platform holds a lock on a file there, which the kernel releases when the process
ends, however it ends: nothing here trusts process ids.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from aenv.client.caller_variables import without_caller_variables
from aenv.client.platform_identity import Identity
from aenv.errors import ConfigError, EnvironmentError

START_SECONDS = 30.0
HEALTH_SECONDS = 5.0
POLL_SECONDS = 0.01
"""Interval for polling whether a platform has started or ended."""
MAX_LOG_BYTES = 4 * 1024 * 1024
"""Size in bytes at which the next server starts a new log; the previous one is kept."""
REMOVE_AFTER = 7 * 86400.0
"""Seconds after which the folder and log of a platform that does not run are removed."""
IN_MEMORY = "/dev/shm"
"""Folder in memory that every user may write to."""
KEY = re.compile(r"[0-9a-f]{8}")
LONGEST_FOLDER = 107 - len("/01234567/i-4194304/01234567.sock")  # a unix socket's path has 107 bytes
OTHER_SERVES = 17
"""Exit code of a server that found another one running in its place."""


def _own_key() -> str:
    return Identity.own().key


@dataclass(frozen=True, slots=True)
class LocalPaths:
    """Files and sockets of a local platform; by default of the one for this process."""

    runtime: Path
    """The user's runtime folder, which holds a folder per platform."""
    state: Path | None = None
    """Folder for logs, which should survive the runtime folder (it may be in memory). None: the runtime folder."""
    key: str = field(default_factory=_own_key)
    """Key of the platform's `Identity`."""

    @classmethod
    def of_user(cls, key: str | None = None) -> LocalPaths:
        """Return the paths below ``AENV_RUNTIME_DIR``, else the user's runtime folder, else an own folder for sockets.

        Raises:
            ConfigError: the folder is not private to this user, or its path is too long for sockets.
        """
        given = os.environ.get("AENV_RUNTIME_DIR")
        if given:
            folder = Path(given)
        elif (own := _runtime_folder()) is not None:
            folder = own / "aenv"
        else:
            folder = Path(socket_parent()) / f"aenv-{os.geteuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise ConfigError(
                f"{folder} must be a folder that belongs to you and that nobody else may enter; "
                f"run: chmod 700 {folder}, or name another one in AENV_RUNTIME_DIR"
            )
        if len(str(folder)) > LONGEST_FOLDER:
            raise ConfigError(f"the path {folder} is too long for sockets; name a shorter one in AENV_RUNTIME_DIR")
        return cls(folder, None if given else _state_folder(), key or _own_key())

    @property
    def folder(self) -> Path:
        """Folder of this platform alone."""
        return self.runtime / self.key

    @property
    def socket(self) -> Path:
        """Socket that it listens on."""
        return self.folder / "platform.sock"

    @property
    def alive(self) -> Path:
        """File that is locked while it runs."""
        return self.folder / "alive"

    @property
    def about(self) -> Path:
        """File with its pid, interpreter and version."""
        return self.folder / "about.json"

    @property
    def log(self) -> Path:
        """Log file."""
        return (self.state or self.runtime) / self.key / "platform.log"

    @property
    def instances(self) -> Path:
        """Folder for the sockets of instances; a new one, with a short name, for each server process."""
        return self.folder / f"i-{os.getpid()}"

    @property
    def account(self) -> Path:
        """Resource accounting shared by all platforms of this user."""
        return self.runtime / "account"

    @property
    def ended(self) -> Path:
        """Store of the reasons why instances ended, shared by all platforms of this user."""
        return self.runtime / "ended.db"

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"unix:{self.socket}"


def _runtime_folder() -> Path | None:
    """Return ``XDG_RUNTIME_DIR`` if it belongs to this user.

    Programs started by ``su`` and ``sudo`` may have inherited another user's. Its owner could replace our folder at any
    time.
    """
    given = os.environ.get("XDG_RUNTIME_DIR")
    if not given:
        return None
    with contextlib.suppress(FileNotFoundError):
        if os.stat(given).st_uid != os.geteuid():
            return None
    return Path(given)


def socket_parent() -> str:
    """Return the parent for folders of sockets: in memory if possible, since on disk a bind takes 0.25 ms."""
    if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK | os.X_OK):
        return IN_MEMORY
    return tempfile.gettempdir()


def _state_folder() -> Path | None:
    """Return a folder per machine, since several may share a home; None if the user cannot write one."""
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        folder = base / "aenv" / socket.gethostname()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None


# --- finding


@dataclass(frozen=True, slots=True)
class PlatformInfo:
    """Description that a running platform writes for others."""

    pid: int
    started: float
    """Unix time."""
    identity: Identity

    def write(self, where: LocalPaths) -> None:
        """Write the description atomically."""
        temporary = where.about.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(where.about)

    @classmethod
    def read(cls, where: LocalPaths) -> PlatformInfo | None:
        """Read the description; None if it is missing or invalid."""
        try:
            content = json.loads(where.about.read_text())
            return cls(int(content["pid"]), float(content["started"]), Identity(**content["identity"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def all_of_user(where: LocalPaths) -> list[LocalPaths]:
    """Return all platforms, running or not, of that runtime folder."""
    with contextlib.suppress(OSError):
        names = sorted(path.name for path in where.runtime.iterdir() if KEY.fullmatch(path.name) and path.is_dir())
        return [LocalPaths(where.runtime, where.state, name) for name in names]
    return []


def is_alive(where: LocalPaths) -> bool:
    """Return whether a platform runs there, even if it does not answer."""
    try:
        with where.alive.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def health(where: LocalPaths) -> dict[str, str] | None:
    """Return the health response of the running platform; None if there is none."""
    try:
        with contextlib.closing(connect(where)) as connection:
            connection.settimeout(HEALTH_SECONDS)
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        data: dict[str, str] = json.loads(answer.partition(b"\r\n\r\n")[2])["data"]
    except (OSError, ValueError, KeyError):
        return None
    return data


def connect(where: LocalPaths) -> socket.socket:
    """Connect to the platform.

    Raises:
        OSError: none is listening.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(where.socket))
    except OSError:
        connection.close()
        raise
    return connection


# --- starting


def ensure_running(where: LocalPaths) -> None:
    """Start the platform unless it runs. Of several callers, one starts it and the others wait until it answers.

    A caller waits only for its own platform, and does not wait for a starter that died or hangs while the platform
    answers.
    """
    deadline = time.monotonic() + 2 * START_SECONDS
    while health(where) is None:
        with _start_lock(where) as ours:
            if ours:
                if health(where) is None:
                    _start(where)
                return
        if time.monotonic() > deadline:
            raise EnvironmentError(f"the local platform does not answer; another process starts it{_log_tail(where)}")
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def _start_lock(where: LocalPaths) -> Iterator[bool]:
    """Try to become the process that starts the platform. The kernel releases the lock if that process dies."""
    where.folder.mkdir(mode=0o700, exist_ok=True)
    with (where.folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield _still_names(file, where.folder / "lock")  # False: the folder was removed meanwhile, so try again


def _still_names(file: IO[str], path: Path) -> bool:
    """Return whether the path still names that open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _start(where: LocalPaths) -> None:
    process = _launch(where)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if where.socket.exists() and health(where) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(START_SECONDS)  # it has left the platform to serve as nobody's child
            process.returncode = process.returncode or 0
            return
        code = process.poll()
        if code == OTHER_SERVES and not is_alive(where):  # its predecessor was still ending, and now is gone
            process = _launch(where)
        elif code not in (None, OTHER_SERVES) and not (code == 0 and is_alive(where)):
            raise EnvironmentError(f"the local platform did not start{_log_tail(where)}")
        time.sleep(POLL_SECONDS)
    process.returncode = process.returncode or 0
    raise EnvironmentError(f"the local platform runs but does not answer; stop it: aenv local stop{_log_tail(where)}")


def _launch(where: LocalPaths) -> subprocess.Popen[bytes]:
    where.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if where.log.exists() and where.log.stat().st_size > MAX_LOG_BYTES:
        where.log.replace(where.log.with_name("platform.log.1"))
    with where.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "aenv.cli", "serve", "--local", "--detach", "--key", where.key],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**without_caller_variables(os.environ), **_runtime_variable(where)},
            start_new_session=True,
        )


def _runtime_variable(where: LocalPaths) -> dict[str, str]:
    """Return the runtime folder as an absolute path: the server has another current directory."""
    return {"AENV_RUNTIME_DIR": str(where.runtime.absolute())} if where.state is None else {}


def _log_tail(where: LocalPaths) -> str:
    with contextlib.suppress(OSError):
        return f"; its log ends with:\n{where.log.read_text(errors='replace').strip()[-1500:]}"
    return ""


# --- stopping


def stop(where: LocalPaths) -> bool:
    """Stop the running platform and all its instances. Returns whether there was one."""
    return _signal(where, signal.SIGTERM)


def retire(where: LocalPaths, seconds: float = 0.0) -> bool:
    """Ask the platform to exit once it is unused, and wait up to ``seconds``. Returns whether there was one."""
    return _signal(where, signal.SIGUSR1, seconds)


def _signal(where: LocalPaths, number: int, seconds: float = START_SECONDS) -> bool:
    pid = _pid_of(where)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}") and not _is_zombie(pid):
        time.sleep(POLL_SECONDS)
    return True


def _pid_of(where: LocalPaths) -> int | None:
    """Return the pid of the listening process; if none listens yet, or it hangs, the pid it has written."""
    with contextlib.suppress(OSError), contextlib.closing(connect(where)) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0]) or None
    about = PlatformInfo.read(where) if is_alive(where) else None
    return about.pid if about else None


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def remove_old(where: LocalPaths, now: float) -> None:
    """Remove the folders and logs of platforms that have not run for a week, mostly of versions that are gone."""
    for each in all_of_user(where):
        with contextlib.suppress(OSError):
            if each.key == where.key or now - each.folder.stat().st_mtime < REMOVE_AFTER or is_alive(each):
                continue
            with _start_lock(each) as ours:
                if ours and not is_alive(each):
                    _remove(each.folder)
    if where.state is not None:
        for path in where.state.glob("*/platform.log"):
            with contextlib.suppress(OSError):
                if KEY.fullmatch(path.parent.name) and now - path.stat().st_mtime > REMOVE_AFTER:
                    _remove(path.parent)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
