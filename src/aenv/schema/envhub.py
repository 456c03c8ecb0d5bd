"""EnvHub's models, and `Hub`, the interface of every hub.

`Hub` has two implementations: an HTTP client of a server, and one that stores everything in the user's data folder
without a server. Configuration decides which one a program uses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.functional_validators import AfterValidator

from aenv.schema.names import STATUSES, Name, Version, shown
from aenv.schema.ref import DIGEST_PATTERN, is_digest

MISSING_LIMIT = 10_000
"""Maximum digests in one `Hub.missing` request."""
PAGE_LIMIT = 1000
"""Maximum entries of a page."""

RELEASED: Literal["Released"] = "Released"
Status = Literal["Init", "Pending", "Creating", "Created", "Testing", "Verified", "Ready", "Released", "Failed"]


def status_number(status: str) -> int:
    """Return the number of a status on the legacy routes."""
    return STATUSES.index(status)


def _check_digest(text: str) -> str:
    if not is_digest(text):
        raise ValueError(f"invalid digest {shown(text)}; expected sha256: and 64 hexadecimal digits")
    return text


def _check_text(text: str) -> str:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("the text contains a NUL character or half of a surrogate pair")
    return text


Digest = Annotated[str, AfterValidator(_check_digest), WithJsonSchema({"type": "string", "pattern": DIGEST_PATTERN})]
Text = Annotated[str, AfterValidator(_check_text)]
Tag = Annotated[Text, Field(min_length=1, max_length=64)]
Reason = Annotated[Text, Field(min_length=1, max_length=1000)]
Objects = Annotated[list[dict[str, Any]], Field(max_length=2000)]


class HubRequestModel(BaseModel):
    """Base of request models. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class HubResponseModel(BaseModel):
    """Base of response models. Clients ignore unknown fields, so that newer hubs can add some."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class Schemas(HubRequestModel):
    """Interface of an environment, as its runtime lists it."""

    tools: Objects = []
    """Each with `name`, `description` and `inputSchema`, as in MCP."""
    functions: Objects = []
    """Each with `name`, `endpoint`, `method`, `description` and `parameters`."""
    rewards: Objects = []
    """Same fields as functions."""
    health: Objects = []
    """Same fields as functions."""


class PushRequest(HubRequestModel):
    """A version to publish. The blobs of its bundle are uploaded before."""

    bundle: dict[str, Any]
    """The manifest, as `aenv.schema.bundle` defines it, with the name, the version and the files."""
    description: Annotated[Text, Field(max_length=4000)] = ""
    readme: Annotated[Text, Field(max_length=1_000_000)] = ""
    """Markdown."""
    tags: Annotated[list[Tag], Field(max_length=64)] = []
    schemas: Schemas = Schemas()
    author: Annotated[Text, Field(max_length=256)] = ""
    dependencies: Annotated[list[Annotated[Text, Field(max_length=400)]], Field(max_length=256)] = []
    """Other environments that it uses, like `tau2@^1.2`."""
    artifacts: Annotated[list[dict[str, Any]], Field(max_length=64)] = []
    """Further build results, like `{"type": "image", "content": "registry/team/env:1.0.0"}`."""
    lock: Annotated[Text, Field(max_length=1_000_000)] = ""
    """The resolved requirements, as a requirements file."""
    public: bool | None = None
    """True: everyone who reaches the hub may read the environment. None keeps the current value (at first: false)."""


class EnvSummary(HubResponseModel):
    """Summary of a version, as lists show it."""

    name: Name
    version: Version
    digest: str = ""
    """Digest of the bundle's manifest; empty for a version that was registered without its files."""
    size: int = 0
    """Bytes of all files."""
    files: int = 0
    status: Status = "Ready"
    """`Released` versions never change; `Ready` versions are published and can be replaced with `force`."""
    deprecated: str | None = None
    """Reason not to use the version any more; it still resolves."""
    yanked: str | None = None
    """Reason not to use the version at all; only its exact number or digest resolves."""
    description: str = ""
    tags: list[str] = []
    author: str = ""
    owner: str = ""
    """User who owns the environment; empty: the hub's administrators."""
    public: bool = False
    builtin: bool = False
    """True for an environment that comes with aenv; it cannot be changed."""
    tools: list[str] = []
    """Names of the tools."""
    versions: int = 1
    """Number of versions of the environment."""
    created_at: str = ""
    updated_at: str = ""


class EnvDetail(HubResponseModel):
    """Details of a version, which lists do not show."""

    config: dict[str, Any] = {}
    """Content of the config.json."""
    readme: str = ""
    schemas: Schemas = Schemas()
    dependencies: list[str] = []
    artifacts: list[dict[str, Any]] = []
    lock: str = ""
    code_url: str = ""


class EnvVersion(EnvDetail, EnvSummary):
    """Summary and details of a version."""


class Pushed(HubResponseModel):
    """Result of a push."""

    version: EnvSummary
    outcome: Literal["created", "unchanged", "replaced"]


class EnvPage(HubResponseModel):
    """A page of a list."""

    items: list[EnvSummary] = []
    next: str | None = None
    """Cursor for `after`; None at the end. A page with fewer entries than its limit can have one too."""


User = Annotated[Text, Field(min_length=1, max_length=128)]
Access = Literal["read", "write"]
"""`write` includes `read`: push, release, deprecate and yank versions, and delete those that are not released."""
EVERY_USER = "*"
"""A grant to this name applies to every user with a token."""


class Grants(HubResponseModel):
    """Owner and grants of an environment, or of a namespace."""

    name: str
    owner: str = ""
    """Empty: the hub's administrators."""
    public: bool = False
    """True: everyone who reaches the hub may read it, with or without a token."""
    grants: dict[str, Access] = {}
    """Access by user; `*` stands for every user with a token."""
    namespace: str = ""
    """Reserved namespace that an environment is in; its owner owns the environment too."""
    namespace_owner: str = ""
    namespace_grants: dict[str, Access] = {}
    """Access by user that the namespace adds to `grants`."""


AllGrants = list[Grants]


class StorageUsage(HubResponseModel):
    """Storage that a user's environments occupy in a hub."""

    user: str
    used: int = 0
    """Bytes of the blobs that the user's versions reference, each blob counted once."""
    uploading: int = 0
    """Bytes of blobs that the user has uploaded in the last day and that no version references yet."""
    limit: int = 0
    """Maximum of both together in bytes; 0: no limit."""


class Hub(Protocol):
    """A registry of environments.

    All operations are idempotent. Errors are those of `aenv.errors`: NotFound, Conflict (the version exists with other
    content; `details["differs"]` lists the changes), InvalidBundle (`details["missing"]` lists missing blobs),
    Unauthorized, Forbidden, Unavailable.
    """

    async def missing(self, digests: list[str]) -> list[str]:
        """Return the blobs that have to be uploaded, of at most MISSING_LIMIT digests."""
        ...

    async def put_blob(self, digest: str, data: bytes) -> None:
        """Upload a blob of at most BLOB_LIMIT bytes."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """Return a blob. A bundle's manifest is a blob too, under the bundle's digest."""
        ...

    async def push(self, request: PushRequest, force: bool = False) -> Pushed:
        """Publish a version atomically. ``force`` replaces a version that is not released."""
        ...

    async def get(self, name: str, ref: str = "") -> EnvVersion:
        """Return the version that ``name@ref`` resolves to."""
        ...

    async def versions(self, name: str, limit: int = 100, after: str | None = None) -> EnvPage:
        """Return a page of an environment's versions, newest first."""
        ...

    async def list(
        self,
        name: str | None = None,
        tags: list[str] | None = None,
        limit: int = 100,
        offset: int = 0,
        after: str | None = None,
    ) -> EnvPage:
        """Return a page with the current version of each environment, by name.

        ``name`` is a prefix; an environment must have all ``tags``.
        """
        ...

    async def search(self, query: str, limit: int = 20, after: str | None = None) -> EnvPage:
        """Return a page of environments with all words in name, tags, description or tools; name matches come first."""
        ...

    async def release(self, name: str, version: str) -> EnvSummary:
        """Release a version: it never changes again, and the bare name resolves to the newest released version."""
        ...

    async def deprecate(self, name: str, version: str, reason: str | None) -> EnvSummary:
        """Mark a version as deprecated; None clears the mark."""
        ...

    async def yank(self, name: str, version: str, reason: str | None) -> EnvSummary:
        """Hide a version from ranges, so that only its exact number or digest resolves; None undoes it."""
        ...

    async def delete(self, name: str, version: str, reason: str) -> None:
        """Delete a version. The number of a released version cannot be reused for other content."""
        ...

    async def set_public(self, name: str, public: bool) -> None:
        """Make an environment readable for everyone who reaches the hub, or private."""
        ...

    async def grants(self, name: str) -> Grants:
        """Return an environment's owner and grants; for its owner and administrators."""
        ...

    async def grant(self, name: str, user: str, access: Access) -> Grants:
        """Grant a user read or write access to an environment."""
        ...

    async def revoke(self, name: str, user: str) -> Grants:
        """Revoke a user's grant."""
        ...

    async def transfer(self, name: str, user: str) -> Grants:
        """Transfer an environment to another owner."""
        ...

    async def namespaces(self) -> AllGrants:
        """Return the reserved namespaces that the caller owns or has a grant on; administrators get all."""
        ...

    async def reserve(self, name: str, user: str) -> Grants:
        """Reserve the names ``NAME`` and ``NAME-…`` for a user; for administrators."""
        ...

    async def unreserve(self, name: str) -> None:
        """Release a namespace; the environments in it keep their owners."""
        ...

    async def grant_namespace(self, name: str, user: str, access: Access) -> Grants:
        """Grant a user read or write access to all environments of a namespace; write includes adding new ones."""
        ...

    async def revoke_namespace(self, name: str, user: str) -> Grants:
        """Revoke a user's grant on a namespace."""
        ...

    async def usage(self, user: str = "") -> StorageUsage:
        """Return a user's storage usage; without a name, the caller's."""
        ...

    async def set_quota(self, user: str, limit: int | None) -> StorageUsage:
        """Set a user's storage limit in bytes; None: the hub's default. For administrators."""
        ...

    def on_behalf_of(self, user: str) -> Hub:
        """Return a read-only view of this hub, limited to what both the caller and that user may read."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
