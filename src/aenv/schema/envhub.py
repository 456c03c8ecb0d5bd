"""EnvHub's words: what is pushed, what is kept of a version, and what every hub can do.

`Hub` is what callers hold. One implementation speaks HTTP to a server, the other keeps everything in the user's
own data folder with no server at all; which one it is, is a matter of configuration.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.functional_validators import AfterValidator

from aenv.schema.names import STATUSES, Name, Version, shown
from aenv.schema.ref import DIGEST_PATTERN, is_digest

MISSING_LIMIT = 10_000
"""How many digests one question after missing blobs may hold."""
PAGE_LIMIT = 1000
"""The most entries of one page."""

RELEASED: Literal["Released"] = "Released"
Status = Literal["Init", "Pending", "Creating", "Created", "Testing", "Verified", "Ready", "Released", "Failed"]


def status_number(status: str) -> int:
    """The number that older routes answer with."""
    return STATUSES.index(status)


def _check_digest(text: str) -> str:
    if not is_digest(text):
        raise ValueError(f"{shown(text)} is not a digest; it is written sha256: and 64 hexadecimal digits")
    return text


def _check_text(text: str) -> str:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("there is a character in it that text cannot have")
    return text


Digest = Annotated[str, AfterValidator(_check_digest), WithJsonSchema({"type": "string", "pattern": DIGEST_PATTERN})]
Text = Annotated[str, AfterValidator(_check_text)]
Tag = Annotated[Text, Field(min_length=1, max_length=64)]
Reason = Annotated[Text, Field(min_length=1, max_length=1000)]
Objects = Annotated[list[dict[str, Any]], Field(max_length=2000)]


class HubRequestModel(BaseModel):
    """What is sent to a hub: a word that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class HubResponseModel(BaseModel):
    """What a hub says may grow: a client ignores what it does not know."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class Schemas(HubRequestModel):
    """What the environment offers, as its own listing describes it."""

    tools: Objects = []
    """Each with `name`, `description` and `inputSchema`, as in MCP."""
    functions: Objects = []
    """Each with `name`, `endpoint`, `method`, `description` and `parameters`."""
    rewards: Objects = []
    """As functions."""
    health: Objects = []
    """As functions."""


class PushRequest(HubRequestModel):
    """A version to publish. The blobs of its bundle are there already."""

    bundle: dict[str, Any]
    """The manifest, as `aenv.schema.bundle` writes it; it says the name, the version and the files."""
    description: Annotated[Text, Field(max_length=4000)] = ""
    readme: Annotated[Text, Field(max_length=1_000_000)] = ""
    """Markdown."""
    tags: Annotated[list[Tag], Field(max_length=64)] = []
    schemas: Schemas = Schemas()
    author: Annotated[Text, Field(max_length=256)] = ""
    dependencies: Annotated[list[Annotated[Text, Field(max_length=400)]], Field(max_length=256)] = []
    """Other environments that it uses, like `tau2@^1.2`."""
    artifacts: Annotated[list[dict[str, Any]], Field(max_length=64)] = []
    """What else a build made, like `{"type": "image", "content": "registry/team/env:1.0.0"}`."""
    lock: Annotated[Text, Field(max_length=1_000_000)] = ""
    """The resolved requirements, as a requirements file."""
    public: bool | None = None
    """Whether everyone who reaches the hub may read the environment; None leaves that as it is (at first: no)."""


class EnvSummary(HubResponseModel):
    """A version, as lists show it."""

    name: Name
    version: Version
    digest: str = ""
    """Of the bundle's manifest; empty for a version that was registered without its files."""
    size: int = 0
    """Bytes of all files."""
    files: int = 0
    status: Status = "Ready"
    """`Released` versions never change; `Ready` ones are published and may be replaced by force."""
    deprecated: str | None = None
    """Why it should not be used any more; it still resolves."""
    yanked: str | None = None
    """Why it must not be used; only its exact version or digest resolves."""
    description: str = ""
    tags: list[str] = []
    author: str = ""
    owner: str = ""
    """The user whose environment it is; empty: the hub's administrators'."""
    public: bool = False
    builtin: bool = False
    """It came with aenv and cannot be changed."""
    tools: list[str] = []
    """Their names."""
    versions: int = 1
    """How many the environment has, where a list has one entry for each environment."""
    created_at: str = ""
    updated_at: str = ""


class EnvDetail(HubResponseModel):
    """What lists do not show of a version."""

    config: dict[str, Any] = {}
    """Its config.json."""
    readme: str = ""
    schemas: Schemas = Schemas()
    dependencies: list[str] = []
    artifacts: list[dict[str, Any]] = []
    lock: str = ""
    code_url: str = ""


class EnvVersion(EnvDetail, EnvSummary):
    """A version with all that is kept of it."""


class Pushed(HubResponseModel):
    """What became of a push."""

    version: EnvSummary
    outcome: Literal["created", "unchanged", "replaced"]


class EnvPage(HubResponseModel):
    """Some entries of a list."""

    items: list[EnvSummary] = []
    next: str | None = None
    """Give it as `after` for the entries that follow; None at the end. A page may be short and have one all the
    same.
    """


User = Annotated[Text, Field(min_length=1, max_length=128)]
Access = Literal["read", "write"]
"""`write` includes `read`: push, release, deprecate and yank versions, and delete those that are not released."""
EVERY_USER = "*"
"""A grant to this user is one to everybody who has a token."""


class Grants(HubResponseModel):
    """Who may do what with an environment, or with all environments of a namespace."""

    name: str
    owner: str = ""
    """Empty: the hub's administrators."""
    public: bool = False
    """Whether everyone who reaches the hub may read it, with or without a token."""
    grants: dict[str, Access] = {}
    """By user; `*` stands for everybody who has a token."""


AllGrants = list[Grants]


class StorageUsage(HubResponseModel):
    """What a user's environments occupy in a hub."""

    user: str
    used: int = 0
    """Bytes of the blobs that the user's versions name, each blob once."""
    uploading: int = 0
    """Bytes of blobs that the user has sent in the last day and that no version names yet."""
    limit: int = 0
    """Bytes that both may have together; 0: no limit."""


class Hub(Protocol):
    """A registry of environments.

    Everything may be repeated: what is there already is not made twice. Errors are those of `aenv.errors`:
    NotFound, Conflict (other content under the same version; `details["differs"]` says what), InvalidBundle
    (`details["missing"]` has the blobs that are not there), Unauthorized, Forbidden, Unavailable.
    """

    async def missing(self, digests: list[str]) -> list[str]:
        """Those of the blobs that the hub does not have; at most MISSING_LIMIT at a time."""
        ...

    async def put_blob(self, digest: str, data: bytes) -> None:
        """Keep a blob of at most BLOB_LIMIT bytes."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """A blob; a bundle's manifest is one too, under the bundle's own digest."""
        ...

    async def push(self, request: PushRequest, force: bool = False) -> Pushed:
        """Publish a version, whole or not at all. ``force`` replaces one that is not released."""
        ...

    async def get(self, name: str, ref: str = "") -> EnvVersion:
        """The version that ``name@ref`` stands for."""
        ...

    async def versions(self, name: str, limit: int = 100, after: str | None = None) -> EnvPage:
        """All versions of an environment, the newest first."""
        ...

    async def list(
        self,
        name: str | None = None,
        tags: list[str] | None = None,
        limit: int = 100,
        offset: int = 0,
        after: str | None = None,
    ) -> EnvPage:
        """One entry for each environment, by name: the version that its name stands for.

        ``name`` is how names start, ``tags`` must all be there.
        """
        ...

    async def search(self, query: str, limit: int = 20, after: str | None = None) -> EnvPage:
        """Environments that have all the words in their name, tags, description or tools; those whose names have
        them come first.
        """
        ...

    async def release(self, name: str, version: str) -> EnvSummary:
        """From now on the version never changes, and the environment's name stands for the newest such."""
        ...

    async def deprecate(self, name: str, version: str, reason: str | None) -> EnvSummary:
        """Advise against a version; None takes that back."""
        ...

    async def yank(self, name: str, version: str, reason: str | None) -> EnvSummary:
        """Have a version found only by who names it exactly; None takes that back."""
        ...

    async def delete(self, name: str, version: str, reason: str) -> None:
        """Remove a version. One that was released leaves a mark, and its number is not given to other content."""
        ...

    async def set_public(self, name: str, public: bool) -> None:
        """Open an environment to everyone who reaches the hub, or close it."""
        ...

    async def grants(self, name: str) -> Grants:
        """Return who may do what with an environment; for its owner and administrators."""
        ...

    async def grant(self, name: str, user: str, access: Access) -> Grants:
        """Let another user read an environment, or write to it."""
        ...

    async def revoke(self, name: str, user: str) -> Grants:
        """Take a user's grant away."""
        ...

    async def transfer(self, name: str, user: str) -> Grants:
        """Give an environment to another owner."""
        ...

    async def namespaces(self) -> AllGrants:
        """Return the reserved namespaces that the caller has a part in; administrators see all."""
        ...

    async def reserve(self, name: str, user: str) -> Grants:
        """Reserve the names ``NAME`` and ``NAME-…`` for a user; for administrators."""
        ...

    async def unreserve(self, name: str) -> None:
        """Let go of a namespace; the environments in it stay whose they are."""
        ...

    async def grant_namespace(self, name: str, user: str, access: Access) -> Grants:
        """Let another user read all environments of a namespace, or write to them and add new ones."""
        ...

    async def revoke_namespace(self, name: str, user: str) -> Grants:
        """Take a user's grant on a namespace away."""
        ...

    async def usage(self, user: str = "") -> StorageUsage:
        """Return what a user's environments occupy, without a name the caller's own."""
        ...

    async def set_quota(self, user: str, limit: int | None) -> StorageUsage:
        """Set how many bytes a user may occupy; None: as the hub's settings say. For administrators."""
        ...

    def on_behalf_of(self, user: str) -> Hub:
        """Return the same hub, reading only what both this caller and that user may read."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
