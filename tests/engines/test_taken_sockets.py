"""Sockets of sandboxes are called at a place that the sandbox cannot reach."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from aenv.engines.taken_sockets import take_socket
from aenv.errors import LoadError


def test_a_moved_socket_takes_connections_and_is_independent_of_its_old_place(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    assert not take_socket(shared, own)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as other:
        server.bind(str(shared))
        server.listen()
        assert take_socket(shared, own)
        other.bind(str(shared))  # nobody listens there
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(own))
            server.accept()[0].close()


@pytest.mark.parametrize("kind", ["link", "file", "folder", "pipe"])
def test_anything_else_is_refused_and_removed(tmp_path: Path, kind: str) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    make = {
        "link": lambda: shared.symlink_to("/dev/log"),
        "file": lambda: shared.write_text("x"),
        "folder": lambda: (shared / "a" / "b").mkdir(parents=True),
        "pipe": lambda: os.mkfifo(shared),
    }
    make[kind]()
    with pytest.raises(LoadError, match="socket"):
        take_socket(shared, own)
    assert list(tmp_path.iterdir()) == []
