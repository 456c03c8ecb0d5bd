"""URLs of ports inside instances: whoever has one reaches that one port, until it expires."""

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
_OWN = re.compile(paths.PORT.encode() + rb"/([0-9]{1,5})(?=[/?]|$)(.*)", re.DOTALL)


class Port(NamedTuple):
    """Where a request goes in an instance."""

    number: int
    target: bytes
    """The path and the query, as the server there sees them."""


class Ports:
    """Signs URLs, and reads them."""

    def __init__(
        self,
        key: bytes,
        *,
        public_url: str = "",
        prefix: str = "",
        tls: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``public_url``: where the platform is reached; else it is where the request for a URL came to."""
        self._key = key
        self._public_url = public_url.rstrip("/")
        self._prefix = prefix
        self._tls = tls
        self._clock = clock

    async def open(self) -> None:
        """Be ready for who comes with a URL."""

    def url(self, name: str, port: int, minutes: int, request: Request) -> str:
        """One that opens this port for so long."""
        until = int(self._clock() + minutes * 60)
        return f"{self.base(request)}{paths.PORT}/{name}/{port}/{until}/{self._sign(name, port, until)}/"

    def read(self, request: Request) -> tuple[str, Port]:
        """The instance and the port that a URL stands for.

        Raises:
            Forbidden: it stands for none, or does so no more.
        """
        found = _SIGNED.fullmatch(request.target.removeprefix(_PREFIX))
        if found is None:
            raise Forbidden("this is not a URL of a port")
        name, number, until, rest = found[1].decode(), int(found[2]), int(found[3]), found[5]
        if not hmac.compare_digest(found[4].decode(), self._sign(name, number, until)):
            raise Forbidden("this URL of a port was not given out by this platform")
        if until < self._clock():
            raise Forbidden("this URL of a port has expired", details={"hint": "Ask for a new one: presign_url()."})
        return name, Port(number, _rooted(rest))

    def _sign(self, name: str, port: int, until: int) -> str:
        return hmac.new(self._key, f"{name}\n{port}\n{until}".encode(), hashlib.sha256).hexdigest()

    def base(self, request: Request) -> str:
        """The platform's own URL, as who asks reaches it."""
        if self._public_url:
            return self._public_url
        host = request.header(b"host")
        named = host.decode() if _HOST.fullmatch(host) else "localhost"
        tls = self._tls or request.header(b"x-forwarded-proto") == b"https"
        return f"{'https' if tls else 'http'}://{named}{self._prefix}"


def port_of(target: bytes) -> Port | None:
    """The port that a path in an instance, ``/port/8000/…``, stands for; None: it stands for none.

    Raises:
        InvalidArguments: there is no such port.
    """
    found = _OWN.fullmatch(target)
    if found is None:
        return None
    if not 1 <= int(found[1]) <= 65535:
        raise InvalidArguments(f"{int(found[1])} is not a port")
    return Port(int(found[1]), _rooted(found[2]))


def _rooted(rest: bytes) -> bytes:
    return rest if rest.startswith(b"/") else b"/" + rest


async def signing_key(store: Store) -> bytes:
    """What URLs are signed with: the same for all servers on this store, for good."""
    with contextlib.suppress(Stale):  # there is one
        await store.commit(Put(META, KEY, secrets.token_hex(32).encode(), expect=ABSENT))
    found = await store.get(META, KEY)
    if found is None:
        raise Unavailable("the store does not keep what is written to it")
    return found.value
