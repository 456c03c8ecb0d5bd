"""Who asks, and what they may do: tokens with a role and an allowance."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from aenv.errors import Forbidden, Unauthorized
from aenv.http.guard import bearer_of, refuse_web_pages
from aenv.http.messages import Request
from aenv.storage.tokens import TokenRecord, TokenStore

Role = Literal["metrics", "read-only", "user", "admin"]
ROLES: tuple[Role, ...] = ("metrics", "read-only", "user", "admin")
"""From read-only on, each may do all that those before it may. `metrics` is for scrapers: it reads the metrics, which
tell of all users, and nothing else; of the others only `admin` may read them.
"""
FRESH = 2.0
"""Seconds for which a token that was good is not looked up again: a revoked one is refused that much later."""
CACHED = 10_000


class Allowance(BaseModel):
    """How much one token may use at a time; 0: no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: int = Field(default=0, ge=0)
    cpus: float = Field(default=0.0, ge=0)
    memory: int = Field(default=0, ge=0)
    """Bytes."""
    creates_per_second: float = Field(default=0.0, ge=0)

    @property
    def is_limited(self) -> bool:
        """Whether anything has to be counted."""
        return bool(self.instances or self.cpus or self.memory)

    def over(self, default: Allowance) -> Allowance:
        """The same, with the default where it says nothing."""
        own = {name: value for name, value in self.model_dump().items() if value}
        return default.model_copy(update=own)


class PlatformToken(TokenRecord):
    """What is kept of a token of the platform."""

    role: Role = "user"
    allowance: Allowance = Field(default_factory=Allowance)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str
    role: Role
    token_id: str = ""
    allowance: Allowance = field(default_factory=Allowance)

    def need(self, role: Role) -> None:
        """Raise Forbidden unless it has that role, or a higher one."""
        higher = ("metrics", "admin") if role == "metrics" else ROLES[ROLES.index(role) :]
        if self.role not in higher:
            raise Forbidden(
                f"this needs a token with the role {role}; yours is {self.role}",
                details={"hint": f"Ask the platform's administrator for one: aenv serve token create --role {role}"},
            )

    def may_see(self, account: str) -> bool:
        """Whether what belongs to that account is any of its business."""
        return self.role == "admin" or self.name == account


OWNER = Caller("owner", "admin")
"""Who owns the machine, where nobody else can ask."""


class PlatformTokens(TokenStore[PlatformToken]):
    """The platform's tokens."""

    record = PlatformToken
    space = "platform-token"
    first_key = "first-platform-token"
    keeper = "the platform's administrator"
    list_command = "aenv serve token list"

    async def first(self) -> str | None:
        """An administrator's, for a platform that never had one; None ever after."""
        return await self.add_first(user="admin", role="admin")


class Authenticator:
    """Finds out who sent a request."""

    def __init__(self, tokens: PlatformTokens | None, allowance: Allowance, *, only_loopback: bool) -> None:
        """``tokens`` is None where nobody needs one."""
        self._tokens = tokens
        self._allowance = allowance
        self._only_loopback = only_loopback
        self._known: dict[bytes, tuple[float, Caller]] = {}

    @property
    def open(self) -> bool:
        """Whether nobody needs a token."""
        return self._tokens is None

    def forget(self) -> None:
        """Look every token up again."""
        self._known.clear()

    async def caller(self, request: Request) -> Caller:
        """Who asks.

        Raises:
            Unauthorized: without a token, or with one that is not good.
            Forbidden: nobody needs a token here, and it looks like a web page that somebody has open.
        """
        if self._tokens is None:
            if self._only_loopback:
                refuse_web_pages(request, "Serve with --auth to be reached under other names.")
            return OWNER
        text = bearer_of(request)
        if text is None:
            raise Unauthorized(
                "this needs a token", details={"hint": "Set one: export AENV_API_KEY=TOKEN, or api_key= in code."}
            )
        return await self.authenticate(text)

    async def authenticate(self, text: str) -> Caller:
        """Who has this token."""
        assert self._tokens is not None
        key, now = hashlib.sha256(text.encode("latin-1", "replace")).digest(), time.monotonic()
        known = self._known.get(key)
        if known is not None and now - known[0] < FRESH:
            return known[1]
        self._known.pop(key, None)
        token = await self._tokens.check(text)
        caller = Caller(token.user or token.id, token.role, token.id, token.allowance.over(self._allowance))
        if len(self._known) >= CACHED:
            self._known.clear()
        self._known[key] = now, caller
        return caller
