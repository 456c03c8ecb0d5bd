"""Which user may do what with which environment.

An environment has an owner: the user who first pushed its name. The owner and administrators may let others read it or
write to it, one by one or all who have a token (``*``), make it public, and give it to another owner. An administrator
may reserve a namespace, a name with all names that start with it and a dash, for a user: new names in it are that
user's, and grants on it hold for every environment in it.

A token narrows what its user may do: by its scope, and to its namespaces. A token that an administrator made for a
namespace by name is also a grant on that namespace, whoever owns the environments in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import quote

from pydantic import BaseModel, Field

from aenv.errors import Forbidden, NotFound
from aenv.hub.access.hub_tokens import HubCaller, covers
from aenv.hub.queries import Part
from aenv.hub.records import PUBLIC, Head, of_grant, of_owner
from aenv.schema.envhub import EVERY_USER, Access
from aenv.storage.base import ABSENT, Delete, Put, Query, Store

NAMESPACE = "namespace"


class Level(IntEnum):
    """What may be done with an environment; each includes those before it."""

    NONE = 0
    READ = 1
    WRITE = 2
    OWN = 3


_GRANTED: Mapping[Access, Level] = {"read": Level.READ, "write": Level.WRITE}


class Namespace(BaseModel):
    """Names that are reserved for a user."""

    name: str
    owner: str
    grants: dict[str, Access] = Field(default_factory=dict)

    def level(self, user: str) -> Level:
        """What a user may do with every environment in it."""
        return Level.OWN if user == self.owner else _granted(self.grants, user)


class Namespaces:
    """All namespaces that are reserved."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[Namespace]:
        """By name."""
        return [Namespace.model_validate_json(record.value) async for record in self._store.all(Query(NAMESPACE))]

    async def of(self, user: str) -> list[Namespace]:
        """Those that a user owns or has a grant on."""
        found: dict[str, Namespace] = {}
        for index in (_of_user(user), _of_user(EVERY_USER)):
            async for record in self._store.all(Query(NAMESPACE, (index,))):
                found[record.key] = Namespace.model_validate_json(record.value)
        return list(found.values())

    async def over(self, name: str) -> Namespace | None:
        """The one that an environment's name lies in; of several, the longest."""
        parts = name.split("-")
        keys = ["-".join(parts[:count]) for count in range(len(parts), 0, -1)]
        found = [record for record in await self._store.get_many(NAMESPACE, keys) if record is not None]
        return Namespace.model_validate_json(found[0].value) if found else None

    async def get(self, name: str) -> Namespace:
        """One of them.

        Raises:
            NotFound: it is not reserved.
        """
        found = await self._store.get(NAMESPACE, name)
        if found is None:
            raise NotFound(f"the namespace {name} is not reserved", name)
        return Namespace.model_validate_json(found.value)

    async def add(self, space: Namespace) -> None:
        """Reserve one that is not reserved yet, else raise Stale."""
        await self._store.commit(_put(space, ABSENT))

    async def change(self, name: str, grants: dict[str, Access]) -> Namespace:
        """Replace its grants."""
        changed = (await self.get(name)).model_copy(update={"grants": grants})
        await self._store.commit(_put(changed))
        return changed

    async def remove(self, name: str) -> None:
        """Let go of one."""
        await self.get(name)
        await self._store.commit(Delete(NAMESPACE, name))


@dataclass(frozen=True, slots=True)
class Rights:
    """What one caller may do."""

    caller: HubCaller
    spaces: Mapping[str, list[Namespace]]
    """By user: the caller's, and those of the user on whose behalf it asks."""

    @classmethod
    async def of(cls, caller: HubCaller, namespaces: Namespaces) -> Rights:
        """Look up what there is to know of a caller."""
        users = [] if caller.is_admin or caller.scope is None else [caller.name, caller.behalf]
        return cls(caller, {user: await namespaces.of(user) for user in users if user})

    def level(self, head: Head) -> Level:
        """What the caller may do with an environment."""
        caller = self.caller
        anyway = Level.READ if head.public or head.builtin else Level.NONE
        if caller.scope is None or not covers(list(caller.namespaces), head.name):
            return anyway
        level = self._token_level(head)
        if caller.behalf:
            level = min(level, self._user_level(caller.behalf, head), Level.READ)
        return max(level, anyway)

    def parts(self) -> Iterator[Part]:
        """Yield where everything lies that the caller may read, and perhaps more."""
        caller = self.caller
        yield Part((PUBLIC,))
        if caller.scope is None:
            return
        user = caller.behalf or caller.name
        yield from (Part((index,)) for index in (of_owner(user), of_grant(user), of_grant(EVERY_USER)))
        spaces = {space.name for space in self.spaces.get(user, ())}
        if not caller.behalf:
            spaces |= {space for space in caller.namespaces if space != "*"}
        for space in sorted(spaces):
            yield Part((), space, f"{space} ")  # that very name; the next characters are those of a range of names
            yield Part((), f"{space}-", f"{space}.")

    def in_namespace(self, space: Namespace) -> Level:
        """What the caller may do with every environment of a namespace."""
        caller = self.caller
        if caller.scope is None or not covers(list(caller.namespaces), space.name):
            return Level.NONE
        if caller.is_admin:
            return Level.OWN
        level = max(space.level(caller.name), self._given)
        return min(level, Level.READ) if caller.scope == "read" else level

    def _token_level(self, head: Head) -> Level:
        if self.caller.scope == "admin":
            return Level.OWN
        level = max(self._user_level(self.caller.name, head), self._given)
        return min(level, Level.READ) if self.caller.scope == "read" else level

    @property
    def _given(self) -> Level:
        """What the token itself grants in the namespaces that it names."""
        if "*" in self.caller.namespaces:
            return Level.NONE
        return Level.READ if self.caller.scope == "read" else Level.WRITE

    def _user_level(self, user: str, head: Head) -> Level:
        if head.owner and head.owner == user:
            return Level.OWN
        spaces = [space.level(user) for space in self.spaces.get(user, ()) if covers([space.name], head.name)]
        return max(_granted(head.grants, user), *spaces, Level.NONE)


def refuse_name(name: str, space: Namespace) -> Forbidden:
    """What to say to who may not add a name to a namespace."""
    return Forbidden(
        f"names that are {space.name} or start with {space.name}- are reserved for another user",
        name,
        {"hint": "Choose another name, or ask for a grant: aenv hub namespace grant"},
    )


def _granted(grants: Mapping[str, Access], user: str) -> Level:
    given = [_GRANTED[grants[each]] for each in (user, EVERY_USER) if each in grants]
    return max(given, default=Level.NONE)


def _of_user(user: str) -> str:
    return f"user/{quote(user, safe='*')}"


def _put(space: Namespace, expect: int = -1) -> Put:
    users = sorted({space.owner, *space.grants})
    entries = tuple((_of_user(user), space.name) for user in users)
    return Put(NAMESPACE, space.name, space.model_dump_json().encode(), entries, expect=expect)
