"""Forward proxies: the way to servers on the internet that ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` name.

Only clients of servers elsewhere use them, such as that of a model. Addresses of this machine are always reached
directly.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import urllib.request
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from aenv.errors import ConfigError
from aenv.http.url import ServerUrl

MAX_HEAD = 16 * 1024


@dataclass(frozen=True, slots=True)
class ForwardProxy:
    """A proxy that forwards requests."""

    host: str
    port: int
    authorization: str = ""
    """Value of ``Proxy-Authorization``."""

    def lines(self) -> bytes:
        """Return the header lines for the proxy."""
        return f"proxy-authorization: {self.authorization}\r\n".encode() if self.authorization else b""

    async def connect(self, url: ServerUrl) -> socket.socket:
        """Return a connection to the proxy; for a server with TLS, a tunnel through it.

        Raises:
            OSError: the proxy cannot be reached, or refuses.
        """
        loop = asyncio.get_running_loop()
        family, kind, number, _, address = (await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))[0]
        connection = socket.socket(family, kind, number)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
            if url.tls:
                await self._open_tunnel(connection, url)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _open_tunnel(self, connection: socket.socket, url: ServerUrl) -> None:
        loop = asyncio.get_running_loop()
        host = f"[{url.host}]" if ":" in url.host else url.host
        place = f"{host}:{url.port}"
        asked = f"CONNECT {place} HTTP/1.1\r\nhost: {place}\r\n".encode() + self.lines() + b"\r\n"
        await loop.sock_sendall(connection, asked)
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows belongs to TLS
            data = await loop.sock_recv(connection, 1)
            head += data
            if not data or len(head) > MAX_HEAD:
                raise ConnectionError(f"the proxy at {self.host}:{self.port} did not open a tunnel to {place}")
        status = head.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise ConnectionError(f"the proxy at {self.host}:{self.port} refused a tunnel to {place}: {status[:200]}")


def proxy_for(url: ServerUrl) -> ForwardProxy | None:
    """Return the proxy that the environment variables name for a server; None: it is reached directly.

    Raises:
        ConfigError: a variable does not name an HTTP proxy.
    """
    if url.uds or _is_this_machine(url.host):
        return None
    known = urllib.request.getproxies_environment()
    text = known.get("https" if url.tls else "http") or known.get("all")
    if not text or urllib.request.proxy_bypass(f"{url.host}:{url.port}"):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise ConfigError(f"invalid proxy for {url.host}; expected a variable such as HTTPS_PROXY=http://HOST:PORT")
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    authorization = f"Basic {base64.b64encode(user.encode()).decode()}" if user else ""
    return ForwardProxy(parts.hostname, port, authorization)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
