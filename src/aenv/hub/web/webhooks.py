"""Webhooks: signed notifications about versions, retried with backoff for up to three days.

A pending delivery is written in the same batch as the change it reports (transactional outbox), so neither exists
without the other. A server claims a delivery before it sends it, so that of several servers one does. A receiver may
get a delivery twice and recognizes it by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel
from pydantic_core import to_json

from aenv.errors import AEnvError, ConfigError, NotFound
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.hub.access.hub_tokens import covers
from aenv.schema.envhub import EnvSummary
from aenv.storage.base import Delete, Put, Query, Record, Stale, Store

log = logging.getLogger("aenv.hub")

HOOK, DELIVERY, DUE = "hook", "notice", "due"
KEEP_SECONDS = 3 * 24 * 3600.0
CLAIM_SECONDS = 60.0
SEND_SECONDS = 10.0
MAX_RESPONSE = 1024 * 1024
"""Bytes that are read of a receiver's response; only its status matters."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 3600.0
POLL_SECONDS = 5.0
"""Seconds between polls for deliveries that another server wrote."""
SIGNATURE = "x-aenv-signature"

Event = Literal["push", "release", "deprecate", "yank", "delete"]


class Hook(BaseModel):
    """A registered webhook: URL, secret and filter."""

    id: str
    url: str
    secret: str
    """Signing key. The receiver has it too, so it is stored in clear."""
    events: list[Event] = ["push"]
    namespaces: list[str] = ["*"]
    created_at: str = ""


class WebhookDelivery(BaseModel):
    """A pending delivery of an event to one webhook."""

    hook: str
    event: str
    body: dict[str, Any]
    tries: int = 0


class Webhooks:
    """Registered webhooks, and the outbox of their deliveries."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self.written = asyncio.Event()

    async def puts(self, event: str, version: EnvSummary, now: str, reason: str | None = None) -> list[Put]:
        """Return the deliveries to write in the same batch as a change."""
        if self._store is None:
            return []
        hooks = [hook for hook in await self.hooks() if event in hook.events and covers(hook.namespaces, version.name)]
        if hooks:
            self.written.set()
        body = {"event": event, "at": now, "version": version.model_dump(), "reason": reason}
        return [
            _put(uuid.uuid4().hex, WebhookDelivery(hook=hook.id, event=event, body=body), due=0.0) for hook in hooks
        ]

    async def hooks(self) -> list[Hook]:
        """Return all registered webhooks."""
        if self._store is None:
            return []
        page = await self._store.page(Query(HOOK, limit=1000))
        return [Hook.model_validate_json(record.value) for record in page.records]

    async def add(self, url: str, events: list[Event], namespaces: list[str], now: str) -> Hook:
        """Register a webhook. Its secret is returned only now."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"invalid URL '{url}' of a webhook; write it like https://host/path")
        ServerUrl.parse(url)
        assert self._store is not None
        hook = Hook(
            id=secrets.token_hex(6),
            url=url,
            secret=secrets.token_urlsafe(32),
            events=events,
            namespaces=namespaces,
            created_at=now,
        )
        await self._store.commit(Put(HOOK, hook.id, hook.model_dump_json().encode()))
        return hook

    async def remove(self, hook_id: str) -> None:
        """Remove a webhook."""
        assert self._store is not None
        if await self._store.get(HOOK, hook_id) is None:
            raise NotFound(f"there is no webhook {hook_id}")
        await self._store.commit(Delete(HOOK, hook_id))


class WebhookSender:
    """Background task that sends due deliveries."""

    def __init__(self, store: Store, webhooks: Webhooks, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._webhooks = webhooks
        self._clock = clock

    async def run(self) -> None:
        """Send deliveries until cancelled."""
        while True:
            self._webhooks.written.clear()
            try:
                while await self.deliver_due():
                    pass
            except AEnvError as error:
                log.warning("webhook deliveries are delayed: %s", error.message)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._webhooks.written.wait(), POLL_SECONDS)

    async def deliver_due(self) -> int:
        """Try every due delivery once; return how many succeeded."""
        query = Query(DELIVERY, (DUE,), high=_time(self._clock()), limit=20)
        page = await self._store.page(query)
        hooks = {hook.id: hook for hook in await self._webhooks.hooks()} if page.records else {}
        return sum(await asyncio.gather(*(self._deliver(record, hooks) for record in page.records)))

    async def _deliver(self, record: Record, hooks: dict[str, Hook]) -> bool:
        delivery = WebhookDelivery.model_validate_json(record.value)
        hook = hooks.get(delivery.hook)
        delivery.tries += 1
        try:
            if hook is None:
                await self._store.commit(Delete(DELIVERY, record.key, record.revision))
                return False
            claim = _put(record.key, delivery, due=self._clock() + CLAIM_SECONDS, expect=record.revision)
            revision = await self._store.commit(claim)
        except Stale:
            return False  # another server has it
        problem = await _send(hook, record.key, delivery, self._clock())
        if problem is None:
            await self._store.commit(Delete(DELIVERY, record.key, revision))
            return True
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (delivery.tries - 1))
        log.warning("webhook %s: sending %s failed: %s; retrying in %g s", hook.id, delivery.event, problem, pause)
        await self._store.commit(_put(record.key, delivery, due=self._clock() + pause, expect=revision))
        return False


def signature(secret: str, at: int, body: bytes) -> str:
    """Return the signature header: ``t=<seconds>,v1=<HMAC-SHA256 of "<seconds>.<body>">``."""
    mac = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


async def _send(hook: Hook, delivery_id: str, delivery: WebhookDelivery, now: float) -> str | None:
    """Send a delivery; return why it failed, or None on success."""
    body = to_json({"id": delivery_id, **delivery.body})
    parts = urlsplit(hook.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [
        (SIGNATURE, signature(hook.secret, int(now), body)),
        ("x-aenv-event", delivery.event),
        ("x-aenv-delivery", delivery_id),
    ]
    client = HttpClient(ServerUrl.parse(f"{parts.scheme}://{parts.netloc}"), headers=headers)
    try:
        answer = await client.request("POST", target, body, timeout=SEND_SECONDS, limit=MAX_RESPONSE)
    except AEnvError as error:
        return error.message
    finally:
        client.close()
    return None if 200 <= answer.status < 300 else f"HTTP status {answer.status}"


def _put(key: str, delivery: WebhookDelivery, *, due: float, expect: int = 0) -> Put:
    value = delivery.model_dump_json().encode()
    return Put(DELIVERY, key, value, ((DUE, _time(due)),), time.time() + KEEP_SECONDS, expect)


def _time(seconds: float) -> str:
    return f"{seconds:016.3f}"
