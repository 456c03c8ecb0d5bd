"""Look up instances: of this server, of other servers on the same store, and ended ones."""

from __future__ import annotations

import contextlib

from aenv.errors import InstanceEnded, NotFound, ended_message
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.instances.ended import EndedInstances, EndedRecord
from aenv.platform.instances.instance_record import ENDED, InstanceRecord
from aenv.platform.instances.ledger import Ledger
from aenv.schema.instances import EnvInstance, EnvInstanceCreateRequest


class InstanceLookup:
    """The instances of this server by id and by request, with the ledger for those of other servers."""

    def __init__(self, ledger: Ledger | None, ended: EndedInstances) -> None:
        self._ledger = ledger
        self._ended = ended
        self._records: dict[str, InstanceRecord] = {}
        self._by_request: dict[tuple[str, str], InstanceRecord] = {}

    def find(self, name: str, caller: Caller = OWNER, *, ended: bool = False) -> InstanceRecord:
        """Return an instance of this server. ``ended``: also one that has ended.

        Raises:
            InstanceEnded: it has ended.
            NotFound: it does not exist here, or belongs to another account.
        """
        record = self._records.get(name)
        if record is not None and caller.may_see(record.account):
            return record
        record = self._ended.get(name)
        if record is not None and caller.may_see(record.account):
            if ended:
                return record
            raise record.ended_error()
        raise NotFound(f"no instance {name}")

    def peek(self, name: str) -> InstanceRecord | None:
        """Return an instance of this server, running or ended, without checking who asks."""
        record = self._records.get(name)
        return self._ended.get(name) if record is None else record

    async def require(self, name: str, caller: Caller = OWNER) -> InstanceRecord:
        """Return an instance of this server.

        Raises:
            InstanceEnded: it ended within the last hour, on this server or an earlier one.
            NotFound: it never existed, or belongs to another account.
        """
        try:
            return self.find(name, caller)
        except NotFound:
            ended = await self.ended_error(name, caller)
            if ended is None:
                raise
            raise ended from None

    async def ended_error(
        self, name: str, caller: Caller = OWNER, *, secret: str | None = None
    ) -> InstanceEnded | None:
        """Return the error for calls to an instance that has ended; None if it never existed.

        ``secret``: the secret of the instance that the caller must know.
        """
        with contextlib.suppress(NotFound):
            ended = await self.get_ended(name, caller)
            if secret is not None and not ended.is_opened_by(secret):
                return None
            found = ended.instance
            return InstanceEnded.because(name, found.reason, found.fault, ended_by=found.ended_by)
        if secret is not None or self._ledger is None or not name.isascii():
            return None
        entry = await self._ledger.get(name)
        if entry is None or not caller.may_see(entry.account) or entry.instance.status not in ENDED:
            return None
        return InstanceEnded.because(name, entry.instance.reason, entry.instance.fault)

    async def get_ended(self, name: str, caller: Caller = OWNER) -> EndedRecord:
        """Return the record of an instance that ended within the last hour, on this server or an earlier one.

        Raises:
            NotFound: there is none, or it belongs to another account.
        """
        found = await self._ended.read(name)
        if found is None or not caller.may_see(found.account):
            raise NotFound(f"no instance {name}")
        return found

    def find_by_request(self, request: EnvInstanceCreateRequest, caller: Caller) -> InstanceRecord | None:
        """Return the instance that was created for the same ``request_id``, if there is one."""
        return self._by_request.get((caller.name, request.request_id)) if request.request_id else None

    def replicas(self) -> list[InstanceRecord]:
        """Return the instances that are replicas of services, by the platform's own record and not by their labels."""
        return [record for record in self._records.values() if record.replica is not None and record.replica.service]

    def openers(self) -> list[InstanceRecord]:
        """Return the instances whose code may open other environments."""
        return [record for record in self._records.values() if record.opens]

    async def _get_stored(self, name: str, caller: Caller, *, deleted: bool) -> EnvInstance:
        """Return an instance from the store: one of another server, or one that has ended."""
        entry = await self._ledger.get(name) if self._ledger is not None and name.isascii() else None
        if entry is not None and caller.may_see(entry.account):
            return entry.instance
        ended = await self.get_ended(name, caller)
        if not deleted:
            raise NotFound(ended_message(name, ended.instance.reason))
        return ended.instance
