"""Life cycle of instances: create, renew, expire, delete, hand over.

An instance belongs to a lease: an open connection of the process that created it. When that process ends, however it
ends, the kernel closes the connection and the instance is deleted. Its time to live ends it as well.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter as Tally
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from aenv.engines.base import Engine, SandboxRef, SandboxSpec
from aenv.engines.fd_holders import FdHolderClient
from aenv.engines.static_imports import SourceFiles
from aenv.errors import (
    AEnvError,
    EnvironmentTimeoutError,
    ForkRefused,
    InstanceEnded,
    NotFound,
    Unavailable,
    ended_message,
)
from aenv.platform.access.platform_tokens import OWNER, Caller
from aenv.platform.access.quota import Quota
from aenv.platform.instances import handover
from aenv.platform.instances.activities import Activities
from aenv.platform.instances.admission import Admission, AdmissionTicket, Capacity
from aenv.platform.instances.create_probe import CreateHealth
from aenv.platform.instances.ended import EndedInstances
from aenv.platform.instances.instance_lookup import InstanceLookup
from aenv.platform.instances.instance_record import (
    ENDED,
    LAST_LOG_CHARACTERS,
    STARTING,
    InstanceRecord,
    Replica,
    limits_of,
    parse_ttl,
    sort_key,
)
from aenv.platform.instances.ledger import Ledger
from aenv.platform.instances.machine_account import MachineAccount
from aenv.platform.instances.orphan_sandboxes import OrphanReaper
from aenv.platform.instances.requests import request_checks
from aenv.platform.instances.requests.datasources import DatasourceRoots
from aenv.platform.instances.requests.env_sources import Sources
from aenv.platform.instances.requests.requested_resources import apply_requested
from aenv.platform.instances.requests.reserved_labels import refuse_reserved
from aenv.platform.instances.requests.split_requests import split_request
from aenv.platform.instances.timings import phase
from aenv.platform.operations.metrics import Metrics
from aenv.project.locate import Located
from aenv.schema.instances import EndedBy, EnvInstance, EnvInstanceCreateRequest, EnvStatus, InstanceEvent, InstancePage
from aenv.tracing.correlation import set_instance
from aenv.tracing.logging import getLogger
from aenv.tracing.waits import waiting_for

if TYPE_CHECKING:
    from aenv.platform.nested.opening import Opening

log = getLogger("instances")

ABANDONED_SECONDS = 2.0
"""Grace in which a client that disconnected during a create may repeat the request."""
MEASURE_BATCH = 20
"""Instances to measure before yielding to the event loop."""
QUEUED = "room on the platform, which is full"
OWNER_ENDED = "the process that created it has ended"
PARENT_ENDED = "the instance that opened it has ended"


class ParentTunnels(Protocol):
    """Connections of the instances that may open environments."""

    def begin(self, record: InstanceRecord) -> None:
        """Connect to an instance that runs."""

    def end(self, record: InstanceRecord) -> None:
        """Close the connections of an instance that has ended."""


class Instances(InstanceLookup):
    """The instances of this server, from create to end."""

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
        datasources: DatasourceRoots | None = None,
    ) -> None:
        """``direct``: callers share this machine and its user, and call instances without a gateway."""
        super().__init__(ledger, EndedInstances() if ended is None else ended)
        self.engine = engine
        self.metrics = metrics or Metrics()
        self.quota = Quota()
        self.creates = CreateHealth()
        self.admission = Admission(capacity, self.metrics, machine)
        self._machine = machine
        self._direct = direct
        self._datasources = datasources or DatasourceRoots()
        self._sources = sources or Sources()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leases: set[str] = set()
        self._source_files = SourceFiles()
        self._orphans = OrphanReaper(engine, self.metrics)
        self.changed = asyncio.Event()
        """Set whenever an instance is created or ends."""
        self.stopping = False
        """True once the server ends all instances with itself."""
        self.mcp_base = ""
        """URL below which the MCP servers of instances can be reached over TCP, if that was requested."""
        self.on_gone: Callable[[str], None] = lambda name: None
        """Called with the id of every instance that ends."""
        self.tunnels: ParentTunnels | None = None
        """Lets instances open environments."""
        self.activities = Activities()
        self.metrics.gauge("active_instances", self._count_active)
        self.metrics.gauge("instance_uptime_seconds", self._uptimes)

    @property
    def in_use(self) -> bool:
        """True while there is a lease or an instance."""
        return bool(self._records or self._leases)

    async def create(
        self,
        request: EnvInstanceCreateRequest,
        caller: Caller = OWNER,
        replica: Replica | None = None,
        opening: Opening | None = None,
    ) -> EnvInstance:
        """Create an instance, and return it once it runs. Idempotent by ``request_id``.

        ``opening``: set if code in another instance asks for it.
        """
        if replica is None:
            refuse_reserved(request.labels)
        request_checks.check(request)
        record = self.find_by_request(request, caller)
        if record is None:
            if replica is None:
                self.quota.admit(caller, 1)
            with self.activities.begin(caller, request):
                await self.refresh_remote_usage(caller)
                project = await self._find_project(request, caller)
                record = await self._begin_create(request, project, caller, replica=replica, opening=opening)
        record.waiting += 1
        try:
            await asyncio.shield(record.started)
        except asyncio.CancelledError:
            if record.started.cancelled():
                raise NotFound(f"instance {record.id} was deleted while it was being created") from None
            if record.waiting == 1:
                self._background(self._abandon(record))
            raise
        except AEnvError:
            self._ended.discard(record.id)
            self._forget_request(record)
            raise
        finally:
            record.waiting -= 1
        return record.to_api(caller)

    async def create_many(
        self, request: EnvInstanceCreateRequest, count: int, caller: Caller = OWNER
    ) -> list[EnvInstance]:
        """Begin to create ``count`` instances, all or none; poll each with `get` until it runs."""
        requested_at = time.monotonic()
        wanted = split_request(request, count)
        for each in wanted if request.items else (request,):
            refuse_reserved(each.labels)
            request_checks.check(each)
        charged = self._count_new(wanted, caller)
        if charged:
            self.quota.admit(caller, charged)
            await self.refresh_remote_usage(caller)
        with self.activities.begin(caller, request):
            project = await self._find_project(request, caller)
        new = self._count_new(wanted, caller)
        if not new:
            return [
                record.to_api(caller) for one in wanted if (record := self.find_by_request(one, caller)) is not None
            ]
        if new > charged:  # some that existed have ended in the meantime
            self.quota.admit(caller, new - charged)
        self.quota.check(caller, apply_requested(request, limits_of(project)), new)
        ticket = self._request_admission(request, caller, new)
        begun: list[InstanceRecord] = []
        try:
            for one in wanted:
                known = self.find_by_request(one, caller)
                if known is None:
                    begun.append(await self._begin_create(one, project, caller, ticket, requested_at=requested_at))
        except AEnvError:
            for record in begun:  # all or none
                await self._delete_if_present(record.id)
            while ticket.count:
                ticket.release()
            raise
        return [record.to_api(caller) for one in wanted if (record := self.find_by_request(one, caller)) is not None]

    async def _find_project(self, request: EnvInstanceCreateRequest, caller: Caller) -> Located:
        try:
            with phase(self.metrics, "source"):
                return await self._sources.find(request, caller)
        except AEnvError:
            raise
        except OSError as error:  # such as a full disk
            self.creates.record_failure(error)
            raise Unavailable(f"the environment cannot be prepared: {error.strerror or error}") from error

    async def prepare(self, request: EnvInstanceCreateRequest, caller: Caller) -> InstanceRecord:
        """Return the record of an instance that could be created; nothing is started or counted.

        Raises:
            AEnvError: the request is invalid, or not allowed for this caller.
        """
        request_checks.check(request)
        project = await self._find_project(request, caller)
        return InstanceRecord.for_request(
            request, project, self.engine, caller, direct=self._direct, datasources=self._datasources
        )

    def spec_of(self, record: InstanceRecord) -> SandboxSpec:
        """Return the specification of an instance's sandbox."""
        return record.spec(self._source_files)

    def _count_new(self, wanted: list[EnvInstanceCreateRequest], caller: Caller) -> int:
        """Count the requests for which no instance exists yet."""
        return sum(1 for each in wanted if self.find_by_request(each, caller) is None)

    async def refresh_remote_usage(self, caller: Caller) -> None:
        """Read what a token with an allowance uses on other servers.

        Instances that another server creates at the same moment may not be in the store yet.
        """
        if self._ledger is not None and caller.token_id and caller.allowance.is_limited:
            self.quota.set_remote(caller.token_id, await self._ledger.charged_elsewhere(caller.token_id))

    def _request_admission(self, request: EnvInstanceCreateRequest, caller: Caller, count: int) -> AdmissionTicket:
        experiment = (request.labels or {}).get("experiment", "")
        owner = request.owner or caller.name
        return self.admission.request(experiment, owner, count, request.queue_timeout, account=caller.name)

    async def _begin_create(
        self,
        request: EnvInstanceCreateRequest,
        project: Located,
        caller: Caller,
        ticket: AdmissionTicket | None = None,
        replica: Replica | None = None,
        opening: Opening | None = None,
        requested_at: float | None = None,
    ) -> InstanceRecord:
        """Count an instance and start to create it. ``requested_at``: monotonic time of the request, if not now.

        Nothing is awaited between the check for an earlier request with the same id and the registration of this one.
        """
        record = InstanceRecord.for_request(
            request, project, self.engine, caller, direct=self._direct, replica=replica, datasources=self._datasources
        )
        known = self.find_by_request(request, caller)
        if known is not None:
            return known
        if opening is not None:
            parent = opening.parent
            if parent.id not in self._records:
                raise parent.ended_error()
            opening.bind(record, sum(1 for each in self._records.values() if each.parent == parent.id))
        record.mcp_base = "" if request.mcp is False else self.mcp_base
        self.quota.take(caller, record.limits)
        try:
            record.ticket = ticket or self._request_admission(request, caller, 1)
        except AEnvError:
            self.quota.give_back(caller.token_id, record.limits)
            raise
        self._records[record.id] = record
        set_instance(record.id)
        if request.request_id:
            self._by_request[caller.name, request.request_id] = record
        self.changed.set()
        spec = record.spec(self._source_files, requested_at)
        if self._ledger is None and record.ticket.admitted:  # with a ledger, it is recorded there first
            record.ref = self.engine.claim(spec)
        if record.ref is None:
            record.started = self._background(self._start(record, spec))
            # Retrieve the error: it is in the record.
            record.started.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            record.started = asyncio.get_running_loop().create_future()
            record.started.set_result(None)
            self._mark_running(record, 0.0)
        return record

    async def _start(self, record: InstanceRecord, spec: SandboxSpec) -> None:
        assert record.ticket is not None
        record.activity = self.activities.current()
        try:
            if not record.ticket.admitted:
                record.set_status(EnvStatus.PENDING, self.admission.queue_reason(record.ticket))
            if self._ledger is not None:
                with phase(self.metrics, "record"):
                    await self._ledger.write(record.to_api(), record.account, record.charge)
            if record.status is EnvStatus.PENDING:
                with record.activity.step(QUEUED) if record.activity is not None else nullcontext():
                    await record.ticket.wait()
                record.set_status(EnvStatus.CREATING)
            await self.admission.acquire_create_slot()
            began = time.perf_counter()
            try:
                with phase(self.metrics, "engine"), waiting_for(f"the sandbox of {record.env_name} to start"):
                    record.ref = await self._started_in_time(record, spec)
            finally:
                self.admission.release_create_slot()
        except Exception as error:
            self.creates.record_failure(error)
            self._count("create", record, "failure")
            self.metrics.count("instances_ended_total", how="failed")
            record.error_code = error.code if isinstance(error, AEnvError) else "internal"
            record.fault = error.fault if isinstance(error, AEnvError) else "infra"
            reason = error.message if isinstance(error, AEnvError) else repr(error)
            log.warning("cannot start %s (%s, fault %s): %s", record.id, record.env_name, record.fault, reason)
            self._end(record, EnvStatus.FAILED, reason, EndedBy.FAILED)
            self._release_ticket(record)
            raise
        if record.id not in self._records or (record.lease is not None and record.lease not in self._leases):
            await self._stop(record)  # its client disconnected in the meantime
            self._drop(record)
            raise NotFound("the lease of this instance has ended")
        self._mark_running(record, time.perf_counter() - began)

    async def admit_forks(
        self, source: InstanceRecord, requests: list[EnvInstanceCreateRequest], caller: Caller
    ) -> list[InstanceRecord]:
        """Count forks of an instance, and return their records; each is then `begin_fork` or `fail_fork`.

        Raises:
            AEnvError: a request is invalid, or there is no room for all of them. Then none is counted.
        """
        if source.project is None:
            raise ForkRefused(f"{source.id} was started by an earlier server, and cannot be forked any more")
        for request in requests:
            refuse_reserved({name: text for name, text in (request.labels or {}).items() if name not in source.labels})
            request_checks.check(request)
        self.quota.admit(caller, len(requests))
        await self.refresh_remote_usage(caller)
        self.quota.check(caller, source.limits, len(requests))
        ticket = self._request_admission(requests[0], caller, len(requests))
        try:
            await ticket.wait()
            return [self._admit_fork(source, source.project, request, caller, ticket) for request in requests]
        except BaseException:
            while ticket.count:
                ticket.release()
            raise

    def _admit_fork(
        self,
        source: InstanceRecord,
        project: Located,
        request: EnvInstanceCreateRequest,
        caller: Caller,
        ticket: AdmissionTicket,
    ) -> InstanceRecord:
        record = InstanceRecord.for_request(
            request, project, self.engine, caller, direct=self._direct, datasources=self._datasources
        )
        record.limits, record.network, record.mcp_base = source.limits, source.network, source.mcp_base
        record.opens, record.parent, record.depth = source.opens, source.parent, source.depth
        record.forked_from = source.id
        record.add_event("forked", f"from {source.id}")
        self.quota.take(caller, record.limits)
        record.ticket = ticket
        record.started = asyncio.get_running_loop().create_future()
        self._records[record.id] = record
        self.changed.set()
        return record

    async def begin_fork(self, record: InstanceRecord, ref: SandboxRef, seconds: float) -> None:
        """Take over the sandbox of a fork.

        Raises:
            NotFound: it was deleted meanwhile, or its lease has ended. The sandbox is stopped.
        """
        record.ref = ref
        record.started.set_result(None)
        if record.id not in self._records or (record.lease is not None and record.lease not in self._leases):
            await self._stop(record)
            self._drop(record)
            raise NotFound("the lease of this instance has ended")
        self._mark_running(record, seconds)

    def fail_fork(self, record: InstanceRecord, error: AEnvError) -> None:
        """Note that a fork was not made."""
        if not record.started.done():
            record.started.cancel()
        record.error_code, record.fault = error.code, error.fault
        self._count("fork", record, "failure")
        if record.id in self._records:
            self._end(record, EnvStatus.FAILED, error.message, EndedBy.FAILED)
        self._release_ticket(record)

    async def replace_sandbox(self, record: InstanceRecord, ref: SandboxRef, event: str) -> None:
        """Have an instance go on in another sandbox, which has its address and token; stop the one that it had."""
        before, record.ref = record.ref, ref
        record.add_event("rewound", event)
        self._persist(record)
        assert before is not None
        await self.engine.stop(before)
        if record.id not in self._records:  # deleted meanwhile
            await self.engine.stop(ref)
            raise record.ended_error()
        if record.opens and self.tunnels is not None:
            self.tunnels.end(record)
            self.tunnels.begin(record)

    def family(self, name: str, caller: Caller = OWNER) -> list[InstanceRecord]:
        """Return the forks and checkpoints of an instance, and theirs, in order of creation."""
        known, found = {name}, []
        for record in self._records.values():
            if record.forked_from in known and caller.may_see(record.account):
                known.add(record.id)
                found.append(record)
        return found

    async def _started_in_time(self, record: InstanceRecord, spec: SandboxSpec) -> SandboxRef:
        """Start a sandbox within the time limit that the environment sets, if it sets one."""
        seconds = record.startup_seconds
        if seconds is None:
            return await self.engine.start(spec)
        try:
            async with asyncio.timeout(seconds) as watch:
                return await self.engine.start(spec)
        except TimeoutError as error:
            if not watch.expired():
                raise
            raise EnvironmentTimeoutError(
                f"{record.env_name} did not start within the {seconds:g} s that it allows (timeouts.startup)",
                details={"budget": "startup", "seconds": seconds},
            ) from error

    def _mark_running(self, record: InstanceRecord, seconds: float) -> None:
        self.creates.record_success()
        if record.ref is not None and record.ref.isolation:
            record.isolation = record.ref.isolation
        record.set_status(EnvStatus.RUNNING)
        self._set_timer(record)
        self._persist(record)
        self._count("create", record, "success")
        self.metrics.observe("create_duration_ms", seconds * 1000)
        if record.opens and self.tunnels is not None:
            self.tunnels.begin(record)

    async def _abandon(self, record: InstanceRecord) -> None:
        """Delete an instance whose client disconnected and did not repeat its request."""
        await asyncio.sleep(ABANDONED_SECONDS)
        if record.waiting == 0 and not record.claimed:
            await self._delete_if_present(record.id)

    async def get(self, name: str, wait: float = 0.0, caller: Caller = OWNER, *, deleted: bool = False) -> EnvInstance:
        """Return an instance. ``wait``: for up to this many seconds while it is being created.

        ``deleted``: also return one that was deleted within the last hour.
        """
        record = self.peek(name)
        if record is None or not caller.may_see(record.account):
            return await self._get_stored(name, caller, deleted=deleted)
        if record.deleted and not deleted:
            raise NotFound(ended_message(name, record.reason))
        record.claimed = True
        if wait > 0 and record.status in STARTING:
            await asyncio.wait({record.started}, timeout=wait)
        await self._refresh(record, measure=wait <= 0)  # who waits for its start needs no measurements
        if record.status is EnvStatus.PENDING and record.ticket is not None:
            record.reason = self.admission.queue_reason(record.ticket)
        elif record.status is EnvStatus.CREATING and record.activity is not None:
            record.reason = record.activity.text or None
        return record.to_api(caller)

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
        """List the instances of one environment (``name`` or ``name@version``), or all (``*``), oldest first.

        Ended instances are listed only if ``status`` asks for them.
        """
        candidates = [*self._records.values(), *(self._ended if status in ENDED else ())]
        visible = [r for r in candidates if caller.may_see(r.account) and r.checkpoint is None]
        for record in visible:
            await self._refresh(record, measure=False)
        found = [r for r in visible if r.matches(env, owner, labels or {}, status)]
        found.sort(key=sort_key)
        if after is not None:
            found = [record for record in found if sort_key(record) > after]
        page = found if limit is None else found[:limit]
        rest = len(page) < len(found)
        for number, record in enumerate(page):
            await self._refresh(record)
            if number % MEASURE_BATCH == MEASURE_BATCH - 1:
                await asyncio.sleep(0)  # yield to the event loop
        return InstancePage(
            items=[record.to_api(caller) for record in page], next=sort_key(page[-1]) if rest and page else None
        )

    async def delete(self, name: str, caller: Caller = OWNER, why: str = "deleted") -> None:
        """Delete an instance; return when its sandbox is gone."""
        ended = self._ended.get(name)
        if ended is not None and caller.may_see(ended.account) and not ended.dismissed:
            ended.dismissed = True
            return
        if ended is not None and caller.may_see(ended.account):
            raise NotFound(ended_message(name, ended.reason))
        record = self.find(name, caller)
        await self._refresh(record, measure=False)
        if record.status in ENDED:  # by itself; this call is the first to notice
            record.dismissed = True
            return
        starting, record.dismissed = record.status in STARTING, True
        if record.ref is not None:
            record.last_log = self.engine.logs(record.ref)[-LAST_LOG_CHARACTERS:]
        self._end(record, EnvStatus.TERMINATED, why, EndedBy.OWNER if why == OWNER_ENDED else EndedBy.DELETED)
        if starting:
            record.started.cancel()
            await asyncio.wait({record.started})
            self._release_ticket(record)
        elif record.ref is not None:
            await self._stop(record)
        self._count("delete", record, "success")
        self.metrics.count("instances_ended_total", how="released" if why == OWNER_ENDED else "deleted")
        log.info("%s ended: %s", name, why)

    async def renew(self, name: str, ttl: str, caller: Caller = OWNER) -> EnvInstance:
        """Restart the time to live of an instance from now, optionally with another length."""
        record = await self.require(name, caller)
        record.ttl = parse_ttl(ttl) or record.ttl
        if record.status is EnvStatus.RUNNING:
            self._set_timer(record)
        record.add_event("renewed", f"for {record.ttl}")
        self._persist(record)
        return record.to_api(caller)

    def events(self, name: str, caller: Caller = OWNER) -> list[InstanceEvent]:
        """Return the events of an instance, oldest first."""
        return self.find(name, caller, ended=True).events

    def logs(self, name: str, caller: Caller = OWNER) -> str:
        """Return the end of an instance's log."""
        record = self.find(name, caller, ended=True)
        return self.engine.logs(record.ref) if record.ref and record.status not in ENDED else record.last_log

    def log_since(self, name: str, position: int, caller: Caller = OWNER) -> tuple[str, int]:
        """Return the log after ``position``, and the position of its end."""
        record = self.find(name, caller)
        return self.engine.log_since(record.ref, position) if record.ref else ("", position)

    async def check(self, record: InstanceRecord) -> None:
        """Check that an instance still runs.

        Raises:
            InstanceEnded: it does not.
        """
        await self._refresh(record)
        if record.status in ENDED:
            raise record.ended_error()

    async def sweep(self) -> None:
        """Reconcile instances with sandboxes: end instances whose sandbox is gone, and reap orphaned sandboxes."""
        began = time.perf_counter()
        self._ended.prune()
        for record in list(self._records.values()):
            await self._refresh(record, measure=False)
        await self._orphans.reap({record.ref.id for record in self._records.values() if record.ref is not None})
        self.metrics.observe("sweep_duration_ms", (time.perf_counter() - began) * 1000)

    async def adopt(self, fd_holder: FdHolderClient | None) -> int:
        """Adopt the instances of the previous server; return how many.

        Sandboxes without an entry in the ledger are stopped. Entries without a sandbox are marked as ended.
        """
        assert self._ledger is not None
        present: set[str] = set()
        for ref, text in await self.engine.adopt(fd_holder) if fd_holder is not None else ():
            record = handover.load(text, ref)
            entry = await self._ledger.get(record.id) if record is not None else None
            if record is None or entry is None or entry.instance.status in ENDED:
                await self.engine.stop(ref)
                continue
            present.add(record.id)
            await self._resume(record)
        for record in [r for r in self._records.values() if r.parent and r.parent not in self._records]:
            await self._delete_if_present(record.id, PARENT_ENDED)
        ended = await self._ledger.end_missing(present)
        if ended:
            log.warning("%d instances of the previous server ended with it", ended)
        return len(self._records)

    async def _resume(self, record: InstanceRecord) -> None:
        assert record.ref is not None
        self._records[record.id] = record
        self.quota.count(record.token_id, record.limits)
        record.ticket = self.admission.admit_existing(
            record.labels.get("experiment", ""), record.request.owner or record.account
        )
        if record.lease is not None:
            reason = "its lease ended with the server"
            self._end(record, EnvStatus.TERMINATED, reason, EndedBy.LOST)
            await self._stop(record)
            return
        if record.request.request_id:
            self._by_request[record.account, record.request.request_id] = record
        record.add_event("adopted", "by the next server")
        self._start_timer(record)
        self._persist(record)
        await self._refresh(record)

    async def hand_over(self) -> None:
        """Close and leave running instances to the next server; creates under way fail."""
        for record in list(self._records.values()):
            if record.status in STARTING:
                record.started.cancel()
                reason = "the platform was restarted while it was being created"
                self._end(record, EnvStatus.FAILED, reason, EndedBy.LOST)
        await self._ended.close()

    async def close(self) -> None:
        """Close and end all instances, recording that for the next server."""
        self.stopping = True
        for record in list(self._records.values()):
            if record.status in STARTING:
                record.started.cancel()
            if record.ref is not None:
                record.last_log = self.engine.logs(record.ref)[-LAST_LOG_CHARACTERS:]
            self._end(record, EnvStatus.TERMINATED, "the platform was stopped", EndedBy.STOPPED)
        await self._ended.close()

    # --- leases

    def open_lease(self) -> str:
        """Open a lease; its instances live as long as it is open."""
        name = secrets.token_hex(8)
        self._leases.add(name)
        self._leases_changed()
        return name

    async def end_lease(self, name: str) -> None:
        """End a lease, and delete its instances. While the server stops, they end with it and not with their owner."""
        self._leases.discard(name)
        for record in () if self.stopping else [r for r in self._records.values() if r.lease == name]:
            await self._delete_if_present(record.id, OWNER_ENDED)
        self._leases_changed()

    def _leases_changed(self) -> None:
        if self._machine is not None:
            self._machine.set_leases(len(self._leases))
        self.changed.set()

    # --- internals

    async def _refresh(self, record: InstanceRecord, *, measure: bool = True) -> None:
        """Check whether an instance still runs, and measure its usage.

        Measuring takes a fifth of a second for a thousand instances, so it is optional.
        """
        if record.ref is None or record.status is not EnvStatus.RUNNING:
            return
        ended = await self.engine.poll(record.ref)
        if ended is not None and record.status is EnvStatus.RUNNING:
            record.last_log = self.engine.logs(record.ref)[-LAST_LOG_CHARACTERS:]
            record.fault, record.exit_code = ended.fault, ended.code
            self._end(record, EnvStatus.TERMINATED, ended.reason, EndedBy(ended.cause))
            self.metrics.count("instances_ended_total", how="died")
            await self._stop(record)
        elif measure:
            record.usage = self.engine.usage(record.ref)

    def _set_timer(self, record: InstanceRecord) -> None:
        seconds = record.ttl.seconds
        parent = self._records.get(record.parent) if record.parent else None
        if parent is not None:
            seconds = max(0.0, min(seconds, parent.deadline - time.monotonic()))
        record.deadline = time.monotonic() + seconds
        try:
            record.expires_at = datetime.now(UTC) + timedelta(seconds=seconds)
        except OverflowError:
            record.expires_at = None
        self._start_timer(record)

    def _start_timer(self, record: InstanceRecord) -> None:
        if record.timer is not None:
            record.timer.cancel()
        left = max(0.0, record.deadline - time.monotonic())
        record.timer = asyncio.get_running_loop().call_later(left, self._expire, record)

    def _expire(self, record: InstanceRecord) -> None:
        self._background(self._reap(record))

    async def _reap(self, record: InstanceRecord) -> None:
        await self._refresh(record, measure=False)  # it may have ended already
        if record.id not in self._records:
            return
        assert record.ref is not None
        record.last_log = self.engine.logs(record.ref)[-LAST_LOG_CHARACTERS:]
        record.fault = "timeout"
        self._end(record, EnvStatus.TERMINATED, f"it has reached its time to live of {record.ttl}", EndedBy.TTL)
        log.info("%s has reached its time to live", record.id)
        self.metrics.count("instances_ended_total", how="expired")
        try:
            await self._stop(record)
        except AEnvError as error:
            log.warning("cannot stop %s: %s", record.id, error.message)
            self.metrics.count("auto_cleanup_failure_total")
        else:
            self.metrics.count("auto_cleanup_success_total")

    async def _stop(self, record: InstanceRecord) -> None:
        """Stop its sandbox, then release its capacity."""
        assert record.ref is not None
        try:
            await self.engine.stop(record.ref)
        finally:
            self._release_ticket(record)

    def _release_ticket(self, record: InstanceRecord) -> None:
        ticket, record.ticket = record.ticket, None
        if ticket is not None:
            ticket.release()

    def _end(self, record: InstanceRecord, status: EnvStatus, reason: str, by: EndedBy) -> None:
        """End an instance, and keep its record for a while."""
        record.ended_by, record.fault = by, record.fault or "infra"
        record.set_status(status, reason)
        self._drop(record, written=not record.deleted)
        self._ended.add(record)

    def _drop(self, record: InstanceRecord, *, written: bool = False) -> None:
        """Remove an instance from all counts. ``written``: keep its entry in the ledger."""
        if self._records.pop(record.id, None) is None:
            return
        if record.timer is not None:
            record.timer.cancel()
        self._forget_request(record)
        self.quota.give_back(record.token_id, record.limits)
        if self._ledger is not None:
            if written:
                self._note_in_ledger(record)
            else:
                self._ledger.delete_soon(record.id)
        self.on_gone(record.id)
        if record.opens:
            self._end_opened(record)
        self.changed.set()

    def _end_opened(self, record: InstanceRecord) -> None:
        """End the instances that an ended instance has opened. While the server stops, all end with it."""
        if self.tunnels is not None:
            self.tunnels.end(record)
        for child in () if self.stopping else [r for r in self._records.values() if r.parent == record.id]:
            self._background(self._delete_if_present(child.id, PARENT_ENDED))

    def _persist(self, record: InstanceRecord) -> None:
        """Write its state to the ledger and to its handover record."""
        self._note_in_ledger(record)
        if self._ledger is not None and record.ref is not None:
            self.engine.keep(record.ref, handover.dump(record))

    def _note_in_ledger(self, record: InstanceRecord) -> None:
        if self._ledger is not None:
            self._ledger.write_soon(record.to_api(), record.account, record.charge)

    def _forget_request(self, record: InstanceRecord) -> None:
        if record.request.request_id:
            self._by_request.pop((record.account, record.request.request_id), None)

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _delete_if_present(self, name: str, why: str = "its client disconnected during the create") -> None:
        try:
            await self.delete(name, why=why)
        except (NotFound, InstanceEnded):
            return

    def _count(self, operation: str, record: InstanceRecord, status: str) -> None:
        name = record.env_name.partition("@")[0]
        self.metrics.count("instance_operations_total", operation=operation, env_name=name, status=status)

    def _uptimes(self) -> list[tuple[dict[str, str], float]]:
        """Return the seconds since each running instance started."""
        now = time.time()
        return [
            (
                {
                    "instance_id": r.id,
                    "envName": r.env_name,
                    "experiment": r.labels.get("experiment", ""),
                    "owner": r.request.owner or "",
                    "app": r.labels.get("app", ""),
                },
                max(0.0, now - r.started_at.timestamp()),
            )
            for r in self._records.values()
            if r.status is EnvStatus.RUNNING and r.started_at
        ]

    def _count_active(self) -> list[tuple[dict[str, str], float]]:
        tally = Tally(
            (r.env_name, str(r.status), r.labels.get("experiment", ""), r.request.owner or "", r.labels.get("app", ""))
            for r in self._records.values()
        )
        names = ("envName", "status", "experiment", "owner", "app")
        return [(dict(zip(names, key, strict=True)), float(count)) for key, count in tally.items()]
