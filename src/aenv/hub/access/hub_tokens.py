"""Hub tokens: their scopes and the namespaces that they are valid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from aenv.errors import Forbidden, Unauthorized
from aenv.storage.tokens import TokenRecord, TokenStore

Scope = Literal["read", "push", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "push", "admin")
"""In ascending order: each scope includes the ones before it."""


def covers(namespaces: list[str], name: str) -> bool:
    """Return whether a namespace contains a name: ``team`` contains ``team`` and ``team-…``, ``*`` every name."""
    return any(space in ("*", name) or name.startswith(f"{space}-") for space in namespaces)


class HubToken(TokenRecord):
    """Stored record of a token. It holds a hash of the token's text, never the text."""

    scope: Scope = "read"
    namespaces: list[str] = Field(default_factory=lambda: ["*"])
    max_instances: int = 0
    """Instance limit for a platform that checks tokens with this hub; 0: no limit."""
    for_instances: bool = False
    """Valid for instances of the platform that this hub belongs to: made by ``POST /token``, as in version 0.1."""


@dataclass(frozen=True, slots=True)
class HubCaller:
    """The authenticated sender of a request."""

    name: str
    scope: Scope | None = None
    namespaces: tuple[str, ...] = ("*",)
    platform_roles: Mapping[Scope, str] | None = field(default=None, compare=False)
    """The role of a platform's token for each scope, where the platform's tokens are valid for its hub, else None."""
    behalf: str = ""
    """User on whose behalf the caller reads. Such a request sees only what that user may read, and cannot write."""

    @property
    def is_admin(self) -> bool:
        """Return whether the caller has unrestricted rights on every environment."""
        return self.scope == "admin" and "*" in self.namespaces and not self.behalf

    def allows(self, scope: Scope, name: str | None = None) -> bool:
        """Return whether the token's scope and namespaces permit this. Rights of the user are checked separately."""
        if self.scope is None or SCOPES.index(self.scope) < SCOPES.index(scope):
            return False
        if self.behalf and scope != "read":
            return False
        return name is None or covers(list(self.namespaces), name)

    def need(self, scope: Scope, name: str | None = None) -> None:
        """Raise Unauthorized or Forbidden unless the token permits this.

        Admin operations without an environment (tokens, webhooks, quotas) affect the whole hub, so they are refused
        for a token that is restricted to some namespaces.
        """
        if self.scope is None:
            raise Unauthorized(
                "a token is required",
                details={"hint": "Set one: aenv config set hub_config.api_key TOKEN"},
            )
        if self.behalf and scope != "read":
            raise Forbidden(f"a request on behalf of {self.behalf} is read-only")
        if not self.allows(scope):
            raise Forbidden(
                f"a token with scope {scope} is required; yours has scope {self.scope}",
                details={"hint": self._hint(scope)},
            )
        if scope == "admin" and name is None and "*" not in self.namespaces:
            raise Forbidden(
                f"this affects the whole hub; your token is restricted to {', '.join(self.namespaces)}",
                details={"hint": self._hint("admin")},
            )
        if not self.allows(scope, name):
            raise Forbidden(
                f"your token is restricted to {', '.join(self.namespaces)}, which does not include {name}",
                name,
                {"hint": f"{self._hint(scope)} --namespace {name}"},
            )

    def _hint(self, scope: Scope) -> str:
        if self.platform_roles is not None:
            return (
                f"Ask the platform's administrator for one: aenv serve token create --role {self.platform_roles[scope]}"
            )
        return f"Ask for one: aenv hub token create --scope {scope}"


OWNER = HubCaller("owner", "admin")
"""Caller with full rights: the user who owns the store's files, or any caller of a hub without authentication."""
ANYONE = HubCaller("anyone")
"""Caller without a token."""


class HubTokens(TokenStore[HubToken]):
    """Tokens of a hub."""

    record = HubToken
    space = "token"
    first_key = "first-token"
    issuer = "the hub's administrator"
    list_command = "aenv hub token list"

    async def create(
        self,
        *,
        user: str = "",
        scope: Scope = "read",
        namespaces: list[str] | None = None,
        expires_at: float | None = None,
        max_instances: int = 0,
        for_instances: bool = False,
    ) -> tuple[HubToken, str]:
        """Create a token; return its record and its text."""
        return await self.add(
            user=user,
            scope=scope,
            namespaces=namespaces or ["*"],
            expires_at=expires_at,
            max_instances=max_instances,
            for_instances=for_instances,
        )

    async def first(self) -> str | None:
        """Create the admin token of a new hub and return its text; None if the hub ever had one."""
        return await self.add_first(user="admin", scope="admin")

    async def authenticate(self, text: str) -> HubCaller:
        """Return the caller that a token belongs to.

        Raises:
            Unauthorized: the token is unknown, revoked or expired.
        """
        token = await self.check(text)
        return HubCaller(token.user or token.id, token.scope, tuple(token.namespaces))
