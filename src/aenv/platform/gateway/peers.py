"""Several servers on one store: each answers for the instances of all.

Instances are processes of the server that created them. Another server that gets a request for one looks up its server
in the store and forwards the request unchanged, with the sender's own token. The receiving server authorizes it by
itself, so servers need not trust each other. A request is forwarded once.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_core import from_json

from aenv.errors import AEnvError, InstanceEnded, InstanceUnreachable, Unavailable, from_answer
from aenv.http.client import ConnectFailed, ConnectionLost
from aenv.http.messages import MAX_ANSWER, Answer, Request
from aenv.http.relay import Relay
from aenv.http.reverse_proxy import HOP_BY_HOP, forward, forwarded_head
from aenv.http.url import ServerUrl
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.instances.instance_record import ENDED, FilterFields, sort_key
from aenv.platform.instances.ledger import Ledger, LedgerEntry, ServerEntry
from aenv.schema import paths
from aenv.schema.instances import EnvInstance, InstancePage
from aenv.storage.base import ABSENT, Put, Stale
from aenv.tracing.logging import getLogger

log = getLogger("peers")

CACHE_SECONDS = 2.0
"""Seconds for which the server of an instance is cached before the store is read again."""
CACHED = 10_000
LIST_SECONDS = 10.0
"""Time limit for another server's part of a list."""
PEER = paths.PEER_HEADER.encode()
REQUEST = "platform-request"
REQUEST_SECONDS = 3600.0
"""Seconds in which the same request id creates only one instance, whichever server the request reaches."""
_NOT_FORWARDED = HOP_BY_HOP | {b"origin", PEER}


class Peers:
    """The other servers on the same store."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._relays: dict[str, Relay] = {}
        self._owners: dict[str, tuple[float, str, ServerEntry]] = {}
        """By instance: when it was looked up (monotonic), its account, and its server."""

    def close(self) -> None:
        """Close all connections."""
        for relay in self._relays.values():
            relay.close()

    @staticmethod
    def is_forwarded(request: Request) -> bool:
        """Return whether another server forwarded this request. It is not forwarded again."""
        return bool(request.header(PEER))

    # --- one instance

    async def answer(self, name: str, request: Request, caller: Caller | None) -> Answer | None:
        """Return the response of the instance's server; None if it is this one or there is none.

        Raises:
            InstanceEnded: the instance has ended, or its server has and took it along.
            InstanceUnreachable: its server cannot be reached, or the connection broke.
        """
        if self.is_forwarded(request) or not name.isascii() or not name.isprintable():
            return None
        server = await self._owner(name, caller)
        return None if server is None else await self._forward(server, request, name)

    async def answer_at(self, server_id: str, request: Request, what: str) -> Answer | None:
        """Return the response of that server; None if it is this one or gone, or the request is forwarded."""
        if self.is_forwarded(request) or server_id == self._ledger.server.id:
            return None
        server = await self._ledger.server_entry(server_id)
        return None if server is None else await self._forward(server, request, what)

    async def _owner(self, name: str, caller: Caller | None) -> ServerEntry | None:
        now = time.monotonic()
        cached = self._owners.get(name)
        if cached is not None and now - cached[0] < CACHE_SECONDS:
            return cached[2] if caller is None or caller.may_see(cached[1]) else None
        entry = await self._ledger.get(name)
        if entry is None or (caller is not None and not caller.may_see(entry.account)):
            return None
        ended = entry.instance.status in ENDED
        if ended and caller is not None:  # without a token, its own server has to check the secret
            raise InstanceEnded.because(name, entry.instance.reason, entry.instance.fault)
        if entry.server == self._ledger.server.id:
            return None
        server = await self._ledger.server_entry(entry.server)
        if server is None:
            if ended:
                return None
            await self._ledger.end_lost()
            raise InstanceEnded(f"instance {name} has ended: the server that it ran on has ended")
        if len(self._owners) >= CACHED:
            self._owners.clear()
        self._owners[name] = now, entry.account, server
        return server

    async def _forward(self, server: ServerEntry, request: Request, name: str) -> Answer:
        try:
            return await forward(*self._relay_to(server, request), request)
        except ConnectFailed:
            raise await self._unreachable(server, name, sent=False) from None
        except ConnectionLost:
            raise await self._unreachable(server, name, sent=True) from None

    async def _unreachable(self, server: ServerEntry, name: str, *, sent: bool) -> AEnvError:
        self._owners.pop(name, None)
        if server.is_dead or await self._ledger.server_entry(server.id) is None:
            await self._ledger.end_lost()
            if not sent:
                return InstanceEnded(f"instance {name} has ended: the server that it ran on has ended")
            message = f"the server of instance {name} has ended; the request may have been acted on"
            return InstanceUnreachable(message, details={"sent": True})
        return InstanceUnreachable(f"the server of instance {name} does not answer", details={"sent": sent})

    def _relay_to(self, server: ServerEntry, request: Request) -> tuple[Relay, bytes]:
        where = server.url + server.certificate
        relay = self._relays.get(where)
        if relay is None:
            relay = self._relays[where] = Relay(ServerUrl.parse(server.url), server.certificate or None)
        own = ((b"host", relay.url.authority.encode()), (PEER, self._ledger.server.id.encode()))
        return relay, forwarded_head(request, relay.url.prefix.encode() + request.target, own, _NOT_FORWARDED)

    # --- idempotent creates, whichever server they reach

    async def claim(self, request: Request, caller: Caller, request_id: str) -> Answer | None:
        """Claim a create for this server. Returns the response of the server that claimed it first, or None if ours."""
        if self.is_forwarded(request):
            return None
        key = hashlib.sha256(f"{caller.name}\0{request_id}".encode("utf-8", "surrogatepass")).hexdigest()
        store, own = self._ledger.store, self._ledger.server.id.encode()
        until = time.time() + REQUEST_SECONDS
        try:
            await store.commit(Put(REQUEST, key, own, expires=until, expect=ABSENT))
            return None
        except Stale:
            found = await store.get(REQUEST, key)
        if found is None or found.value == own:
            return None
        server = await self._ledger.server_entry(found.value.decode())
        if server is None:
            await store.commit(Put(REQUEST, key, own, expires=until))
            return None
        return await self._forward(server, request, f"of the request {request_id[:64]}")

    # --- all instances

    async def page(self, own: InstancePage, request: Request, caller: Caller, filters: dict[str, Any]) -> InstancePage:
        """Merge this server's page with those of the other servers."""
        if self.is_forwarded(request):
            return own
        servers = [server for server in await self._ledger.servers() if server.url]
        pages = [own, *await asyncio.gather(*(self._page_of(server, request, caller, filters) for server in servers))]
        limit = filters["limit"]
        found = sorted((each for page in pages for each in page.items), key=sort_key)
        items = found if limit is None else found[:limit]
        rest = len(items) < len(found) or any(page.next for page in pages)
        return InstancePage(items=items, next=sort_key(items[-1]) if rest and items else None)

    async def _page_of(
        self, server: ServerEntry, request: Request, caller: Caller, filters: dict[str, Any]
    ) -> InstancePage:
        try:
            async with asyncio.timeout(LIST_SECONDS):
                relay, head = self._relay_to(server, request)
                response = await relay.send(head, b"")
                body = from_json(await response.read(MAX_ANSWER))
            if response.status != 200:
                raise from_answer(response.status, body)
            data = body["data"]
            return InstancePage.model_validate(data if "next" not in body else {"items": data, "next": body["next"]})
        except (ConnectFailed, ConnectionLost, TimeoutError):
            log.warning("the server at %s does not answer: listing its instances from the store", server.url)
            return InstancePage(items=[each async for each in self._stored(server, caller, filters)])
        except (ValueError, TypeError, KeyError, ValidationError) as error:
            raise Unavailable(f"invalid response from the server at {server.url}: {error!r}") from None

    async def _stored(self, server: ServerEntry, caller: Caller, filters: dict[str, Any]) -> AsyncIterator[EnvInstance]:
        async for entry in self._ledger.alive():
            if entry.server == server.id and caller.may_see(entry.account) and _matches(entry, filters):
                yield entry.instance


def _matches(entry: LedgerEntry, filters: dict[str, Any]) -> bool:
    instance = entry.instance
    shown = FilterFields(
        instance.env.id if instance.env else "", instance.owner, instance.labels or {}, instance.status
    )
    place = sort_key(instance)
    return (not filters["after"] or place > filters["after"]) and shown.matches(
        filters["env"], filters["owner"], filters["labels"], filters["status"]
    )


def reachable_url(url: str, store_url: str) -> str:
    """Return the URL at which other servers reach one that listens at ``url``.

    A server that listens on all addresses is reached at the local address of the route to the store.
    """
    own = ServerUrl.parse(url)
    if own.host not in ("0.0.0.0", "::"):
        return url
    store = urlsplit(store_url)
    try:
        found = socket.getaddrinfo(store.hostname, store.port or 6379, type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing: the kernel only selects our local address
            host = probe.getsockname()[0]
    except OSError:
        host = socket.gethostname()
    return str(replace(own, host=host))
