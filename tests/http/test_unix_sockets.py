"""Unix socket transports keep the promises of asyncio's own transports, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from aenv.http import unix_sockets
from aenv.http.raw_stream import RawStream
from tests.conftest import run
from tests.waiting import wait_until

BIG = os.urandom(1 << 20) * 8


class Peer(asyncio.Protocol):
    """Records the callbacks of its transport."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.came = bytearray()
        self.told: list[str] = []
        self.error: Exception | None = None
        self.over = asyncio.Event()
        self.stays_after_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.came += data

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.stays_after_eof

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.error = exc
        self.over.set()


def pair() -> tuple[Peer, socket.socket]:
    """A transport, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    peer = Peer()
    unix_sockets.UnixTransport(asyncio.get_running_loop(), ours, peer)
    return peer, theirs


async def received(theirs: socket.socket, count: int) -> bytes:
    loop, data = asyncio.get_running_loop(), bytearray()
    while len(data) < count and (part := await loop.sock_recv(theirs, 1 << 16)):
        data += part
    return bytes(data)


def test_a_connection_carries_bytes_both_ways(tmp_path: Path) -> None:
    async def main() -> None:
        accepted: list[Peer] = []

        def one() -> Peer:
            accepted.append(Peer())
            return accepted[-1]

        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(tmp_path / "s"))
        bound.listen()
        listener = unix_sockets.Listener(bound, one)
        peers = [await unix_sockets.connect(str(tmp_path / "s"), Peer) for _ in range(3)]
        for number, peer in enumerate(peers):
            peer.transport.write(b"hello %d" % number)
        await wait_until(lambda: len(accepted) == 3 and all(len(peer.came) == 7 for peer in accepted))
        assert [bytes(peer.came) for peer in accepted] == [b"hello 0", b"hello 1", b"hello 2"]
        accepted[1].transport.write(b"and back")
        await wait_until(lambda: peers[1].came == b"and back")
        accepted[1].transport.close()
        await peers[1].over.wait()
        assert peers[1].error is None
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await unix_sockets.connect(str(tmp_path / "s"), Peer)
        for peer in (*peers, *accepted):
            peer.transport.abort()
            await peer.over.wait()

    run(main())


def test_connecting_without_a_listener_raises_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run(unix_sockets.connect(str(tmp_path / "nowhere"), Peer))


def test_connecting_waits_while_the_backlog_is_full(tmp_path: Path) -> None:
    async def main() -> None:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(tmp_path / "s"))
        bound.listen(0)
        bound.setblocking(False)
        first = await unix_sockets.connect(str(tmp_path / "s"), Peer)
        second = asyncio.create_task(unix_sockets.connect(str(tmp_path / "s"), Peer))
        done, _ = await asyncio.wait([second], timeout=0.05)
        assert not done
        bound.accept()[0].close()
        (await second).transport.abort()
        first.transport.abort()
        bound.close()

    run(main())


def test_a_large_write_waits_for_a_slow_reader(tmp_path: Path) -> None:
    async def main() -> None:
        peer, theirs = pair()
        peer.transport.set_write_buffer_limits(1000)
        peer.transport.write(BIG)
        peer.transport.write(b"end")
        assert peer.told == ["pause"]
        assert peer.transport.get_write_buffer_size() > 1 << 20
        peer.transport.close()  # written bytes are still sent
        assert await received(theirs, len(BIG) + 4) == BIG + b"end"
        await peer.over.wait()
        assert peer.told == ["pause", "resume", "lost"]
        theirs.close()

    run(main())


def test_nothing_is_read_while_reading_is_paused() -> None:
    async def main() -> None:
        peer, theirs = pair()
        peer.transport.pause_reading()
        peer.transport.pause_reading()
        assert not peer.transport.is_reading()
        theirs.send(b"later")
        other, others = pair()
        others.send(b"now")
        await wait_until(lambda: other.came == b"now")  # so the loop has looked at all sockets
        assert not peer.came
        other.transport.abort()
        others.close()
        peer.transport.resume_reading()
        peer.transport.resume_reading()
        await wait_until(lambda: peer.came == b"later")
        peer.transport.abort()
        theirs.close()

    run(main())


def test_one_side_may_close_its_writes_while_the_other_continues() -> None:
    async def main() -> None:
        peer, theirs = pair()
        peer.stays_after_eof = True
        theirs.shutdown(socket.SHUT_WR)
        await wait_until(lambda: peer.told == ["eof"])
        peer.transport.write(BIG)
        peer.transport.write_eof()
        peer.transport.write(b"too late")
        assert await received(theirs, len(BIG) + 1) == BIG
        peer.transport.close()
        await peer.over.wait()
        theirs.close()

        other, theirs = pair()
        theirs.close()
        await other.over.wait()
        assert other.told == ["eof", "lost"]

    run(main())


def test_an_abort_drops_unsent_bytes_and_ends_once() -> None:
    async def main() -> None:
        peer, theirs = pair()
        peer.transport.write(BIG)
        peer.transport.close()
        assert peer.transport.is_closing()
        peer.transport.abort()
        peer.transport.abort()
        await peer.over.wait()
        peer.transport.abort()
        await asyncio.sleep(0)  # what abort() would have scheduled runs now
        assert peer.told.count("lost") == 1
        assert len(await received(theirs, len(BIG))) < len(BIG)
        theirs.close()

    run(main())


def test_writing_to_a_closed_peer_is_reported() -> None:
    async def main() -> None:
        peer, theirs = pair()
        peer.transport.pause_reading()
        theirs.close()
        peer.transport.write(b"x")
        await peer.over.wait()
        assert isinstance(peer.error, BrokenPipeError)
        peer.transport.write(b"y")

    run(main())


def test_a_failing_protocol_loses_only_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Peer):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        broken = Broken()
        unix_sockets.UnixTransport(asyncio.get_running_loop(), ours, broken)
        theirs.send(b"x")
        await broken.over.wait()
        assert theirs.recv(1) == b""
        theirs.close()

    run(main())
    assert "ZeroDivisionError" in caplog.text


def test_a_raw_stream_can_take_over_a_connection() -> None:
    async def main() -> None:
        peer, theirs = pair()
        peer.transport.pause_reading()
        pipe = RawStream.take_over(peer.transport, b"before ")
        theirs.send(b"after")
        data = b""
        while len(data) < 12:
            data += await pipe.read()
        assert data == b"before after"
        pipe.close()
        assert await pipe.read() == b""
        theirs.close()

    run(main())


def test_a_listener_out_of_file_descriptors_waits_until_some_are_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Poor(socket.socket):
        tries = 0

        def accept(self) -> tuple[socket.socket, object]:
            self.tries += 1
            if self.tries == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(unix_sockets, "NO_ROOM_SECONDS", 0.02)

    async def main() -> None:
        with Poor(socket.AF_UNIX) as bound:
            bound.bind(str(tmp_path / "s"))
            bound.listen()
            accepted = Peer()
            listener = unix_sockets.Listener(bound, lambda: accepted)
            peer = await unix_sockets.connect(str(tmp_path / "s"), Peer)
            peer.transport.write(b"x")
            await wait_until(lambda: accepted.came == b"x")
            assert bound.tries == 2
            listener.close()
            peer.transport.abort()
            await accepted.over.wait()

    run(main())
    assert "Too many open files" in caplog.text


def test_closing_a_listener_twice_does_not_close_a_reused_fd(tmp_path: Path) -> None:
    async def main() -> bytes:
        bound = unix_sockets.bind_path(str(tmp_path / "s"))
        bound.listen()
        number = bound.fileno()
        listener = unix_sockets.Listener(bound, Peer)
        listener.close()
        peer, theirs = pair()
        with theirs:
            assert number in (peer.transport.get_extra_info("socket").fileno(), theirs.fileno())
            listener.close()
            theirs.send(b"x")
            await wait_until(lambda: bool(peer.came))
            peer.transport.abort()
            return bytes(peer.came)

    assert run(main()) == b"x"
