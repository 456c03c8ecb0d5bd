"""Run commands in the second container of an instance: ``podTemplate: dualContainer``.

The environment's own code runs in the main container, and commands run in an image of the task's choice, such as one of
SWE-bench. The two share a folder and nothing else: no host socket, no rights in the cluster. `AGENT` runs in the second
container, as a shell script, because an image may have nothing but a shell. A request is a folder below ``SHARED``; its
name goes through a named pipe.

Programs in the second container can write to the shared folder, too. So nothing in it is trusted: no link is followed,
only regular files are read, and not more than `MOST_OUTPUT` of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import shlex
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass

from aenv.errors import EnvironmentTimeoutError, Unavailable

SHARED = "/shared"
"""The folder that both containers have mounted."""
VARIABLE = "AENV_SHARED"
"""Variable of the main container with the path of that folder."""
REQUESTS = ".exec"
PIPE = "requests"
MOST_OUTPUT = 4 << 20
"""Bytes of stdout, and of stderr, that are returned; the rest is cut off."""
START_SECONDS = 60.0
"""Time for the second container to answer for the first time."""
_KILL_SECONDS = 10.0

AGENT = f"""
umask 0
group=$(command -v setsid)
cd "${{{VARIABLE}:-{SHARED}}}" && mkdir -p {REQUESTS} && cd {REQUESTS} || exit 1
here=$(pwd)
rm -f {PIPE} {PIPE}.part && mkfifo {PIPE}.part || exit 1
exec 3<>{PIPE}.part && mv {PIPE}.part {PIPE} || exit 1
serve() {{
  cd "$here/$1" || return
  $group sh ./command <stdin >stdout 2>stderr 3<&- &
  echo $! >pid.part && mv pid.part pid
  wait $!
  echo $? >code.part && mv code.part code
  echo >ended
}}
while read -r word id <&3; do
  case $word in
    run) serve "$id" & ;;
    kill) pid=$(cat "$here/$id/pid") && {{ kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid"; }} ;;
  esac
done
"""
"""The script that runs in the second container. Its pipe gets its name when something reads it: not before."""


@dataclass(frozen=True, slots=True)
class SecondRun:
    """How a command in the second container ended."""

    exit_code: int
    stdout: str
    stderr: str
    truncated: bool = False
    """True if stdout or stderr was longer than `MOST_OUTPUT`."""


def second_container() -> SecondContainer:
    """Return the instance's second container.

    Raises:
        Unavailable: it has none.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        raise Unavailable("this instance has no second container; use podTemplate dualContainer and a datasource")
    return SecondContainer(path)


class SecondContainer:
    """The container beside the environment's own."""

    def __init__(self, shared: str) -> None:
        self.shared = shared
        """Folder that both containers see, at the same path."""

    def run(
        self,
        command: str,
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float | None = None,
    ) -> SecondRun:
        """Run a shell command in the second container, and return when it has ended.

        Raises:
            EnvironmentTimeoutError: it did not end in time; it was killed, with all that it started in its group.
            Unavailable: the second container does not answer.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        top = self._open_requests()
        name = secrets.token_hex(16)
        try:
            os.mkdir(name, 0o700, dir_fd=top)
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                os.fchmod(folder, 0o777)  # the second container may have another user
                _write(folder, "command", _script(command, cwd, env or {}).encode())
                _write(folder, "stdin", stdin)
                return self._request(top, name, folder, deadline, timeout)
            finally:
                _remove(top, name, folder)
        finally:
            os.close(top)

    async def run_async(self, command: str, **options: object) -> SecondRun:
        """Do the same in an ``async`` function."""
        return await asyncio.to_thread(self.run, command, **options)  # type: ignore[arg-type]

    def _open_requests(self) -> int:
        """Return a descriptor of the folder of requests, once the agent has made its pipe."""
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                top = os.open(f"{self.shared}/{REQUESTS}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with contextlib.suppress(OSError):
                    if stat.S_ISFIFO(os.stat(PIPE, dir_fd=top, follow_symlinks=False).st_mode):
                        return top
                os.close(top)
            if time.monotonic() > until:
                raise Unavailable(f"the second container did not answer within {START_SECONDS:g} s")
            time.sleep(0.05)

    def _request(self, top: int, name: str, folder: int, deadline: float | None, timeout: float | None) -> SecondRun:
        os.mkfifo("ended", 0o622, dir_fd=folder)
        ended = os.open("ended", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fchmod(ended, 0o622)
            _tell(top, f"run {name}")
            if not _readable(ended, deadline):
                _tell(top, f"kill {name}")
                _readable(ended, time.monotonic() + _KILL_SECONDS)
                raise EnvironmentTimeoutError(
                    f"the command did not end within {timeout:g} s", details={"budget": "second_container"}
                )
        finally:
            os.close(ended)
        code, _ = _read(folder, "code", 16)
        out, more_out = _read(folder, "stdout", MOST_OUTPUT)
        err, more_err = _read(folder, "stderr", MOST_OUTPUT)
        if not code.strip().isdigit():
            raise Unavailable("the second container did not say how the command ended")
        return SecondRun(
            int(code), out.decode(errors="replace"), err.decode(errors="replace"), truncated=more_out or more_err
        )


def _script(command: str, cwd: str, env: Mapping[str, str]) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    lines.append(f"cd {shlex.quote(cwd)} || exit 126" if cwd else "cd /")
    return "\n".join([*lines, command, ""])


def _write(folder: int, name: str, data: bytes) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with open(fd, "wb") as file:
        file.write(data)
        os.fchmod(fd, 0o644)


def _tell(top: int, line: str) -> None:
    """Send the agent a line.

    Raises:
        Unavailable: nothing reads the pipe.
    """
    try:
        pipe = os.open(PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        try:
            if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                raise Unavailable("the second container has replaced its pipe")
            os.write(pipe, f"{line}\n".encode())
        finally:
            os.close(pipe)
    except OSError as error:
        raise Unavailable(f"the second container does not answer: {error.strerror}") from error


def _readable(fd: int, deadline: float | None) -> bool:
    """Wait for a writer of a pipe; return False after the deadline."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    return bool(waiting.poll(left))


def _read(folder: int, name: str, most: int) -> tuple[bytes, bool]:
    """Read a file of the second container; return its beginning, and whether there is more."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return b"", False
    data = b""
    try:
        while stat.S_ISREG(os.fstat(fd).st_mode) and (part := os.read(fd, most + 1 - len(data))):
            data += part
    finally:
        os.close(fd)
    return data[:most], len(data) > most


def _remove(top: int, name: str, folder: int) -> None:
    for entry in os.listdir(folder):
        with contextlib.suppress(OSError):
            os.unlink(entry, dir_fd=folder)
    os.close(folder)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=top)
