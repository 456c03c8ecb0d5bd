"""Find what a live fork cannot carry, before the fork, and name it with the cure."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from aenv.errors import ForkRefused
from aenv.runtime.forking.open_files import Descriptors

ENDING_SECONDS = 1.0
"""For the kernel to end a thread that Python knows to have ended."""
_CURE = "end it before the fork and start it again after with a hook: see on_fork in the guide to forking"
_CURES = {
    "thread": f"a thread cannot be copied; {_CURE}",
    "process": f"a program that still runs cannot be copied; {_CURE}",
    "descriptor": f"a connection, a pipe or an object of the kernel cannot be copied; {_CURE}",
    "memory": f"memory that is shared with the kernel or with other processes cannot be copied; {_CURE}",
}


def refuse_obstacles(descriptors: Descriptors) -> None:
    """Raise ForkRefused if the process has anything that a fork would lack or share.

    ``details["obstacles"]`` lists them, with the kind of each.
    """
    found = [
        *(("thread", name) for name in _threads()),
        *(("process", name) for name in _children()),
        *(("descriptor", name) for name in descriptors.obstacles),
        *(("memory", name) for name in _shared_memory()),
    ]
    if not found:
        return
    kinds = dict.fromkeys(kind for kind, _ in found)
    named = "; ".join(f"{kind}: {', '.join(name for other, name in found if other == kind)}" for kind in kinds)
    cures = "; ".join(_CURES[kind] for kind in kinds)
    raise ForkRefused(
        f"this instance cannot be forked now. {named}. {cures}",
        details={"obstacles": [{"kind": kind, "name": name} for kind, name in found]},
    )


def _threads() -> list[str]:
    deadline = time.monotonic() + ENDING_SECONDS
    while number := len(os.listdir("/proc/self/task")) - 1:
        left = [each for each in threading.enumerate() if each is not threading.main_thread()]
        if left or time.monotonic() > deadline:
            break
        time.sleep(0.0002)
    if not number:
        return []
    names = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    return names + [f"{number - len(names)} of native code"] * (number > len(names))


def _children() -> list[str]:
    try:
        with open("/proc/thread-self/children") as file:
            numbers = file.read().split()
    except OSError:
        return []
    names = []
    for number in numbers:
        name = "?"
        with contextlib.suppress(OSError), open(f"/proc/{number}/comm") as file:
            name = file.read().strip()
        names.append(f"{name} ({number})")
    return names


def _shared_memory() -> list[str]:
    found = set()
    with open("/proc/self/maps") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if fields[1].startswith("rw") and fields[1].endswith("s"):
                found.add(fields[5].strip() if len(fields) > 5 else "anonymous")
    return sorted(found)
