"""Storages: folders of this machine that services write to, and that outlive a service.

A storage has one writer. The kernel cannot limit the size of a plain folder, so its size is measured: a storage that
exceeds it becomes read-only until it is given more.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import socket
from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from aenv.engines.base import Engine
from aenv.errors import AEnvError, Conflict, InvalidArguments, Unavailable
from aenv.isolation.files.trees import remove_tree, size_of_tree
from aenv.schema import quantities
from aenv.storage.base import ABSENT, Delete, Put, Record, Stale, Store

STORAGE = "platform-storage"
FIRST_UID, UID_COUNT = 0x40000000, 0x20000000
"""Host user ids for storages of a platform that runs as root; no preloaded parent without a storage uses them.

The range is large enough that the hash of a storage's id is practically unique, across all platforms of the machine.
"""


class StorageRecord(BaseModel):
    """Stored record of a storage."""

    model_config = ConfigDict(frozen=True)

    name: str
    account: str
    size: str
    folder: str
    host: str
    service: str = ""
    """The service that writes to it; empty: none."""

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return quantities.size(self.size)


class Storages:
    """All storages on this machine, below one folder."""

    def __init__(self, store: Store, root: Path, engine: Engine | None = None) -> None:
        """``engine``: keeps the storages, if it has the capability. Otherwise they are folders below ``root``."""
        self._store = store
        self._root = root
        self._engine = engine if engine is not None and engine.capabilities.storages else None
        self._host = "" if self._engine is not None else socket.gethostname()

    @property
    def host(self) -> str:
        """The machine that the storages are on; empty: any server can use them."""
        return self._host

    async def take(self, account: str, name: str, size: str | None, service: str) -> StorageRecord:
        """Claim a storage for a service; create it if there is none of that name.

        Raises:
            InvalidArguments: a new storage needs a size.
            Conflict: another service writes to it, or it is on another machine.
        """
        found = await self._store.get(STORAGE, _key(account, name))
        if found is None:
            return await self._new(account, name, size, service)
        record = StorageRecord.model_validate_json(found.value)
        if record.host != self._host:
            where = [f"on {host}" if host else "in the cluster" for host in (record.host, self._host)]
            raise Conflict(f"storage {name} is {where[0]}, not {where[1]}")
        if record.service not in ("", service):
            raise Conflict(f"storage {name} belongs to service {record.service}: a storage has one writer")
        taken = record.model_copy(update={"service": service, "size": _larger(record, size)})
        await self._write(taken, found)
        return taken

    async def get(self, account: str, name: str) -> StorageRecord | None:
        """Return the record of a storage."""
        found = await self._store.get(STORAGE, _key(account, name))
        return StorageRecord.model_validate_json(found.value) if found else None

    async def grow(self, account: str, name: str, size: str) -> StorageRecord:
        """Increase its size."""
        found = await self._store.get(STORAGE, _key(account, name))
        if found is None:
            raise Conflict(f"storage {name} no longer exists")
        record = StorageRecord.model_validate_json(found.value)
        grown = record.model_copy(update={"size": _larger(record, size)})
        await self._write(grown, found)
        return grown

    async def release(self, account: str, name: str, service: str, *, delete: bool) -> None:
        """Release a service's claim; with ``delete``, delete the storage and its files."""
        found = await self._store.get(STORAGE, _key(account, name))
        if found is None:
            return
        record = StorageRecord.model_validate_json(found.value)
        if record.service not in ("", service):
            return
        if not delete:
            await self._write(record.model_copy(update={"service": ""}), found)
            return
        await self._store.commit(Delete(STORAGE, _key(account, name)))
        if record.host:
            await asyncio.to_thread(remove_tree, record.folder)
        elif self._engine is not None:
            await self._engine.remove_storage(record.folder)

    async def used(self, record: StorageRecord) -> int:
        """Return its bytes on disk; 0 for a storage of the engine's, which limits its size itself."""
        if not record.host:
            return 0
        return await asyncio.to_thread(size_of_tree, record.folder)

    async def _new(self, account: str, name: str, size: str | None, service: str) -> StorageRecord:
        if size is None:
            raise InvalidArguments(f"storage {name} does not exist yet; give its size in storage_size, such as 10Gi")
        # Never reused: a sandbox that mounts an old one may live on for a while.
        unique = f"{name[:80]}-{secrets.token_hex(6)}"
        folder = self._root / unique
        record = StorageRecord(
            name=name, account=account, size=size, folder=str(folder), host=self._host, service=service
        )
        if self._engine is not None:
            record = record.model_copy(update={"folder": await self._engine.make_storage(name, record.bytes)})
        else:
            await asyncio.to_thread(_create_folder, folder, record.bytes)
        try:
            await self._store.commit(
                Put(STORAGE, _key(account, name), record.model_dump_json().encode(), expect=ABSENT)
            )
        except AEnvError as error:
            if self._engine is not None:
                await self._engine.remove_storage(record.folder)
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Stale):
                raise Conflict(f"storage {name} was created by another request at the same time; try again") from None
            raise
        return record

    async def _write(self, record: StorageRecord, found: Record) -> None:
        try:
            await self._store.commit(
                Put(
                    STORAGE,
                    _key(record.account, record.name),
                    record.model_dump_json().encode(),
                    expect=found.revision,
                )
            )
        except Stale:
            raise Conflict(
                f"storage {record.name} was changed by another request at the same time; try again"
            ) from None


def _key(account: str, name: str) -> str:
    return hashlib.sha256(f"{account}\0{name}".encode()).hexdigest()


def _larger(record: StorageRecord, size: str | None) -> str:
    if size is None:
        return record.size
    if quantities.size(size) < record.bytes:
        raise InvalidArguments(f"storage {record.name} has {record.size}; a storage can grow, but not shrink")
    if not record.host and quantities.size(size) > record.bytes:
        raise InvalidArguments(f"storage {record.name} has {record.size}, and storages of this engine cannot grow")
    return size


def _create_folder(folder: Path, size: int) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < size:
            raise Unavailable(f"not enough space for a storage of {size} bytes: {free} are free in {folder.parent}")
        folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            user = owner(folder, _owners(folder.parent))
            os.chown(folder, user, user)
    except OSError as error:
        raise Unavailable(f"cannot create a storage at {folder}: {error.strerror}") from error


def _owners(folder: Path) -> set[int]:
    found = set()
    for each in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is being removed
            found.add(each.stat().st_uid)
    return found


def owner(folder: Path, taken: Collection[int]) -> int:
    """Return the user id for a storage: derived from its folder, or the next one free if another storage has that."""
    user = FIRST_UID + int(hashlib.sha256(str(folder).encode()).hexdigest()[:8], 16) % UID_COUNT
    while user in taken:
        user = FIRST_UID + (user - FIRST_UID + 1) % UID_COUNT
    return user
