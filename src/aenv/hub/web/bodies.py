"""What goes over the wire besides versions: questions in a URL, tokens, webhooks, answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from aenv.hub.access.hub_tokens import HubToken, Scope
from aenv.hub.web.webhooks import Event
from aenv.schema.envhub import (
    MISSING_LIMIT,
    PAGE_LIMIT,
    Access,
    Digest,
    HubRequestModel,
    HubResponseModel,
    Reason,
    Text,
    User,
)
from aenv.schema.names import Name

Limit = Annotated[int, Field(ge=1, le=PAGE_LIMIT)]
Offset = Annotated[int, Field(ge=0, le=1_000_000_000)]
Cursor = Annotated[Text, Field(max_length=2000)]
Namespace = Annotated[str, Field(pattern=r"^(\*|[a-z0-9]([a-z0-9-]*[a-z0-9])?)$", max_length=253)]


_EVENTS: list[Event] = ["push"]


class EnvListQuery(HubRequestModel):
    """Which environments to list."""

    name: Annotated[Text, Field(max_length=253)] = ""
    """How their names start."""
    tags: Annotated[list[Annotated[Text, Field(max_length=64)]], Field(max_length=16)] = Field(default_factory=list)
    """Tags that they must all have."""
    limit: Limit = 100
    offset: Offset = 0
    after: Cursor | None = None
    """The `next` of the page before."""


class SearchQuery(HubRequestModel):
    """What to look for."""

    q: Annotated[Text, Field(max_length=1000)]
    """Words; all must be there."""
    limit: Limit = 20
    after: Cursor | None = None


class PageQuery(HubRequestModel):
    """Which page."""

    limit: Limit = 100
    after: Cursor | None = None


class RefQuery(HubRequestModel):
    """Which version."""

    ref: Annotated[Text, Field(max_length=200)] = ""
    """Nothing for the newest, or `1.2.0`, `1`, `^1.2`, `sha256:…`."""


class PushQuery(HubRequestModel):
    """How to push."""

    force: bool = False
    """Replace a version that is not released."""


class ReasonQuery(HubRequestModel):
    """Why."""

    reason: Reason


class ReasonBody(HubRequestModel):
    """Why; null takes it back."""

    reason: Reason | None


class PublicBody(HubRequestModel):
    """Who may read an environment."""

    public: bool


class GrantBody(HubRequestModel):
    """A user, and what they may do."""

    user: User
    """`*`: everybody who has a token."""
    access: Access


class UserQuery(HubRequestModel):
    """Which user."""

    user: User


class UsageQuery(HubRequestModel):
    """Whose storage."""

    user: Annotated[Text, Field(max_length=128)] = ""
    """Empty: the caller's own."""


class TransferBody(HubRequestModel):
    """The new owner of an environment."""

    user: Annotated[Text, Field(max_length=128)]
    """Empty: the hub's administrators, which only they may do."""


class NamespaceBody(HubRequestModel):
    """A namespace to reserve."""

    name: Name
    """Stands for itself and for every name that starts with it and a dash."""
    user: User


class QuotaBody(HubRequestModel):
    """How much a user may occupy."""

    user: User
    limit: Annotated[int, Field(ge=0)] | None
    """Bytes; 0: no limit, null: as the hub's settings say."""


class Digests(HubRequestModel):
    """Some blobs."""

    digests: Annotated[list[Digest], Field(max_length=MISSING_LIMIT)]


class DigestsResponse(HubResponseModel):
    """Some blobs."""

    digests: list[str]


class TokenRequest(HubRequestModel):
    """A token to make."""

    user: Annotated[Text, Field(max_length=128)] = ""
    scope: Scope = "read"
    namespaces: Annotated[list[Namespace], Field(min_length=1, max_length=64)] = Field(default_factory=lambda: ["*"])
    """Names, each with all names that start with it and a dash; `*` for all."""
    expires_in: Annotated[int, Field(ge=1, le=10 * 366 * 86400)] | None = None
    """Seconds."""


class TokenResponse(HubResponseModel):
    """A token, without its text."""

    id: str
    user: str = ""
    scope: Scope = "read"
    namespaces: list[str] = Field(default_factory=list)
    created_at: str = ""
    expires_at: float | None = None
    """Seconds since 1970."""
    revoked_at: float | None = None
    token: str | None = None
    """Its text, in the answer that made it and never again."""

    @classmethod
    def of(cls, token: HubToken, text: str | None = None) -> TokenResponse:
        """What may be said of a token."""
        return cls.model_validate({**token.model_dump(exclude={"hash"}), "token": text})


class HookRequest(HubRequestModel):
    """Somebody to tell."""

    url: Annotated[str, Field(pattern=r"^https?://[!-~]+$", max_length=2000)]
    events: Annotated[list[Event], Field(min_length=1, max_length=8)] = Field(default_factory=lambda: [*_EVENTS])
    namespaces: Annotated[list[Namespace], Field(min_length=1, max_length=64)] = Field(default_factory=lambda: ["*"])


class HookResponse(HubResponseModel):
    """A webhook, without its secret."""

    id: str
    url: str
    events: list[str]
    namespaces: list[str]
    created_at: str = ""
    secret: str | None = None
    """What it signs with, in the answer that made it and never again."""


class DoneBody(HubResponseModel):
    """It is done."""

    done: Literal[True] = True


class ProblemBody(HubResponseModel):
    """Why a request failed."""

    success: Literal[False]
    error: str
    """For people."""
    code: str
    """For programs."""
    fault: str
    details: dict[str, Any] = Field(default_factory=dict)


class LegacyEnv(HubRequestModel):
    """A version as older clients write it; what they do not know is left alone."""

    model_config = ConfigDict(extra="ignore")

    name: Name | None = None
    version: Annotated[str, Field(max_length=128)] | None = None
    description: Annotated[Text, Field(max_length=4000)] | None = None
    tags: Annotated[list[Annotated[Text, Field(min_length=1, max_length=64)]], Field(max_length=64)] | None = None
    buildConfig: dict[str, Any] | None = None
    testConfig: dict[str, Any] | None = None
    deployConfig: dict[str, Any] | None = None
    artifacts: list[dict[str, Any]] | None = None
    status: str | int | None = None
    codeUrl: Annotated[Text, Field(max_length=2000)] | None = None


class LegacyToken(HubRequestModel):
    """A token as older clients write it."""

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    user: Annotated[Text, Field(max_length=128)] = ""
    maxInstanceCount: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class LegacyImage(HubRequestModel):
    """An image that was built."""

    model_config = ConfigDict(extra="ignore")

    image: Annotated[Text, Field(min_length=1, max_length=1000)]
