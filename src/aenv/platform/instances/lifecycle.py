"""Instances and who they belong to.

An instance belongs to a lease, which is an open connection of the process that asked for it: when that process
ends, however it ends, the kernel closes the connection and the instance goes. Its time to live ends it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter as Tally
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from aenv.engines.base import Engine, SandboxSpec
from aenv.engines.fd_holders import FdHolderClient
from aenv.engines.static_imports import SourceFiles
from aenv.errors import AEnvError, InstanceEnded, NotFound, Unavailable
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.access.quota import Quota
from aenv.platform.instances import handover, request_checks
from aenv.platform.instances.admission import Admission, AdmissionTicket, Capacity
from aenv.platform.instances.create_probe import CreateHealth
from aenv.platform.instances.ended import EndedInstances, EndedRecord
from aenv.platform.instances.env_sources import Sources
from aenv.platform.instances.instance_record import (
    ENDED,
    LAST_LOG,
    STARTING,
    InstanceRecord,
    Replica,
    limits_of,
    parse_ttl,
    place_of,
)
from aenv.platform.instances.ledger import Ledger
from aenv.platform.instances.machine_account import MachineAccount
from aenv.platform.instances.orphan_sandboxes import OrphanReaper
from aenv.platform.instances.reserved_labels import refuse_reserved
from aenv.platform.instances.timings import phase
from aenv.platform.operations.metrics import Metrics
from aenv.project.locate import Located
from aenv.schema.instances import EndedBy, EnvInstance, EnvInstanceCreateRequest, EnvStatus, InstanceEvent, InstancePage
from aenv.tracing.correlation import is_about
from aenv.tracing.logging import getLogger

log = getLogger("instances")

ABANDONED = 2.0
"""Seconds in which a create whose caller hung up may be asked for again."""
SLICE = 20
"""Instances that are measured before somebody else has a turn."""
WITH_ITS_OWNER = "the process that created it has ended"


class Instances:
    """All instances of this platform."""

    def __init__(
        self,
        engine: Engine,
        sources: Sources | None = None,
        *,
        direct: bool = True,
        ledger: Ledger | None = None,
        metrics: Metrics | None = None,
        capacity: Capacity | None = None,
        ended: EndedInstances | None = None,
        machine: MachineAccount | None = None,
    ) -> None:
        """``direct``: callers share this machine and its user, and call instances without a gateway."""
        self.engine = engine
        self.metrics = metrics or Metrics()
        self.quota = Quota()
        self.creates = CreateHealth()
        self.admission = Admission(capacity, self.metrics, machine)
        self._machine = machine
        self._direct = direct
        self._ledger = ledger
        self._sources = sources or Sources()
        self._records: dict[str, InstanceRecord] = {}
        self._ended = EndedInstances() if ended is None else ended
        self._by_request: dict[tuple[str, str], InstanceRecord] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leases: set[str] = set()
        self._neighbours = SourceFiles()
        self._strangers = OrphanReaper(engine, self.metrics)
        self.changed = asyncio.Event()
        """Set whenever an instance came or went."""
        self.on_gone: Callable[[str], None] = lambda name: None
        """Told of every instance that went."""
        self.metrics.gauge("active_instances", self._active)

    @property
    def in_use(self) -> bool:
        """Whether anybody holds a lease or an instance."""
        return bool(self._records or self._leases)

    async def create(
        self, wish: EnvInstanceCreateRequest, caller: Caller = OWNER, replica: Replica | None = None
    ) -> EnvInstance:
        """A running instance. The same ``request_id`` again gives the same one."""
        if replica is None:
            refuse_reserved(wish.labels)
        request_checks.check(wish)
        record = self._known(wish, caller)
        if record is None:
            if replica is None:
                self.quota.admit(caller, 1)
            await self.count_elsewhere(caller)
            project = await self._find(wish, caller)
            record = await self._begin(wish, project, caller, replica=replica)
        record.waiting += 1
        try:
            await asyncio.shield(record.started)
        except asyncio.CancelledError:
            if record.started.cancelled():
                raise NotFound(f"instance {record.id} was deleted while it was being made") from None
            if record.waiting == 1:
                self._background(self._abandon(record))
            raise
        except AEnvError:
            self._ended.discard(record.id)
            self._forget_request(record)
            raise
        finally:
            record.waiting -= 1
        return record.shown(caller)

    async def create_many(
        self, wish: EnvInstanceCreateRequest, count: int, caller: Caller = OWNER
    ) -> list[EnvInstance]:
        """``count`` instances that are being made; ask for each with `get` until it runs."""
        refuse_reserved(wish.labels)
        request_checks.check(wish)
        prefix = wish.request_id or secrets.token_hex(8)
        wanted = [wish.model_copy(update={"request_id": f"{prefix}/{number}"}) for number in range(count)]
        charged = self._unknown(wanted, caller)
        if charged:
            self.quota.admit(caller, charged)
            await self.count_elsewhere(caller)
        project = await self._find(wish, caller)
        fresh = self._unknown(wanted, caller)
        if not fresh:
            return [record.shown(caller) for one in wanted if (record := self._known(one, caller)) is not None]
        if fresh > charged:  # some that were there have ended meanwhile
            self.quota.admit(caller, fresh - charged)
        self.quota.check(caller, limits_of(project), fresh)
        turn = self._ask(wish, caller, fresh)
        made: list[InstanceRecord] = []
        try:
            for one in wanted:
                known = self._known(one, caller)
                if known is None:
                    made.append(await self._begin(one, project, caller, turn))
        except AEnvError:
            for record in made:  # all of them, or none
                await self._delete_quietly(record.id)
            while turn.count:
                turn.leave()
            raise
        return [record.shown(caller) for one in wanted if (record := self._known(one, caller)) is not None]

    async def _find(self, wish: EnvInstanceCreateRequest, caller: Caller) -> Located:
        try:
            with phase(self.metrics, "source"):
                return await self._sources.find(wish, caller)
        except AEnvError:
            raise
        except OSError as error:  # such as a disk that is full
            self.creates.failed(error)
            raise Unavailable(f"the environment cannot be made ready: {error.strerror or error}") from error

    def _unknown(self, wanted: list[EnvInstanceCreateRequest], caller: Caller) -> int:
        """How many of them would be made anew."""
        return sum(1 for each in wanted if self._known(each, caller) is None)

    async def count_elsewhere(self, caller: Caller) -> None:
        """Hear what a token with an allowance uses on other servers. What is being made there at this very moment may
        not be written down yet.
        """
        if self._ledger is not None and caller.token_id and caller.allowance.is_limited:
            self.quota.set_remote(caller.token_id, await self._ledger.charged_elsewhere(caller.token_id))

    def asked(self, wish: EnvInstanceCreateRequest, caller: Caller) -> InstanceRecord | None:
        """What a wish with a ``request_id`` has become so far."""
        return self._known(wish, caller)

    def _known(self, wish: EnvInstanceCreateRequest, caller: Caller) -> InstanceRecord | None:
        return self._by_request.get((caller.name, wish.request_id)) if wish.request_id else None

    def _ask(self, wish: EnvInstanceCreateRequest, caller: Caller, count: int) -> AdmissionTicket:
        experiment = (wish.labels or {}).get("experiment", "")
        owner = wish.owner or caller.name
        return self.admission.ask(experiment, owner, count, wish.queue_timeout, account=caller.name)

    async def _begin(
        self,
        wish: EnvInstanceCreateRequest,
        project: Located,
        caller: Caller,
        turn: AdmissionTicket | None = None,
        replica: Replica | None = None,
    ) -> InstanceRecord:
        """Count it, and have it made. There is no waiting between a look at who has asked before and this."""
        record = InstanceRecord.wished(wish, project, self.engine, caller, direct=self._direct, replica=replica)
        known = self._known(wish, caller)
        if known is not None:
            return known
        self.quota.take(caller, record.limits)
        try:
            record.turn = turn or self._ask(wish, caller, 1)
        except AEnvError:
            self.quota.give_back(caller.token_id, record.limits)
            raise
        self._records[record.id] = record
        is_about(record.id)
        if wish.request_id:
            self._by_request[caller.name, wish.request_id] = record
        self.changed.set()
        spec = record.spec(self._neighbours)
        if self._ledger is None and record.turn.admitted:  # else it is written down first
            record.ref = self.engine.claim(spec)
        if record.ref is None:
            record.started = self._background(self._start(record, spec))
            record.started.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is in the record
        else:
            record.started = asyncio.get_running_loop().create_future()
            record.started.set_result(None)
            self._runs(record, 0.0)
        return record

    async def _start(self, record: InstanceRecord, spec: SandboxSpec) -> None:
        assert record.turn is not None
        try:
            if not record.turn.admitted:
                record.became(EnvStatus.PENDING, self.admission.why(record.turn))
            if self._ledger is not None:
                with phase(self.metrics, "record"):
                    await self._ledger.keep(record.shown(), record.account, record.charge)
            if record.status is EnvStatus.PENDING:
                await record.turn.come()
                record.became(EnvStatus.CREATING)
            await self.admission.begin()
            began = time.perf_counter()
            try:
                with phase(self.metrics, "engine"):
                    record.ref = await self.engine.start(spec)
            finally:
                self.admission.made()
        except Exception as error:
            self.creates.failed(error)
            self._count("create", record, "failure")
            self.metrics.count("instances_ended_total", how="failed")
            record.error_code = error.code if isinstance(error, AEnvError) else "internal"
            record.fault = error.fault if isinstance(error, AEnvError) else "infra"
            reason = error.message if isinstance(error, AEnvError) else repr(error)
            self._end(record, EnvStatus.FAILED, reason, EndedBy.FAILED)
            self._make_room(record)
            raise
        if record.id not in self._records or (record.lease is not None and record.lease not in self._leases):
            await self._stop(record)  # who asked for it went away meanwhile
            self._drop(record)
            raise NotFound("the lease of this instance has ended")
        self._runs(record, time.perf_counter() - began)

    def _runs(self, record: InstanceRecord, seconds: float) -> None:
        self.creates.worked()
        record.became(EnvStatus.RUNNING)
        self._set_timer(record)
        self._keep(record)
        self._count("create", record, "success")
        self.metrics.observe("create_duration_ms", seconds * 1000)

    async def _abandon(self, record: InstanceRecord) -> None:
        """Nobody waits for it: give who asked a moment to ask again, then end it."""
        await asyncio.sleep(ABANDONED)
        if record.waiting == 0 and not record.claimed:
            await self._delete_quietly(record.id)

    async def get(self, name: str, wait: float = 0.0, caller: Caller = OWNER, *, deleted: bool = False) -> EnvInstance:
        """One instance, as it is now; one that is being made, when it is ready or ``wait`` seconds later.

        ``deleted``: also one that was deleted within the last hour.
        """
        record = self.peek(name)
        if record is None or not caller.may_see(record.account):
            return await self._written(name, caller, deleted=deleted)
        if record.deleted and not deleted:
            raise NotFound(f"no instance {name}: {record.reason}")
        record.claimed = True
        waited = record.status in STARTING and wait > 0
        if waited:
            await asyncio.wait({record.started}, timeout=wait)
        await self._refresh(record, measure=not waited)  # one that has just begun has used nothing yet
        if record.status is EnvStatus.PENDING and record.turn is not None:
            record.reason = self.admission.why(record.turn)
        return record.shown(caller)

    async def _written(self, name: str, caller: Caller, *, deleted: bool) -> EnvInstance:
        """What the ledger knows of one that is not here."""
        entry = await self._ledger.get(name) if self._ledger is not None and name.isascii() else None
        if entry is not None and caller.may_see(entry.account):
            return entry.instance
        past = await self.past(name, caller)
        if not deleted:
            raise NotFound(f"no instance {name}: {past.instance.reason}")
        return past.instance

    async def past(self, name: str, caller: Caller = OWNER) -> EndedRecord:
        """What is kept of an instance that ended within the last hour, on this server or on one before it.

        Raises:
            NotFound: nothing is, or it is somebody else's.
        """
        found = await self._ended.read(name)
        if found is None or not caller.may_see(found.account):
            raise NotFound(f"no instance {name}")
        return found

    async def there(self, name: str, caller: Caller = OWNER) -> InstanceRecord:
        """One that is there.

        Raises:
            InstanceEnded: it was there within the last hour, on this server or on one before it.
            NotFound: it never was, or is somebody else's.
        """
        try:
            return self.find(name, caller)
        except NotFound:
            ended = await self.why_ended(name, caller)
            if ended is None:
                raise
            raise ended from None

    async def why_ended(self, name: str, caller: Caller = OWNER, *, secret: str | None = None) -> InstanceEnded | None:
        """The error to raise for calls to an instance that is not here because it has ended; None: it never was.

        ``secret``: what the caller must know of it.
        """
        with contextlib.suppress(NotFound):
            past = await self.past(name, caller)
            if secret is not None and not past.is_opened_by(secret):
                return None
            found = past.instance
            return InstanceEnded.because(name, found.reason, found.fault, ended_by=found.ended_by)
        if secret is not None or self._ledger is None or not name.isascii():
            return None
        entry = await self._ledger.get(name)
        if entry is None or not caller.may_see(entry.account) or entry.instance.status not in ENDED:
            return None
        return InstanceEnded.because(name, entry.instance.reason, entry.instance.fault)

    async def page(
        self,
        env: str,
        caller: Caller = OWNER,
        *,
        owner: str | None = None,
        labels: dict[str, str] | None = None,
        status: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> InstancePage:
        """Those of one environment (``name`` or ``name@version``), or all (``*``), the oldest first.

        Those that have ended are among them only if they are asked for by their status.
        """
        there = [*self._records.values(), *(self._ended if status in ENDED else ())]
        mine = [r for r in there if caller.may_see(r.account)]
        for record in mine:
            await self._refresh(record, measure=False)
        found = [r for r in mine if r.fits(env, owner, labels or {}, status)]
        found.sort(key=place_of)
        if after is not None:
            found = [record for record in found if place_of(record) > after]
        page = found if limit is None else found[:limit]
        rest = len(page) < len(found)
        for number, record in enumerate(page):
            await self._refresh(record)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)  # others may have something to do, too
        return InstancePage(
            items=[record.shown(caller) for record in page], next=place_of(page[-1]) if rest and page else None
        )

    async def delete(self, name: str, caller: Caller = OWNER, why: str = "deleted") -> None:
        """End one; return when it is gone."""
        gone = self._ended.get(name)
        if gone is not None and caller.may_see(gone.account) and not gone.dismissed:
            gone.dismissed = True
            return
        if gone is not None:
            raise NotFound(f"no instance {name}")
        record = self.find(name, caller)
        await self._refresh(record, measure=False)
        if record.status in ENDED:  # by itself, and this is the first to notice
            record.dismissed = True
            return
        starting, record.dismissed = record.status in STARTING, True
        if record.ref is not None:
            record.last_log = self.engine.logs(record.ref)[-LAST_LOG:]
        self._end(record, EnvStatus.TERMINATED, why, EndedBy.OWNER if why == WITH_ITS_OWNER else EndedBy.DELETED)
        if starting:
            record.started.cancel()
            await asyncio.wait({record.started})
            self._make_room(record)
        elif record.ref is not None:
            await self._stop(record)
        self._count("delete", record, "success")
        self.metrics.count("instances_ended_total", how="released" if why == WITH_ITS_OWNER else "deleted")
        log.info("%s is gone: %s", name, why)

    async def renew(self, name: str, ttl: str, caller: Caller = OWNER) -> EnvInstance:
        """Have its time to live count from now, anew or with another length."""
        record = await self.there(name, caller)
        record.ttl = parse_ttl(ttl) or record.ttl
        if record.status is EnvStatus.RUNNING:
            self._set_timer(record)
        record.note("renewed", f"for {record.ttl}")
        self._keep(record)
        return record.shown(caller)

    def events(self, name: str, caller: Caller = OWNER) -> list[InstanceEvent]:
        """What happened to it, the oldest first."""
        return list(self.find(name, caller, ended=True).events)

    def logs(self, name: str, caller: Caller = OWNER) -> str:
        """The last of what its tools wrote."""
        record = self.find(name, caller, ended=True)
        return self.engine.logs(record.ref) if record.ref and record.status not in ENDED else record.last_log

    def log_since(self, name: str, position: int, caller: Caller = OWNER) -> tuple[str, int]:
        """What they wrote since, and where that ends."""
        record = self.find(name, caller)
        return self.engine.log_since(record.ref, position) if record.ref else ("", position)

    def find(self, name: str, caller: Caller = OWNER, *, ended: bool = False) -> InstanceRecord:
        """One that is there.

        Raises:
            InstanceEnded: it was there.
            NotFound: it never was, or is somebody else's.
        """
        record = self._records.get(name)
        if record is not None and caller.may_see(record.account):
            return record
        gone = self._ended.get(name)
        if gone is not None and caller.may_see(gone.account):
            if ended:
                return gone
            raise gone.ended_error()
        raise NotFound(f"no instance {name}")

    def replicas(self) -> list[InstanceRecord]:
        """Instances that a service of this platform asked for, by the platform's own record of it."""
        return [record for record in self._records.values() if record.replica is not None and record.replica.service]

    def peek(self, name: str) -> InstanceRecord | None:
        """One that is there or was, whoever asks."""
        record = self._records.get(name)
        return self._ended.get(name) if record is None else record

    async def check(self, record: InstanceRecord) -> None:
        """Look whether it still runs.

        Raises:
            InstanceEnded: it does not.
        """
        await self._refresh(record)
        if record.status in ENDED:
            raise record.ended_error()

    async def sweep(self) -> None:
        """Compare what there should be with what there is, both ways."""
        began = time.perf_counter()
        self._ended.prune()
        for record in list(self._records.values()):
            await self._refresh(record, measure=False)
        await self._strangers.end({record.ref.id for record in self._records.values() if record.ref is not None})
        self.metrics.observe("sweep_duration_ms", (time.perf_counter() - began) * 1000)

    async def adopt(self, keeper: FdHolderClient | None) -> int:
        """Go on with the instances of the server before this one, as far as they are there and written down; how many
        these are. Whatever else there is of them, sandboxes or records, is ended.
        """
        assert self._ledger is not None
        there: set[str] = set()
        for ref, text in await self.engine.adopt(keeper) if keeper is not None else ():
            record = handover.read(text, ref)
            entry = await self._ledger.get(record.id) if record is not None else None
            if record is None or entry is None or entry.instance.status in ENDED:
                await self.engine.stop(ref)
                continue
            there.add(record.id)
            await self._go_on(record)
        cleared = await self._ledger.settle(there)
        if cleared:
            log.warning("%d instances of the server before this one have ended with it", cleared)
        return len(self._records)

    async def _go_on(self, record: InstanceRecord) -> None:
        assert record.ref is not None
        self._records[record.id] = record
        self.quota.count(record.token_id, record.limits)
        record.turn = self.admission.count_in(record.labels.get("experiment", ""), record.wish.owner or record.account)
        if record.lease is not None:
            reason = "the connection that it belonged to has ended with the server"
            self._end(record, EnvStatus.TERMINATED, reason, EndedBy.LOST)
            await self._stop(record)
            return
        if record.wish.request_id:
            self._by_request[record.account, record.wish.request_id] = record
        record.note("adopted", "by the next server")
        self._arm(record)
        self._keep(record)
        await self._refresh(record)

    async def leave(self) -> None:
        """The server goes, and another will go on with what runs."""
        for record in list(self._records.values()):
            if record.status in STARTING:
                record.started.cancel()
                reason = "the platform was restarted while it was being made"
                self._end(record, EnvStatus.FAILED, reason, EndedBy.LOST)
        await self._ended.close()

    async def close(self) -> None:
        """The server goes, and all instances with it: write that down, for who asks the next server."""
        for record in list(self._records.values()):
            if record.status in STARTING:
                record.started.cancel()
            if record.ref is not None:
                record.last_log = self.engine.logs(record.ref)[-LAST_LOG:]
            self._end(record, EnvStatus.TERMINATED, "the platform was stopped", EndedBy.STOPPED)
        await self._ended.close()

    # --- leases

    def open_lease(self) -> str:
        """A new one; whoever holds it keeps its instances alive."""
        name = secrets.token_hex(8)
        self._leases.add(name)
        self._leases_changed()
        return name

    async def end_lease(self, name: str) -> None:
        """Its holder is gone: so are its instances."""
        self._leases.discard(name)
        for record in [r for r in self._records.values() if r.lease == name]:
            await self._delete_quietly(record.id, WITH_ITS_OWNER)
        self._leases_changed()

    def _leases_changed(self) -> None:
        if self._machine is not None:
            self._machine.leases(len(self._leases))
        self.changed.set()

    # --- inside

    async def _refresh(self, record: InstanceRecord, *, measure: bool = True) -> None:
        """Look whether it still runs, and what it uses: a fifth of a second for a thousand, so only if asked."""
        if record.ref is None or record.status is not EnvStatus.RUNNING:
            return
        ended = await self.engine.poll(record.ref)
        if ended is not None and record.status is EnvStatus.RUNNING:
            record.last_log = self.engine.logs(record.ref)[-LAST_LOG:]
            record.fault, record.exit_code = ended.fault, ended.code
            self._end(record, EnvStatus.TERMINATED, ended.reason, EndedBy(ended.cause))
            self.metrics.count("instances_ended_total", how="died")
            await self._stop(record)
        elif measure:
            record.usage = self.engine.usage(record.ref)

    def _set_timer(self, record: InstanceRecord) -> None:
        record.deadline = time.monotonic() + record.ttl.seconds
        try:
            record.expires_at = datetime.now(UTC) + timedelta(seconds=record.ttl.seconds)
        except OverflowError:
            record.expires_at = None
        self._arm(record)

    def _arm(self, record: InstanceRecord) -> None:
        if record.timer is not None:
            record.timer.cancel()
        left = max(0.0, record.deadline - time.monotonic())
        record.timer = asyncio.get_running_loop().call_later(left, self._expire, record)

    def _expire(self, record: InstanceRecord) -> None:
        self._background(self._reap(record))

    async def _reap(self, record: InstanceRecord) -> None:
        await self._refresh(record, measure=False)  # it may have ended before
        if record.id not in self._records:
            return
        assert record.ref is not None
        record.last_log = self.engine.logs(record.ref)[-LAST_LOG:]
        record.fault = "timeout"
        self._end(record, EnvStatus.TERMINATED, f"it has reached its time to live of {record.ttl}", EndedBy.TTL)
        log.info("%s has reached its time to live", record.id)
        self.metrics.count("instances_ended_total", how="expired")
        try:
            await self._stop(record)
        except AEnvError as error:
            log.warning("%s could not be ended: %s", record.id, error.message)
            self.metrics.count("auto_cleanup_failure_total")
        else:
            self.metrics.count("auto_cleanup_success_total")

    async def _stop(self, record: InstanceRecord) -> None:
        """End its sandbox; then there is room for another one."""
        assert record.ref is not None
        try:
            await self.engine.stop(record.ref)
        finally:
            self._make_room(record)

    def _make_room(self, record: InstanceRecord) -> None:
        turn, record.turn = record.turn, None
        if turn is not None:
            turn.leave()

    def _end(self, record: InstanceRecord, status: EnvStatus, reason: str, by: EndedBy) -> None:
        """It has ended: remember for a while why."""
        record.ended_by, record.fault = by, record.fault or "infra"
        record.became(status, reason)
        self._drop(record, written=not record.deleted)
        self._ended.add(record)

    def _drop(self, record: InstanceRecord, *, written: bool = False) -> None:
        """It counts no more."""
        if self._records.pop(record.id, None) is None:
            return
        if record.timer is not None:
            record.timer.cancel()
        self._forget_request(record)
        self.quota.give_back(record.token_id, record.limits)
        if self._ledger is not None:
            if written:
                self._note(record)
            else:
                self._ledger.forget(record.id)
        self.on_gone(record.id)
        self.changed.set()

    def _keep(self, record: InstanceRecord) -> None:
        """Write down how it is now: in the ledger, and for the next server."""
        self._note(record)
        if self._ledger is not None and record.ref is not None:
            self.engine.keep(record.ref, handover.written(record))

    def _note(self, record: InstanceRecord) -> None:
        if self._ledger is not None:
            self._ledger.note(record.shown(), record.account, record.charge)

    def _forget_request(self, record: InstanceRecord) -> None:
        if record.wish.request_id:
            self._by_request.pop((record.account, record.wish.request_id), None)

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _delete_quietly(self, name: str, why: str = "nobody waits for it") -> None:
        try:
            await self.delete(name, why=why)
        except (NotFound, InstanceEnded):
            return

    def _count(self, operation: str, record: InstanceRecord, status: str) -> None:
        name = record.env_name.partition("@")[0]
        self.metrics.count("instance_operations_total", operation=operation, env_name=name, status=status)

    def _active(self) -> list[tuple[dict[str, str], float]]:
        tally = Tally(
            (r.env_name, str(r.status), r.labels.get("experiment", ""), r.wish.owner or "", r.labels.get("app", ""))
            for r in self._records.values()
        )
        names = ("envName", "status", "experiment", "owner", "app")
        return [(dict(zip(names, key, strict=True)), float(count)) for key, count in tally.items()]
