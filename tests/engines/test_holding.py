"""The fd holder: it belongs to one server at a time, and waits for the next one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.engines.fd_holders import SOCKET, FdHolderClient
from aenv.isolation.forking import fd_holder
from tests.conftest import run


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Short enough for the name of a socket."""
    made = Path(tempfile.mkdtemp(prefix="aenv-k-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


def connected(runtime: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(30)
    connection.connect(str(runtime / SOCKET))
    return connection


async def begun(runtime: Path, patience: float) -> tuple[FdHolderClient, int]:
    """Return a holder that listens, and the read end of its cleanup pipe."""
    ended, cleanup = os.pipe()
    made = FdHolderClient(runtime, patience, cleanup)
    made.begin()
    log = os.open(os.devnull, os.O_WRONLY)
    process = await made.start("first", [sys.executable, "-c", "pass"], log, log, {})
    os.close(log)
    assert await process.wait() == 0
    return made, ended


def test_a_holder_belongs_to_one_server_and_gives_all_to_the_next(runtime: Path) -> None:
    async def main() -> None:
        first, ended = await begun(runtime, 60)
        with connected(runtime) as second:
            assert second.recv(1) == b""  # while the first is there
        reading, writing = os.pipe()
        first.hold("mine", [reading], wait_for_next=True)
        first.hold("other", [reading], wait_for_next=True)
        first.drop("other")
        os.close(reading)
        os.write(writing, b"hello")
        first.leave()
        second_owner = await FdHolderClient.connect(runtime, 60)
        assert second_owner is not None
        assert second_owner.pid == first.pid
        assert list(second_owner.held) == ["mine"]
        assert os.read(second_owner.held["mine"][0], 5) == b"hello"
        await second_owner.end()
        assert await asyncio.to_thread(os.read, ended, 1000)  # the crash cleanup gets the process id of each server
        assert await asyncio.to_thread(os.read, ended, 1) == b""
        for fd in (*second_owner.held["mine"], writing, ended):
            os.close(fd)
        assert await first.wait() is not None

    run(main())


@pytest.mark.parametrize("waits", [True, False])
def test_a_holder_without_a_server_waits_for_the_next_only_when_asked_to(runtime: Path, waits: bool) -> None:
    async def main() -> None:
        made, ended = await begun(runtime, 0.5 if waits else 600)
        made.hold("mine", [ended], wait_for_next=waits)
        made.leave()
        assert await asyncio.to_thread(os.read, ended, 1) == b""
        os.close(ended)
        assert await made.wait() == 0
        assert await FdHolderClient.connect(runtime, 60) is None

    run(main())


def test_a_holder_of_another_version_is_ended(runtime: Path) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(runtime / SOCKET))
        listener.listen()

        def be_a_holder() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.send(json.dumps({"op": "hello", "version": fd_holder.VERSION + 1, "more": []}).encode())
                heard.append(connection.recv(1000))

        thread = threading.Thread(target=be_a_holder)
        thread.start()
        assert run(FdHolderClient.connect(runtime, 60)) is None
        thread.join()
    assert json.loads(heard[0]) == {"op": "end"}
