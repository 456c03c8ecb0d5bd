"""Starting bash on a terminal, from a program with threads, whatever that program does with its own signals."""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
from pathlib import Path

# $0 is the terminal: the first that the leader of a session opens becomes its controlling one.
SCRIPT = 'cd -- "$1"; exec 9<>"$0" {redirections}; exec bash --norc --noprofile {options} -i'
OUT_OF_THE_WAY = 300
"""Descriptors from here on, so that none is overwritten before it has been handed over."""
DEFAULTS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD,
    signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip
HANG_UP_STEPS = (*20 * ((signal.SIGHUP, 0.02),), (signal.SIGKILL, 0.0))
"""What is left of a session is told, and for how many seconds each may take effect."""


class Process:
    """A child, with a descriptor that becomes readable when it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = os.pidfd_open(pid)

    def hang_up(self) -> None:
        """Tell it that its terminal is gone. A bash passes that on to its jobs, and ends."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.ended, signal.SIGHUP)

    async def hang_up_rest(self) -> None:
        """Once it has ended: tell what is left of its session too.

        A bash passes it on to its jobs, but not to one that is about to become its program, and not when it was killed.
        """
        for number, seconds in HANG_UP_STEPS:
            rest = _session(self.pid)
            if not rest:
                return
            for pid in rest:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)  # what is stopped hears nothing else
            await asyncio.sleep(seconds)

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.ended, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status, as a shell counts it: 128 and the signal's number for one that was killed."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return code if code >= 0 else 128 - code


def spawn_bash(
    terminal: int,
    folder: str,
    environment: dict[str, str],
    *,
    descriptors: dict[int, int],
    redirections: str = "9>&-",
    options: str = "",
) -> Process:
    """Start an interactive bash in a session of its own, with these descriptors and no others.

    Raises:
        RuntimeError: this system has no bash.
    """
    script = SCRIPT.format(redirections=redirections, options=options)
    moved = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY) for target, fd in descriptors.items()}
    try:
        pid = os.posix_spawnp(
            "bash",
            ["bash", "-c", script, os.ttyname(terminal), folder],
            environment,
            file_actions=[
                *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()),
                *((os.POSIX_SPAWN_DUP2, fd, target) for target, fd in moved.items()),
            ],
            setsid=True,
            setsigdef=DEFAULTS,
            setsigmask=(),
        )
    except FileNotFoundError as error:
        raise RuntimeError("this system has no bash; use one that has, or install it") from error
    finally:
        for fd in moved.values():
            os.close(fd)
    return Process(pid)


def _inheritable() -> list[int]:
    """What this program got from whoever started it, and should not pass on."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one for the folder itself
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def _session(leader: int) -> list[int]:
    """The processes of a session that run, but for those that chose to outlive it, as with nohup."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _heeds(Path("/proc", name), leader)]


def _heeds(process: Path, leader: int) -> bool:
    try:
        state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
        if int(session) != leader or state in "ZX":
            return False
        ignored = re.search(r"^SigIgn:\s*(\w+)", (process / "status").read_text(), re.MULTILINE)
    except OSError:  # it has ended
        return False
    return ignored is None or not int(ignored[1], 16) >> signal.SIGHUP - 1 & 1
