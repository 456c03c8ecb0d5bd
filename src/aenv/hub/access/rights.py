"""Users' rights on environments: ownership, grants and reserved namespaces.

An environment has an owner: the user who first pushed its name. The owner and administrators may grant read or write
access to single users or to every user with a token (``*``), make the environment public, and transfer it to another
owner. An administrator may reserve a namespace (a name, and all names that start with it and a dash) for a user: new
names in it belong to that user, and grants on it apply to every environment in it.

A token restricts its user's rights to its scope and its namespaces. A token that an administrator created for a
specific namespace is also a grant on that namespace, regardless of who owns the environments in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote

from pydantic import BaseModel, Field

from aenv.errors import Forbidden, NotFound
from aenv.hub.access.hub_tokens import HubCaller, covers
from aenv.hub.queries import IndexRange
from aenv.hub.records import PUBLIC, Head, grant_index, owner_index
from aenv.schema.envhub import EVERY_USER, Access
from aenv.storage.base import ABSENT, Delete, Put, Query, Store

NAMESPACE = "namespace"


class Level(IntEnum):
    """Access level on an environment; each level includes the ones before it."""

    NONE = 0
    READ = 1
    WRITE = 2
    OWN = 3


_GRANTED: Mapping[Access, Level] = {"read": Level.READ, "write": Level.WRITE}


class Namespace(BaseModel):
    """A namespace that is reserved for a user."""

    name: str
    owner: str
    grants: dict[str, Access] = Field(default_factory=dict)

    def level(self, user: str) -> Level:
        """Return a user's access level on every environment in the namespace."""
        return Level.OWN if user == self.owner else _granted(self.grants, user)


class Namespaces:
    """Store of reserved namespaces."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[Namespace]:
        """Return all reserved namespaces, by name."""
        return [Namespace.model_validate_json(record.value) async for record in self._store.all(Query(NAMESPACE))]

    async def of(self, user: str) -> list[Namespace]:
        """Return the namespaces that a user owns or has a grant on."""
        found: dict[str, Namespace] = {}
        for index in (_user_index(user), _user_index(EVERY_USER)):
            async for record in self._store.all(Query(NAMESPACE, (index,))):
                found[record.key] = Namespace.model_validate_json(record.value)
        return list(found.values())

    async def over(self, name: str) -> Namespace | None:
        """Return the namespace that contains an environment's name; of several, the longest."""
        parts = name.split("-")
        keys = ["-".join(parts[:count]) for count in range(len(parts), 0, -1)]
        found = [record for record in await self._store.get_many(NAMESPACE, keys) if record is not None]
        return Namespace.model_validate_json(found[0].value) if found else None

    async def get(self, name: str) -> Namespace:
        """Return a reserved namespace.

        Raises:
            NotFound: the namespace is not reserved.
        """
        found = await self._store.get(NAMESPACE, name)
        if found is None:
            raise NotFound(f"the namespace {name} is not reserved", name)
        return Namespace.model_validate_json(found.value)

    async def add(self, space: Namespace) -> None:
        """Reserve a namespace. Raises Stale if it is reserved already."""
        await self._store.commit(_put(space, ABSENT))

    async def change(self, name: str, grants: dict[str, Access]) -> Namespace:
        """Replace the grants on a namespace."""
        changed = (await self.get(name)).model_copy(update={"grants": grants})
        await self._store.commit(_put(changed))
        return changed

    async def remove(self, name: str) -> None:
        """Release a reserved namespace."""
        await self.get(name)
        await self._store.commit(Delete(NAMESPACE, name))


@dataclass(frozen=True, slots=True)
class Rights:
    """Access levels of one caller."""

    caller: HubCaller
    spaces: Mapping[str, list[Namespace]]
    """By user: namespaces of the caller, and of the user on whose behalf it reads."""

    @classmethod
    async def of(cls, caller: HubCaller, namespaces: Namespaces) -> Rights:
        """Look up a caller's namespaces."""
        users = [] if caller.is_admin or caller.scope is None else [caller.name, caller.behalf]
        return cls(caller, {user: await namespaces.of(user) for user in users if user})

    def level(self, head: Head) -> Level:
        """Return the caller's access level on an environment."""
        caller = self.caller
        public = Level.READ if head.public or head.builtin else Level.NONE
        if caller.scope is None or not covers(list(caller.namespaces), head.name):
            return public
        level = self._token_level(head)
        if caller.behalf:
            level = min(level, self._user_level(caller.behalf, head), Level.READ)
        return max(level, public)

    def readable_ranges(self) -> Iterator[IndexRange]:
        """Yield the index ranges that together hold everything the caller may read.

        They may hold more: `level` decides about each environment.
        """
        caller = self.caller
        yield IndexRange((PUBLIC,))
        if caller.scope is None:
            return
        user = caller.behalf or caller.name
        yield from (IndexRange((index,)) for index in (owner_index(user), grant_index(user), grant_index(EVERY_USER)))
        spaces = {space.name for space in self.spaces.get(user, ())}
        if not caller.behalf:
            spaces |= {space for space in caller.namespaces if space != "*"}
        for space in sorted(spaces):
            yield IndexRange((), space, f"{space} ")  # the name itself: " " sorts before every name character
            yield IndexRange((), f"{space}-", f"{space}.")

    def in_namespace(self, space: Namespace) -> Level:
        """Return the caller's access level on every environment of a namespace."""
        caller = self.caller
        if caller.scope is None or not covers(list(caller.namespaces), space.name):
            return Level.NONE
        if caller.is_admin:
            return Level.OWN
        level = max(space.level(caller.name), self._token_grant)
        return min(level, Level.READ) if caller.scope == "read" else level

    def _token_level(self, head: Head) -> Level:
        if self.caller.scope == "admin":
            return Level.OWN
        level = max(self._user_level(self.caller.name, head), self._token_grant)
        return min(level, Level.READ) if self.caller.scope == "read" else level

    @property
    def _token_grant(self) -> Level:
        """Return the access level that the token itself grants in the namespaces it names."""
        if "*" in self.caller.namespaces:
            return Level.NONE
        return Level.READ if self.caller.scope == "read" else Level.WRITE

    def _user_level(self, user: str, head: Head) -> Level:
        if head.owner and head.owner == user:
            return Level.OWN
        spaces = [space.level(user) for space in self.spaces.get(user, ()) if covers([space.name], head.name)]
        return max(_granted(head.grants, user), *spaces, Level.NONE)


def name_refused(name: str, space: Namespace) -> Forbidden:
    """Return the error for a push of a new name into a namespace of another user."""
    return Forbidden(
        f"the name {space.name} and names that start with {space.name}- are reserved for another user",
        name,
        {"hint": "Choose another name, or ask for a grant: aenv hub namespace grant"},
    )


def _granted(grants: Mapping[str, Access], user: str) -> Level:
    given = [_GRANTED[grants[each]] for each in (user, EVERY_USER) if each in grants]
    return max(given, default=Level.NONE)


def _user_index(user: str) -> str:
    return f"user/{quote(user, safe='*')}"


def _put(space: Namespace, expect: int = -1) -> Put:
    users = sorted({space.owner, *space.grants})
    entries = tuple((_user_index(user), space.name) for user in users)
    return Put(NAMESPACE, space.name, space.model_dump_json().encode(), entries, expect=expect)
