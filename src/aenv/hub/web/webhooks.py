"""Webhooks: what happened is told to whom an administrator named, signed, and again until it is heard.

A notice is written in the same batch as the change that it tells of, so neither is there without the other. Who
delivers claims a notice first, so that of several servers one does. A receiver may hear a notice twice and knows it
by its id.
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

from aenv.errors import AEnvError, NotFound
from aenv.http.client import HttpClient
from aenv.http.url import ServerUrl
from aenv.hub.access.hub_tokens import covers
from aenv.schema.envhub import EnvSummary
from aenv.storage.base import Delete, Put, Query, Record, Stale, Store

log = logging.getLogger("aenv.hub")

HOOK, NOTICE, DUE = "hook", "notice", "due"
KEPT_SECONDS = 3 * 24 * 3600.0
CLAIM_SECONDS = 60.0
SEND_SECONDS = 10.0
MAX_ANSWER = 1024 * 1024
"""Bytes that are read of what a receiver answers; only the status counts."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 3600.0
LOOK_SECONDS = 5.0
"""How often a server looks for notices that another one wrote."""
SIGNATURE = "x-aenv-signature"

Event = Literal["push", "release", "deprecate", "yank", "delete"]


class Hook(BaseModel):
    """Somebody to tell."""

    id: str
    url: str
    secret: str
    """Both sides know it, so it has to be kept as it is."""
    events: list[Event] = ["push"]
    namespaces: list[str] = ["*"]
    created_at: str = ""


class WebhookEvent(BaseModel):
    """Something to tell one of them."""

    hook: str
    event: str
    body: dict[str, Any]
    tries: int = 0


class Webhooks:
    """Writes notices, and knows to whom."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self.written = asyncio.Event()

    async def puts(self, event: str, version: EnvSummary, now: str, reason: str | None = None) -> list[Put]:
        """What a change has to write to tell of itself."""
        if self._store is None:
            return []
        hooks = [hook for hook in await self.hooks() if event in hook.events and covers(hook.namespaces, version.name)]
        if hooks:
            self.written.set()
        body = {"event": event, "at": now, "version": version.model_dump(), "reason": reason}
        return [_put(uuid.uuid4().hex, WebhookEvent(hook=hook.id, event=event, body=body), due=0.0) for hook in hooks]

    async def hooks(self) -> list[Hook]:
        """Everybody who is to be told."""
        if self._store is None:
            return []
        page = await self._store.page(Query(HOOK, limit=1000))
        return [Hook.model_validate_json(record.value) for record in page.records]

    async def add(self, url: str, events: list[Event], namespaces: list[str], now: str) -> Hook:
        """Tell somebody from now on. The secret is shown this once."""
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
        """Tell them no more."""
        assert self._store is not None
        if await self._store.get(HOOK, hook_id) is None:
            raise NotFound(f"there is no webhook {hook_id}")
        await self._store.commit(Delete(HOOK, hook_id))


class WebhookSender:
    """Delivers notices for as long as it runs."""

    def __init__(self, store: Store, notices: Webhooks, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._notices = notices
        self._clock = clock

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._notices.written.clear()
            try:
                while await self.deliver_due():
                    pass
            except AEnvError as error:
                log.warning("notices wait: %s", error.message)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._notices.written.wait(), LOOK_SECONDS)

    async def deliver_due(self) -> int:
        """Try every notice whose time has come, once; how many were heard."""
        query = Query(NOTICE, (DUE,), high=_time(self._clock()), limit=20)
        page = await self._store.page(query)
        hooks = {hook.id: hook for hook in await self._notices.hooks()} if page.records else {}
        return sum(await asyncio.gather(*(self._deliver(record, hooks) for record in page.records)))

    async def _deliver(self, record: Record, hooks: dict[str, Hook]) -> bool:
        notice = WebhookEvent.model_validate_json(record.value)
        hook = hooks.get(notice.hook)
        notice.tries += 1
        try:
            if hook is None:
                await self._store.commit(Delete(NOTICE, record.key, record.revision))
                return False
            claim = _put(record.key, notice, due=self._clock() + CLAIM_SECONDS, expect=record.revision)
            revision = await self._store.commit(claim)
        except Stale:
            return False  # another server has it
        problem = await _send(hook, record.key, notice, self._clock())
        if problem is None:
            await self._store.commit(Delete(NOTICE, record.key, revision))
            return True
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (notice.tries - 1))
        log.warning("webhook %s did not hear of a %s: %s; again in %g s", hook.id, notice.event, problem, pause)
        await self._store.commit(_put(record.key, notice, due=self._clock() + pause, expect=revision))
        return False


def signature(secret: str, at: int, body: bytes) -> str:
    """``t=<seconds>,v1=<HMAC-SHA256 of "<seconds>.<body>">``: who knows the secret can check both."""
    mac = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


async def _send(hook: Hook, notice_id: str, notice: WebhookEvent, now: float) -> str | None:
    """Why it was not heard; None when it was."""
    body = to_json({"id": notice_id, **notice.body})
    parts = urlsplit(hook.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [
        (SIGNATURE, signature(hook.secret, int(now), body)),
        ("x-aenv-event", notice.event),
        ("x-aenv-delivery", notice_id),
    ]
    client = HttpClient(ServerUrl.parse(f"{parts.scheme}://{parts.netloc}"), headers=headers)
    try:
        answer = await client.request("POST", target, body, timeout=SEND_SECONDS, limit=MAX_ANSWER)
    except AEnvError as error:
        return error.message
    finally:
        client.close()
    return None if 200 <= answer.status < 300 else f"HTTP status {answer.status}"


def _put(key: str, notice: WebhookEvent, *, due: float, expect: int = 0) -> Put:
    value = notice.model_dump_json().encode()
    return Put(NOTICE, key, value, ((DUE, _time(due)),), time.time() + KEPT_SECONDS, expect)


def _time(seconds: float) -> str:
    return f"{seconds:016.3f}"
