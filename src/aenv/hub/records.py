"""Record layout of environments and versions: spaces, keys and indexes.

- ``env/<name>``: the environment, with its current version. All its indexes sort by name, so any of them can be
  combined: all environments, public ones, by tag, by search word.
- ``version/<name>/<version>``: the summary that lists show. Neither part can contain a slash, so keys are unique.
- ``detail/<name>/<version>``: the rest, which lists do not need.
- ``deleted/<name>/<version>``: tombstone of a released version that was deleted, with the reason.

An environment keeps its owner when its last version is deleted, so a name never passes to another user by itself.
"""

from __future__ import annotations

from urllib.parse import quote

from pydantic import BaseModel, Field

from aenv.hub import search_terms
from aenv.schema.envhub import RELEASED, Access, EnvDetail, EnvSummary, EnvVersion
from aenv.schema.ref import is_prerelease, order
from aenv.storage.base import Put, Record

ENV, VERSION, DETAIL, DELETED = "env", "version", "detail", "deleted"
HEADS, PUBLIC = "heads", "public"
CHANNELS = range(4)
"""Channels in the order in which the newest version is searched; see `channel`."""


class Head(BaseModel):
    """Record of an environment."""

    name: str
    public: bool = False
    builtin: bool = False
    owner: str = ""
    """User name; empty means the administrators, as in stores from before environments had owners."""
    grants: dict[str, Access] = Field(default_factory=dict)
    versions: int = 0
    current: EnvSummary | None = None
    """Version that the bare name resolves to; None when every version was yanked."""


class Tombstone(BaseModel):
    """Record of a released version that was deleted."""

    digest: str
    reason: str
    deleted_at: str
    deleted_by: str


def key(name: str, version: str) -> str:
    """Return the record key of a version."""
    return f"{name}/{version}"


def channel(version: EnvSummary) -> int | None:
    """Return a version's channel, the lower the better; None for a yanked version.

    0 and 1 are released, 2 and 3 are not; 1 and 3 are prereleases.
    """
    if version.yanked is not None:
        return None
    return (0 if version.status == RELEASED else 2) + is_prerelease(version.version)


def preferred(one: EnvSummary | None, other: EnvSummary | None) -> EnvSummary | None:
    """Return which of two versions the bare name should resolve to."""
    found = [each for each in (one, other) if each is not None and channel(each) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return max(found, key=lambda each: (-(channel(each) or 0), order(each.version), each.version))


def name_index(name: str) -> str:
    """Return the index of all versions of an environment, in version order."""
    return f"of/{name}"


def channel_index(name: str, number: int) -> str:
    """Return the index of an environment's versions in a channel, which ranges search."""
    return f"channel{number}/{name}"


def digest_index(name: str) -> str:
    """Return the index of an environment's versions by bundle digest."""
    return f"digest/{name}"


def tag_index(tag: str) -> str:
    """Return the index of environments with a tag."""
    return f"tag/{tag.casefold()}"


def owner_index(user: str) -> str:
    """Return the index of environments that a user owns."""
    return f"owner/{quote(user, safe='')}"


def grant_index(user: str) -> str:
    """Return the index of environments that a user has a grant on."""
    return f"grant/{quote(user, safe='*')}"


def with_env_fields(version: EnvSummary, head: Head) -> EnvSummary:
    """Return a version's summary with the fields that are stored with its environment."""
    return version.model_copy(update={"public": head.public, "versions": head.versions, "owner": head.owner})


def put_version(version: EnvSummary, expect: int) -> Put:
    """Return the write of a version's summary."""
    sort_key = order(version.version)
    entries = [(name_index(version.name), sort_key)]
    number = channel(version)
    if number is not None:
        entries.append((channel_index(version.name, number), sort_key))
    if version.digest:
        entries.append((digest_index(version.name), version.digest))
    value = version.model_dump_json().encode()
    return Put(VERSION, key(version.name, version.version), value, tuple(entries), expect=expect)


def put_detail(version: EnvSummary, detail: EnvDetail) -> Put:
    """Return the write of a version's details."""
    return Put(DETAIL, key(version.name, version.version), detail.model_dump_json().encode())


def put_head(head: Head, expect: int) -> Put:
    """Return the write of an environment, with all indexes that it is found by."""
    indexes = {grant_index(user) for user in head.grants}
    if head.owner:
        indexes.add(owner_index(head.owner))
    if head.current is not None:
        named, anything = search_terms.terms(head.current)
        indexes |= {HEADS, *(tag_index(tag) for tag in head.current.tags)}
        indexes |= {f"name/{term}" for term in named} | {f"word/{term}" for term in anything}
        if head.public:
            indexes.add(PUBLIC)
    entries = tuple((index, head.name) for index in sorted(indexes))
    return Put(ENV, head.name, head.model_dump_json().encode(), entries, expect=expect)


def parse_summary(record: Record) -> EnvSummary:
    """Parse a version's record."""
    return EnvSummary.model_validate_json(record.value)


def parse_head(record: Record) -> Head:
    """Parse an environment's record."""
    return Head.model_validate_json(record.value)


def full_version(version: EnvSummary, detail: Record | None) -> EnvVersion:
    """Return a version's summary and details in one."""
    rest = EnvDetail.model_validate_json(detail.value) if detail else EnvDetail()
    return EnvVersion(**dict(version), **dict(rest))
