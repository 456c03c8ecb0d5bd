"""Several servers on one store: each answers for the instances of all.

Instances are processes of the server that made them. Another server that is asked for one finds in the store whose it
is, and passes the request on as it came, with its sender's own token: who gets it decides for itself who may do what,
so no server has to take another's word for it. A request is passed on once.
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
from aenv.http.client import MAX_ANSWER, ConnectFailed, ConnectionLost
from aenv.http.messages import Answer, Request
from aenv.http.relay import Relay
from aenv.http.url import ServerUrl
from aenv.platform.access.platform_tokens import Caller
from aenv.platform.gateway.proxy import OF_ONE_CONNECTION, head_of, pass_on
from aenv.platform.instances.instance_record import ENDED, FilterFields, sort_key
from aenv.platform.instances.ledger import Ledger, LedgerEntry, ServerEntry
from aenv.schema import paths
from aenv.schema.instances import EnvInstance, InstancePage
from aenv.storage.base import ABSENT, Put, Stale
from aenv.tracing.logging import getLogger

log = getLogger("peers")

FRESH = 2.0
"""Seconds for which it is known whose an instance is without a look into the store."""
KNOWN = 10_000
LIST_SECONDS = 10.0
"""So long a list waits for another server's part of it."""
PEER = paths.PEER_HEADER.encode()
REQUEST = "platform-request"
REQUEST_KEPT = 3600.0
"""Seconds for which the same request makes the same instance, whichever server it reaches."""
_NOT_PASSED_ON = OF_ONE_CONNECTION | {b"origin", PEER}


class Peers:
    """The servers beside this one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._relays: dict[str, Relay] = {}
        self._owners: dict[str, tuple[float, str, ServerEntry]] = {}
        """By instance: since when it is known, whose the instance is, and where."""

    def close(self) -> None:
        """Hang up, everywhere."""
        for relay in self._relays.values():
            relay.close()

    @staticmethod
    def is_passed_on(request: Request) -> bool:
        """Whether another server has sent it here: then it goes no further."""
        return bool(request.header(PEER))

    # --- one instance

    async def answer(self, name: str, request: Request, caller: Caller | None) -> Answer | None:
        """What the server of an instance answers; None: it is on this one, or on none.

        Raises:
            InstanceEnded: it has, or its server has, and it with it.
            InstanceUnreachable: its server cannot be reached, or hung up in the middle.
        """
        if self.is_passed_on(request) or not name.isascii() or not name.isprintable():
            return None
        server = await self._owner(name, caller)
        return None if server is None else await self._pass_on(server, request, name)

    async def answer_at(self, server_id: str, request: Request, what: str) -> Answer | None:
        """What that server answers; None: it is this one, or gone, or the request has come from another one."""
        if self.is_passed_on(request) or server_id == self._ledger.server.id:
            return None
        server = await self._ledger.server_entry(server_id)
        return None if server is None else await self._pass_on(server, request, what)

    async def _owner(self, name: str, caller: Caller | None) -> ServerEntry | None:
        now = time.monotonic()
        known = self._owners.get(name)
        if known is not None and now - known[0] < FRESH:
            return known[2] if caller is None or caller.may_see(known[1]) else None
        entry = await self._ledger.get(name)
        if entry is None or (caller is not None and not caller.may_see(entry.account)):
            return None
        ended = entry.instance.status in ENDED
        if ended and caller is not None:  # who has no token must know its secret, which its own server looks at
            raise InstanceEnded.because(name, entry.instance.reason, entry.instance.fault)
        if entry.server == self._ledger.server.id:
            return None
        server = await self._ledger.server_entry(entry.server)
        if server is None:
            if ended:
                return None
            await self._ledger.end_lost()
            raise InstanceEnded(f"instance {name} has ended: the server that it ran on has ended")
        if len(self._owners) >= KNOWN:
            self._owners.clear()
        self._owners[name] = now, entry.account, server
        return server

    async def _pass_on(self, server: ServerEntry, request: Request, name: str) -> Answer:
        try:
            return await pass_on(*self._way(server, request), request)
        except ConnectFailed:
            raise await self._lost(server, name, sent=False) from None
        except ConnectionLost:
            raise await self._lost(server, name, sent=True) from None

    async def _lost(self, server: ServerEntry, name: str, *, sent: bool) -> AEnvError:
        self._owners.pop(name, None)
        if server.is_dead or await self._ledger.server_entry(server.id) is None:
            await self._ledger.end_lost()
            if not sent:
                return InstanceEnded(f"instance {name} has ended: the server that it ran on has ended")
            said = f"the server of instance {name} has ended; the request may have been acted on"
            return InstanceUnreachable(said, details={"sent": True})
        return InstanceUnreachable(f"the server of instance {name} does not answer", details={"sent": sent})

    def _way(self, server: ServerEntry, request: Request) -> tuple[Relay, bytes]:
        where = server.url + server.certificate
        relay = self._relays.get(where)
        if relay is None:
            relay = self._relays[where] = Relay(ServerUrl.parse(server.url), server.certificate or None)
        own = ((b"host", relay.url.authority.encode()), (PEER, self._ledger.server.id.encode()))
        return relay, head_of(request, relay.url.prefix.encode() + request.target, own, _NOT_PASSED_ON)

    # --- one request, to whichever server it comes

    async def claim(self, request: Request, caller: Caller, request_id: str) -> Answer | None:
        """Whoever gets a create first makes the instance; what that server says. None: it is this one."""
        if self.is_passed_on(request):
            return None
        key = hashlib.sha256(f"{caller.name}\0{request_id}".encode("utf-8", "surrogatepass")).hexdigest()
        store, own = self._ledger.store, self._ledger.server.id.encode()
        until = time.time() + REQUEST_KEPT
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
        return await self._pass_on(server, request, f"of the request {request_id[:64]}")

    # --- all instances

    async def page(self, own: InstancePage, request: Request, caller: Caller, wish: dict[str, Any]) -> InstancePage:
        """This server's page together with those of the others."""
        if self.is_passed_on(request):
            return own
        servers = [server for server in await self._ledger.servers() if server.url]
        pages = [own, *await asyncio.gather(*(self._page_of(server, request, caller, wish) for server in servers))]
        limit = wish["limit"]
        found = sorted((each for page in pages for each in page.items), key=sort_key)
        items = found if limit is None else found[:limit]
        rest = len(items) < len(found) or any(page.next for page in pages)
        return InstancePage(items=items, next=sort_key(items[-1]) if rest and items else None)

    async def _page_of(
        self, server: ServerEntry, request: Request, caller: Caller, wish: dict[str, Any]
    ) -> InstancePage:
        try:
            async with asyncio.timeout(LIST_SECONDS):
                relay, head = self._way(server, request)
                passed = await relay.send(head, b"")
                body = from_json(await passed.read(MAX_ANSWER))
            if passed.status != 200:
                raise from_answer(passed.status, body)
            data = body["data"]
            return InstancePage.model_validate(data if "next" not in body else {"items": data, "next": body["next"]})
        except (ConnectFailed, ConnectionLost, TimeoutError):
            log.warning(
                "the server at %s does not answer: its instances are shown as they are in the store", server.url
            )
            return InstancePage(items=[each async for each in self._written(server, caller, wish)])
        except (ValueError, TypeError, KeyError, ValidationError) as error:
            raise Unavailable(f"the server at {server.url} does not answer as it should: {error!r}") from None

    async def _written(self, server: ServerEntry, caller: Caller, wish: dict[str, Any]) -> AsyncIterator[EnvInstance]:
        async for entry in self._ledger.alive():
            if entry.server == server.id and caller.may_see(entry.account) and _fits(entry, wish):
                yield entry.instance


def _fits(entry: LedgerEntry, wish: dict[str, Any]) -> bool:
    instance = entry.instance
    about = FilterFields(
        instance.env.id if instance.env else "", instance.owner, instance.labels or {}, instance.status
    )
    place = sort_key(instance)
    return (not wish["after"] or place > wish["after"]) and about.matches(
        wish["env"], wish["owner"], wish["labels"], wish["status"]
    )


def reached_at(url: str, store_url: str) -> str:
    """Where other servers reach one that listens at ``url``.

    One that listens on all addresses is reached at the one that this machine has on the way to the store.
    """
    own = ServerUrl.parse(url)
    if own.host not in ("0.0.0.0", "::"):
        return url
    store = urlsplit(store_url)
    try:
        found = socket.getaddrinfo(store.hostname, store.port or 6379, type=socket.SOCK_DGRAM)
        family, kind, _, _, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # nothing is sent: it only chooses an address of ours
            host = probe.getsockname()[0]
    except OSError:
        host = socket.gethostname()
    return str(replace(own, host=host))
