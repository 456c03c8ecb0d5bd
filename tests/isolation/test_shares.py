"""Shares of resources that the kernel counts per host user (inotify)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.isolation.limits import user_shares
from tests.isolation.conftest import Box

MOST = Path("/proc/sys/fs/inotify/max_user_instances")
TAKE = """
    import builtins, ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    builtins.taken = []
    while (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
        builtins.taken.append(fd)
    result = len(builtins.taken)
"""
GIVE_BACK = """
    import builtins, os
    for fd in builtins.taken:
        os.close(fd)
"""
NAMESPACE = "import os; result = os.readlink('/proc/self/ns/user')"

pytestmark = pytest.mark.skipif(
    not user_shares.limits_for(user_shares.INSTANCE), reason="/proc/sys cannot be written here"
)


@pytest.fixture
def taken(box: Box) -> Iterator[int]:
    """Number of inotify instances that the box could take, and holds."""
    yield int(box.python(TAKE))
    box.python(GIVE_BACK)


@pytest.mark.attack("limits")
def test_an_instance_takes_no_more_than_its_share(box: Box, neighbour: Box, taken: int) -> None:
    alone = box.python(NAMESPACE) != neighbour.python(NAMESPACE)
    part, whole = user_shares.INSTANCE if alone else user_shares.PARENT
    assert 0 < taken <= int(MOST.read_text()) * part // whole
    if alone:
        assert int(neighbour.python(TAKE)) > 0
        neighbour.python(GIVE_BACK)


@pytest.mark.usefixtures("taken")
def test_the_host_user_keeps_a_share_of_inotify_instances() -> None:
    fd = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    os.close(fd)


@pytest.mark.attack("limits")
def test_an_instance_cannot_raise_its_own_share(box: Box) -> None:
    for name in ("max_inotify_instances", "max_user_namespaces"):
        attempt = f"import os; os.write(os.open('/proc/sys/user/{name}', os.O_WRONLY), b'9999')"
        assert box.refused(attempt) in ("EACCES", "EPERM")
