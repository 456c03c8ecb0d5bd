"""Init process of a container: starts programs, reaps all children, and moves files in and out.

It takes commands over a socket and exits, which ends the container, when the socket is closed. It is loaded before the
root is changed and imports nothing afterwards. It keeps its capabilities; programs that it starts have fewer, so none
of them can trace it.
"""

from __future__ import annotations

import contextlib
import encodings.idna
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import tarfile
import termios
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from aenv.isolation.files.rooted_paths import resolve_in_root
from aenv.isolation.files.trees import remove_tree
from aenv.isolation.kernel import linux, seccomp

__all__ = ["resolve_in_root", "run"]
_LOADED = (encodings.idna, traceback)  # needed to report errors, once modules can no longer be imported

MESSAGE = 1 << 20
MAX_FDS = 8
_TABLE = 1 << 22
"""Bytes of /etc/passwd or /etc/group to read at most."""
CAPABILITIES = frozenset((0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27, 29, 31))
"""Capabilities that programs expect on a machine and that are harmless in a user namespace: change owners, change user,
listen on low ports; not mount, capture packets, trace other users' processes or change the network."""
ALLOWED = (
    "chroot", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit", "modify_ldt",
    "name_to_handle_at", "process_vm_readv", "process_vm_writev", "ptrace",
)  # fmt: skip
"""System calls allowed in a container but not in a sandbox: debuggers, package managers and databases need them."""


def run(control: socket.socket, enter: Callable[[], None]) -> NoReturn:
    """Call ``enter``, then serve commands until the socket is closed."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        enter()
        _disable_imports()
        os.umask(0o022)
        control.send(b'{"op": "ready"}')
        _Init(control).serve()
    except OSError as error:
        with contextlib.suppress(OSError):
            control.send(json.dumps({"op": "failed", "error": str(error)}).encode())
    os._exit(1)


class _Init:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}
        self._kill_others_after: set[int] = set()
        self._filter = seccomp.program(allowed=ALLOWED) if seccomp.supported() else None

    def serve(self) -> NoReturn:
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        selector = selectors.DefaultSelector()
        selector.register(woken, selectors.EVENT_READ)
        selector.register(self._control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(woken, 4096)
                else:
                    self._receive()
            self._reap()

    def _receive(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, MESSAGE, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        message = json.loads(data)
        if message["op"] == "signal":
            for pid, number in self._children.items():
                if number == message["id"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, message["signal"])
            return
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"op": "exit", "id": message["id"], "code": 126, "error": str(error)})
            pid = -1
        if pid == 0:
            self._child(message, fds)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self._children[pid] = message["id"]
            if message.get("kill_others"):
                self._kill_others_after.add(pid)

    def _child(self, message: dict[str, Any], fds: list[int]) -> NoReturn:
        """Run an operation; errors go to the last descriptor, which is closed on exec."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            self._control.close()
            os.setsid()
            _OPERATIONS[message["op"]](message, fds, self._filter)
            os._exit(0)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(fds[-1], f"{error}".encode()[:4000])
            os._exit(127 if getattr(error, "errno", 0) == errno.ENOENT else 126)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._kill_others_after:  # before any process can change the files that it has left
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                self._kill_others_after.discard(pid)
            number = self._children.pop(pid, None)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                self._send({"op": "exit", "id": number, "code": code if code >= 0 else 128 - code})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            os._exit(0)


def _exec(message: dict[str, Any], fds: list[int], program: bytes | None) -> None:
    """Exec a program. Descriptors: stdin, stdout, stderr, and one for errors before the program runs."""
    for target, fd in enumerate(fds[:3]):
        os.dup2(fd, target)
    if message.get("tty"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.closerange(3, fds[-1])
    user, group, groups, home = _resolve_user(message.get("user") or "")
    if message.get("nice"):
        os.nice(message["nice"])  # added to the current niceness, which an ordinary user may not lower
    if program is not None:
        linux.load_seccomp(program)
    linux.drop_capabilities(CAPABILITIES)
    with contextlib.suppress(OSError):  # not allowed where only one user id is mapped
        os.setgroups(groups)
    if (user, group) != (0, 0):
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    variables = {"HOME": home, **message["env"]}
    os.chdir(message["cwd"])
    os.execvpe(message["argv"][0], message["argv"], variables)


def _resolve_user(text: str) -> tuple[int, int, list[int], str]:
    """Resolve ``user[:group]``, by name or id, to user id, group id, supplementary groups and home.

    Only /etc/passwd and /etc/group of the root are read. The C library would load further libraries from the root, and
    run them with the capabilities of this process.
    """
    name, _, group_name = text.partition(":")
    name = name or "0"
    entry = next((row for row in _rows("/etc/passwd", 6) if row[2 if name.isdigit() else 0] == name), None)
    if entry is not None and entry[2].isdigit() and entry[3].isdigit():
        user, group, home = int(entry[2]), int(entry[3]), entry[5] or "/"
        more = [int(row[2]) for row in _rows("/etc/group", 4) if entry[0] in row[3].split(",") and row[2].isdigit()]
        groups = list(dict.fromkeys([group, *more]))
    elif name.isdigit():
        user, group, home, groups = int(name), 0, "/root" if name == "0" else "/", []
    else:
        raise ValueError(f"no user {name!r} in /etc/passwd")
    if group_name:
        found = (row[2] for row in _rows("/etc/group", 3) if row[0] == group_name and row[2].isdigit())
        number = group_name if group_name.isdigit() else next(found, None)
        if number is None:
            raise ValueError(f"no group {group_name!r} in /etc/group")
        group = int(number)
        groups = [group]
    return user, group, groups, home


def _rows(path: str, count: int) -> list[list[str]]:
    """Return the lines of a colon-separated table that have at least ``count`` fields."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), errors="replace") as file:
            rows = [line.rstrip("\n").split(":") for line in file.read(_TABLE).splitlines()]
    except OSError:
        return []
    return [row for row in rows if len(row) >= count]


def _unpack(message: dict[str, Any], fds: list[int], program: bytes | None) -> None:
    """Unpack a tar from the first descriptor below a path. ``owner``: user that gets the files."""
    path = message["path"]
    os.makedirs(path, exist_ok=True)
    owner = _resolve_user(message["owner"])[:2] if message.get("owner") else None
    with open(fds[0], "rb") as source, tarfile.open(fileobj=source, mode="r|") as archive:
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # as in Pythons without filters
        for member in archive:
            if owner is not None:
                member.uid, member.gid = owner
            member.uname = member.gname = ""
            archive.extract(member, path, numeric_owner=True)


def _pack(message: dict[str, Any], fds: list[int], program: bytes | None) -> None:
    """Write the file or folder at a path as a tar to the first descriptor; its member names begin with a dot."""
    path = message["path"]
    os.lstat(path)
    with open(fds[0], "wb") as target, tarfile.open(fileobj=target, mode="w|") as archive:
        archive.add(path, ".")


def _remove(message: dict[str, Any], fds: list[int], program: bytes | None) -> None:
    """Remove files and folder trees; missing ones are ignored."""
    for path in message["paths"]:
        if os.path.isdir(path) and not os.path.islink(path):
            remove_tree(path)
            if os.path.lexists(path):
                raise OSError(errno.ENOTEMPTY, "not everything could be removed", path)
        elif os.path.lexists(path):
            os.unlink(path)


def _idle(message: dict[str, Any], fds: list[int], program: bytes | None) -> None:
    """Exit with 1 if any process runs besides init and this one."""
    if {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}:
        os._exit(1)


def _disable_imports() -> None:
    """Clear the module search path: files in the container's root are untrusted."""
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


_OPERATIONS = {"idle": _idle, "exec": _exec, "unpack": _unpack, "pack": _pack, "remove": _remove}
