"""Who may do what: tokens, their scopes and the names that they are good for."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from aenv.errors import Forbidden, NotFound, Unauthorized
from aenv.storage.base import ABSENT, Put, Query, Store

TOKEN, META, FIRST = "token", "meta", "first-token"
MARK = "aenv"
REVOKED_KEPT_SECONDS = 90 * 24 * 3600.0
"""So long a revoked token is told that it was revoked."""

Scope = Literal["read", "push", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "push", "admin")
"""Each may do all that those before it may."""


def covers(namespaces: list[str], name: str) -> bool:
    """Whether a name lies in one of the namespaces: ``team`` has ``team`` and ``team-…``, ``*`` has all."""
    return any(space in ("*", name) or name.startswith(f"{space}-") for space in namespaces)


class Token(BaseModel):
    """What is kept of a token: everything but the token."""

    id: str
    user: str = ""
    hash: str
    scope: Scope = "read"
    namespaces: list[str] = ["*"]
    created_at: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    max_instances: int = 0
    """For the platform that asks; 0: no limit."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    scope: Scope | None = None
    namespaces: tuple[str, ...] = ("*",)

    def allows(self, scope: Scope, name: str | None = None) -> bool:
        """Whether it may do such a thing (to that environment)."""
        if self.scope is None or SCOPES.index(self.scope) < SCOPES.index(scope):
            return False
        return name is None or covers(list(self.namespaces), name)

    def need(self, scope: Scope, name: str | None = None) -> None:
        """Raise Unauthorized or Forbidden unless it may."""
        if self.scope is None:
            raise Unauthorized(
                "this needs a token",
                details={"hint": "Set one: aenv config set hub_config.api_key TOKEN"},
            )
        if not self.allows(scope):
            raise Forbidden(
                f"this needs a token with the scope {scope}; yours has {self.scope}",
                details={"hint": f"Ask for one: aenv hub token create --scope {scope}"},
            )
        if not self.allows(scope, name):
            raise Forbidden(
                f"your token is good for {', '.join(self.namespaces)}, not for {name}",
                name,
                {"hint": f"Ask for one: aenv hub token create --scope {scope} --namespace {name}"},
            )


OWNER = Caller("owner", "admin")
"""Who owns the files, or sits on the machine."""
ANYONE = Caller("anyone")


class Tokens:
    """Tokens in a store. A token is shown once and kept only as a hash."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def create(
        self,
        *,
        user: str = "",
        scope: Scope = "read",
        namespaces: list[str] | None = None,
        expires_at: float | None = None,
        max_instances: int = 0,
    ) -> tuple[Token, str]:
        """A new token, and its text."""
        token, text = self._make(user, scope, namespaces or ["*"], expires_at, max_instances)
        await self._store.commit(_put(token, ABSENT))
        return token, text

    async def first(self) -> str | None:
        """An administrator's token for a hub that never had one; None ever after."""
        if await self._store.get(META, FIRST) is not None:
            return None
        token, text = self._make("admin", "admin", ["*"], None, 0)
        marker = Put(META, FIRST, token.id.encode(), expect=ABSENT)
        await self._store.commit(marker, _put(token, ABSENT))
        return text

    async def authenticate(self, text: str) -> Caller:
        """Who has this token.

        Raises:
            Unauthorized: it is none, or was revoked, or its time is over.
        """
        token = await self.check(text)
        return Caller(token.user or token.id, token.scope, tuple(token.namespaces))

    async def check(self, text: str) -> Token:
        """The same, as the token itself."""
        mark, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        known = await self._find(token_id) if mark == MARK and token_id.isalnum() and token_id.isascii() else None
        if known is None or not hmac.compare_digest(known.hash, _hash(secret)):
            raise Unauthorized("the token is wrong", details={"hint": "Ask the hub's administrator for one."})
        if known.revoked_at is not None:
            raise Unauthorized("the token was revoked", details={"hint": "Ask the hub's administrator for a new one."})
        if known.expires_at is not None and known.expires_at <= self._clock():
            when = datetime.fromtimestamp(known.expires_at, UTC).isoformat(timespec="seconds")
            raise Unauthorized(
                f"the token expired at {when}", details={"hint": "Ask the hub's administrator for a new one."}
            )
        return known

    async def all(self) -> list[Token]:
        """All of them, by id."""
        found: list[Token] = []
        after = None
        while True:
            page = await self._store.page(Query(TOKEN, limit=500, after=after))
            found += [Token.model_validate_json(record.value) for record in page.records]
            after = page.next
            if after is None:
                return found

    async def get(self, token_id: str) -> Token:
        """One of them."""
        token = await self._find(token_id)
        if token is None:
            raise NotFound(f"there is no token {token_id}", details={"hint": "See them all: aenv hub token list"})
        return token

    async def revoke(self, token_id: str) -> Token:
        """From this moment on it opens nothing."""
        token = await self.get(token_id)
        if token.revoked_at is None:
            token = await self.change(token_id, revoked_at=self._clock())
        return token

    async def change(self, token_id: str, **values: object) -> Token:
        """Change what is kept of it."""
        record = await self._store.get(TOKEN, token_id)
        if record is None:
            raise NotFound(f"there is no token {token_id}")
        token = Token.model_validate({**Token.model_validate_json(record.value).model_dump(), **values})
        await self._store.commit(_put(token, record.revision))
        return token

    async def _find(self, token_id: str) -> Token | None:
        record = await self._store.get(TOKEN, token_id)
        return Token.model_validate_json(record.value) if record else None

    def _make(
        self, user: str, scope: Scope, namespaces: list[str], expires_at: float | None, max_instances: int
    ) -> tuple[Token, str]:
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        token = Token(
            id=token_id,
            user=user,
            hash=_hash(secret),
            scope=scope,
            namespaces=namespaces,
            created_at=datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds"),
            expires_at=expires_at,
            max_instances=max_instances,
        )
        return token, f"{MARK}_{token_id}_{secret}"


def _put(token: Token, expect: int) -> Put:
    gone = None if token.revoked_at is None else token.revoked_at + REVOKED_KEPT_SECONDS
    return Put(TOKEN, token.id, token.model_dump_json().encode(), expires=gone, expect=expect)


def _hash(secret: str) -> str:
    """Plain, since nobody can try 2^256 secrets."""
    return hashlib.sha256(secret.encode()).hexdigest()
