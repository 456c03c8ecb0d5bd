"""What instances there are, kept in a store: for a server that comes after this one, and for others beside it.

Many instances are made at once, so what is to be written is gathered and written in one go.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from pydantic import BaseModel

from aenv.errors import AEnvError, Conflict
from aenv.schema.instances import EndedBy, EnvInstance, EnvStatus
from aenv.storage.base import Change, Delete, Put, Query, Store
from aenv.tracing.logging import getLogger

log = getLogger("ledger")

INSTANCE, SERVER, ALIVE = "platform-instance", "platform-server", "alive"
KEPT = 3600.0
"""Seconds for which it is known of an ended instance why it ended."""
BEAT, DEAD_AFTER = 10.0, 35.0
FORGOTTEN = 30 * 86400.0
"""Seconds for which it is known of a server that it was there."""
AGAIN = 0.5
BATCH = 200


class Charge(BaseModel):
    """Whose allowance it uses, and how much of it."""

    token: str = ""
    cpus: float = 0.0
    memory: int = 0


class LedgerEntry(BaseModel):
    """What is kept of an instance. Its variables are not: they may hold secrets."""

    instance: EnvInstance
    account: str
    server: str
    charge: Charge = Charge()


NOBODYS = Charge()


class ServerEntry(BaseModel):
    """A server, as those beside it and after it know it."""

    id: str
    host: str
    pid: int
    started: str
    """By the kernel's account, as process ids come again."""
    keeper: int = 0
    """The process that has its instances should it be killed; 0: none has."""
    keeper_started: str = ""
    patience: float = 0.0
    """Seconds for which that waits for the next server."""
    url: str = ""
    """Where those beside it reach it."""
    certificate: str = ""
    """The SHA-256 of what it shows there, if that is TLS."""

    @classmethod
    def own(cls, name: str = "", patience: float = 0.0) -> ServerEntry:
        """This process, under the name that the next server in its place will have, too."""
        host, pid = socket.gethostname(), os.getpid()
        started = _start_of(pid) or ""
        return cls(id=name or f"{host}-{pid}-{started}", host=host, pid=pid, started=started, patience=patience)

    @property
    def is_dead(self) -> bool:
        """Whether its instances are known to have ended. What runs on another machine may only have been silent for
        too long.
        """
        return self.host == socket.gethostname() and not (
            _runs(self.pid, self.started) or _runs(self.keeper, self.keeper_started)
        )


class Ledger:
    """Writes down instances of one server."""

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
        self._beats: dict[str, tuple[int, float]] = {}
        """Of other servers: the last, and when we first saw it."""
        self._clock = clock
        self._changes: dict[str, Change] = {}
        self._struck_out: set[str] = set()  # and not yet in the store
        self._written: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> int:
        """Say that we are here, and clear away what servers before us have left; how many instances that was."""
        await self._beat()
        cleared = await self.clear()
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._keep_beating())]
        return cleared

    async def close(self, *, leave: bool = False) -> None:
        """Write what is left, and go. ``leave``: instances wait for the next server."""
        if self._changes:
            with contextlib.suppress(AEnvError, TimeoutError):
                async with asyncio.timeout(5):
                    await self._flushed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not leave:
            with contextlib.suppress(AEnvError):
                await self.store.commit(Delete(SERVER, self.server.id))

    def kept_by(self, keeper: int) -> None:
        """Say soon which process has this server's instances should it be killed."""
        self.server = self.server.model_copy(update={"keeper": keeper, "keeper_started": _start_of(keeper) or ""})

    async def listens_at(self, url: str, certificate: str = "") -> None:
        """Say where others reach this server."""
        self.server = self.server.model_copy(update={"url": url, "certificate": certificate})
        await self._beat()

    async def servers(self) -> list[ServerEntry]:
        """The others that live."""
        records = self.store.all(Query(SERVER, limit=BATCH))
        found = [ServerEntry.model_validate_json(record.value) async for record in records]
        return [each for each in found if each.id != self.server.id and not each.is_dead]

    async def server_of(self, server_id: str) -> ServerEntry | None:
        """One of them; None when it is gone."""
        found = await self.store.get(SERVER, server_id)
        server = ServerEntry.model_validate_json(found.value) if found else None
        return None if server is None or server.is_dead else server

    async def alive(self) -> AsyncIterator[LedgerEntry]:
        """What is written of all instances that have not ended, on every server."""
        async for record in self.store.all(Query(INSTANCE, (ALIVE,), limit=BATCH)):
            yield LedgerEntry.model_validate_json(record.value)

    async def keep(self, instance: EnvInstance, account: str, charge: Charge = NOBODYS) -> None:
        """Write it down; return when that is done.

        Raises:
            Unavailable: the store cannot be reached; it is not written.
        """
        self.note(instance, account, charge)
        try:
            await self._flushed()
        except AEnvError:
            self._changes.pop(instance.id, None)
            raise

    def note(self, instance: EnvInstance, account: str, charge: Charge = NOBODYS) -> None:
        """Write it down soon."""
        bare = instance.model_copy(update={"ip": None, "token": None, "data_url": None, "usage": None})
        entry = LedgerEntry(instance=bare, account=account, server=self.server.id, charge=charge)
        self._changes[instance.id] = self._put(entry)
        self._wake.set()

    def forget(self, name: str) -> None:
        """Strike it out soon."""
        self._changes[name] = Delete(INSTANCE, name)
        self._struck_out.add(name)
        self._wake.set()

    async def charged_elsewhere(self, token: str) -> list[Charge]:
        """What instances of other servers use of a token's allowance."""
        records = self.store.all(Query(INSTANCE, (_of(token),), limit=BATCH))
        entries = [LedgerEntry.model_validate_json(record.value) async for record in records]
        return [entry.charge for entry in entries if entry.server != self.server.id]

    async def get(self, name: str) -> LedgerEntry | None:
        """What is written of one."""
        found = None if name in self._struck_out else await self.store.get(INSTANCE, name)
        return LedgerEntry.model_validate_json(found.value) if found else None

    async def clear(self) -> int:
        """What belongs to servers that are gone has ended with them; how many instances that was."""

        async def gone(entries: list[LedgerEntry]) -> set[str]:
            dead = await self._dead({entry.server for entry in entries})
            return {entry.instance.id for entry in entries if entry.server in dead}

        return await self._clear(gone)

    async def settle(self, there: set[str]) -> int:
        """Of what the server before us in this place had, only these are there; how many were not."""

        async def gone(entries: list[LedgerEntry]) -> set[str]:
            return {e.instance.id for e in entries if e.server == self.server.id and e.instance.id not in there}

        return await self._clear(gone)

    async def _clear(self, gone: Callable[[list[LedgerEntry]], Awaitable[set[str]]]) -> int:
        cleared, after = 0, None
        while True:
            page = await self.store.page(Query(INSTANCE, (ALIVE,), after=after, limit=BATCH))
            entries = {record.key: LedgerEntry.model_validate_json(record.value) for record in page.records}
            revisions = {record.key: record.revision for record in page.records}
            for name in await gone(list(entries.values())):
                with contextlib.suppress(Conflict):  # another server was faster
                    await self.store.commit(self._put(_ended(entries[name]), revisions[name]))
                    cleared += 1
            after = page.next
            if after is None:
                return cleared

    async def is_gone(self, name: str) -> bool:
        """Whether the server of that id, other than this one, runs no more."""
        return not name or (name != self.server.id and bool(await self._dead({name})))

    async def _dead(self, names: set[str]) -> set[str]:
        """Those of them that are known to be gone, or have been silent for too long by our own watch.

        Not by anybody's clock: that may be set.
        """
        others, dead = sorted(names - {self.server.id}), set()
        for name, record in zip(others, await self.store.get_many(SERVER, others), strict=True):
            if record is None:
                dead.add(name)
                continue
            entry, now = ServerEntry.model_validate_json(record.value), self._monotonic()
            beat, since = self._beats.get(name, (-1, now))
            if beat != record.revision:
                since = now
            self._beats[name] = (record.revision, since)
            if entry.is_dead or now - since > DEAD_AFTER + entry.patience:
                dead.add(name)
        return dead

    def _put(self, entry: LedgerEntry, expect: int = -1) -> Put:
        alive = entry.instance.status not in (EnvStatus.FAILED, EnvStatus.TERMINATED)
        indexes = (ALIVE, _of(entry.charge.token)) if entry.charge.token else (ALIVE,)
        return Put(
            INSTANCE,
            entry.instance.id,
            entry.model_dump_json(exclude_none=True).encode(),
            tuple((index, entry.instance.id) for index in indexes) if alive else (),
            None if alive else self._clock() + KEPT,
            expect,
        )

    async def _flushed(self) -> None:
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        self._wake.set()
        await asyncio.shield(self._written)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changes, self._changes = self._changes, {}
            written, self._written = self._written, None
            try:
                if changes:
                    await self.store.commit(*changes.values())
            except AEnvError as error:
                log.warning("%d changes could not be written down: %s", len(changes), error.message)
                self._changes = {**changes, **self._changes}
                if written is not None:
                    written.add_done_callback(lambda future: future.exception())  # who asked may be gone
                    written.set_exception(error)
                await asyncio.sleep(AGAIN)
                self._wake.set()
            else:
                self._struck_out -= {name for name, change in changes.items() if isinstance(change, Delete)}
                if written is not None:
                    written.set_result(None)

    async def _beat(self) -> None:
        value = self.server.model_dump_json().encode()
        await self.store.commit(Put(SERVER, self.server.id, value, expires=self._clock() + FORGOTTEN))

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            try:
                await self._beat()
                await self.clear()
            except AEnvError as error:
                log.warning("the store does not answer: %s", error.message)


def _of(token: str) -> str:
    """The index of what is alive and charged to a token."""
    return f"token-{token}"


def _ended(entry: LedgerEntry) -> LedgerEntry:
    """What is to be written of it once nobody has it any more."""
    made = entry.instance.status != EnvStatus.CREATING
    reason = "the server that it ran on has ended" if made else "the server ended while it was being made"
    status = EnvStatus.TERMINATED if made else EnvStatus.FAILED
    end = {"status": status, "reason": reason, "ended_by": EndedBy.LOST, "fault": "infra"}
    instance = entry.instance.model_copy(update=end)
    return entry.model_copy(update={"instance": instance})


def _runs(pid: int, started: str) -> bool:
    return pid > 0 and _start_of(pid) == started


def _start_of(pid: int) -> str | None:
    """When a process started, in the kernel's ticks and boots; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{stat[19]}-{Path('/proc/sys/kernel/random/boot_id').read_text()[:8]}"
    except OSError:
        return None
