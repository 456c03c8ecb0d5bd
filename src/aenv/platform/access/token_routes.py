"""HTTP routes to manage tokens, for administrators: what ``aenv serve token`` does on the platform's own machine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import ConfigDict, Field

from aenv.http.messages import Answer
from aenv.platform.access.platform_tokens import Allowance, Authenticator, PlatformToken, PlatformTokens, Role
from aenv.platform.request_context import RequestContext, RouteEntry, body, ok
from aenv.schema import paths
from aenv.schema.envhub import Text
from aenv.schema.instances import Message

MAX_LIFETIME_SECONDS = 10 * 366 * 86400
"""Ten years."""


class PlatformTokenRequest(Message):
    """A token to create."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    user: Annotated[Text, Field(max_length=128)] = ""
    """Owner of the token; tokens of one user see the same instances."""
    role: Role = "user"
    expires_in: Annotated[int, Field(ge=1, le=MAX_LIFETIME_SECONDS)] | None = None
    """Lifetime in seconds; without it, the token does not expire."""
    allowance: Allowance = Field(default_factory=Allowance)
    """Limits on concurrent use; 0: the server's default."""


class PlatformTokenResponse(Message):
    """A token, without its text."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    user: str = ""
    role: Role = "user"
    allowance: Allowance = Field(default_factory=Allowance)
    created_at: str = ""
    expires_at: float | None = None
    """Unix timestamp, in seconds."""
    revoked_at: float | None = None
    token: str | None = None
    """Text of the token, only in the answer that created it."""

    @classmethod
    def of(cls, token: PlatformToken, text: str | None = None) -> PlatformTokenResponse:
        """Return the public fields of a token."""
        return cls.model_validate({**token.model_dump(exclude={"hash"}), "token": text})


def token_routes(
    tokens: PlatformTokens, authenticator: Authenticator, clock: Callable[[], float] = time.time
) -> list[RouteEntry]:
    """Return the routes that create, list and revoke tokens."""

    async def create(context: RequestContext) -> Answer:
        wanted = body(PlatformTokenRequest, context.request)
        expires_at = None if wanted.expires_in is None else clock() + wanted.expires_in
        token, text = await tokens.add(
            user=wanted.user, role=wanted.role, expires_at=expires_at, allowance=wanted.allowance
        )
        return ok(PlatformTokenResponse.of(token, text))

    async def list_all(context: RequestContext) -> Answer:
        return ok([PlatformTokenResponse.of(each) for each in await tokens.all()])

    async def revoke(context: RequestContext) -> Answer:
        revoked = await tokens.revoke(context.request.path.rpartition("/")[2])
        authenticator.clear_cache()
        return ok(PlatformTokenResponse.of(revoked))

    def for_admins(
        route: Callable[[RequestContext], Awaitable[Answer]],
    ) -> Callable[[RequestContext], Awaitable[Answer]]:
        async def checked(context: RequestContext) -> Answer:
            context.caller.need("admin")
            return await route(context)

        return checked

    return [
        ("GET", paths.PLATFORM_TOKENS, "token-list", for_admins(list_all)),
        ("POST", paths.PLATFORM_TOKENS, "token-create", for_admins(create)),
        ("DELETE", f"{paths.PLATFORM_TOKENS}/{{id}}", "token-revoke", for_admins(revoke)),
    ]
