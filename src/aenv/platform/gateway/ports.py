"""Presigned URLs of ports inside instances: the bearer reaches that one port until the URL expires."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from aenv.errors import Forbidden, InvalidArguments, Unavailable
from aenv.http.messages import Request
from aenv.schema import paths
from aenv.storage.base import ABSENT, Put, Stale, Store

META, KEY = "meta", "platform-signing-key"
_PREFIX = paths.PORT.encode() + b"/"
_HOST = re.compile(rb"[A-Za-z0-9._:\[\]-]{1,255}")
_SIGNED = re.compile(rb"([A-Za-z0-9._~-]{1,300})/([0-9]{1,5})/([0-9]{1,12})/([0-9a-f]{64})(?=[/?]|$)(.*)", re.DOTALL)
_UNSIGNED = re.compile(paths.PORT.encode() + rb"/([0-9]{1,5})(?=[/?]|$)(.*)", re.DOTALL)


class Port(NamedTuple):
    """A port of an instance, and the request target there."""

    number: int
    target: bytes
    """Path and query as the server on that port sees them."""


class Ports:
    """Signs URLs of ports and verifies them."""

    def __init__(
        self,
        key: bytes,
        *,
        public_url: str = "",
        prefix: str = "",
        tls: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``public_url``: URL of the platform; default: the one at which the request for a URL arrived."""
        self._key = key
        self._public_url = public_url.rstrip("/")
        self._prefix = prefix
        self._tls = tls
        self._clock = clock

    async def open(self) -> None:
        """Prepare for requests to signed URLs. A server that listens already has nothing to do."""

    async def open_for_mcp(self) -> None:
        """Prepare for MCP clients that need a TCP address. A server that listens already has nothing to do."""

    def url(self, name: str, port: int, minutes: int, request: Request) -> str:
        """Return a URL that gives access to this port for ``minutes``."""
        until = int(self._clock() + minutes * 60)
        return f"{self.base(request)}{paths.PORT}/{name}/{port}/{until}/{self._sign(name, port, until)}/"

    def read(self, request: Request) -> tuple[str, Port]:
        """Verify a URL. Returns the instance id and the port.

        Raises:
            Forbidden: the URL is malformed, forged or expired.
        """
        found = _SIGNED.fullmatch(request.target.removeprefix(_PREFIX))
        if found is None:
            raise Forbidden("malformed URL of a port")
        name, number, until, rest = found[1].decode(), int(found[2]), int(found[3]), found[5]
        if not hmac.compare_digest(found[4].decode(), self._sign(name, number, until)):
            raise Forbidden("this URL of a port was not issued by this platform")
        if until < self._clock():
            raise Forbidden("this URL of a port has expired", details={"hint": "Request a new one: presign_url()."})
        return name, Port(number, _rooted(rest))

    def _sign(self, name: str, port: int, until: int) -> str:
        return hmac.new(self._key, f"{name}\n{port}\n{until}".encode(), hashlib.sha256).hexdigest()

    def base(self, request: Request) -> str:
        """Return the platform's URL as the caller reaches it."""
        if self._public_url:
            return self._public_url
        host = request.header(b"host")
        named = host.decode() if _HOST.fullmatch(host) else "localhost"
        tls = self._tls or request.header(b"x-forwarded-proto") == b"https"
        return f"{'https' if tls else 'http'}://{named}{self._prefix}"


def port_of(target: bytes) -> Port | None:
    """Return the port that a path in an instance (``/port/8000/…``) addresses; None for any other path.

    Raises:
        InvalidArguments: the port number is out of range.
    """
    found = _UNSIGNED.fullmatch(target)
    if found is None:
        return None
    if not 1 <= int(found[1]) <= 65535:
        raise InvalidArguments(f"invalid port {int(found[1])}; expected 1 to 65535")
    return Port(int(found[1]), _rooted(found[2]))


def _rooted(rest: bytes) -> bytes:
    return rest if rest.startswith(b"/") else b"/" + rest


async def signing_key(store: Store) -> bytes:
    """Return the key that signs URLs: created once, and the same for all servers on this store."""
    with contextlib.suppress(Stale):  # it exists already
        await store.commit(Put(META, KEY, secrets.token_hex(32).encode(), expect=ABSENT))
    found = await store.get(META, KEY)
    if found is None:
        raise Unavailable("the store does not keep what is written to it")
    return found.value
