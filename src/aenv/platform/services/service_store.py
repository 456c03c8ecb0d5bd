"""Store of services: their wanted state, and their actual state.

Any server may change a service's record, and the server that runs the service acts on it. The actual state is stored
separately, and only that server writes it.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from aenv.errors import Conflict, NotFound
from aenv.platform.access.platform_tokens import Allowance, Caller, Role
from aenv.schema.instances import ServiceStatus
from aenv.storage.base import ABSENT, Delete, Put, Query, Stale, Store

SERVICE, STATE = "platform-service", "platform-service-state"
PAGE_SIZE = 200
MAX_ATTEMPTS = 10


class ServiceSpec(BaseModel):
    """Environment and variables of a replica."""

    model_config = ConfigDict(frozen=True)

    revision: int = 1
    env: str
    """With its version, so that a restart runs the same code."""
    variables: dict[str, str] = Field(default_factory=dict)


class ServiceClaim(BaseModel):
    """A service's claim on a storage."""

    model_config = ConfigDict(frozen=True)

    name: str
    size: str
    mount_path: str


class ServiceRecord(BaseModel):
    """Wanted state of a service."""

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
    """Specification before the update under way."""
    newest: int = 1
    """Highest revision number used so far."""
    failed: str | None = None
    """Reason why the last update was rolled back."""
    cpus: float | None = None
    memory: int | None = None
    disk: int | None = None
    storage: ServiceClaim | None = None
    port: int | None = None
    """Port in a replica that its URL leads to; None: the environment's own server."""
    host: str = ""
    """Machine that holds its storage."""
    server: str = ""
    """Id of the server that runs it; empty: none, until one takes it over."""
    ending: bool = False
    ending_storage: bool = False
    """Delete its storage too."""

    @property
    def caller(self) -> Caller:
        """The caller that its replicas belong to and are charged to."""
        return Caller(self.account, self.role, self.token_id, self.allowance)


class ServiceState(BaseModel):
    """Actual state of a service."""

    status: ServiceStatus = ServiceStatus.CREATING
    available: int = 0
    reason: str | None = None
    restarts: int = 0
    instances: list[str] = Field(default_factory=list)
    storage_used: int | None = None


class ServiceStore:
    """Reads and writes services."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, record: ServiceRecord) -> None:
        """Add a service.

        Raises:
            Conflict: the name is taken.
        """
        try:
            await self._store.commit(Put(SERVICE, record.id, record.model_dump_json().encode(), expect=ABSENT))
        except Stale:
            raise Conflict(f"service {record.id} already exists; choose another name") from None

    async def get(self, name: str) -> ServiceRecord | None:
        """Return the record of a service."""
        found = await self._store.get(SERVICE, name)
        return ServiceRecord.model_validate_json(found.value) if found else None

    async def change(self, name: str, change: Callable[[ServiceRecord], ServiceRecord]) -> ServiceRecord:
        """Change a record atomically: retry if another server changed it in between."""
        for _ in range(MAX_ATTEMPTS):
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
        """Remove a service's record and state."""
        await self._store.commit(Delete(SERVICE, name), Delete(STATE, name))

    async def all(self) -> list[ServiceRecord]:
        """Return all records, ordered by name."""
        records = self._store.all(Query(SERVICE, limit=PAGE_SIZE))
        return [ServiceRecord.model_validate_json(record.value) async for record in records]

    async def state(self, name: str) -> ServiceState:
        """Return the state that was last written."""
        found = await self._store.get(STATE, name)
        return ServiceState.model_validate_json(found.value) if found else ServiceState()

    async def set_state(self, name: str, state: ServiceState) -> None:
        """Write the state of a service."""
        await self._store.commit(Put(STATE, name, state.model_dump_json().encode()))
