"""Debian base image for tests that need one. It needs a package mirror, which not every machine can reach."""

from __future__ import annotations

import functools
import socket
from urllib.parse import urlsplit

import pytest

from aenv.images import base_roots


@functools.cache
def _why_not() -> str | None:
    reason = base_roots.bootstrap_problem()
    if reason is not None:
        return reason
    mirror = urlsplit(base_roots.MIRROR)
    try:
        socket.create_connection((mirror.hostname or "", mirror.port or 80), 5).close()
    except OSError as error:
        return f"{base_roots.MIRROR} cannot be reached: {error}"
    return None


@pytest.fixture(scope="session")
def a_debian() -> None:
    reason = _why_not()
    if reason is not None:
        pytest.skip(f"no Debian can be made here: {reason}")
