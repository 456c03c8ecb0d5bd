"""A hub in this process: the catalog with one caller's rights enforced.

The server creates a `LocalHub` for each request, with its caller; the command line creates one for the owner of the
files when no server is configured. So rights are checked in one place, and both ways give the same answers.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace

from aenv.errors import Conflict, Forbidden, InvalidArguments, NotFound, TooLarge
from aenv.hub import records
from aenv.hub.access.hub_tokens import OWNER, HubCaller
from aenv.hub.access.rights import Level, Namespace, Rights, name_refused
from aenv.hub.catalog import Catalog, Gate
from aenv.hub.queries import EVERYTHING, View
from aenv.hub.records import Head
from aenv.schema.bundle import BLOB_LIMIT
from aenv.schema.envhub import (
    EVERY_USER,
    MISSING_LIMIT,
    PAGE_LIMIT,
    RELEASED,
    Access,
    AllGrants,
    EnvPage,
    EnvSummary,
    EnvVersion,
    Grants,
    Hub,
    Pushed,
    PushRequest,
    StorageUsage,
)
from aenv.schema.names import check_name
from aenv.schema.ref import EnvRef, is_digest
from aenv.schema.suggestions import did_you_mean
from aenv.storage.base import Stale


class LocalHub(Hub):
    """See `aenv.schema.envhub.Hub`."""

    def __init__(self, catalog: Catalog, caller: HubCaller = OWNER) -> None:
        self.catalog = catalog
        self.caller = caller

    # --- blobs: a caller may read a blob that a readable version references; a push may reference those and own uploads

    async def missing(self, digests: list[str]) -> list[str]:
        self.caller.need("push")
        if len(digests) > MISSING_LIMIT:
            raise InvalidArguments(f"{len(digests)} digests in one request; send at most {MISSING_LIMIT}")
        wanted = [_digest(digest) for digest in dict.fromkeys(digests)]
        sizes = await self.catalog.blobs.sizes(wanted)
        stored = [digest for digest, size in zip(wanted, sizes, strict=True) if size is not None]
        usable = await self._usable(stored)
        return [digest for digest in wanted if digest not in usable]

    async def put_blob(self, digest: str, data: bytes) -> None:
        self.caller.need("push")
        if len(data) > BLOB_LIMIT:
            raise TooLarge(f"blob of {len(data)} bytes; a blob has at most {BLOB_LIMIT} bytes")
        if self.caller.is_admin:
            await self.catalog.blobs.put(_digest(digest), data)
            return
        await self.catalog.quotas.admit(self.caller.name, len(data))
        await self.catalog.blobs.put(_digest(digest), data)
        await self.catalog.quotas.record_upload(self.caller.name, digest, len(data))

    async def get_blob(self, digest: str) -> bytes:
        if not await self._usable([_digest(digest)]):
            raise NotFound(f"there is no blob {digest}")
        return await self.catalog.blobs.get(digest)

    async def _usable(self, digests: list[str]) -> set[str]:
        """Return the blobs that the caller may read or has uploaded."""
        if self.caller.is_admin:
            return set(digests)
        await self.catalog.ready()
        seen: dict[str, bool] = {}

        async def readable(name: str) -> bool:
            if name not in seen:
                head = await self.catalog.head(name)
                seen[name] = head is not None and await self._level(head, Level.READ) >= Level.READ
            return seen[name]

        usable = {digest for digest in digests if await self.catalog.references.any_env_with(digest, readable)}
        rest = [digest for digest in digests if digest not in usable]
        if rest and self.caller.allows("push"):
            usable |= await self.catalog.quotas.recent_uploads(self.caller.name, rest)
        return usable

    # --- versions

    async def push(self, request: PushRequest, force: bool = False) -> Pushed:
        name = request.bundle.get("name")
        self.caller.need("push", name if isinstance(name, str) else None)
        if self.caller is OWNER:
            return await self.catalog.push(request, force=force, author="")
        admin = self.caller.is_admin
        pushed = await self.catalog.push(
            request,
            force=force,
            author=self.caller.name,
            gate=self.gate(str(name), request.public),
            usable=None if admin else self._usable,
        )
        if not admin:
            files = request.bundle.get("files") or ()
            await self.catalog.quotas.forget_uploads(
                self.caller.name, {blob for file in files for blob in file["blobs"]}
            )
        return pushed

    def gate(self, name: str, public: bool | None = None) -> Gate:
        """Return a gate that checks the caller's write access and decides the owner.

        ``public``: the visibility that the push asks for; None keeps it.
        """

        async def decide(head: Head | None) -> str:
            rights = await self._rights()
            if head is None:
                space = await self.catalog.namespaces.over(name)
                if space is not None and rights.in_namespace(space) < Level.WRITE:
                    raise name_refused(name, space)
                return space.owner if space is not None else self.caller.name
            level = rights.level(head)
            if level < Level.WRITE and not head.builtin:  # the catalog refuses built-in ones with a better message
                hint = f"Choose another name, or ask its owner: aenv hub grant {name} --user YOU --access write"
                raise Forbidden(f"the name {name} belongs to another user", name, {"hint": hint})
            if public is not None and public != head.public and level < Level.OWN:
                raise Forbidden(f"only the owner of {name} may change its visibility", name)
            return head.owner

        return decide

    async def get(self, name: str, ref: str = "") -> EnvVersion:
        head = await self._readable(name)
        try:
            wanted = EnvRef.parse(f"{name}@{ref}")
        except ValueError as error:
            raise InvalidArguments(str(error)) from None
        return await self.catalog.get(wanted, head)

    async def versions(self, name: str, limit: int = 100, after: str | None = None) -> EnvPage:
        await self._readable(name)
        page = await self.catalog.versions(name, _limit(limit), _decode_cursor(after))
        return _encode_cursor(page)

    async def list(
        self,
        name: str | None = None,
        tags: list[str] | None = None,
        limit: int = 100,
        offset: int = 0,
        after: str | None = None,
    ) -> EnvPage:
        base = tuple(records.tag_index(tag) for tag in tags or ()) or (records.HEADS,)
        if offset < 0:
            raise InvalidArguments(f"invalid offset {offset}; expected 0 or more")
        page = await self.catalog.heads(
            base,
            await self.view(),
            prefix=(name or "").casefold(),
            limit=_limit(limit),
            offset=offset,
            after=_decode_cursor(after),
        )
        return _encode_cursor(page)

    async def search(self, query: str, limit: int = 20, after: str | None = None) -> EnvPage:
        page = await self.catalog.search(query, await self.view(), _limit(limit), _decode_cursor(after))
        return _encode_cursor(page)

    async def release(self, name: str, version: str) -> EnvSummary:
        await self.require_level(name, Level.WRITE)
        return await self.catalog.release(name, version)

    async def deprecate(self, name: str, version: str, reason: str | None) -> EnvSummary:
        await self.require_level(name, Level.WRITE)
        return await self.catalog.deprecate(name, version, reason)

    async def yank(self, name: str, version: str, reason: str | None) -> EnvSummary:
        await self.require_level(name, Level.WRITE)
        return await self.catalog.yank(name, version, reason)

    async def delete(self, name: str, version: str, reason: str) -> None:
        await self.require_level(name, Level.WRITE)
        if not reason.strip():
            raise InvalidArguments("a reason is required to delete a version: others may depend on it")
        found = await self.catalog.get(EnvRef(name, version))
        if found.version != version:
            raise NotFound(f"there is no {name}@{version} in this hub; name the version exactly", name)
        if found.status == RELEASED:
            self.caller.need("admin", name)
        await self.catalog.delete(name, version, reason, self.caller.name)

    async def set_public(self, name: str, public: bool) -> None:
        await self.require_level(name, Level.OWN)
        await self.catalog.set_public(name, public)

    # --- owners and grants

    async def grants(self, name: str) -> Grants:
        found = _grants(await self.require_level(name, Level.OWN))
        space = await self.catalog.namespaces.over(name)
        if space is not None:
            found.namespace, found.namespace_owner, found.namespace_grants = space.name, space.owner, space.grants
        return found

    async def grant(self, name: str, user: str, access: Access) -> Grants:
        await self.require_level(name, Level.OWN)
        return _grants(await self.catalog.change_head(name, lambda head: {"grants": {**head.grants, user: access}}))

    async def revoke(self, name: str, user: str) -> Grants:
        head = await self.require_level(name, Level.OWN)
        _refuse_absent(head.grants, user, name)
        return _grants(await self.catalog.change_head(name, lambda head: {"grants": _without_user(head.grants, user)}))

    async def transfer(self, name: str, user: str) -> Grants:
        await self.require_level(name, Level.OWN)
        if user == EVERY_USER:
            raise InvalidArguments("an environment has one owner; to share it with all users, grant access to '*'")
        if not user:
            self.caller.need("admin", name)
        return _grants(await self.catalog.transfer(name, user, skip_quota=self.caller.is_admin))

    async def namespaces(self) -> AllGrants:
        self.caller.need("read")
        spaces = self.catalog.namespaces
        found = await spaces.all() if self.caller.is_admin else await spaces.of(self.caller.name)
        return [_grants(space) for space in found]

    async def reserve(self, name: str, user: str) -> Grants:
        self.caller.need("admin", _name(name))
        space = Namespace(name=name, owner=user)
        try:
            await self.catalog.namespaces.add(space)
        except Stale:
            raise Conflict(f"the namespace {name} is reserved already", name) from None
        return _grants(space)

    async def unreserve(self, name: str) -> None:
        self.caller.need("admin", _name(name))
        await self.catalog.namespaces.remove(name)

    async def grant_namespace(self, name: str, user: str, access: Access) -> Grants:
        space = await self._own_namespace(name)
        return _grants(await self.catalog.namespaces.change(name, {**space.grants, user: access}))

    async def revoke_namespace(self, name: str, user: str) -> Grants:
        space = await self._own_namespace(name)
        _refuse_absent(space.grants, user, name)
        return _grants(await self.catalog.namespaces.change(name, _without_user(space.grants, user)))

    async def _own_namespace(self, name: str) -> Namespace:
        self.caller.need("push", _name(name))
        space, rights = await self.catalog.namespaces.get(name), await self._rights()
        level = rights.in_namespace(space)
        if level == Level.NONE:
            raise NotFound(f"the namespace {name} is not reserved", name)
        if level < Level.OWN:
            raise Forbidden(f"only the owner of the namespace {name} may do this", name)
        return space

    # --- storage

    async def usage(self, user: str = "") -> StorageUsage:
        self.caller.need("read")
        if user and user != self.caller.name:
            self.caller.need("admin")
        return await self.catalog.quotas.usage(user or self.caller.name)

    async def set_quota(self, user: str, limit: int | None) -> StorageUsage:
        self.caller.need("admin")
        await self.catalog.quotas.set_limit(user, limit)
        return await self.catalog.quotas.usage(user)

    def on_behalf_of(self, user: str) -> LocalHub:
        return LocalHub(self.catalog, replace(self.caller, behalf=user))

    async def close(self) -> None:
        await self.catalog.store.close()
        await self.catalog.blobs.close()

    # --- access checks

    async def require_level(self, name: str, level: Level) -> Head:
        """Return an environment on which the caller has at least an access level.

        Raises:
            NotFound: the environment does not exist, or the caller may not read it.
            Unauthorized, Forbidden: the token or the user's rights do not permit this.
        """
        self.caller.need("push", _name(name))
        head = await self._readable(name)
        if await self._level(head, level) >= level:
            return head
        if level is Level.OWN:
            raise Forbidden(f"only the owner of {name} may do this", name, {"hint": "Ask the owner, or transfer it."})
        hint = f"Ask its owner: aenv hub grant {name} --user {self.caller.name} --access write"
        raise Forbidden(f"you have read access to {name}, not write access", name, {"hint": hint})

    async def _rights(self) -> Rights:
        return await Rights.of(self.caller, self.catalog.namespaces)

    async def _level(self, head: Head, enough: Level) -> Level:
        """Return the caller's access level. Namespaces are read only if the level without them is below ``enough``."""
        level = Rights(self.caller, {}).level(head)
        return level if level >= enough else (await self._rights()).level(head)

    async def _readable(self, name: str) -> Head:
        """Return an environment that the caller may read. An unreadable one is reported as missing."""
        head = await self.catalog.head(_name(name))
        if head is not None and await self._level(head, Level.READ) >= Level.READ:
            return head
        hint = "List environments: aenv list"
        if not self.caller.allows("read", name):
            hint = "If it is private, use a token that may read it."
        close = did_you_mean(name, [each.name for each in (await self.list(limit=PAGE_LIMIT)).items])
        raise NotFound(f"there is no environment {name} in this hub{close}", name, {"hint": hint})

    async def view(self) -> View:
        """Return the part of the catalog that lists and searches show to the caller."""
        if self.caller.is_admin:
            return EVERYTHING
        rights = await self._rights()
        return View(lambda head: rights.level(head) >= Level.READ, tuple(rights.readable_ranges()))


def _grants(of: Head | Namespace) -> Grants:
    return Grants(name=of.name, owner=of.owner, public=isinstance(of, Head) and of.public, grants=dict(of.grants))


def _without_user(grants: dict[str, Access], user: str) -> dict[str, Access]:
    return {each: access for each, access in grants.items() if each != user}


def _refuse_absent(grants: dict[str, Access], user: str, name: str) -> None:
    if user not in grants:
        raise NotFound(f"{user} has no grant on {name}", name)


def _name(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise InvalidArguments(str(error)) from None


def _digest(digest: str) -> str:
    if not is_digest(digest):
        raise InvalidArguments(f"invalid digest {digest[:80]!r}; expected sha256: and 64 hexadecimal digits")
    return digest


def _limit(limit: int) -> int:
    if not 1 <= limit <= PAGE_LIMIT:
        raise InvalidArguments(f"invalid limit {limit}; expected 1 to {PAGE_LIMIT}")
    return limit


def _encode_cursor(page: EnvPage) -> EnvPage:
    """Encode a page's cursor as base64: the store's cursors hold characters that a URL may not."""
    if page.next is None:
        return page
    return EnvPage(items=page.items, next=base64.urlsafe_b64encode(page.next.encode()).decode().rstrip("="))


def _decode_cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text or "\0" in text:
        raise InvalidArguments("'after' is not a cursor of this hub; leave it out to start from the beginning")
    return text
