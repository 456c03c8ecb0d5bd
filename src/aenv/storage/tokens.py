"""Tokens in a store. A token is shown once and kept only as a hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel

from aenv.errors import NotFound, Unauthorized
from aenv.storage.base import ABSENT, Put, Query, Store

META = "meta"
MARK = "aenv"
REVOKED_KEPT_SECONDS = 90 * 24 * 3600.0
"""So long a revoked token is told that it was revoked."""


class TokenRecord(BaseModel):
    """What is kept of every token."""

    id: str
    user: str = ""
    hash: str
    created_at: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None


R = TypeVar("R", bound=TokenRecord)


class TokenStore(Generic[R]):
    """All tokens of one kind. A subclass says which."""

    record: type[R]
    space: ClassVar[str]
    """Where they are kept."""
    first_key: ClassVar[str]
    """Where it is kept that there was a first one."""
    keeper: ClassVar[str]
    """Who gives them out, for people."""
    list_command: ClassVar[str]

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def add(self, **fields: object) -> tuple[R, str]:
        """A new token with these fields of its record, and its text."""
        token, text = self._make(fields)
        await self._store.commit(self._put(token, ABSENT))
        return token, text

    async def add_first(self, **fields: object) -> str | None:
        """The same, where there never was a first one; None ever after."""
        if await self._store.get(META, self.first_key) is not None:
            return None
        token, text = self._make(fields)
        await self._store.commit(Put(META, self.first_key, token.id.encode(), expect=ABSENT), self._put(token, ABSENT))
        return text

    async def check(self, text: str) -> R:
        """The token with this text.

        Raises:
            Unauthorized: it is none, or was revoked, or its time is over.
        """
        mark, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        known = await self._find(token_id) if mark == MARK and token_id.isalnum() and token_id.isascii() else None
        if known is None or not hmac.compare_digest(known.hash, _hash(secret)):
            raise Unauthorized("the token is wrong", details={"hint": f"Ask {self.keeper} for one."})
        if known.revoked_at is not None:
            raise Unauthorized("the token was revoked", details={"hint": f"Ask {self.keeper} for a new one."})
        if known.expires_at is not None and known.expires_at <= self._clock():
            when = datetime.fromtimestamp(known.expires_at, UTC).isoformat(timespec="seconds")
            raise Unauthorized(f"the token expired at {when}", details={"hint": f"Ask {self.keeper} for a new one."})
        return known

    async def all(self) -> list[R]:
        """All of them, by id."""
        records = self._store.all(Query(self.space, limit=500))
        return [self.record.model_validate_json(record.value) async for record in records]

    async def get(self, token_id: str) -> R:
        """One of them."""
        token = await self._find(token_id)
        if token is None:
            raise NotFound(f"there is no token {token_id}", details={"hint": f"See them all: {self.list_command}"})
        return token

    async def revoke(self, token_id: str) -> R:
        """From this moment on it opens nothing."""
        token = await self.get(token_id)
        if token.revoked_at is None:
            token = await self.change(token_id, revoked_at=self._clock())
        return token

    async def change(self, token_id: str, **values: object) -> R:
        """Change what is kept of it."""
        record = await self._store.get(self.space, token_id)
        if record is None:
            raise NotFound(f"there is no token {token_id}")
        token = self.record.model_validate({**self.record.model_validate_json(record.value).model_dump(), **values})
        await self._store.commit(self._put(token, record.revision))
        return token

    async def _find(self, token_id: str) -> R | None:
        record = await self._store.get(self.space, token_id)
        return self.record.model_validate_json(record.value) if record else None

    def _make(self, fields: dict[str, object]) -> tuple[R, str]:
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        created = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds")
        token = self.record.model_validate({**fields, "id": token_id, "hash": _hash(secret), "created_at": created})
        return token, f"{MARK}_{token_id}_{secret}"

    def _put(self, token: R, expect: int) -> Put:
        gone = None if token.revoked_at is None else token.revoked_at + REVOKED_KEPT_SECONDS
        return Put(self.space, token.id, token.model_dump_json().encode(), expires=gone, expect=expect)


def _hash(secret: str) -> str:
    """Plain, since nobody can try 2^256 secrets."""
    return hashlib.sha256(secret.encode()).hexdigest()
