"""Servers that the console of this machine passes requests on to, with tokens that the browser never sees."""

from __future__ import annotations

from aenv.errors import Unavailable
from aenv.http.client import ConnectFailed, ConnectionLost
from aenv.http.messages import Answer, Request
from aenv.http.relay import Relay
from aenv.http.reverse_proxy import HOP_BY_HOP, forward, forwarded_head
from aenv.http.url import ServerUrl

_NOT_FORWARDED = HOP_BY_HOP | {b"authorization", b"origin", b"referer", b"cookie"}


class RemoteApi:
    """A platform or hub elsewhere, reached with this user's token."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = ServerUrl.parse(url)
        self._relay = Relay(self._url)
        self._own = [(b"host", self._url.authority.encode())]
        if token:
            self._own.append((b"authorization", f"Bearer {token}".encode()))

    async def answer(self, request: Request, target: bytes | None = None) -> Answer:
        """Pass a request on.

        ``target``: path and query there, if not those of the request.

        Raises:
            Unavailable: the server does not answer.
        """
        place = self._url.prefix.encode() + (request.target if target is None else target)
        try:
            head = forwarded_head(request, place, self._own, _NOT_FORWARDED)
            return await forward(self._relay, head, request, (b"websocket",))
        except (ConnectFailed, ConnectionLost) as error:
            raise Unavailable(f"{self._url} does not answer: {error.message}") from None

    async def close(self) -> None:
        """Close all connections."""
        self._relay.close()
