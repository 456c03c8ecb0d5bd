"""Reconcile one service: the wanted number of replicas, of the wanted revision, each of them healthy.

Each round compares what exists with what is wanted, and takes the next step towards it. So no single step must succeed,
and a restarted server continues where the last one was.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

from aenv.errors import AEnvError, InstanceEnded, NotFound, Overloaded
from aenv.isolation.files.volumes import Volume
from aenv.platform.access.platform_tokens import OWNER
from aenv.platform.instances.instance_record import InstanceRecord, Replica
from aenv.platform.instances.lifecycle import Instances
from aenv.platform.instances.requests.reserved_labels import LABEL, REVISION_LABEL
from aenv.platform.services.replica_handle import ReplicaHandle, find_health_problem
from aenv.platform.services.service_store import ServiceRecord, ServiceSpec, ServiceState, ServiceStore
from aenv.platform.services.storages import Storages
from aenv.schema.instances import EnvInstanceCreateRequest, EnvStatus, InstanceEvent, ServiceStatus
from aenv.tracing.logging import getLogger

log = getLogger("services")

REPLICA_TTL = "876000h"
"""Time to live of a replica: a hundred years."""
INTERVAL, BUSY_INTERVAL = 1.0, 0.1
"""Seconds between two rounds, and between two while a replica is starting."""
HEALTH_INTERVAL = 5.0
"""Seconds between two health checks of a replica."""
START_TIMEOUT = 120.0
"""Give up a replica that is not healthy this many seconds after its start."""
UNHEALTHY_TIMEOUT = 30.0
"""Replace a replica that has been unhealthy for this many seconds."""
BACKOFF, BACKOFF_MAX = 0.5, 60.0
"""First and longest pause before a crashed replica is replaced; it doubles with every crash."""
STABLE_SECONDS = 30.0
"""Reset the backoff once replicas have run for this many seconds."""
MAX_UPDATE_FAILURES = 3
"""Roll an update back after this many failed replicas."""
FAILED_AFTER_CRASHES = 3
"""Report a service without replicas as failed after this many crashes."""
QUEUE_TIMEOUT = 600.0
"""Seconds that a replica waits for admission."""
STORAGE_INTERVAL = 10.0
"""Seconds between two measurements of a storage."""
MAX_EVENTS = 64


class ServiceReconciler:
    """Runs one service on this server."""

    def __init__(
        self, record: ServiceRecord, instances: Instances, store: ServiceStore, storages: Storages, grace: float
    ) -> None:
        self.record = record
        self.state = ServiceState()
        self.events: deque[InstanceEvent] = deque(maxlen=MAX_EVENTS)
        self.replicas: list[ReplicaHandle] = []
        self.round_done = asyncio.Event()
        """Set, and replaced by a new event, after every round."""
        self.adopted = False
        """True once it has found the replicas that existed before it."""
        self.last_lost = ""
        """Id of the replica that ended last, for its log."""
        self.lost_at = 0.0
        """Monotonic time of the last loss of a replica."""
        self.retry_at = 0.0
        """Monotonic time before which no replica is created (backoff)."""
        self._instances = instances
        self._store = store
        self._storages = storages
        self._grace = grace
        self._stored_state: ServiceState | None = None
        self._wake = asyncio.Event()
        self._crashes = 0
        self._update_failures = 0
        self._last_error: str | None = None
        self._was_running = False
        self._storage_full = False
        self._measured_at = 0.0
        self._storage_folder: str | None = None
        self._loop: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Start the loop."""
        self._loop = asyncio.create_task(self._run())

    async def stop(self, *, ended: bool) -> None:
        """Stop the loop. ``ended``: stop the replicas as well."""
        tasks: list[asyncio.Task[Any] | None] = [self._loop, *self._tasks]
        if not ended:
            tasks += [replica.creating for replica in self.replicas]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if ended:
            await asyncio.gather(*(self._end(replica) for replica in self.replicas))
        self.replicas.clear()
        self.round_done.set()

    def wake(self) -> None:
        """Start the next round now."""
        self._wake.set()

    def set_record(self, record: ServiceRecord) -> None:
        """Reconcile towards a changed record."""
        if record.target != self.record.target:
            self._update_failures, self.retry_at = 0, 0.0
        self.record = record
        self._wake.set()

    def add_event(self, kind: str, message: str = "") -> None:
        """Append an event."""
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.events.append(InstanceEvent(at=at, type=kind, message=message))

    def owns(self, name: str, request_id: str) -> bool:
        """Return True if an instance is one of its replicas, or is being created as one."""
        pending = [
            replica.request.request_id for replica in self.replicas if replica.request is not None and not replica.id
        ]
        return name in [replica.id for replica in self.replicas] or request_id in pending

    def is_settled(self) -> bool:
        """Return True if the service runs as wanted, or has failed."""
        complete = self.state.available == self.record.replicas and self.record.previous is None
        return self.state.status is ServiceStatus.FAILED or (complete and self.state.status is ServiceStatus.RUNNING)

    # --- the loop

    async def _run(self) -> None:
        await self._adopt_replicas()
        while True:
            self._wake.clear()
            try:
                busy = await self._reconcile()
            except AEnvError as error:
                log.warning("service %s: %s", self.record.id, error.message)
                busy = False
            except Exception:
                log.exception("service %s: reconciling failed", self.record.id)
                busy = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY_INTERVAL if busy else INTERVAL):
                    await self._wake.wait()

    async def _adopt_replicas(self) -> None:
        """Adopt the replicas that an earlier server left running."""
        for found in self._instances.replicas():
            assert found.replica is not None
            if found.replica.service != self.record.id or found.account != self.record.account:
                continue
            with contextlib.suppress(InstanceEnded):
                await self._instances.check(found)
                if found.status is EnvStatus.RUNNING:
                    self.replicas.append(ReplicaHandle(found.replica.revision, id=found.id, since=time.monotonic()))
        self.adopted = True

    async def _reconcile(self) -> bool:
        """Run one round; return True if the next one should follow soon."""
        await self._measure_storage()
        for replica in list(self.replicas):
            await self._check_replica(replica)
        await self._converge()
        await self._publish_state()
        return any(replica.id and not replica.healthy and replica.draining is None for replica in self.replicas)

    async def _check_replica(self, replica: ReplicaHandle) -> None:
        now = time.monotonic()
        if replica.draining is not None:
            if replica.draining.done():
                self.replicas.remove(replica)
            return
        if replica.creating is not None:
            if not replica.creating.done():
                return
            try:
                replica.id, replica.since = replica.creating.result().id, now
            except AEnvError as error:
                await self._handle_loss(replica, error.message, error)
                return
            except asyncio.CancelledError:
                await self._handle_loss(replica, "it was cancelled", None)
                return
            finally:
                replica.creating = None
        record = self._instances.peek(replica.id)
        try:
            if record is None:
                raise NotFound("it was deleted")
            if record.ref is None or await self._instances.engine.poll(record.ref) is not None:
                await self._instances.check(record)
        except (InstanceEnded, NotFound) as error:
            why = record.reason if record is not None and record.reason else error.message
            await self._handle_loss(replica, f"replica {replica.id} ended: {why}", None)
            return
        if (now - replica.checked >= HEALTH_INTERVAL or not replica.healthy) and replica.checking is None:
            replica.checked = now
            replica.checking = self._task(self._check(replica, record))
        if not replica.healthy and now - (replica.last_healthy or replica.since) > (
            UNHEALTHY_TIMEOUT if replica.last_healthy else START_TIMEOUT
        ):
            self._drain(replica, at_once=True)
            why = f"replica {replica.id} is not healthy: {replica.health_problem or 'no answer'}"
            await self._handle_loss(replica, why, None, permanent=not replica.last_healthy)

    async def _check(self, replica: ReplicaHandle, record: InstanceRecord) -> None:
        """Run the health check of a replica."""
        try:
            replica.health_problem = await find_health_problem(record)
            good = not replica.health_problem
            if good:
                replica.last_healthy = time.monotonic()
            if good != replica.healthy:
                replica.healthy = good
                self._wake.set()
        finally:
            replica.checking = None

    # --- the next step

    async def _converge(self) -> None:
        record = self.record
        exclusive = record.storage is not None
        staying = [replica for replica in self.replicas if replica.draining is None]
        new = [replica for replica in staying if self._is_current(replica)]
        old = [replica for replica in staying if not self._is_current(replica)]
        ready = sum(1 for replica in new if replica.ready)
        wanted = record.replicas
        if exclusive:
            for replica in old:  # a storage has one writer: stop the old replica before starting the new one
                self._drain(replica)
            if len(self.replicas) > len(new):
                return
        else:
            keep = max(0, wanted - ready) if wanted else 0
            for replica in sorted(old, key=lambda replica: (replica.ready, replica.since))[: max(0, len(old) - keep)]:
                self._drain(replica)
                old.remove(replica)
        surplus = sorted(new, key=lambda replica: (replica.ready, -replica.since))[: max(0, len(new) - wanted)]
        for replica in surplus:
            self._drain(replica)
            new.remove(replica)
        missing = wanted - len(new)
        if old:  # a rolling update runs up to a quarter more replicas than wanted
            missing = min(missing, wanted + max(1, wanted // 4) - len(new) - len(old))
        if missing > 0 and time.monotonic() >= self.retry_at:
            for _ in range(missing):
                await self._create_replica()
        if record.previous is not None and not old and len(new) == wanted and ready == wanted:
            await self._finish_update()

    def _is_current(self, replica: ReplicaHandle) -> bool:
        return replica.revision == self.record.target.revision and replica.read_only == self._storage_full

    async def _create_replica(self) -> None:
        record, spec = self.record, self.record.target
        volume = None
        if record.storage is not None:
            if self._storage_folder is None:
                await self._measure_storage(now=True)
            assert self._storage_folder is not None
            volume = Volume(self._storage_folder, record.storage.mount_path, self._storage_full)
        request = EnvInstanceCreateRequest(
            envName=spec.env,
            ttl=REPLICA_TTL,
            environment_variables=spec.variables,
            owner=record.owner,
            labels={**(record.labels or {}), LABEL: record.id, REVISION_LABEL: str(spec.revision)},
            network=record.network,
            request_id=f"{record.id}/{secrets.token_hex(6)}",
            keep_alive=True,
            queue_timeout=QUEUE_TIMEOUT,
        )
        settings = Replica(record.cpus, record.memory, record.disk, volume, record.id, spec.revision)
        replica = ReplicaHandle(spec.revision, self._storage_full, request, since=time.monotonic())
        replica.creating = asyncio.create_task(self._instances.create(request, record.caller, settings))
        replica.creating.add_done_callback(lambda task: self._wake.set())
        self.replicas.append(replica)

    async def _handle_loss(
        self, replica: ReplicaHandle, why: str, error: AEnvError | None, *, permanent: bool = False
    ) -> None:
        """Handle a replica that failed to start, or ended. ``permanent``: another one would fail as well."""
        permanent = permanent or (error is not None and not error.retryable)
        if replica.draining is None:
            self.replicas.remove(replica)
        if replica.id:
            self.last_lost = replica.id
        now = self.lost_at = time.monotonic()
        if error is None and replica.last_healthy and now - replica.since > STABLE_SECONDS:
            self._crashes = 0
        if replica.last_healthy or replica.id:
            self.state.restarts += 1
            self._instances.metrics.count("service_restarts_total", env_name=self.record.target.env.partition("@")[0])
        self._last_error = why
        self.add_event("ended" if replica.id else "failed", why)
        log.warning("service %s: %s", self.record.id, why.partition("\n")[0])
        overloaded = isinstance(error, Overloaded)
        if not overloaded and self.record.previous is not None and replica.revision == self.record.target.revision:
            self._update_failures += 1
            if permanent or self._update_failures >= MAX_UPDATE_FAILURES:
                await self._roll_back(why)
                return
        if not overloaded:
            self._crashes += 1
            if permanent:
                self._crashes = max(self._crashes, FAILED_AFTER_CRASHES)
        pause = min(BACKOFF_MAX, BACKOFF * 2 ** min(self._crashes, 10))
        if self._crashes > 1 or error is not None:
            self.retry_at = now + pause

    async def _roll_back(self, why: str) -> None:
        """Roll a failed update back to the previous revision."""

        def change(record: ServiceRecord) -> ServiceRecord:
            if record.previous is None or record.target != self.record.target:
                return record
            reason = f"the update to {_describe(record.target, record.previous)} failed and was rolled back: {why}"
            return record.model_copy(update={"target": record.previous, "previous": None, "failed": reason})

        self.set_record(await self._store.change(self.record.id, change))
        self.add_event("update-failed", why)
        self._last_error, self._crashes, self.retry_at = None, 0, 0.0

    async def _finish_update(self) -> None:
        """Mark the update as rolled out."""

        def change(record: ServiceRecord) -> ServiceRecord:
            if record.target != self.record.target:
                return record
            return record.model_copy(update={"previous": None, "failed": None})

        self.set_record(await self._store.change(self.record.id, change))
        self.add_event("updated", f"revision {self.record.target.revision}, {self.record.target.env}")
        self._last_error = None

    # --- ending replicas

    def _drain(self, replica: ReplicaHandle, *, at_once: bool = False) -> None:
        """Stop giving a replica requests, let it finish those under way, and end it."""
        if replica.draining is None:
            replica.draining = self._task(self._drain_and_end(replica, 0.0 if at_once else self._grace))
            replica.draining.add_done_callback(lambda task: self._wake.set())

    async def _drain_and_end(self, replica: ReplicaHandle, grace: float) -> None:
        until = time.monotonic() + grace
        while replica.requests and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await self._end(replica)

    async def _end(self, replica: ReplicaHandle) -> None:
        name = replica.id
        if replica.creating is not None and replica.request is not None:
            record = self._instances.find_by_request(replica.request, self.record.caller)
            name = record.id if record is not None else ""
            replica.creating.cancel()
        if name:
            with contextlib.suppress(NotFound, InstanceEnded):
                await self._instances.delete(name, OWNER, f"service {self.record.id} no longer needs this replica")
        if replica.creating is not None:
            await asyncio.gather(replica.creating, return_exceptions=True)

    # --- storage

    async def _measure_storage(self, *, now: bool = False) -> None:
        """Measure the storage. One that exceeds its size becomes read-only."""
        claim = self.record.storage
        if claim is None or (not now and time.monotonic() - self._measured_at < STORAGE_INTERVAL):
            return
        began = time.monotonic()
        storage = await self._storages.get(self.record.account, claim.name)
        if storage is None:
            raise NotFound(f"storage {claim.name} of service {self.record.id} does not exist")
        self._storage_folder = storage.folder
        self.state.storage_used = await self._storages.used(storage)
        spent = time.monotonic() - began
        # A large storage takes long to measure: spend at most 5 % of the time on it.
        self._measured_at = time.monotonic() + max(0.0, 20 * spent - STORAGE_INTERVAL)
        full = self.state.storage_used > storage.bytes
        if full != self._storage_full:
            self._storage_full = full
            self.add_event(
                "storage-full" if full else "storage-writable", f"{self.state.storage_used} of {storage.size}"
            )

    def measure_storage_soon(self) -> None:
        """Measure the storage in the next round."""
        self._measured_at = 0.0
        self._wake.set()

    # --- published state

    async def _publish_state(self) -> None:
        state = self.state.model_copy()
        state.available = sum(1 for replica in self.replicas if replica.ready)
        state.instances = [replica.id for replica in self.replicas if replica.id and replica.draining is None]
        state.status, state.reason = self._status(state.available)
        if not self._was_running and state.available >= self.record.replicas:
            self._was_running = True
            self.add_event("running")
        if state.available >= self.record.replicas and self.record.previous is None:
            if all(time.monotonic() - replica.since > STABLE_SECONDS for replica in self.replicas):
                self._crashes = 0
            self._last_error = None
        changed, self.state = state != self._stored_state, state
        round_done, self.round_done = self.round_done, asyncio.Event()
        round_done.set()
        if changed:
            await self._store.set_state(self.record.id, state)
            self._stored_state = state

    def _status(self, available: int) -> tuple[ServiceStatus, str | None]:
        record = self.record
        if self._storage_full and available:
            used = self.state.storage_used
            return (
                ServiceStatus.RUNNING,
                f"its storage holds {used} bytes, more than its size: it is read-only until it grows",
            )
        if record.previous is not None:
            return ServiceStatus.UPDATING, self._last_error
        if available >= record.replicas:
            return ServiceStatus.RUNNING, record.failed
        if available == 0 and self._crashes >= FAILED_AFTER_CRASHES:
            return ServiceStatus.FAILED, self._last_error
        if self._was_running and available:
            return ServiceStatus.RUNNING, self._last_error or record.failed
        waiting = [replica for replica in self.replicas if replica.creating is not None and replica.request is not None]
        instances = [
            self._instances.find_by_request(replica.request, record.caller)
            for replica in waiting
            if replica.request is not None
        ]
        pending = [instance for instance in instances if instance is not None and instance.status is EnvStatus.PENDING]
        if pending and len(pending) == len(self.replicas):
            return ServiceStatus.PENDING, pending[0].reason
        return ServiceStatus.CREATING, self._last_error

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _describe(target: ServiceSpec, previous: ServiceSpec) -> str:
    return target.env if target.env != previous.env else f"revision {target.revision}"
