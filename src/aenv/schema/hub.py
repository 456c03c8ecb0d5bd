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


class Wish(BaseModel):
    """What is sent to a hub: a word that it does not know is a mistake."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Said(BaseModel):
    """What a hub says may grow: a client ignores what it does not know."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class Schemas(Wish):
    """What the environment offers, as its own listing describes it."""

    tools: Objects = []
    """Each with `name`, `description` and `inputSchema`, as in MCP."""
    functions: Objects = []
    """Each with `name`, `endpoint`, `method`, `description` and `parameters`."""
    rewards: Objects = []
    """As functions."""
    health: Objects = []
    """As functions."""


class PushRequest(Wish):
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


class EnvSummary(Said):
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
    public: bool = False
    builtin: bool = False
    """It came with aenv and cannot be changed."""
    tools: list[str] = []
    """Their names."""
    versions: int = 1
    """How many the environment has, where a list has one entry for each environment."""
    created_at: str = ""
    updated_at: str = ""


class EnvDetail(Said):
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


class Pushed(Said):
    """What became of a push."""

    version: EnvSummary
    outcome: Literal["created", "unchanged", "replaced"]


class EnvPage(Said):
    """Some entries of a list."""

    items: list[EnvSummary] = []
    next: str | None = None
    """Give it as `after` for the entries that follow; None at the end. A page may be short and have one all the
    same.
    """


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

    async def close(self) -> None:
        """Let go of connections."""
        ...
