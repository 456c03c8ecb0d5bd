"""A hub in this process: the catalogue, as one caller may use it.

The server makes one for each request, with who asks; the command line makes one for the owner of the files when no
server is configured. So there is one place that says who may do what, and both ways answer alike.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from aenv.errors import InvalidArguments, NotFound, TooLarge
from aenv.hub import records
from aenv.hub.access import OWNER, Caller
from aenv.hub.catalog import Catalog
from aenv.hub.finding import everything
from aenv.hub.records import Head
from aenv.schema.bundle import BLOB_LIMIT
from aenv.schema.hub import (
    MISSING_LIMIT,
    PAGE_LIMIT,
    RELEASED,
    EnvPage,
    EnvSummary,
    EnvVersion,
    Hub,
    Pushed,
    PushRequest,
)
from aenv.schema.names import check_name
from aenv.schema.ref import EnvRef, is_digest


class LocalHub(Hub):
    """See `aenv.schema.hub.Hub`."""

    def __init__(self, catalog: Catalog, caller: Caller = OWNER) -> None:
        self.catalog = catalog
        self.caller = caller

    # --- blobs: who knows a digest has seen the manifest that names it, so reading needs no more than that

    async def missing(self, digests: list[str]) -> list[str]:
        self.caller.need("push")
        if len(digests) > MISSING_LIMIT:
            raise InvalidArguments(f"{len(digests)} digests in one question; ask for at most {MISSING_LIMIT} at a time")
        wanted = [_digest(digest) for digest in dict.fromkeys(digests)]
        sizes = await self.catalog.blobs.sizes(wanted)
        return [digest for digest, size in zip(wanted, sizes, strict=True) if size is None]

    async def put_blob(self, digest: str, data: bytes) -> None:
        self.caller.need("push")
        if len(data) > BLOB_LIMIT:
            raise TooLarge(f"a blob has at most {BLOB_LIMIT} bytes, this one has {len(data)}")
        await self.catalog.blobs.put(_digest(digest), data)

    async def get_blob(self, digest: str) -> bytes:
        return await self.catalog.blobs.get(_digest(digest))

    # --- versions

    async def push(self, request: PushRequest, force: bool = False) -> Pushed:
        name = request.bundle.get("name")
        self.caller.need("push", name if isinstance(name, str) else None)
        author = "" if self.caller is OWNER else self.caller.name
        return await self.catalog.push(request, force=force, author=author)

    async def get(self, name: str, ref: str = "") -> EnvVersion:
        head = await self._see(name)
        try:
            wanted = EnvRef.parse(f"{name}@{ref}")
        except ValueError as error:
            raise InvalidArguments(str(error)) from None
        return await self.catalog.get(wanted, head)

    async def versions(self, name: str, limit: int = 100, after: str | None = None) -> EnvPage:
        await self._see(name)
        page = await self.catalog.versions(name, _limit(limit), _open(after))
        return _sealed(page)

    async def list(
        self,
        name: str | None = None,
        tags: list[str] | None = None,
        limit: int = 100,
        offset: int = 0,
        after: str | None = None,
    ) -> EnvPage:
        base = tuple(records.of_tag(tag) for tag in tags or ()) or (records.HEADS,)
        if offset < 0:
            raise InvalidArguments(f"an offset is at least 0, not {offset}")
        page = await self.catalog.heads(
            (*base, *self._only()),
            self._visible,
            prefix=(name or "").casefold(),
            limit=_limit(limit),
            offset=offset,
            after=_open(after),
        )
        return _sealed(page)

    async def search(self, query: str, limit: int = 20, after: str | None = None) -> EnvPage:
        page = await self.catalog.search(query, self._only(), self._visible, _limit(limit), _open(after))
        return _sealed(page)

    async def release(self, name: str, version: str) -> EnvSummary:
        self.caller.need("push", _name(name))
        return await self.catalog.release(name, version)

    async def deprecate(self, name: str, version: str, reason: str | None) -> EnvSummary:
        self.caller.need("push", _name(name))
        return await self.catalog.deprecate(name, version, reason)

    async def yank(self, name: str, version: str, reason: str | None) -> EnvSummary:
        self.caller.need("push", _name(name))
        return await self.catalog.yank(name, version, reason)

    async def delete(self, name: str, version: str, reason: str) -> None:
        self.caller.need("push", _name(name))
        if not reason.strip():
            raise InvalidArguments("say why the version goes: others may depend on it")
        found = await self.catalog.get(EnvRef(name, version))
        if found.version != version:
            raise NotFound(f"there is no {name}@{version} in this hub; name the version exactly", name)
        if found.status == RELEASED:
            self.caller.need("admin", name)
        await self.catalog.delete(name, version, reason, self.caller.name)

    async def set_public(self, name: str, public: bool) -> None:
        self.caller.need("push", _name(name))
        await self.catalog.set_public(name, public)

    async def close(self) -> None:
        await self.catalog.store.close()
        await self.catalog.blobs.close()

    # --- who sees what

    async def sees(self, name: str) -> bool:
        """Whether there is such an environment, and the caller may read it."""
        return self._may_see(await self.catalog.head(name))

    def _may_see(self, head: Head | None) -> bool:
        return head is not None and (head.public or head.builtin or self.caller.allows("read", head.name))

    async def _see(self, name: str) -> Head:
        """The environment, if it may be read. To others it is as if it were not there."""
        head = await self.catalog.head(_name(name))
        if head is not None and self._may_see(head):
            return head
        hint = "See what there is: aenv list"
        if not self.caller.allows("read", name):
            hint = "If it is private, this needs a token that is good for it."
        raise NotFound(f"there is no environment {name} in this hub", name, {"hint": hint})

    @property
    def _visible(self) -> Callable[[EnvSummary], bool]:
        if self.caller.allows("read") and "*" in self.caller.namespaces:
            return everything
        return lambda env: env.public or env.builtin or self.caller.allows("read", env.name)

    def _only(self) -> tuple[str, ...]:
        """Whoever may read nothing else looks through what is public, and not through all."""
        return () if self.caller.allows("read") else (records.PUBLIC,)


def _name(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise InvalidArguments(str(error)) from None


def _digest(digest: str) -> str:
    if not is_digest(digest):
        raise InvalidArguments(f"{digest[:80]!r} is not a digest; it is written sha256: and 64 hexadecimal digits")
    return digest


def _limit(limit: int) -> int:
    if not 1 <= limit <= PAGE_LIMIT:
        raise InvalidArguments(f"a page has 1 to {PAGE_LIMIT} entries, not {limit}")
    return limit


def _sealed(page: EnvPage) -> EnvPage:
    """A cursor is ours to read: it has characters that a URL has not."""
    if page.next is None:
        return page
    return EnvPage(items=page.items, next=base64.urlsafe_b64encode(page.next.encode()).decode().rstrip("="))


def _open(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text or "\0" in text:
        raise InvalidArguments("'after' is no cursor of this hub; leave it out to start from the beginning")
    return text
