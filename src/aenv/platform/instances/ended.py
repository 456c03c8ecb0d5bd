"""Ended instances: the reason, the events and the last of the log, for an hour.

Kept in memory, and in the store if there is one, so that the next server can still answer. Both are bounded by number
and by the total size of the logs. Deleted instances are dropped before those that ended by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable, Iterator

from pydantic import BaseModel, ValidationError

from aenv.errors import AEnvError
from aenv.platform.instances.instance_record import InstanceRecord
from aenv.platform.instances.ledger import ENDED_TTL_SECONDS
from aenv.schema.instances import EnvInstance, InstanceEvent
from aenv.storage.base import Change, Delete, Put, Store
from aenv.tracing.logging import getLogger

log = getLogger("ended")

SPACE = "platform-ended"
MOST = 2000
"""Ended instances to keep, of each kind: deleted, and ended otherwise."""
LOGS = 16 * 1024 * 1024
"""Characters of all logs together."""
PAUSE = 0.25
"""Seconds between two writes to the store; instances that end in between are written in one batch."""
BUSY, BUSY_PAUSE = 100, 2.0
"""With so many pending writes, wait that many seconds more: at a thousand ends a second, most records are superseded
before they are written, and the store would take a tenth of the server's time."""
SLICE = 50
"""Records to serialise before yielding to the event loop."""
CLOSE_SECONDS = 5.0


class EndedRecord(BaseModel):
    """Stored record of an ended instance, without its variables, token and secret."""

    instance: EnvInstance
    account: str
    events: list[InstanceEvent] = []
    log: str = ""
    secret_sha256: str = ""
    """SHA-256 of the secret that gave clients without a token access."""

    @classmethod
    def of(cls, record: InstanceRecord) -> EndedRecord:
        """Return the stored form of an instance of this server."""
        return cls(
            instance=record.to_api(None),
            account=record.account,
            events=record.events,
            log=record.last_log,
            secret_sha256=_sha256(record.secret),
        )

    def is_opened_by(self, secret: str) -> bool:
        """Return True if this secret gave access while the instance ran."""
        return bool(self.secret_sha256) and hmac.compare_digest(_sha256(secret), self.secret_sha256)


class EndedInstances:
    """The ended instances of one server; those of earlier servers are in the store."""

    def __init__(self, store: Store | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._died: dict[str, InstanceRecord] = {}
        self._deleted: dict[str, InstanceRecord] = {}
        self._until: dict[str, float] = {}
        self._logged = 0
        self._changes: dict[str, Change | InstanceRecord] = {}
        """Pending writes. A record is serialised when it is written, so that its caller does not wait for that."""
        self._stored: set[str] = set()
        """Records of this server that are in the store."""
        self._writing: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[InstanceRecord]:
        self.prune()
        return iter([*self._died.values(), *self._deleted.values()])

    def __len__(self) -> int:
        return len(self._until)

    def add(self, record: InstanceRecord) -> None:
        """Remember an instance that has just ended."""
        self.discard(record.id)
        record.drop_secrets()
        (self._deleted if record.deleted else self._died)[record.id] = record
        self._until[record.id] = self._clock() + ENDED_TTL_SECONDS
        self._logged += len(record.last_log)
        if self._store is not None:
            self._write(record.id, record)
        self.prune()

    def get(self, name: str) -> InstanceRecord | None:
        """Return an ended instance of this server."""
        if self._until.get(name, 0.0) <= self._clock():
            return None
        return self._died.get(name) or self._deleted.get(name)

    async def read(self, name: str) -> EndedRecord | None:
        """Return an ended instance of this server, or of another one with the same store."""
        record = self.get(name)
        if record is not None:
            return EndedRecord.of(record)
        if self._store is None or not name.isascii() or not name.isprintable():
            return None
        found = await self._store.get(SPACE, name)
        try:
            return EndedRecord.model_validate_json(found.value) if found else None
        except ValidationError:  # written by another version
            return None

    def discard(self, name: str) -> None:
        """Forget one."""
        record = self._died.pop(name, None) or self._deleted.pop(name, None)
        if record is None:
            return
        del self._until[name]
        self._logged -= len(record.last_log)
        if name in self._stored:
            self._stored.discard(name)
            self._write(name, Delete(SPACE, name))
        else:
            self._changes.pop(name, None)  # it was never written

    def prune(self) -> None:
        """Forget records older than an hour, and the oldest beyond the limits."""
        now = self._clock()
        for kind in (self._deleted, self._died):
            while kind and (self._until[name := next(iter(kind))] <= now or len(kind) > MOST or self._is_full(kind)):
                self.discard(name)

    def _is_full(self, kind: dict[str, InstanceRecord]) -> bool:
        """Return True if the logs are too large together. One record of each kind always stays."""
        return self._logged > LOGS and len(kind) > 1

    async def close(self) -> None:
        """Write pending changes."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
        with contextlib.suppress(AEnvError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._flush()

    def _write(self, name: str, change: Change | InstanceRecord) -> None:
        self._changes[name] = change
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_soon())

    async def _write_soon(self) -> None:
        while self._changes:
            await asyncio.sleep(PAUSE)
            if len(self._changes) > BUSY:
                await asyncio.sleep(BUSY_PAUSE)
            try:
                await self._flush()
            except AEnvError as error:
                log.warning("cannot write %d ended instances to the store: %s", len(self._changes), error.message)
                await asyncio.sleep(1.0)

    def _put(self, record: InstanceRecord) -> Put:
        value = EndedRecord.of(record).model_dump_json(exclude_none=True).encode()
        return Put(SPACE, record.id, value, expires=self._until.get(record.id, self._clock() + ENDED_TTL_SECONDS))

    async def _flush(self) -> None:
        changes, self._changes = self._changes, {}
        if not changes or self._store is None:
            return
        # From here on they may reach the store, so discarding one of them deletes it there.
        self._stored.update(name for name, change in changes.items() if not isinstance(change, Delete))
        try:
            for number, (name, change) in enumerate(changes.items()):
                if isinstance(change, InstanceRecord):
                    changes[name] = self._put(change)
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)  # yield to the event loop
            await self._store.commit(*[change for change in changes.values() if not isinstance(change, InstanceRecord)])
        except BaseException:
            self._changes = changes | self._changes
            raise


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
