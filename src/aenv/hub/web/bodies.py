"""Request and response models of the hub's HTTP API, besides the versions in `aenv.schema.envhub`."""

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
    """Filter and page of a list of environments."""

    name: Annotated[Text, Field(max_length=253)] = ""
    """Prefix of the names."""
    tags: Annotated[list[Annotated[Text, Field(max_length=64)]], Field(max_length=16)] = Field(default_factory=list)
    """Tags that each environment must have."""
    limit: Limit = 100
    offset: Offset = 0
    after: Cursor | None = None
    """The `next` of the previous page."""


class SearchQuery(HubRequestModel):
    """Words and page of a search."""

    q: Annotated[Text, Field(max_length=1000)]
    """Words that must all match."""
    limit: Limit = 20
    after: Cursor | None = None


class PageQuery(HubRequestModel):
    """Size and start of a page."""

    limit: Limit = 100
    after: Cursor | None = None


class RefQuery(HubRequestModel):
    """Version of an environment."""

    ref: Annotated[Text, Field(max_length=200)] = ""
    """Empty for the newest, or `1.2.0`, `1`, `^1.2`, `sha256:…`."""


class PushQuery(HubRequestModel):
    """Options of a push."""

    force: bool = False
    """Replace a version that is not released."""


class ReasonQuery(HubRequestModel):
    """Reason for a deletion."""

    reason: Reason


class ReasonBody(HubRequestModel):
    """Reason for deprecating or yanking; null undoes it."""

    reason: Reason | None


class PublicBody(HubRequestModel):
    """Visibility of an environment."""

    public: bool


class GrantBody(HubRequestModel):
    """Access to grant to a user."""

    user: User
    """`*`: every user with a token."""
    access: Access


class UserQuery(HubRequestModel):
    """User whose grant to revoke."""

    user: User


class UsageQuery(HubRequestModel):
    """User whose storage usage to return."""

    user: Annotated[Text, Field(max_length=128)] = ""
    """Empty: the caller."""


class TransferBody(HubRequestModel):
    """New owner of an environment."""

    user: Annotated[Text, Field(max_length=128)]
    """Empty: the hub's administrators; only they may do this."""


class NamespaceBody(HubRequestModel):
    """A namespace to reserve."""

    name: Name
    """Includes the name itself and every name that starts with it and a dash."""
    user: User


class QuotaBody(HubRequestModel):
    """Storage limit of a user."""

    user: User
    limit: Annotated[int, Field(ge=0)] | None
    """Bytes; 0: no limit, null: the hub's default."""


class Digests(HubRequestModel):
    """Digests of blobs to check."""

    digests: Annotated[list[Digest], Field(max_length=MISSING_LIMIT)]


class DigestsResponse(HubResponseModel):
    """Digests of missing blobs."""

    digests: list[str]


class TokenRequest(HubRequestModel):
    """A token to create."""

    user: Annotated[Text, Field(max_length=128)] = ""
    scope: Scope = "read"
    namespaces: Annotated[list[Namespace], Field(min_length=1, max_length=64)] = Field(default_factory=lambda: ["*"])
    """Names that the token is valid for, each with all names that start with it and a dash; `*`: all names."""
    expires_in: Annotated[int, Field(ge=1, le=10 * 366 * 86400)] | None = None
    """Lifetime in seconds; null: no expiry."""


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
    """Text of the token; only in the response that created it."""

    @classmethod
    def of(cls, token: HubToken, text: str | None = None) -> TokenResponse:
        """Convert a token's record, leaving out the hash."""
        return cls.model_validate({**token.model_dump(exclude={"hash"}), "token": text})


class HookRequest(HubRequestModel):
    """A webhook to add."""

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
    """Key of its signatures; only in the response that created it."""


class DoneBody(HubResponseModel):
    """Success, with nothing else to return."""

    done: Literal[True] = True


class ProblemBody(HubResponseModel):
    """An error response."""

    success: Literal[False]
    error: str
    """Message for people."""
    code: str
    """Error code for programs."""
    fault: str
    details: dict[str, Any] = Field(default_factory=dict)


class LegacyEnv(HubRequestModel):
    """A version in the legacy format. Unknown fields are ignored; absent ones are not changed."""

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
    """A token in the legacy format."""

    model_config = ConfigDict(extra="ignore")

    id: str = ""
    user: Annotated[Text, Field(max_length=128)] = ""
    maxInstanceCount: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class LegacyImage(HubRequestModel):
    """An image that was built."""

    model_config = ConfigDict(extra="ignore")

    image: Annotated[Text, Field(min_length=1, max_length=1000)]
