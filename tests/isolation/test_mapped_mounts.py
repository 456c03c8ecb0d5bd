"""Mounts whose owners are mapped: the process that owns the mapping ends with the one that needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_while

KILLED = """
import builtins, os, signal
from aenv.isolation.kernel import linux
builtins.open = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
linux.bind_as("/", "/", 0, 1000)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may map owners")
def test_a_process_killed_while_it_maps_owners_leaves_no_other_behind() -> None:
    killed = subprocess.Popen([sys.executable, "-c", KILLED], start_new_session=True)
    assert killed.wait(60) == -9
    wait_while(lambda: _of_session(killed.pid), "left behind by a killed process")


def _of_session(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = place.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state not in "ZX":
            found.append(int(place.parent.name))
    return found
