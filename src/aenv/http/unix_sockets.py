"""Unix sockets on an event loop, cheaper than asyncio's own.

A new connection of asyncio's takes a task and three loop iterations on the accepting side, and a future and two
iterations on the connecting side, before a byte is read. A unix socket needs none of that: it is connected when
`connect` returns, and what was written to it can be read at once. This makes a first call a fifth faster. Protocols
do not notice the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable
from typing import Any, TypeVar

from aenv.http import handed_connections

log = logging.getLogger("aenv.wire")

CHUNK = 64 * 1024
HIGH_WATER = 64 * 1024
FULL_SECONDS = 0.005
"""Delay before connecting again when the listener's backlog is full."""
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
NO_ROOM_SECONDS = 1.0

P = TypeVar("P", bound=asyncio.Protocol)


def bind_path(path: str) -> socket.socket:
    """Return a socket bound to that path, replacing a stale socket there."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except BaseException:
        listener.close()
        raise
    return listener


async def connect(path: str, make: Callable[[], P]) -> P:
    """Connect to the listener at that path, waiting while its backlog is full.

    Raises:
        OSError: no process listens there.
    """
    loop = asyncio.get_running_loop()
    if path == handed_connections.PATH and handed_connections.connections is not None:
        connection = await handed_connections.connections.take()
        connection.setblocking(False)
        protocol = make()
        UnixTransport(loop, connection, protocol)
        return protocol
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(path)
        except BlockingIOError:
            connection.close()
        except BaseException:
            connection.close()
            raise
        else:
            protocol = make()
            UnixTransport(loop, connection, protocol)
            return protocol
        await asyncio.sleep(FULL_SECONDS)


class Listener:
    """Accepts connections on a listening socket."""

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._fd = listener.fileno()
        self._make = make
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stop accepting. Idempotent: after the first close another socket may have the same fd."""
        if self._listener.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._fd)
        self._listener.close()

    def fileno(self) -> int:
        """Return the descriptor; -1 once closed."""
        return self._listener.fileno()

    def _listen(self) -> None:
        self._loop.add_reader(self._fd, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            log.error("cannot accept a connection: %s", error.strerror)
            self._loop.remove_reader(self._fd)  # it stays readable and would keep the loop spinning
            self._retry = self._loop.call_later(NO_ROOM_SECONDS, self._listen)
            return
        self.take(connection)

    def take(self, connection: socket.socket) -> None:
        """Start to serve an accepted connection."""
        connection.setblocking(False)
        UnixTransport(self._loop, connection, self._make()).read()


class UnixTransport(asyncio.Transport):
    """Transport of one unix socket connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._socket = connection
        self._fd = connection.fileno()
        """Register the fd, not the socket: the selector's KeyError path reprs it, slow for a socket."""
        self._protocol: Any = protocol
        self._unsent = bytearray()
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._reading = False
        self._paused = False
        """The protocol was asked to pause writing."""
        self._closing = False
        self._eof = False
        """Nothing is written after what is still unsent."""
        protocol.connection_made(self)
        self.resume_reading()

    def read(self) -> None:
        """Receive and pass the data to the protocol."""
        if not self._reading:
            return
        try:
            data = self._socket.recv(CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        try:
            if data:
                self._protocol.data_received(data)
            elif self._protocol.eof_received():
                self._stop_reading()
            else:
                self.close()
        except Exception:
            log.exception("closing a connection after an error in its protocol")
            self._end(None)

    # --- asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        if name == "peername":
            return self._socket.getpeername()
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._stop_reading()

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._loop.add_reader(self._fd, self.read)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._eof:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
            self._loop.add_writer(self._fd, self._write)
        self._unsent += data
        if len(self._unsent) > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._eof:
            self._eof = True
            if not self._unsent:
                self._shut_down_writes()

    def close(self) -> None:
        if not self._closing:
            self._stop_reading()
            self._closing = True
            if not self._unsent:
                self._loop.call_soon(self._finish, None)

    def abort(self) -> None:
        if self._loop.is_closed():
            self._socket.close()
        else:
            self._end(None)

    def drop(self) -> None:
        """Forget the connection, in a fork that does not have its descriptor: no byte is sent or received."""
        self._unsent.clear()
        self._reading, self._closing = False, True
        self._socket.close()

    # --- callbacks of the event loop

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del self._unsent[:sent]
        if self._paused and len(self._unsent) <= self._low:
            self._paused = False
            self._protocol.resume_writing()
        if self._unsent:
            return
        self._loop.remove_writer(self._fd)
        if self._closing:
            self._finish(None)
        elif self._eof:
            self._shut_down_writes()

    def _shut_down_writes(self) -> None:
        with contextlib.suppress(OSError):  # the other side is gone; reading reports that
            self._socket.shutdown(socket.SHUT_WR)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _end(self, error: OSError | None) -> None:
        """Close at once and drop unsent bytes."""
        waiting = bool(self._unsent)
        if waiting:
            self._unsent.clear()
            self._loop.remove_writer(self._fd)
        self._stop_reading()
        if waiting or not self._closing:
            self._closing = True
            self._loop.call_soon(self._finish, error)

    def _finish(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
