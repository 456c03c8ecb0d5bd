"""The local platforms of this user: find, start and stop them.

There is one per interpreter and version (see `aenv.client.platform_identity`), each in a folder of its own below
the user's runtime folder. A running platform holds a lock on a file there, which the kernel releases when it ends,
however it ends: nothing here trusts process ids.
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

from aenv.client.caller_variables import without
from aenv.client.platform_identity import Identity
from aenv.errors import ConfigError, EnvironmentError

START_SECONDS = 30.0
HEALTH_SECONDS = 5.0
LOOK_SECONDS = 0.01
"""Between two looks at whether a platform has started, or ended."""
LONGEST_LOG = 4 * 1024 * 1024
"""Bytes after which the next server begins a new log; the one before it is kept."""
FORGOTTEN = 7 * 86400.0
"""Seconds after which the folder of a platform that does not run is removed, and its log."""
IN_MEMORY = "/dev/shm"
"""Where everybody may have folders that live in memory."""
KEY = re.compile(r"[0-9a-f]{8}")
LONGEST_FOLDER = 107 - len("/01234567/i-4194304/01234567.sock")  # a unix socket's path has 107 bytes
OTHER_SERVES = 17
"""Exit code of a server that found another one in its place."""


def _own_key() -> str:
    return Identity.own().key


@dataclass(frozen=True, slots=True)
class LocalPaths:
    """Where a local platform keeps its things; by default the platform of this process."""

    runtime: Path
    """The folder that all platforms of this user have theirs in."""
    state: Path | None = None
    """What is worth keeping when the runtime folder, which may live in memory, is gone. None: the same folder."""
    key: str = field(default_factory=_own_key)
    """Which of the user's platforms it is."""

    @classmethod
    def of_user(cls, key: str | None = None) -> LocalPaths:
        """``AENV_RUNTIME_DIR``, else the user's runtime folder, else one of their own among those for sockets."""
        given = os.environ.get("AENV_RUNTIME_DIR")
        if given:
            folder = Path(given)
        elif (own := _runtime_folder()) is not None:
            folder = own / "aenv"
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
        return cls(folder, None if given else _state_folder(), key or _own_key())

    @property
    def folder(self) -> Path:
        """What is this platform's alone."""
        return self.runtime / self.key

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "platform.sock"

    @property
    def alive(self) -> Path:
        """Locked for as long as it runs."""
        return self.folder / "alive"

    @property
    def about(self) -> Path:
        """What it is: process, interpreter, version."""
        return self.folder / "about.json"

    @property
    def log(self) -> Path:
        """What it has to say."""
        return (self.state or self.runtime) / self.key / "platform.log"

    @property
    def instances(self) -> Path:
        """The sockets of instances; a new folder for each server, with a short name."""
        return self.folder / f"i-{os.getpid()}"

    @property
    def account(self) -> Path:
        """What all platforms of this user use together."""
        return self.runtime / "account"

    @property
    def ended(self) -> Path:
        """The store of why instances have ended, of all platforms of this user."""
        return self.runtime / "ended.db"

    @property
    def url(self) -> str:
        """For a client."""
        return f"unix:{self.socket}"


def _runtime_folder() -> Path | None:
    """``XDG_RUNTIME_DIR``, if it is this user's own.

    Programs that ``su`` and ``sudo`` start may have inherited another user's. Its owner could put another folder in the
    place of ours at any time.
    """
    given = os.environ.get("XDG_RUNTIME_DIR")
    if not given:
        return None
    with contextlib.suppress(FileNotFoundError):
        if os.stat(given).st_uid != os.geteuid():
            return None
    return Path(given)


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


# --- what there is


@dataclass(frozen=True, slots=True)
class PlatformInfo:
    """What a running platform has written about itself."""

    pid: int
    started: float
    """Seconds since 1970."""
    identity: Identity

    def write(self, where: LocalPaths) -> None:
        """For `read`; whole or not at all."""
        made = where.about.with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps(asdict(self)))
        made.replace(where.about)

    @classmethod
    def read(cls, where: LocalPaths) -> PlatformInfo | None:
        """None when there is nothing that can be read."""
        try:
            said = json.loads(where.about.read_text())
            return cls(int(said["pid"]), float(said["started"]), Identity(**said["identity"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def all_of_user(where: LocalPaths) -> list[LocalPaths]:
    """The platforms that there are, or were, in that runtime folder."""
    with contextlib.suppress(OSError):
        names = sorted(path.name for path in where.runtime.iterdir() if KEY.fullmatch(path.name) and path.is_dir())
        return [LocalPaths(where.runtime, where.state, name) for name in names]
    return []


def is_alive(where: LocalPaths) -> bool:
    """Whether a platform runs there, whether or not it answers."""
    try:
        with where.alive.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def health(where: LocalPaths) -> dict[str, str] | None:
    """What the running platform says of itself; None when there is none."""
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
    """A connection to it.

    Raises:
        OSError: there is none.
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
    """Start the platform unless it runs. Several may try at once: one starts it, the others wait until it answers.

    Nobody waits for a platform other than their own, nor for a starter that has died or hangs while the platform
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
            raise EnvironmentError(f"the local platform does not answer; another process starts it{_said(where)}")
        time.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def _start_lock(where: LocalPaths) -> Iterator[bool]:
    """Whether this process is the one that may start it. Whoever is, is no more when it dies."""
    where.folder.mkdir(mode=0o700, exist_ok=True)
    with (where.folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield _is_there(file, where.folder / "lock")  # else the folder was removed meanwhile, and is made anew


def _is_there(file: IO[str], path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _start(where: LocalPaths) -> None:
    process = _launch(where)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if where.socket.exists() and health(where) is not None:
            process.returncode = 0  # it is a daemon: nobody waits for it
            return
        code = process.poll()
        if code == OTHER_SERVES and not is_alive(where):  # the one before it was ending, and now has
            process = _launch(where)
        elif code not in (None, OTHER_SERVES):
            raise EnvironmentError(f"the local platform did not start{_said(where)}")
        time.sleep(LOOK_SECONDS)
    process.returncode = process.returncode or 0
    raise EnvironmentError(f"the local platform runs and does not answer; end it: aenv local stop{_said(where)}")


def _launch(where: LocalPaths) -> subprocess.Popen[bytes]:
    where.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if where.log.exists() and where.log.stat().st_size > LONGEST_LOG:
        where.log.replace(where.log.with_name("platform.log.1"))
    with where.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "aenv.cli", "serve", "--local", "--key", where.key],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**without(os.environ), **_given(where)},
            start_new_session=True,
        )


def _given(where: LocalPaths) -> dict[str, str]:
    """The server's current directory is another one, so a relative path would mean something else there."""
    return {"AENV_RUNTIME_DIR": str(where.runtime.absolute())} if where.state is None else {}


def _said(where: LocalPaths) -> str:
    with contextlib.suppress(OSError):
        return f"; it said:\n{where.log.read_text(errors='replace').strip()[-1500:]}"
    return ""


# --- ending


def stop(where: LocalPaths) -> bool:
    """Ask the running platform to end, with all its instances; whether there was one."""
    return _signal(where, signal.SIGTERM)


def retire(where: LocalPaths, seconds: float = 0.0) -> bool:
    """Ask it to end as soon as nobody uses it, and wait so long for that; whether there was one."""
    return _signal(where, signal.SIGUSR1, seconds)


def _signal(where: LocalPaths, number: int, seconds: float = START_SECONDS) -> bool:
    pid = _pid_of(where)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and os.path.exists(f"/proc/{pid}") and not _is_zombie(pid):
        time.sleep(LOOK_SECONDS)
    return True


def _pid_of(where: LocalPaths) -> int | None:
    """Of who listens there; of one that does not listen yet, or hangs, what it has written."""
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


def forget_old(where: LocalPaths, now: float) -> None:
    """Remove the folders and logs of platforms that have not run for a week: of versions that are gone, mostly."""
    for each in all_of_user(where):
        with contextlib.suppress(OSError):
            if each.key == where.key or now - each.folder.stat().st_mtime < FORGOTTEN or is_alive(each):
                continue
            with _start_lock(each) as ours:
                if ours and not is_alive(each):
                    _remove(each.folder)
    if where.state is not None:
        for path in where.state.glob("*/platform.log"):
            with contextlib.suppress(OSError):
                if KEY.fullmatch(path.parent.name) and now - path.stat().st_mtime > FORGOTTEN:
                    _remove(path.parent)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
