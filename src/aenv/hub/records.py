"""How versions are kept: which records, under which keys, in which indexes.

- ``env/<name>``: the environment, with the version that its name stands for. All its indexes sort by name, so any of
  them can be combined: all environments, the public ones, those with a tag, those with a word.
- ``version/<name>/<version>``: what lists show of a version. Neither part can have a slash, so no two share a key.
- ``detail/<name>/<version>``: the rest, which lists do not need.
- ``deleted/<name>/<version>``: that a released version was here, and why it is not.

An environment keeps its owner when its last version is deleted: a name never passes to another user by itself.
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
"""Where the newest version is looked for, one after the other."""


class Head(BaseModel):
    """An environment."""

    name: str
    public: bool = False
    builtin: bool = False
    owner: str = ""
    """The user that it belongs to; empty, as in stores of before there were owners: the administrators."""
    grants: dict[str, Access] = Field(default_factory=dict)
    versions: int = 0
    current: EnvSummary | None = None
    """What the name stands for; None when every version was yanked."""


class Tombstone(BaseModel):
    """A released version that was deleted."""

    digest: str
    reason: str
    deleted_at: str
    deleted_by: str


def key(name: str, version: str) -> str:
    """Of a version."""
    return f"{name}/{version}"


def channel(version: EnvSummary) -> int | None:
    """0 and 1: released; 2 and 3: not yet. Odd: comes before a release. None: found only by its exact name."""
    if version.yanked is not None:
        return None
    return (0 if version.status == RELEASED else 2) + is_prerelease(version.version)


def better(one: EnvSummary | None, other: EnvSummary | None) -> EnvSummary | None:
    """Which of two versions an environment's name stands for."""
    found = [each for each in (one, other) if each is not None and channel(each) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return max(found, key=lambda each: (-(channel(each) or 0), order(each.version), each.version))


def of_name(name: str) -> str:
    """The index of all versions of an environment."""
    return f"of/{name}"


def of_channel(name: str, number: int) -> str:
    """The index of those that a range looks through."""
    return f"channel{number}/{name}"


def of_digest(name: str) -> str:
    """The index by content."""
    return f"digest/{name}"


def of_tag(tag: str) -> str:
    """The index of environments with a tag."""
    return f"tag/{tag.casefold()}"


def of_owner(user: str) -> str:
    """The index of a user's environments."""
    return f"owner/{quote(user, safe='')}"


def of_grant(user: str) -> str:
    """The index of environments that a user has a grant on."""
    return f"grant/{quote(user, safe='*')}"


def shown(version: EnvSummary, head: Head) -> EnvSummary:
    """A version with what is kept of its environment alone."""
    return version.model_copy(update={"public": head.public, "versions": head.versions, "owner": head.owner})


def put_version(version: EnvSummary, expect: int) -> Put:
    """The record of a version."""
    place = order(version.version)
    entries = [(of_name(version.name), place)]
    number = channel(version)
    if number is not None:
        entries.append((of_channel(version.name, number), place))
    if version.digest:
        entries.append((of_digest(version.name), version.digest))
    value = version.model_dump_json().encode()
    return Put(VERSION, key(version.name, version.version), value, tuple(entries), expect=expect)


def put_detail(version: EnvSummary, detail: EnvDetail) -> Put:
    """The record of the rest of it."""
    return Put(DETAIL, key(version.name, version.version), detail.model_dump_json().encode())


def put_head(head: Head, expect: int) -> Put:
    """The record of an environment, in all indexes that it is found by."""
    indexes = {of_grant(user) for user in head.grants}
    if head.owner:
        indexes.add(of_owner(head.owner))
    if head.current is not None:
        named, anything = search_terms.terms(head.current)
        indexes |= {HEADS, *(of_tag(tag) for tag in head.current.tags)}
        indexes |= {f"name/{term}" for term in named} | {f"word/{term}" for term in anything}
        if head.public:
            indexes.add(PUBLIC)
    entries = tuple((index, head.name) for index in sorted(indexes))
    return Put(ENV, head.name, head.model_dump_json().encode(), entries, expect=expect)


def summary(record: Record) -> EnvSummary:
    """A version's record, read."""
    return EnvSummary.model_validate_json(record.value)


def head_of(record: Record) -> Head:
    """An environment's record, read."""
    return Head.model_validate_json(record.value)


def whole(version: EnvSummary, detail: Record | None) -> EnvVersion:
    """A version with all that is kept of it."""
    rest = EnvDetail.model_validate_json(detail.value) if detail else EnvDetail()
    return EnvVersion(**dict(version), **dict(rest))
