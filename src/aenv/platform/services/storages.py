"""Storages: folders of this machine that services write to, and that stay when a service goes.

A storage has one writer. Its size is not something that a plain folder can be held to by the kernel, so it is
measured: one that holds more than it may is read-only from then on, until it is given more.
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

from aenv.errors import AEnvError, Conflict, InvalidArguments, Unavailable
from aenv.isolation.files.trees import remove_tree, size_of_tree
from aenv.project import quantities
from aenv.storage.base import ABSENT, Delete, Put, Record, Stale, Store

STORAGE = "platform-storage"
FIRST_USER, USERS = 0x40000000, 0x20000000
"""The host's users that storages of a platform run by root belong to; no warm parent without a storage is one. So many
that the hash of a storage's id is nobody else's, also on the other platforms of this machine."""


class StorageRecord(BaseModel):
    """What is kept of a storage."""

    model_config = ConfigDict(frozen=True)

    name: str
    account: str
    size: str
    folder: str
    host: str
    service: str = ""
    """Who writes to it; empty: nobody."""

    @property
    def bytes(self) -> int:
        """How much it may hold."""
        return quantities.size(self.size)


class Storages:
    """All storages on this machine, below one folder."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._root = root
        self._host = socket.gethostname()

    async def take(self, account: str, name: str, size: str | None, service: str) -> StorageRecord:
        """One for a service to write to: the one of that name, else a new one.

        Raises:
            InvalidArguments: a new one needs a size.
            Conflict: another service writes to it, or it is on another machine.
        """
        found = await self._store.get(STORAGE, _key(account, name))
        if found is None:
            return await self._new(account, name, size, service)
        record = StorageRecord.model_validate_json(found.value)
        if record.host != self._host:
            raise Conflict(f"storage {name} is on {record.host}, and this is {self._host}")
        if record.service not in ("", service):
            raise Conflict(f"storage {name} belongs to service {record.service}: a storage has one writer")
        taken = record.model_copy(update={"service": service, "size": _larger(record, size)})
        await self._write(taken, found)
        return taken

    async def get(self, account: str, name: str) -> StorageRecord | None:
        """What is known of one."""
        found = await self._store.get(STORAGE, _key(account, name))
        return StorageRecord.model_validate_json(found.value) if found else None

    async def grow(self, account: str, name: str, size: str) -> StorageRecord:
        """Let it hold more."""
        found = await self._store.get(STORAGE, _key(account, name))
        if found is None:
            raise Conflict(f"there is no storage {name} any more")
        record = StorageRecord.model_validate_json(found.value)
        grown = record.model_copy(update={"size": _larger(record, size)})
        await self._write(grown, found)
        return grown

    async def let_go(self, account: str, name: str, service: str, *, delete: bool) -> None:
        """A service writes to it no more; with ``delete``, all that is in it is gone."""
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
        await asyncio.to_thread(remove_tree, record.folder)

    async def used(self, record: StorageRecord) -> int:
        """Bytes on disk."""
        return await asyncio.to_thread(size_of_tree, record.folder)

    async def _new(self, account: str, name: str, size: str | None, service: str) -> StorageRecord:
        if size is None:
            raise InvalidArguments(f"storage {name} is not there yet: say its size, like 10Gi, in storage_size")
        unique = f"{name[:80]}-{secrets.token_hex(6)}"  # never twice the same: who has one mounted may live on a while
        folder = self._root / unique
        record = StorageRecord(
            name=name, account=account, size=size, folder=str(folder), host=self._host, service=service
        )
        await asyncio.to_thread(_make, folder, record.bytes)
        try:
            await self._store.commit(
                Put(STORAGE, _key(account, name), record.model_dump_json().encode(), expect=ABSENT)
            )
        except AEnvError as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Stale):
                raise Conflict(f"storage {name} was made by somebody else just now; try again") from None
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
            raise Conflict(f"storage {record.name} was changed by somebody else just now; try again") from None


def _key(account: str, name: str) -> str:
    return hashlib.sha256(f"{account}\0{name}".encode()).hexdigest()


def _larger(record: StorageRecord, size: str | None) -> str:
    if size is None:
        return record.size
    if quantities.size(size) < record.bytes:
        raise InvalidArguments(f"storage {record.name} has {record.size}; it can be given more, not less")
    return size


def _make(folder: Path, size: int) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < size:
            raise Unavailable(f"a storage of {size} bytes does not fit: {free} are free below {folder.parent}")
        folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            user = owner(folder, _owners(folder.parent))
            os.chown(folder, user, user)
    except OSError as error:
        raise Unavailable(f"a storage cannot be made at {folder}: {error.strerror}") from error


def _owners(folder: Path) -> set[int]:
    found = set()
    for each in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is being removed
            found.add(each.stat().st_uid)
    return found


def owner(folder: Path, taken: Collection[int]) -> int:
    """Return the user for a storage: the same for the same folder, unless another storage has it."""
    user = FIRST_USER + int(hashlib.sha256(str(folder).encode()).hexdigest()[:8], 16) % USERS
    while user in taken:
        user = FIRST_USER + (user - FIRST_USER + 1) % USERS
    return user
