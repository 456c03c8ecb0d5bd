"""Who may do what: tokens, their scopes and the names that they are good for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from aenv.errors import Forbidden, Unauthorized
from aenv.storage.tokens import TokenRecord, TokenStore

Scope = Literal["read", "push", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "push", "admin")
"""Each may do all that those before it may."""


def covers(namespaces: list[str], name: str) -> bool:
    """Whether a name lies in one of the namespaces: ``team`` has ``team`` and ``team-…``, ``*`` has all."""
    return any(space in ("*", name) or name.startswith(f"{space}-") for space in namespaces)


class HubToken(TokenRecord):
    """What is kept of a token: everything but the token."""

    scope: Scope = "read"
    namespaces: list[str] = Field(default_factory=lambda: ["*"])
    max_instances: int = 0
    """For the platform that asks; 0: no limit."""


@dataclass(frozen=True, slots=True)
class HubCaller:
    """Who asks."""

    name: str
    scope: Scope | None = None
    namespaces: tuple[str, ...] = ("*",)
    behalf: str = ""
    """The user for whom it reads: then it reads only what that user may read, too, and changes nothing."""

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything, to every environment."""
        return self.scope == "admin" and "*" in self.namespaces and not self.behalf

    def allows(self, scope: Scope, name: str | None = None) -> bool:
        """Whether its token is good for this (with that environment); its user may have no right to it all the same."""
        if self.scope is None or SCOPES.index(self.scope) < SCOPES.index(scope):
            return False
        if self.behalf and scope != "read":
            return False
        return name is None or covers(list(self.namespaces), name)

    def need(self, scope: Scope, name: str | None = None) -> None:
        """Raise Unauthorized or Forbidden unless it may.

        What an administrator does with no environment (tokens, webhooks, quotas) concerns all of them: a token that
        is good for some namespaces only may not.
        """
        if self.scope is None:
            raise Unauthorized(
                "this needs a token",
                details={"hint": "Set one: aenv config set hub_config.api_key TOKEN"},
            )
        if self.behalf and scope != "read":
            raise Forbidden(f"a request on behalf of {self.behalf} can only read")
        if not self.allows(scope):
            raise Forbidden(
                f"this needs a token with the scope {scope}; yours has {self.scope}",
                details={"hint": f"Ask for one: aenv hub token create --scope {scope}"},
            )
        if scope == "admin" and name is None and "*" not in self.namespaces:
            raise Forbidden(
                f"this concerns the whole hub; your token is good for {', '.join(self.namespaces)} alone",
                details={"hint": "Ask for one: aenv hub token create --scope admin"},
            )
        if not self.allows(scope, name):
            raise Forbidden(
                f"your token is good for {', '.join(self.namespaces)}, not for {name}",
                name,
                {"hint": f"Ask for one: aenv hub token create --scope {scope} --namespace {name}"},
            )


OWNER = HubCaller("owner", "admin")
"""Who owns the files, or sits on the machine."""
ANYONE = HubCaller("anyone")


class HubTokens(TokenStore[HubToken]):
    """The hub's tokens."""

    record = HubToken
    space = "token"
    first_key = "first-token"
    keeper = "the hub's administrator"
    list_command = "aenv hub token list"

    async def create(
        self,
        *,
        user: str = "",
        scope: Scope = "read",
        namespaces: list[str] | None = None,
        expires_at: float | None = None,
        max_instances: int = 0,
    ) -> tuple[HubToken, str]:
        """A new token, and its text."""
        return await self.add(
            user=user, scope=scope, namespaces=namespaces or ["*"], expires_at=expires_at, max_instances=max_instances
        )

    async def first(self) -> str | None:
        """An administrator's token for a hub that never had one; None ever after."""
        return await self.add_first(user="admin", scope="admin")

    async def authenticate(self, text: str) -> HubCaller:
        """Who has this token.

        Raises:
            Unauthorized: it is none, or was revoked, or its time is over.
        """
        token = await self.check(text)
        return HubCaller(token.user or token.id, token.scope, tuple(token.namespaces))
