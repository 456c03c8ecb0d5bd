"""Authentication of requests: tokens, their roles and their allowances."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from aenv.errors import Forbidden, InvalidArguments, Unauthorized
from aenv.http.guard import bearer_token, refuse_web_pages
from aenv.http.messages import Request
from aenv.storage.tokens import TokenRecord, TokenStore

Role = Literal["metrics", "read-only", "user", "admin"]
ROLES: tuple[Role, ...] = ("metrics", "read-only", "user", "admin")
"""Roles in ascending order: from `read-only` on, each includes the rights of those before it.

`metrics` is for scrapers and reads `/metrics` alone. These figures cover all users, so apart from it only `admin` may
read them.
"""
CACHE_SECONDS = 2.0
"""Cache a valid token for this many seconds; a revoked token is refused that much later at the latest."""
CACHE_ENTRIES = 10_000
"""Cached tokens before the cache is cleared."""
OTHER_TOKEN = "hub-"
"""Start of `Caller.token_id` for a token of the hub."""
MAX_USER_NAME = 100
"""Characters of a user's name."""


class Allowance(BaseModel):
    """Limits on the concurrent use of one token; 0: unlimited."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: int = Field(default=0, ge=0)
    cpus: float = Field(default=0.0, ge=0)
    memory: int = Field(default=0, ge=0)
    """In bytes."""
    creates_per_second: float = Field(default=0.0, ge=0)

    @property
    def is_limited(self) -> bool:
        """True if instances, CPUs or memory are limited, so that usage must be counted."""
        return bool(self.instances or self.cpus or self.memory)

    def over(self, default: Allowance) -> Allowance:
        """Return this allowance with unset (0) limits taken from ``default``."""
        own = {name: value for name, value in self.model_dump().items() if value}
        return default.model_copy(update=own)


class PlatformToken(TokenRecord):
    """Stored record of a platform token."""

    role: Role = "user"
    allowance: Allowance = Field(default_factory=Allowance)


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request."""

    name: str
    role: Role
    token_id: str = ""
    allowance: Allowance = field(default_factory=Allowance)

    def need(self, role: Role) -> None:
        """Raise Forbidden unless the caller has ``role`` or a higher one."""
        sufficient = ("metrics", "admin") if role == "metrics" else ROLES[ROLES.index(role) :]
        if self.role not in sufficient:
            raise Forbidden(
                f"this needs a token with the role {role}; yours is {self.role}",
                details={"hint": f"Ask the platform's administrator for one: aenv serve token create --role {role}"},
            )

    def may_see(self, account: str) -> bool:
        """Return True if this caller may see what belongs to ``account``."""
        return self.role == "admin" or self.name == account


OWNER = Caller("owner", "admin")
"""The machine's owner: the caller on a platform that only its owner can reach."""


class PlatformTokens(TokenStore[PlatformToken]):
    """Token store of the platform."""

    record = PlatformToken
    space = "platform-token"
    first_key = "first-platform-token"
    issuer = "the platform's administrator"
    list_command = "aenv serve token list"

    async def add(self, **fields: object) -> tuple[PlatformToken, str]:
        """Create a token; raise InvalidArguments if the user's name cannot be one."""
        user = fields.get("user") or ""
        if not isinstance(user, str) or not user.isprintable() or user != user.strip() or len(user) > MAX_USER_NAME:
            raise InvalidArguments(f"user: invalid name {user!r:.150}; use up to {MAX_USER_NAME} printable characters")
        return await super().add(**fields)

    async def first(self, given: str = "") -> str | None:
        """Create the first administrator's token and return its text; None if there is one, or ever was a first one.

        ``given``: text of an administrator's token to create if there is none of its id.

        Raises:
            ConfigError: it does not have the form of a token.
        """
        if given:
            await self.add_given(given, user="admin", role="admin")
        now = self._clock()
        for token in await self.all():
            valid = token.revoked_at is None and (token.expires_at is None or token.expires_at > now)
            if token.role == "admin" and valid:
                return None
        return await self.add_first(user="admin", role="admin")


class Authenticator:
    """Identifies the sender of a request."""

    def __init__(self, tokens: PlatformTokens | None, allowance: Allowance, *, only_loopback: bool) -> None:
        """``tokens``: None if requests need no token. ``only_loopback``: requests can only come from this machine."""
        self._tokens = tokens
        self._allowance = allowance
        self._only_loopback = only_loopback
        self._cache: dict[bytes, tuple[float, Caller]] = {}
        self.other_token_check: Callable[[str], Awaitable[Caller]] | None = None
        """Returns the caller of a token that is not the platform's own, or raises Unauthorized."""
        self.other_token_id_check: Callable[[str], Awaitable[Caller]] | None = None
        """Returns the caller of such a token by its `Caller.token_id`, or raises Unauthorized."""

    @property
    def open(self) -> bool:
        """True if requests need no token."""
        return self._tokens is None

    def clear_cache(self) -> None:
        """Look up every token again."""
        self._cache.clear()

    async def caller(self, request: Request) -> Caller:
        """Return the sender of a request.

        Raises:
            Unauthorized: the token is missing or invalid.
            Forbidden: requests need no token here, and this one looks as if a web page had sent it.
        """
        if self._tokens is None:
            if self._only_loopback:
                refuse_web_pages(request, "Serve with --auth to be reached under other names.")
            return OWNER
        text = bearer_token(request)
        if text is None:
            raise Unauthorized(
                "this needs a token", details={"hint": "Set one: export AENV_API_KEY=TOKEN, or api_key= in code."}
            )
        return await self.authenticate(text)

    async def authenticate(self, text: str) -> Caller:
        """Return the caller that a token belongs to."""
        assert self._tokens is not None
        key, now = hashlib.sha256(text.encode("latin-1", "replace")).digest(), time.monotonic()
        cached = self._cache.get(key)
        if cached is not None and now - cached[0] < CACHE_SECONDS:
            return cached[1]
        self._cache.pop(key, None)
        caller = await self._check(text)
        if len(self._cache) >= CACHE_ENTRIES:
            self._cache.clear()
        self._cache[key] = now, caller
        return caller

    async def refresh(self, caller: Caller) -> Caller:
        """Return a caller with its current rights and allowance.

        Raises:
            Unauthorized: the token was revoked or has expired.
        """
        if self._tokens is None:
            return OWNER
        if self.other_token_id_check is not None and caller.token_id.startswith(OTHER_TOKEN):
            other = await self.other_token_id_check(caller.token_id)
            return replace(other, allowance=other.allowance.over(self._allowance))
        return self._caller_of(await self._tokens.check_id(caller.token_id))

    async def _check(self, text: str) -> Caller:
        assert self._tokens is not None
        try:
            token = await self._tokens.check(text)
        except Unauthorized as error:
            if self.other_token_check is None:
                raise
            try:
                other = await self.other_token_check(text)
            except Unauthorized:
                raise error from None
            return replace(other, allowance=other.allowance.over(self._allowance))
        return self._caller_of(token)

    def _caller_of(self, token: PlatformToken) -> Caller:
        return Caller(token.user or token.id, token.role, token.id, token.allowance.over(self._allowance))
