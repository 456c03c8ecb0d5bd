"""What services there are to be, kept in a store.

The record of a service is what is wanted; any server may change it, and the one that runs the service acts on it. How
things are is kept beside it, and written by that one alone.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from aenv.errors import Conflict, NotFound
from aenv.platform.access.platform_tokens import Allowance, Caller, Role
from aenv.schema.instances import ServiceStatus
from aenv.storage.base import ABSENT, Delete, Put, Query, Stale, Store

SERVICE, STATE = "platform-service", "platform-service-state"
BATCH = 200
TRIES = 10


class ServiceSpec(BaseModel):
    """What a replica runs."""

    model_config = ConfigDict(frozen=True)

    revision: int = 1
    env: str
    """With its version: what is started again is what was started."""
    variables: dict[str, str] = Field(default_factory=dict)


class ServiceClaim(BaseModel):
    """A service's hold on a storage."""

    model_config = ConfigDict(frozen=True)

    name: str
    size: str
    mount_path: str


class ServiceRecord(BaseModel):
    """What is wanted."""

    model_config = ConfigDict(frozen=True)

    id: str
    account: str
    role: Role = "user"
    token_id: str = ""
    allowance: Allowance = Field(default_factory=Allowance)
    request_id: str | None = None
    owner: str | None = None
    labels: dict[str, str] | None = None
    network: str | list[str] | None = None
    created_at: str
    updated_at: str
    replicas: int
    target: ServiceSpec
    previous: ServiceSpec | None = None
    """What ran before, while an update is under way."""
    newest: int = 1
    """The last revision that was given out."""
    failed: str | None = None
    """Why the last update is not what runs."""
    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    storage: ServiceClaim | None = None
    host: str = ""
    """The machine that its storage is on."""
    server: str = ""
    """Who keeps it running; empty: nobody, until somebody takes it."""
    ending: bool = False
    ending_storage: bool = False
    """Whether its storage goes too."""

    @property
    def caller(self) -> Caller:
        """Whom its replicas belong to, and are counted for."""
        return Caller(self.account, self.role, self.token_id, self.allowance)


class ServiceState(BaseModel):
    """How things are."""

    status: ServiceStatus = ServiceStatus.CREATING
    available: int = 0
    reason: str | None = None
    restarts: int = 0
    instances: list[str] = Field(default_factory=list)
    storage_used: int | None = None


class ServiceStore:
    """Reads and writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, record: ServiceRecord) -> None:
        """A new one.

        Raises:
            Conflict: there is one of that name.
        """
        try:
            await self._store.commit(Put(SERVICE, record.id, record.model_dump_json().encode(), expect=ABSENT))
        except Stale:
            raise Conflict(f"there is a service {record.id} already; choose another name") from None

    async def get(self, name: str) -> ServiceRecord | None:
        """One of them."""
        found = await self._store.get(SERVICE, name)
        return ServiceRecord.model_validate_json(found.value) if found else None

    async def change(self, name: str, change: Callable[[ServiceRecord], ServiceRecord]) -> ServiceRecord:
        """Change one, whoever else does at the same time."""
        for _ in range(TRIES):
            found = await self._store.get(SERVICE, name)
            if found is None:
                raise NotFound(f"no service {name}")
            before = ServiceRecord.model_validate_json(found.value)
            after = change(before)
            if after == before:
                return after
            try:
                await self._store.commit(Put(SERVICE, name, after.model_dump_json().encode(), expect=found.revision))
            except Stale:
                continue
            return after
        raise Conflict(f"service {name} is being changed by others; try again")

    async def remove(self, name: str) -> None:
        """It is no more."""
        await self._store.commit(Delete(SERVICE, name), Delete(STATE, name))

    async def all(self) -> list[ServiceRecord]:
        """Every one, in the order of their names."""
        records = self._store.all(Query(SERVICE, limit=BATCH))
        return [ServiceRecord.model_validate_json(record.value) async for record in records]

    async def state(self, name: str) -> ServiceState:
        """How one was when that was last written."""
        found = await self._store.get(STATE, name)
        return ServiceState.model_validate_json(found.value) if found else ServiceState()

    async def note(self, name: str, state: ServiceState) -> None:
        """How one is."""
        await self._store.commit(Put(STATE, name, state.model_dump_json().encode()))
