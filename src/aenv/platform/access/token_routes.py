"""Tokens over HTTP, for administrators: what ``aenv serve token`` does on the platform's own machine."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import ConfigDict, Field

from aenv.http.messages import Answer
from aenv.platform.access.platform_tokens import Allowance, Authenticator, PlatformToken, PlatformTokens, Role
from aenv.platform.request_context import More, RequestContext, body, ok
from aenv.schema import paths
from aenv.schema.envhub import Text
from aenv.schema.instances import Message

YEARS = 10 * 366 * 86400


class PlatformTokenRequest(Message):
    """A token to make."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    user: Annotated[Text, Field(max_length=128)] = ""
    """Whose it is; tokens of one user see the same instances."""
    role: Role = "user"
    expires_in: Annotated[int, Field(ge=1, le=YEARS)] | None = None
    """Seconds; without it, it is good for ever."""
    allowance: Allowance = Field(default_factory=Allowance)
    """How much it may use at a time; 0: as the server says."""


class PlatformTokenResponse(Message):
    """A token, without its text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    user: str = ""
    role: Role = "user"
    allowance: Allowance = Field(default_factory=Allowance)
    created_at: str = ""
    expires_at: float | None = None
    """Seconds since 1970."""
    revoked_at: float | None = None
    token: str | None = None
    """Its text, in the answer that made it and never again."""

    @classmethod
    def of(cls, token: PlatformToken, text: str | None = None) -> PlatformTokenResponse:
        """What may be said of a token."""
        return cls.model_validate({**token.model_dump(exclude={"hash"}), "token": text})


def token_routes(tokens: PlatformTokens, door: Authenticator, clock: Callable[[], float] = time.time) -> list[More]:
    """Make, list and revoke."""

    async def make(ask: RequestContext) -> Answer:
        wish = body(PlatformTokenRequest, ask.request)
        until = None if wish.expires_in is None else clock() + wish.expires_in
        made, text = await tokens.add(user=wish.user, role=wish.role, expires_at=until, allowance=wish.allowance)
        return ok(PlatformTokenResponse.of(made, text))

    async def show(ask: RequestContext) -> Answer:
        return ok([PlatformTokenResponse.of(each) for each in await tokens.all()])

    async def revoke(ask: RequestContext) -> Answer:
        revoked = await tokens.revoke(ask.request.path.rpartition("/")[2])
        door.forget()
        return ok(PlatformTokenResponse.of(revoked))

    def for_admins(
        route: Callable[[RequestContext], Awaitable[Answer]],
    ) -> Callable[[RequestContext], Awaitable[Answer]]:
        async def checked(ask: RequestContext) -> Answer:
            ask.caller.need("admin")
            return await route(ask)

        return checked

    one = re.compile(f"{paths.PLATFORM_TOKENS}/[A-Za-z0-9]+")
    return [
        ("GET", re.compile(paths.PLATFORM_TOKENS), "token-list", for_admins(show)),
        ("POST", re.compile(paths.PLATFORM_TOKENS), "token-create", for_admins(make)),
        ("DELETE", one, "token-revoke", for_admins(revoke)),
    ]
