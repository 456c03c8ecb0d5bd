"""The ledger: instances and servers in the store, for other servers and for the next one.

Many instances are created at once, so changes are collected and written in batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from pydantic import BaseModel

from aenv.errors import AEnvError, Conflict
from aenv.isolation.kernel.process_identity import is_running, start_time
from aenv.schema.instances import EndedBy, EnvInstance, EnvStatus
from aenv.storage.base import Change, Delete, Put, Query, Store
from aenv.tracing.logging import getLogger

log = getLogger("ledger")

INSTANCE, SERVER, ALIVE = "platform-instance", "platform-server", "alive"
ENDED_TTL_SECONDS = 3600.0
"""Keep the entry of an ended instance, with its reason, for this long."""
HEARTBEAT_SECONDS, DEAD_AFTER_SECONDS = 10.0, 35.0
"""Heartbeat interval of a server, and the silence after which others count it as dead."""
SERVER_TTL_SECONDS = 30 * 86400.0
"""Keep the entry of a server for this long after its last heartbeat."""
RETRY_SECONDS = 0.5
"""Pause after a failed write to the store."""
PAGE_SIZE = 200


class Charge(BaseModel):
    """Usage that an instance counts against a token's allowance."""

    token: str = ""
    cpus: float = 0.0
    memory: int = 0


class LedgerEntry(BaseModel):
    """Stored entry of an instance. Its variables are left out: they may hold secrets."""

    instance: EnvInstance
    account: str
    server: str
    charge: Charge = Charge()


NO_CHARGE = Charge()


class ServerEntry(BaseModel):
    """A platform server, for its peers and its successor."""

    id: str
    host: str
    pid: int
    started: str
    """Start time as the kernel reports it, since process ids are reused."""
    keeper: int = 0
    """Process id of the file descriptor holder, which keeps the instances if the server is killed; 0: none."""
    keeper_started: str = ""
    patience: float = 0.0
    """Seconds for which the holder waits for the next server."""
    url: str = ""
    """URL for its peers."""
    certificate: str = ""
    """SHA-256 of its TLS certificate at that URL, if it has one."""

    @classmethod
    def own(cls, name: str = "", patience: float = 0.0) -> ServerEntry:
        """Return the entry of this process. ``name``: stays the same for the next server in its place."""
        host, pid = socket.gethostname(), os.getpid()
        started = start_time(pid) or ""
        return cls(id=name or f"{host}-{pid}-{started}", host=host, pid=pid, started=started, patience=patience)

    @property
    def is_dead(self) -> bool:
        """True if its instances are known to have ended.

        Always False for a server on another machine, which may only be silent.
        """
        return self.host == socket.gethostname() and not (
            is_running(self.pid, self.started) or is_running(self.keeper, self.keeper_started)
        )


class Ledger:
    """Records the instances of one server in the store."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.time,
        *,
        server: ServerEntry | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.server = server or ServerEntry.own()
        self._monotonic = monotonic
        self._heartbeats: dict[str, tuple[int, float]] = {}
        """Last seen heartbeat of each other server, and when it was first seen (monotonic)."""
        self._clock = clock
        self._changes: dict[str, Change] = {}
        self._deleting: set[str] = set()  # deleted here, but not yet in the store
        self._batch_written: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> int:
        """Announce this server, and mark instances of dead servers as ended; return how many."""
        await self._heartbeat()
        ended = await self.end_lost()
        self._tasks = [asyncio.create_task(self._write_loop()), asyncio.create_task(self._heartbeat_loop())]
        return ended

    async def close(self, *, hand_over: bool = False) -> None:
        """Write pending changes and close. ``hand_over``: keep this server's entry, so that the next one adopts its
        instances.
        """
        if self._changes:
            with contextlib.suppress(AEnvError, TimeoutError):
                async with asyncio.timeout(5):
                    await self._flush()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not hand_over:
            with contextlib.suppress(AEnvError):
                await self.store.commit(Delete(SERVER, self.server.id))

    def set_fd_holder(self, pid: int) -> None:
        """Announce, with the next heartbeat, the process that keeps this server's instances if it is killed."""
        self.server = self.server.model_copy(update={"keeper": pid, "keeper_started": start_time(pid) or ""})

    async def announce_url(self, url: str, certificate: str = "") -> None:
        """Announce the URL by which peers reach this server."""
        self.server = self.server.model_copy(update={"url": url, "certificate": certificate})
        await self._heartbeat()

    async def servers(self) -> list[ServerEntry]:
        """Return the other servers that are alive."""
        records = self.store.all(Query(SERVER, limit=PAGE_SIZE))
        found = [ServerEntry.model_validate_json(record.value) async for record in records]
        return [each for each in found if each.id != self.server.id and not each.is_dead]

    async def server_entry(self, server_id: str) -> ServerEntry | None:
        """Return one server; None if it is dead."""
        found = await self.store.get(SERVER, server_id)
        server = ServerEntry.model_validate_json(found.value) if found else None
        return None if server is None or server.is_dead else server

    async def alive(self) -> AsyncIterator[LedgerEntry]:
        """Yield the entries of all running instances, of every server."""
        async for record in self.store.all(Query(INSTANCE, (ALIVE,), limit=PAGE_SIZE)):
            yield LedgerEntry.model_validate_json(record.value)

    async def write(self, instance: EnvInstance, account: str, charge: Charge = NO_CHARGE) -> None:
        """Write an instance to the store.

        Raises:
            Unavailable: the store cannot be reached; nothing was written.
        """
        self.write_soon(instance, account, charge)
        try:
            await self._flush()
        except AEnvError:
            self._changes.pop(instance.id, None)
            raise

    def write_soon(self, instance: EnvInstance, account: str, charge: Charge = NO_CHARGE) -> None:
        """Write an instance with the next batch."""
        public = instance.model_copy(update={"ip": None, "token": None, "data_url": None, "usage": None})
        entry = LedgerEntry(instance=public, account=account, server=self.server.id, charge=charge)
        self._changes[instance.id] = self._put(entry)
        self._wake.set()

    def delete_soon(self, name: str) -> None:
        """Delete an instance's entry with the next batch."""
        self._changes[name] = Delete(INSTANCE, name)
        self._deleting.add(name)
        self._wake.set()

    async def charged_elsewhere(self, token: str) -> list[Charge]:
        """Return what instances on other servers use of a token's allowance."""
        records = self.store.all(Query(INSTANCE, (_token_index(token),), limit=PAGE_SIZE))
        entries = [LedgerEntry.model_validate_json(record.value) async for record in records]
        return [entry.charge for entry in entries if entry.server != self.server.id]

    async def get(self, name: str) -> LedgerEntry | None:
        """Return the entry of an instance."""
        found = None if name in self._deleting else await self.store.get(INSTANCE, name)
        return LedgerEntry.model_validate_json(found.value) if found else None

    async def end_lost(self) -> int:
        """Mark instances of dead servers as ended; return how many."""

        async def select(entries: list[LedgerEntry]) -> set[str]:
            dead = await self._dead_servers({entry.server for entry in entries})
            return {entry.instance.id for entry in entries if entry.server in dead}

        return await self._end_where(select)

    async def end_missing(self, present: set[str]) -> int:
        """Mark instances of this server's predecessor as ended, except those ``present``; return how many."""

        async def select(entries: list[LedgerEntry]) -> set[str]:
            return {e.instance.id for e in entries if e.server == self.server.id and e.instance.id not in present}

        return await self._end_where(select)

    async def _end_where(self, select: Callable[[list[LedgerEntry]], Awaitable[set[str]]]) -> int:
        ended, after = 0, None
        while True:
            page = await self.store.page(Query(INSTANCE, (ALIVE,), after=after, limit=PAGE_SIZE))
            entries = {record.key: LedgerEntry.model_validate_json(record.value) for record in page.records}
            revisions = {record.key: record.revision for record in page.records}
            for name in await select(list(entries.values())):
                with contextlib.suppress(Conflict):  # another server was faster
                    await self.store.commit(self._put(_lost(entries[name]), revisions[name]))
                    ended += 1
            after = page.next
            if after is None:
                return ended

    async def is_server_gone(self, name: str) -> bool:
        """Return True if the server with that id is dead. False for this server."""
        return not name or (name != self.server.id and bool(await self._dead_servers({name})))

    async def _dead_servers(self, names: set[str]) -> set[str]:
        """Return those servers that are known to be dead, or whose heartbeat has not changed for too long.

        Measured with this server's monotonic clock: wall clocks may be set.
        """
        others, dead = sorted(names - {self.server.id}), set()
        for name, record in zip(others, await self.store.get_many(SERVER, others), strict=True):
            if record is None:
                dead.add(name)
                continue
            entry, now = ServerEntry.model_validate_json(record.value), self._monotonic()
            beat, since = self._heartbeats.get(name, (-1, now))
            if beat != record.revision:
                since = now
            self._heartbeats[name] = (record.revision, since)
            if entry.is_dead or now - since > DEAD_AFTER_SECONDS + entry.patience:
                dead.add(name)
        return dead

    def _put(self, entry: LedgerEntry, expect: int = -1) -> Put:
        alive = entry.instance.status not in (EnvStatus.FAILED, EnvStatus.TERMINATED)
        indexes = (ALIVE, _token_index(entry.charge.token)) if entry.charge.token else (ALIVE,)
        return Put(
            INSTANCE,
            entry.instance.id,
            entry.model_dump_json(exclude_none=True).encode(),
            tuple((index, entry.instance.id) for index in indexes) if alive else (),
            None if alive else self._clock() + ENDED_TTL_SECONDS,
            expect,
        )

    async def _flush(self) -> None:
        if self._batch_written is None:
            self._batch_written = asyncio.get_running_loop().create_future()
        self._wake.set()
        await asyncio.shield(self._batch_written)

    async def _write_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changes, self._changes = self._changes, {}
            written, self._batch_written = self._batch_written, None
            try:
                if changes:
                    await self.store.commit(*changes.values())
            except AEnvError as error:
                log.warning("cannot write %d changes to the store: %s", len(changes), error.message)
                self._changes = {**changes, **self._changes}
                if written is not None:
                    written.add_done_callback(lambda future: future.exception())  # the waiter may have been cancelled
                    written.set_exception(error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
            else:
                self._deleting -= {name for name, change in changes.items() if isinstance(change, Delete)}
                if written is not None:
                    written.set_result(None)

    async def _heartbeat(self) -> None:
        value = self.server.model_dump_json().encode()
        await self.store.commit(Put(SERVER, self.server.id, value, expires=self._clock() + SERVER_TTL_SECONDS))

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await self._heartbeat()
                await self.end_lost()
            except AEnvError as error:
                log.warning("the store does not answer: %s", error.message)


def _token_index(token: str) -> str:
    """Index of the running instances that are charged to a token."""
    return f"token-{token}"


def _lost(entry: LedgerEntry) -> LedgerEntry:
    """Return the entry of an instance whose server is gone."""
    was_created = entry.instance.status != EnvStatus.CREATING
    reason = "the server that it ran on has ended" if was_created else "the server ended while it was being created"
    status = EnvStatus.TERMINATED if was_created else EnvStatus.FAILED
    end = {"status": status, "reason": reason, "ended_by": EndedBy.LOST, "fault": "infra"}
    instance = entry.instance.model_copy(update=end)
    return entry.model_copy(update={"instance": instance})
