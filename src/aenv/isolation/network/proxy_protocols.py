"""Protocols of the egress proxy: HTTP with and without CONNECT, and SOCKS5."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass

MAX_HEAD = 1 << 16
_END = b"\r\n\r\n"
_HOP_BY_HOP = {
    b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"proxy-authenticate", b"te",
    b"upgrade", b"host",
}  # fmt: skip
_AUTHORITY = re.compile(
    r"(?:[^@/?#]*@)?(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:@/?#\[\]\s]+))(?::(?P<port>\d{1,5}))?"
)


class ProxyFailed(Exception):
    """The request failed, with an HTTP status and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Target:
    """Host and port that a client wants to reach."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ProxyRequest(ABC):
    """Request of a client to the proxy."""

    target: Target
    first: bytes
    """First bytes to send to the server."""

    @abstractmethod
    async def accept(self, client: socket.socket, server: socket.socket) -> None:
        """Reply that the server is connected, up to the point from which bytes are relayed unchanged."""

    async def refuse(self, client: socket.socket, status: int, why: str, more: str = "") -> None:
        """Reply that the request is refused or has failed."""
        await send_error(client, status, why, more)


class Tunnel(ProxyRequest):
    """HTTP tunnel: ``CONNECT host:port``."""

    async def accept(self, client: socket.socket, server: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(client, b"HTTP/1.1 200 Connection established\r\n\r\n")


class Forward(ProxyRequest):
    """Forwarded HTTP request: ``GET http://host/path``. One per connection: the next may be for another host."""

    async def accept(self, client: socket.socket, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        interim, rest = True, b""
        while interim:
            head, rest = await _read_head(server, rest)
            interim = head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1"))
            await loop.sock_sendall(client, head + _END if interim else _with_connection_close(head))
        await loop.sock_sendall(client, rest)


class Socks(ProxyRequest):
    """SOCKS5 connection, without authentication."""

    async def accept(self, client: socket.socket, server: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(client, _socks_reply(0))

    async def refuse(self, client: socket.socket, status: int, why: str, more: str = "") -> None:
        not_allowed, unreachable = 2, 4
        await asyncio.get_running_loop().sock_sendall(
            client, _socks_reply(not_allowed if status == 403 else unreachable)
        )


async def send_error(client: socket.socket, status: int, why: str, more: str = "") -> None:
    """Send an error response as text. The reason phrase repeats the message: most clients show only that."""
    body = f"{why}\n{more}\n" if more else f"{why}\n"
    reason = re.sub(r"[^ -~]", "?", why)[:300]
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        f"content-length: {len(body.encode())}\r\nconnection: close\r\n\r\n"
    )
    await asyncio.get_running_loop().sock_sendall(client, head.encode() + body.encode())


async def read_request(client: socket.socket) -> ProxyRequest:
    """Read and parse a client's request.

    Raises:
        ProxyFailed: the request is malformed.
        EOFError: the client closed the connection.
    """
    data = await _receive(client)
    if data[0] == 5:
        return await _read_socks(client, data)
    head, rest = await _read_head(client, data)
    line, _, headers = head.partition(b"\r\n")
    parts = line.decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise ProxyFailed(400, "not an HTTP request")
    method, url, version = parts
    if method == "CONNECT":
        return Tunnel(_parse_authority(url, None), rest)
    scheme, colon, after = url.partition("://")
    if not colon or scheme.lower() != "http":
        raise ProxyFailed(400, "this is a proxy; request http://host/path or CONNECT host:port")
    authority = re.split(r"[/?#]", after, maxsplit=1)[0]
    target = _parse_authority(authority, 80)
    path = after[len(authority) :].partition("#")[0]
    path = path if path.startswith("/") else f"/{path}"
    host = authority.rpartition("@")[2]
    first = f"{method} {path} {version}\r\nHost: {host}\r\n".encode("latin-1") + b"".join(
        name + b":" + value + b"\r\n" for name, value in _end_to_end_headers(headers)
    )
    return Forward(target, first + b"Connection: close\r\n\r\n" + rest)


def _parse_authority(authority: str, default: int | None) -> Target:
    found = _AUTHORITY.fullmatch(authority)
    port = int(found["port"]) if found and found["port"] else default
    if found is None or port is None or not 0 < port < 65536:
        raise ProxyFailed(400, "the request has no valid host and port")
    return Target(found["six"] or found["host"], port)


def _end_to_end_headers(block: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers to forward: all but the hop-by-hop ones."""
    found: list[tuple[bytes, bytes]] = []
    for line in block.split(b"\r\n") if block else ():
        name, colon, value = line.partition(b":")
        if not colon or not re.fullmatch(rb"[!#-'*+.0-9A-Z^-z|~-]+", name) or b"\n" in value or b"\r" in value:
            raise ProxyFailed(400, "invalid header")
        found.append((name, value))
    named = {
        word.strip().lower() for name, value in found if name.lower() == b"connection" for word in value.split(b",")
    }
    return [(name, value) for name, value in found if name.lower() not in _HOP_BY_HOP | named]


def _with_connection_close(head: bytes) -> bytes:
    """Return the head of a server's response with ``Connection: close``."""
    line, _, block = head.partition(b"\r\n")
    headers = (
        [h for h in block.split(b"\r\n") if h.partition(b":")[0].strip().lower() not in _HOP_BY_HOP] if block else []
    )
    return b"\r\n".join([line, *headers, b"Connection: close"]) + _END


async def _read_head(source: socket.socket, data: bytes = b"") -> tuple[bytes, bytes]:
    """Read up to the empty line; return the head and the bytes received after it."""
    while _END not in data and len(data) <= MAX_HEAD:
        data += await _receive(source)
    head, _, rest = data.partition(_END)
    if len(head) > MAX_HEAD:
        raise ProxyFailed(431, f"the message head is longer than {MAX_HEAD} bytes")
    return head, rest


async def _receive(source: socket.socket) -> bytes:
    data = await asyncio.get_running_loop().sock_recv(source, MAX_HEAD)
    if not data:
        raise EOFError
    return data


async def _read_socks(client: socket.socket, data: bytes) -> ProxyRequest:
    loop = asyncio.get_running_loop()

    async def take(count: int) -> bytes:
        nonlocal data
        while len(data) < count:
            data += await _receive(client)
        taken, data = data[:count], data[count:]
        return taken

    no_password, nothing_acceptable, connect = 0, 0xFF, 1
    methods = await take((await take(2))[1])
    if no_password not in methods:
        await loop.sock_sendall(client, bytes([5, nothing_acceptable]))
        raise EOFError
    await loop.sock_sendall(client, bytes([5, no_password]))
    _, command, _, kind = await take(4)
    if kind == 1:
        host = socket.inet_ntop(socket.AF_INET, await take(4))
    elif kind == 4:
        host = socket.inet_ntop(socket.AF_INET6, await take(16))
    else:
        host = (await take((await take(1))[0])).decode("latin-1")
    port = int(struct.unpack("!H", await take(2))[0])
    if command != connect or kind not in (1, 3, 4) or not host:
        command_not_supported = 7
        await loop.sock_sendall(client, _socks_reply(command_not_supported))
        raise EOFError
    return Socks(Target(host, port), data)


def _socks_reply(code: int) -> bytes:
    return struct.pack("!BBBB4sH", 5, code, 0, 1, bytes(4), 0)
