"""Removes what a killed server leaves behind: its folder of sockets and its control groups.

Processes and mounts need no cleanup: the kernel ends them with the server or with its fd holder. This runs as a script
of its own with the standard library alone, so that it costs little while it waits.
"""

import contextlib
import fcntl
import shutil
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Run ``crash_cleanup.py RUNTIME GROUP [FOLDER]``.

    Wait until every holder of the other end of the standard input is gone, then remove FOLDER in the server's runtime
    folder, or without FOLDER all of it. The standard input delivers the process ids of servers.
    """
    runtime, group, *folder = sys.argv[1:]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # systemd sends it to a whole unit, but only the server's end counts
    groups = {place for line in sys.stdin for place in _possible_groups(line.strip(), group)}
    for place in groups:
        _remove(place)
    if folder:
        shutil.rmtree(Path(runtime) / folder[0], ignore_errors=True)
        _remove_names(Path(runtime))
    else:
        shutil.rmtree(runtime, ignore_errors=True)


def _possible_groups(server: str, name: str) -> list[Path]:
    """Return all places of the server's groups. Called while it still runs, since its own group is one of them."""
    top = Path("/sys/fs/cgroup")
    parents = [top / controller for controller in ("memory", "pids", "cpu", "")]
    with contextlib.suppress(OSError), open(f"/proc/{server}/cgroup") as file:
        own = [top / line[4:].strip() for line in file if line.startswith("0::/")]
        parents += [place for group in own for place in (group, group.parent)]
    return [parent / name for parent in parents]


def _remove_names(folder: Path) -> None:
    """Remove the socket and the description of the killed server, unless another server has taken its place.

    Whoever holds the lock is a running server or one that is just ending, so this does not wait for it.
    """
    names = [folder / "platform.sock", folder / "about.json"]
    for _ in range(200):
        if not any(path.exists() for path in names):
            return
        with contextlib.suppress(OSError), (folder / "alive").open() as alive:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in names:
                path.unlink(missing_ok=True)
        time.sleep(0.01)


def _remove(group: Path) -> None:
    for _ in range(200):  # its last processes may still be ending
        if not group.is_dir():
            return
        with contextlib.suppress(OSError):  # another process may be removing it, too
            for child in group.iterdir():
                if child.is_dir():
                    with contextlib.suppress(OSError):
                        child.rmdir()
            group.rmdir()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
