"""Token store. A token's text is shown once; only its hash is stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel

from aenv.errors import ConfigError, NotFound, Unauthorized
from aenv.storage.base import ABSENT, Put, Query, Stale, Store

META = "meta"
PREFIX = "aenv"
_GIVEN = re.compile(rf"{PREFIX}_(?P<id>[A-Za-z0-9]{{6,64}})_(?P<secret>[A-Za-z0-9_-]{{32,}})")
KEEP_REVOKED_SECONDS = 90 * 24 * 3600.0
"""Seconds for which a revoked token is kept, so that its use is answered with "revoked" and not with "wrong"."""


class TokenRecord(BaseModel):
    """Stored fields of a token."""

    id: str
    user: str = ""
    hash: str
    created_at: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None


R = TypeVar("R", bound=TokenRecord)


class TokenStore(Generic[R]):
    """Tokens of one kind; a subclass defines which."""

    record: type[R]
    space: ClassVar[str]
    """Space of the tokens' records."""
    first_key: ClassVar[str]
    """Key of the prefix that a first token was created."""
    issuer: ClassVar[str]
    """Person or role who issues tokens, for hints."""
    list_command: ClassVar[str]

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def add(self, **fields: object) -> tuple[R, str]:
        """Create a token with these fields; return its record and its text."""
        token, text = self._make(fields)
        await self._store.commit(self._put(token, ABSENT))
        return token, text

    async def add_first(self, **fields: object) -> str | None:
        """Create the first token and return its text; None if there ever was a first one."""
        if await self._store.get(META, self.first_key) is not None:
            return None
        token, text = self._make(fields)
        await self._store.commit(Put(META, self.first_key, token.id.encode(), expect=ABSENT), self._put(token, ABSENT))
        return text

    async def add_given(self, text: str, **fields: object) -> None:
        """Create a token whose text somebody else has chosen; a token of this id is left as it is.

        Raises:
            ConfigError: the text does not have the form of a token.
        """
        token, _ = self._make(fields, *parts_of(text))
        with suppress(Stale):
            await self._store.commit(self._put(token, ABSENT))

    async def check(self, text: str) -> R:
        """Return the record of a token by its text.

        Raises:
            Unauthorized: the token is unknown, revoked or expired.
        """
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        known = await self._find(token_id) if prefix == PREFIX and token_id.isalnum() and token_id.isascii() else None
        if known is None or not hmac.compare_digest(known.hash, _hash(secret)):
            raise Unauthorized("the token is wrong", details={"hint": f"Ask {self.issuer} for one."})
        return self._if_valid(known)

    async def check_id(self, token_id: str) -> R:
        """Return the record of a token by its id, of which the text was checked before.

        Raises:
            Unauthorized: the token is unknown, revoked or expired.
        """
        known = await self._find(token_id)
        if known is None:
            raise Unauthorized("the token is gone", details={"hint": f"Ask {self.issuer} for one."})
        return self._if_valid(known)

    def _if_valid(self, known: R) -> R:
        if known.revoked_at is not None:
            raise Unauthorized("the token was revoked", details={"hint": f"Ask {self.issuer} for a new one."})
        if known.expires_at is not None and known.expires_at <= self._clock():
            when = datetime.fromtimestamp(known.expires_at, UTC).isoformat(timespec="seconds")
            raise Unauthorized(f"the token expired at {when}", details={"hint": f"Ask {self.issuer} for a new one."})
        return known

    async def all(self) -> list[R]:
        """Return all tokens, by id."""
        records = self._store.all(Query(self.space, limit=500))
        return [self.record.model_validate_json(record.value) async for record in records]

    async def get(self, token_id: str) -> R:
        """Return a token by its id. Raises NotFound."""
        token = await self._find(token_id)
        if token is None:
            raise NotFound(f"there is no token {token_id}", details={"hint": f"List tokens: {self.list_command}"})
        return token

    async def revoke(self, token_id: str) -> R:
        """Revoke a token, effective immediately."""
        token = await self.get(token_id)
        if token.revoked_at is None:
            token = await self.change(token_id, revoked_at=self._clock())
        return token

    async def change(self, token_id: str, **values: object) -> R:
        """Change fields of a token's record."""
        record = await self._store.get(self.space, token_id)
        if record is None:
            raise NotFound(f"there is no token {token_id}")
        token = self.record.model_validate({**self.record.model_validate_json(record.value).model_dump(), **values})
        await self._store.commit(self._put(token, record.revision))
        return token

    async def _find(self, token_id: str) -> R | None:
        record = await self._store.get(self.space, token_id)
        return self.record.model_validate_json(record.value) if record else None

    def _make(self, fields: dict[str, object], token_id: str = "", secret: str = "") -> tuple[R, str]:
        token_id, secret = token_id or secrets.token_hex(6), secret or secrets.token_urlsafe(32)
        created = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds")
        token = self.record.model_validate({**fields, "id": token_id, "hash": _hash(secret), "created_at": created})
        return token, f"{PREFIX}_{token_id}_{secret}"

    def _put(self, token: R, expect: int) -> Put:
        gone = None if token.revoked_at is None else token.revoked_at + KEEP_REVOKED_SECONDS
        return Put(self.space, token.id, token.model_dump_json().encode(), expires=gone, expect=expect)


def parts_of(text: str) -> tuple[str, str]:
    """Return id and secret of a token whose text somebody else has chosen.

    Raises:
        ConfigError: the text does not have the form of a token.
    """
    form = _GIVEN.fullmatch(text)
    if form is None:
        raise ConfigError(
            f"a token has to be {PREFIX}_ID_SECRET, with 6 to 64 letters and digits and at least 32 characters",
            {"hint": f'Make one: echo "{PREFIX}_$(openssl rand -hex 6)_$(openssl rand -hex 32)"'},
        )
    return form["id"], form["secret"]


def _hash(secret: str) -> str:
    """Return the SHA-256 of a secret. No salt or stretching is needed for a random 256-bit secret."""
    return hashlib.sha256(secret.encode()).hexdigest()
